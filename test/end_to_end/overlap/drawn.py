# SPDX-License-Identifier: Apache-2.0
"""Random manual computations of a collective and the products next to it, as StableHLO text."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh

MESHES = ("x=2", "x=4", "x=8", "x=2,y=4", "x=4,y=2", "x=3,y=2", "x=6", "x=2,y=2,z=2", "x=5")
ELEMENTS = ("f32", "f32", "bf16", "i32", "f64", "i8")
PATTERNS = ("gather", "gather", "scatter", "scatter", "to_product", "from_product")


@dataclass(frozen=True)
class Drawn:
    """A module of one manual computation over stacks of tiles: each argument and the results have a leading dimension
    of devices.

    Attributes:
      shapes: of the arguments, with that dimension. words: what it is.
      most: the largest number among the arguments.
    """

    module: str
    mesh: Mesh
    shapes: tuple[tuple[int, ...], ...]
    element: str
    words: str
    most: int = 2


def drawn(seed: int) -> Drawn:
    """Returns the module of a seed."""
    return drawn_module(seed, DrawnModule, PATTERNS)


def drawn_module(seed: int, draws: type[DrawnModule], patterns: tuple[str, ...]) -> Drawn:
    """Returns the module of a seed, of one of the patterns that a class draws."""
    rng = random.Random(seed)
    mesh = Mesh.parse(rng.choice(MESHES))
    if rng.random() < 0.2:
        mesh = Mesh(mesh.axes, tuple(rng.sample(range(mesh.size), mesh.size)))
    axes = rng.sample(mesh.axis_names, rng.randint(1, len(mesh.axis_names)))
    factors = tuple(Factor(axis, 1, mesh.axis_size(axis)) for axis in axes)
    return draws(rng, mesh, groups(mesh, factors).tolist(), rng.choice(ELEMENTS)).drawn(rng.choice(patterns))


class DrawnModule:
    """Draws one module."""

    def __init__(self, rng: random.Random, mesh: Mesh, listed: list[list[int]], element: str):
        self.rng, self.mesh, self.listed, self.element = rng, mesh, listed, element
        self.members = len(listed[0])
        self.is_rounded = element == "f32" and rng.random() < 0.4
        self.lines: list[str] = []
        self.arguments: list[tuple[int, ...]] = []

    def drawn(self, pattern: str) -> Drawn:
        results = getattr(self, f"_{pattern}")()
        size = self.mesh.size
        axes = ", ".join(f'"{name}"' for name in self.mesh.axis_names)
        stacks = [f"tensor<{'x'.join(map(str, (size, *shape)))}x{self.element}>" for shape in self.arguments]
        tiles = [f"tensor<{'x'.join(map(str, (1, *shape)))}x{self.element}>" for shape in self.arguments]
        outs = [self._kind((size, *shape)) for _, shape in results]
        first = [f"%a{i} = stablehlo.reshape %t{i} : ({tile}) -> {self._kind(shape)}"
                 for i, (tile, shape) in enumerate(zip(tiles, self.arguments))]  # fmt: skip
        last = [
            f"%o{i} = stablehlo.reshape {value} : ({self._kind(shape)}) -> {self._kind((1, *shape))}"
            for i, (value, shape) in enumerate(results)
        ]
        split, split_out = (
            ", ".join(f"<@mesh, [{{{axes}}}{', {}' * len(shape)}]>" for shape in each)
            for each in (self.arguments, [shape for _, shape in results])
        )
        counts = f"mhlo.num_partitions = {size} : i32, mhlo.num_replicas = 1 : i32"
        given = ", ".join(f"%s{i}: {kind}" for i, kind in enumerate(stacks))
        inside = ", ".join(f"%t{i}: {kind}" for i, kind in enumerate(tiles))
        values = ", ".join(f"%s{i}" for i in range(len(stacks)))
        made = ", ".join(f"%o{i}" for i in range(len(results)))
        made_kinds = ", ".join(self._kind((1, *shape)) for _, shape in results)
        island = f"in_shardings=[{split}] out_shardings=[{split_out}] manual_axes={{{axes}}}"
        body = "\n      ".join((*first, *self.lines, *last))
        module = f"""module attributes {{{counts}}} {{
  sdy.mesh @mesh = {self.mesh}
  func.func public @main({given}) -> ({", ".join(outs)}) {{
    %r:{len(results)} = sdy.manual_computation({values}) {island} ({inside}) {{
      {body}
      sdy.return {made} : {made_kinds}
    }} : ({", ".join(stacks)}) -> ({", ".join(outs)})
    return {", ".join(f"%r#{i}" for i in range(len(results)))} : {", ".join(outs)}
  }}
}}"""
        shapes = tuple((size, *shape) for shape in self.arguments)
        words = f"{pattern} on {self.mesh} in {self.listed}"
        return Drawn(module, self.mesh, shapes, self.element, words, 20 if self.is_rounded else 2)

    # ---- patterns

    def _gather(self):
        tile = self._shape(self.rng.randint(1, 3))
        dim = self.rng.randrange(len(tile))
        whole = (*tile[:dim], tile[dim] * self.members, *tile[dim + 1 :])
        self._collective("all_gather", self._argument(tile), tile, whole, f"all_gather_dim = {dim} : i64, ")
        return self._products_of(whole)

    def _to_product(self):
        _, whole = self._exchange("%a0", "%c", argument=True)
        return self._products_of(whole)

    def _products_of(self, whole: tuple[int, ...]):
        """Draws products of what the collective makes, between which and the tile there may be conversions, and other
        uses of it."""
        value, shape = self._transposed(self._rounded("%c", whole), whole)
        found = [self._product(value, shape) for _ in range(self.rng.choice((1, 1, 2, 3)))]
        return found + [(value, shape)] * (self.rng.random() < 0.25)

    def _scatter(self):
        value, shape = self._product(self._argument(left := self._shape(self.rng.randint(1, 3))), left)
        return self._sum_of(*self._transposed(*self._with_more(value, shape)))

    def _sum_of(self, value: str, shape: tuple[int, ...]):
        """Draws a collective that adds up a value."""
        if not shape:
            return [(value, shape)]
        dim = self.rng.randrange(len(shape))
        if shape[dim] % self.members:
            return [(value, shape)]
        if self.rng.random() < 0.3:
            self._collective("all_reduce", value, shape, shape, "")
            return [("%c", shape)]
        part = (*shape[:dim], shape[dim] // self.members, *shape[dim + 1 :])
        self._collective("reduce_scatter", value, shape, part, f"scatter_dimension = {dim} : i64, ")
        return [("%c", part)]

    def _from_product(self):
        value, shape = self._product(self._argument(left := self._shape(self.rng.randint(1, 3))), left)
        value, shape = self._transposed(*self._with_more(value, shape))
        fits = [dim for dim, size in enumerate(shape) if size % self.members == 0]
        if not fits:
            return [(value, shape)]
        _, whole = self._exchange(value, "%c", shape=shape, split=self.rng.choice(fits))
        return [("%c", whole)]

    # ---- ops

    def _exchange(self, value: str, result: str, *, argument: bool = False, shape=None, split: int | None = None):
        if argument:
            shape = list(self._shape(self.rng.randint(1, 3)))
            split = self.rng.randrange(len(shape))
            shape[split] *= 1 if shape[split] % self.members == 0 else self.members
            shape = tuple(shape)
            value = self._argument(shape)
        joined = self.rng.randrange(len(shape))
        whole = list(shape)
        whole[split] //= self.members
        whole[joined] *= self.members
        attributes = f"split_dimension = {split} : i64, concat_dimension = {joined} : i64, "
        attributes += f"split_count = {self.members} : i64, "
        self._collective("all_to_all", value, shape, tuple(whole), attributes)
        return shape, tuple(whole)

    def _collective(self, kind: str, value: str, before, after, attributes: str) -> None:
        groups_text = f"dense<{self.listed}> : tensor<{len(self.listed)}x{self.members}xi64>"
        if kind in ("reduce_scatter", "all_reduce") or (kind == "all_to_all" and not value.startswith("%a")):
            value = self._rounded(value, before)
        channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
        is_global = "" if kind == "all_to_all" else ", use_global_device_ids"
        region = ""
        if kind in ("reduce_scatter", "all_reduce"):
            scalar = f"tensor<{self.element}>"
            add = f"%s = stablehlo.add %p, %q : {scalar} stablehlo.return %s : {scalar}"
            region = f"({{ ^bb0(%p: {scalar}, %q: {scalar}): {add} }})"
        self.lines.append(
            f'%c = "stablehlo.{kind}"({value}) <{{{attributes}{channel}, replica_groups = {groups_text}{is_global}}}> '
            f"{region} : ({self._kind(before)}) -> {self._kind(after)}"
        )

    def _rounded(self, value: str, shape: tuple[int, ...]) -> str:
        """Returns a value with as many digits as bfloat16 has, if this module has such."""
        if not self.is_rounded:
            return value
        narrow = self._kind(shape).replace("f32", "bf16")
        self.lines.append(f"%n = stablehlo.convert {value} : ({self._kind(shape)}) -> {narrow}")
        self.lines.append(f"%w = stablehlo.convert %n : ({narrow}) -> {self._kind(shape)}")
        return "%w"

    def _with_more(self, value: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Returns a product, or a sum of it with another one or with something else, and its shape."""
        kind = self._kind(shape)
        match self.rng.choice(("", "", "product", "argument", "negated")):
            case "product":
                _, _, after = self.lines[-1].partition(" = ")
                operands = after.removeprefix("stablehlo.dot_general ").split(", ")[:2]
                others = {name: self._argument(self.arguments[int(name[2:])]) for name in operands if name[:2] == "%a"}
                for name, other in others.items():
                    after = after.replace(f"{name},", f"{other},")
                self.lines += [f"%m = {after}", f"%e = stablehlo.add {value}, %m : {kind}"]
            case "argument":
                self.lines.append(f"%e = stablehlo.subtract {value}, {self._argument(shape)} : {kind}")
            case "negated":
                self.lines.append(f"%e = stablehlo.negate {value} : {kind}")
            case _:
                return value, shape
        return "%e", shape

    def _transposed(self, value: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Returns a value with its dimensions in another order, and its shape; most often as it is."""
        if len(shape) < 2 or self.rng.random() < 0.7:
            return value, shape
        order = self.rng.sample(range(len(shape)), len(shape))
        turned = tuple(shape[dim] for dim in order)
        types = f"({self._kind(shape)}) -> {self._kind(turned)}"
        self.lines.append(f"%t = stablehlo.transpose {value}, dims = {order} : {types}")
        return "%t", turned

    def _product(self, value: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Draws a product of a value with a new argument, on either side; returns its result and that one's shape."""
        dims = self.rng.sample(range(len(shape)), len(shape))
        batched = dims[: self.rng.choice((0, 0, 1))]
        contracted = dims[len(batched) :][: self.rng.choice((1, 1, 2))]
        free = [dim for dim in range(len(shape)) if dim not in batched + contracted]
        own = [self.rng.choice((1, 2, 3, self.members)) for _ in range(self.rng.randint(0, 2))]
        paired = [("b", i, shape[dim]) for i, dim in enumerate(batched)]
        paired += [("c", i, shape[dim]) for i, dim in enumerate(contracted)]
        places = paired + [("f", i, size) for i, size in enumerate(own)]
        self.rng.shuffle(places)
        other = tuple(size for _, _, size in places)
        at = {(kind, i): place for place, (kind, i, _) in enumerate(places)}
        its = [at["b", i] for i in range(len(batched))], [at["c", i] for i in range(len(contracted))]
        kept, new = [shape[dim] for dim in free], [size for kind, _, size in places if kind == "f"]
        name, argument, number = f"%d{len(self.lines)}", self._argument(other), len(batched)
        first = self.rng.random() < 0.5
        result = (*(shape[dim] for dim in batched), *((*kept, *new) if first else (*new, *kept)))
        sides = [(value, shape, (batched, contracted)), (argument, other, its)]
        if not first:
            sides.reverse()
        batches = f"batching_dims = {sides[0][2][0]} x {sides[1][2][0]}, " if number else ""
        types = f"({self._kind(sides[0][1])}, {self._kind(sides[1][1])}) -> {self._kind(result)}"
        self.lines.append(
            f"{name} = stablehlo.dot_general {sides[0][0]}, {sides[1][0]}, {batches}"
            f"contracting_dims = {sides[0][2][1]} x {sides[1][2][1]} : {types}"
        )
        return name, result

    def _argument(self, shape: tuple[int, ...]) -> str:
        self.arguments.append(shape)
        return f"%a{len(self.arguments) - 1}"

    def _shape(self, rank: int) -> tuple[int, ...]:
        shape = tuple(self.rng.choice((1, 2, 3, 4, self.members, 2 * self.members)) for _ in range(rank))
        return shape if math.prod(shape) < 4096 else shape[:1]

    def _kind(self, shape) -> str:
        return f"tensor<{''.join(f'{size}x' for size in shape)}{self.element}>"
