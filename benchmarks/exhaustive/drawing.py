# SPDX-License-Identifier: Apache-2.0
"""Small random programs, each with a mesh, a network, sometimes pinned layouts and a share of memory.

A program is StableHLO text of two to six ops, and one argument or more. Ops take any values that came before, so there
are chains, shared operands, residuals, and values that nobody takes but the function's end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh

MESHES = ("x=2", "x=3", "x=4", "x=2,y=2", "x=3,y=2", "x=2,y=4")
NETWORKS = ("uniform", "h100", "v5e")
_SIZES = (2, 6, 9, 12, 64, 96, 512, 1024, 4096, 16384)
_UNARY, _BINARY = ("tanh", "negate", "exponential"), ("add", "multiply", "subtract")
_MOST_ELEMENTS = 1 << 28
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a program: its name, with the percent sign, and its shape."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Case:
    """A program and what it is laid out for.

    Attributes:
      seed: it is drawn from that. text: a module. ops: names of its ops.
      mesh_text, network: the latter of as many devices as the mesh has.
      memory_share: of what lies between the least memory that any layout may need (0) and what the fastest one takes
        (1), the limit; below 0, none is possible. None: no limit.
      pins: arguments and results that have a layout.
    """

    seed: int
    text: str
    ops: tuple[str, ...]
    mesh_text: str
    network: str
    memory_share: float | None = None
    pins: int = 0

    @property
    def mesh(self) -> Mesh:
        return Mesh.parse(self.mesh_text)


def draw(seed: int) -> Case:
    """Returns the case of a seed, always the same one.

    Example:
      >>> draw(1) == draw(1), draw(1) == draw(2)
      (True, False)
    """
    rng = random.Random(seed)
    mesh_text = rng.choice(MESHES)
    program = _Program(rng, Mesh.parse(mesh_text))
    for _ in range(rng.randint(2, 6)):
        program.draw_op()
    share = rng.uniform(-0.1, 1.0) if rng.random() < 0.4 else None
    return Case(seed, program.text(), tuple(program.ops), mesh_text, rng.choice(NETWORKS), share, program.pins)


class _Program:
    """A program while it grows; `values` are those that ops may take, `untaken` those that none has taken."""

    def __init__(self, rng: random.Random, mesh: Mesh):
        self._rng, self._mesh = rng, mesh
        self._sizes = rng.sample(_SIZES, 3)
        self._element = rng.choice(("f32", "bf16"))
        self._pinned = rng.random() < 0.4
        self._arguments: list[Value] = []
        self._values: list[Value] = []
        self._untaken: dict[str, Value] = {}
        self._lines: list[str] = []
        self._constants: list[str] = []
        self.ops: list[str] = []
        self.pins = 0
        self._argument((rng.choice(self._sizes), rng.choice(self._sizes)))

    def draw_op(self) -> None:
        """Adds an op to a value that there is, the newest one most often."""
        value = self._values[-1] if self._rng.random() < 0.6 else self._rng.choice(self._values)
        kinds: dict[Callable[[Value], bool], int] = {
            self._dot: 4,
            self._unary: 2,
            self._binary: 3,
            self._transpose: 2,
            self._reduce: 1,
            self._broadcast: 2,
            self._reshape: 1,
            self._concatenate: 1,
            self._slice: 1,
            self._loop: 1,
        }
        while not self._rng.choices([*kinds], [*kinds.values()])[0](value):
            pass

    def text(self) -> str:
        """Returns the module: its results are the values that no op has taken."""
        results = list(self._untaken.values()) or [self._values[-1]]
        given = ", ".join(f"{each.name}: {self._type(each.shape)}{self._pin(each)}" for each in self._arguments)
        made = ", ".join(f"{self._type(each.shape)}{self._pin(each)}" for each in results)
        names, types = ", ".join(each.name for each in results), ", ".join(self._type(each.shape) for each in results)
        body = "\n".join(f"  {line}" for line in (*self._constants, *self._lines, f"return {names} : {types}"))
        axes = ", ".join(f'"{name}"={size}' for name, size in self._mesh.axes)
        return f"sdy.mesh @mesh = <[{axes}]>\nfunc.func public @main({given}) -> ({made}) {{\n{body}\n}}\n"

    # ---- values

    def _type(self, shape: Shape) -> str:
        return f"tensor<{'x'.join([*map(str, shape), self._element])}>"

    def _argument(self, shape: Shape) -> Value:
        value = Value(f"%arg{len(self._arguments)}", shape)
        self._arguments.append(value)
        self._values.append(value)
        return value

    def _other(self, shape: Shape) -> Value:
        """Returns a value of a shape: one that there is, so that it has several takers, or a new argument."""
        found = [each for each in self._values if each.shape == shape]
        return self._rng.choice(found) if found and self._rng.random() < 0.6 else self._argument(shape)

    def _pin(self, value: Value) -> str:
        """Returns the sharding of an argument or result, which may be impossible, or open; mostly none."""
        if not self._pinned or self._rng.random() < 0.6 or not value.shape:
            return ""
        dims: list[list[str]] = [[] for _ in value.shape]
        for name, _ in self._mesh.axes:
            if self._rng.random() < 0.6:
                self._rng.choice(dims).append(f'"{name}"')
        if self._rng.random() < 0.2:
            self._rng.choice(dims).append("?")
        self.pins += 1
        text = ", ".join(f"{{{', '.join(dim)}}}" for dim in dims)
        return f" {{sdy.sharding = #sdy.sharding<@mesh, [{text}]>}}"

    def _add(self, name: str, taken: Sequence[Value], shape: Shape, line: str) -> bool:
        """Adds an op if its result is not large; `line` is what stands behind the name of the result."""
        if math.prod(shape) > _MOST_ELEMENTS:
            return False
        made = Value(f"%{len(self.ops)}", shape)
        self._lines.append(f"{made.name} = {line}")
        for each in taken:
            self._untaken.pop(each.name, None)
        self._untaken[made.name] = made
        self._values.append(made)
        self.ops.append(name)
        return True

    def _applied(self, name: str, taken: Sequence[Value], shape: Shape, attributes: str = "") -> bool:
        names, types = ", ".join(each.name for each in taken), ", ".join(self._type(each.shape) for each in taken)
        line = f"stablehlo.{name} {names}{attributes} : ({types}) -> {self._type(shape)}"
        return self._add(name, taken, shape, line)

    # ---- ops: each adds one that takes a value, and says whether it could

    def _dot(self, value: Value) -> bool:
        if len(value.shape) != 2:
            return False
        other = self._other((value.shape[1], self._rng.choice(self._sizes)))
        shape = (value.shape[0], other.shape[1])
        return self._applied("dot_general", (value, other), shape, ", contracting_dims = [1] x [0]")

    def _unary(self, value: Value) -> bool:
        return self._applied(self._rng.choice(_UNARY), (value,), value.shape)

    def _binary(self, value: Value) -> bool:
        return self._applied(self._rng.choice(_BINARY), (value, self._other(value.shape)), value.shape)

    def _transpose(self, value: Value) -> bool:
        order = self._rng.sample(range(len(value.shape)), len(value.shape))
        if order == sorted(order):
            return False
        return self._applied("transpose", (value,), tuple(value.shape[dim] for dim in order), f", dims = {order}")

    def _reduce(self, value: Value) -> bool:
        if len(value.shape) < 2:
            return False
        gone = self._rng.randrange(len(value.shape))
        shape = tuple(size for dim, size in enumerate(value.shape) if dim != gone)
        kind, zero = self._type(()), f"%zero{len(self.ops)}"
        self._constants.append(f"{zero} = stablehlo.constant dense<0.0> : {kind}")
        types = f"({self._type(value.shape)}, {kind}) -> {self._type(shape)}"
        applied = f"applies stablehlo.add across dimensions = [{gone}]"
        return self._add("reduce", (value,), shape, f"stablehlo.reduce({value.name} init: {zero}) {applied} : {types}")

    def _broadcast(self, value: Value) -> bool:
        if len(value.shape) != 1:
            return False
        kept, size = self._rng.randrange(2), self._rng.choice(self._sizes)
        shape = (size, *value.shape) if kept else (*value.shape, size)
        return self._applied("broadcast_in_dim", (value,), shape, f", dims = [{kept}]")

    def _reshape(self, value: Value) -> bool:
        """Splits the first dimension, or joins the first two."""
        first, rest = value.shape[0], value.shape[1:]
        inner = self._rng.choice((2, 3, 4))
        if len(rest) == 1 and first % inner == 0 and first > inner:
            return self._applied("reshape", (value,), (first // inner, inner, *rest))
        return bool(rest) and self._applied("reshape", (value,), (first * rest[0], *rest[1:]))

    def _concatenate(self, value: Value) -> bool:
        dim = self._rng.randrange(len(value.shape))
        shape = tuple(size * (2 if at == dim else 1) for at, size in enumerate(value.shape))
        return self._applied("concatenate", (value, self._other(value.shape)), shape, f", dim = {dim}")

    def _slice(self, value: Value) -> bool:
        dim = self._rng.randrange(len(value.shape))
        if value.shape[dim] < 4:
            return False
        start = self._rng.choice((0, 1, value.shape[dim] // 2))
        spans = [(start, start + value.shape[dim] // 2) if at == dim else (0, n) for at, n in enumerate(value.shape)]
        cut = ", ".join(f"{first}:{last}" for first, last in spans)
        shape = tuple(last - first for first, last in spans)
        line = f"stablehlo.slice {value.name} [{cut}] : ({self._type(value.shape)}) -> {self._type(shape)}"
        return self._add("slice", (value,), shape, line)

    def _loop(self, value: Value) -> bool:
        """Multiplies by one weight over and over, as a scan does; at most one loop in a program."""
        if len(value.shape) != 2 or "while" in self.ops:
            return False
        weight = self._other((value.shape[1], value.shape[1]))
        if weight is value:
            return False
        turns, kind, square = self._rng.randint(2, 8), self._type(value.shape), self._type(weight.shape)
        self._constants += [
            f"%{name} = stablehlo.constant dense<{number}> : tensor<i32>"
            for name, number in (("start", 0), ("one", 1), ("end", turns))
        ]
        applied = f"stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : ({kind}, {square}) -> {kind}"
        line = f"""stablehlo.while(%i = %start, %h = {value.name}, %w = {weight.name}) : tensor<i32>, {kind}, {square}
  cond {{
    %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %d = {applied}
    %t = stablehlo.tanh %d : {kind}
    %n = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %n, %t, %w : tensor<i32>, {kind}, {square}
  }}"""
        number = len(self.ops)
        if not self._add("while", (value, weight), value.shape, line):
            return False
        self._lines[-1] = self._lines[-1].replace(f"%{number} =", f"%{number}:3 =", 1)
        made = Value(f"%{number}#1", value.shape)
        del self._untaken[f"%{number}"]
        self._untaken[made.name] = self._values[-1] = made
        return True
