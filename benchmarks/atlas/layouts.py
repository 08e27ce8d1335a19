# SPDX-License-Identifier: Apache-2.0
"""Cases: a program on a mesh, with a layout for each of its operands and results, as a module of StableHLO and Shardy.

An operand has its layout as an argument, by a constraint, or by an island. `reshard` writes islands for the values that
it converts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.atlas.programs import Operand, Program, Result, tensor

ARGUMENT, CONSTRAINT, ISLAND = "argument", "constraint", "island"
MESHES = (
    (("x", 4),), (("x", 2), ("y", 2)),
    (("x", 6),), (("x", 3), ("y", 2)), (("x", 2), ("y", 3)),
    (("x", 8),), (("x", 4), ("y", 2)), (("x", 2), ("y", 4)), (("x", 2), ("y", 2), ("z", 2)),
    (("x", 12),), (("x", 3), ("y", 4)), (("x", 4), ("y", 3)), (("x", 2), ("y", 2), ("z", 3)),
)  # fmt: skip

Axes = tuple[tuple[str, ...], ...]  # for each dimension the axes that split it, major to minor


@dataclass(frozen=True)
class Case:
    """The layouts of one case.

    Attributes:
      mesh: names and sizes of the axes.
      holds: of each operand how it is held. before: the layout that it comes from, where that is another one.
      operands, results: the layouts.
    """

    mesh: tuple[tuple[str, int], ...]
    holds: tuple[str, ...]
    before: tuple[Axes, ...]
    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]

    @property
    def devices(self) -> int:
        return math.prod(size for _, size in self.mesh)

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(given: dict) -> Case:
        """Returns the case that `to_json` described; JSON's lists become tuples."""
        return Case(*(_tuples(given[name]) for name in ("mesh", "holds", "before", "operands", "results")))


def _tuples(value):
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def drawn(program: Program, seed: str) -> Case:
    """Returns a random case of the program; the same seed gives the same case."""
    rng = random.Random(f"case {seed}")
    mesh = rng.choice(MESHES)
    values = [*program.operands, *program.results]
    layouts = [_of_labels(value, split) for split in [_split_labels(rng, mesh, values)] for value in values]
    if rng.random() < 0.4:
        layouts = [_random_layout(rng, mesh, value) for value in values]
    elif rng.random() < 0.6:
        at = rng.randrange(len(values))
        layouts[at] = _random_layout(rng, mesh, values[at])
    count = len(program.operands)
    holds, before = [], []
    for value, layout in zip(program.operands, layouts):
        hold = rng.choice([ARGUMENT, CONSTRAINT, ISLAND, ISLAND])
        start = layout if hold == ARGUMENT or rng.random() < 0.4 else _random_layout(rng, mesh, value)
        if not _divides(value.shape, start, dict(mesh)):
            start = _even_part(value.shape, start, dict(mesh))
            hold = rng.choice([CONSTRAINT, ISLAND]) if hold == ARGUMENT else hold
        holds.append(hold if value.shape else ARGUMENT)
        before.append(start)
    return Case(mesh, tuple(holds), tuple(before), tuple(layouts[:count]), tuple(layouts[count:]))


def _split_labels(rng: random.Random, mesh, values: Sequence[Operand | Result]) -> dict[str, tuple[str, ...]]:
    """Returns random axes for each label; they split all dimensions with that label."""
    largest: dict[str, int] = {}
    for value in values:
        for label, size in zip(value.labels, value.shape):
            largest[label] = max(largest.get(label, 1), size)
    labels = [label for label, size in sorted(largest.items()) if size > 1]
    split: dict[str, tuple[str, ...]] = {}
    for axis, _ in rng.sample(mesh, len(mesh)):
        if labels and rng.random() < 0.85:
            label = rng.choice(labels)
            split[label] = (*split.get(label, ()), axis)
    return split


def _of_labels(value: Operand | Result, split: dict[str, tuple[str, ...]]) -> Axes:
    used: set[str] = set()
    layout = []
    for label, size in zip(value.labels, value.shape):
        axes = tuple(axis for axis in split.get(label, ()) if axis not in used) if size > 1 else ()
        used |= set(axes)
        layout.append(axes)
    return tuple(layout)


def _random_layout(rng: random.Random, mesh, value: Operand | Result) -> Axes:
    dims = [dim for dim, size in enumerate(value.shape) if size > 1]
    layout: list[tuple[str, ...]] = [() for _ in value.shape]
    for axis, _ in rng.sample(mesh, len(mesh)):
        if dims and rng.random() < 0.7:
            dim = rng.choice(dims)
            layout[dim] = (*layout[dim], axis)
    return tuple(layout)


def shards(axes: Sequence[str], sizes: dict[str, int]) -> int:
    """Returns the number of parts into which these axes split a dimension."""
    return math.prod(sizes[axis] for axis in axes)


def _divides(shape: Sequence[int], layout: Axes, sizes: dict[str, int]) -> bool:
    return all(size % shards(axes, sizes) == 0 for size, axes in zip(shape, layout))


def _even_part(shape: Sequence[int], layout: Axes, sizes: dict[str, int]) -> Axes:
    return tuple(axes if size % shards(axes, sizes) == 0 else () for size, axes in zip(shape, layout))


# ---- text


def sharding(layout: Axes) -> str:
    """Returns a layout in Shardy's notation.

    Example:
      >>> sharding((("x", "y"), ()))
      '<@mesh, [{"x", "y"}, {}]>'
    """
    dims = ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in layout)
    return f"<@mesh, [{dims}]>"


def unsharded_text(program: Program) -> str:
    """Returns the program as a module for one device."""
    arguments = ", ".join(f"%h{at}: {value.type}" for at, value in enumerate(program.operands))
    types = ", ".join(result.type for result in program.results)
    names = ", ".join(f"%r{at}" for at in range(len(program.results)))
    lines = "\n    ".join([*program.lines, f"return {names} : {types}"])
    return f"module @atlas {{\n  func.func public @main({arguments}) -> ({types}) {{\n    {lines}\n  }}\n}}\n"


def text(program: Program, case: Case) -> str:
    """Returns the program as a module with the layouts of a case."""
    sizes = dict(case.mesh)
    arguments, lines = [], []
    for at, value in enumerate(program.operands):
        name = "h" if case.holds[at] == ARGUMENT else "a"
        start = f" {{sdy.sharding = #sdy.sharding{sharding(case.before[at])}}}" if value.shape else ""
        arguments.append(f"%{name}{at}: {value.type}{start}")
        lines += _held(at, value, case, sizes)
    lines += program.lines
    outs, types = [], []
    for at, result in enumerate(program.results):
        layout = case.results[at]
        lines.append(
            f"%o{at} = sdy.sharding_constraint %r{at} {sharding(layout)} : {result.type}" if result.shape else ""
        )
        outs.append(f"%o{at}" if result.shape else f"%r{at}")
        out = layout if _divides(result.shape, layout, sizes) else ((),) * len(layout)
        types.append(f"{result.type} {{sdy.sharding = #sdy.sharding{sharding(out)}}}")
    lines.append(f"return {', '.join(outs)} : {', '.join(result.type for result in program.results)}")
    mesh = ", ".join(f'"{name}"={size}' for name, size in case.mesh)
    body = "\n    ".join(filter(None, lines))
    return (
        f"module @atlas {{\n  sdy.mesh @mesh = <[{mesh}]>\n"
        f"  func.func public @main({', '.join(arguments)}) -> ({', '.join(types)}) {{\n    {body}\n  }}\n}}\n"
    )


def _held(at: int, value: Operand, case: Case, sizes: dict[str, int]) -> list[str]:
    """Returns the lines of the module that give an operand its layout."""
    if case.holds[at] == ARGUMENT:
        return []
    layout = sharding(case.operands[at])
    if case.holds[at] == CONSTRAINT:
        return [f"%h{at} = sdy.sharding_constraint %a{at} {layout} : {value.type}"]
    return _island(at, value, case, sizes, layout)


def _island(at: int, value: Operand, case: Case, sizes: dict[str, int], layout: str) -> list[str]:
    counts = [shards(axes, sizes) for axes in case.operands[at]]
    whole = [-(-size // count) * count for size, count in zip(value.shape, counts)]
    tile = tensor([size // count for size, count in zip(whole, counts)], value.element)
    kind, is_even = tensor(whole, value.element), tuple(whole) == value.shape
    zeros = "[" + ", ".join("0" for _ in whole) + "]"
    high = "[" + ", ".join(str(b - a) for a, b in zip(value.shape, whole)) + "]"
    axes = ", ".join(f'"{axis}"' for axis, _ in case.mesh)
    lines = [f"%b{at} = sdy.sharding_constraint %a{at} {layout} : {value.type}"]
    source = f"%b{at}"
    if not is_even:
        zero = "0.0" if value.element.startswith("f") else "0"
        lines.append(f"%z{at} = stablehlo.constant dense<{zero}> : tensor<{value.element}>")
        lines.append(
            f"%p{at} = stablehlo.pad {source}, %z{at}, low = {zeros}, high = {high}, interior = {zeros} : "
            f"({value.type}, tensor<{value.element}>) -> {kind}"
        )
        source = f"%p{at}"
    name = f"%h{at}" if is_even else f"%m{at}"
    lines.append(
        f"{name} = sdy.manual_computation({source}) in_shardings=[{layout}] out_shardings=[{layout}] "
        f"manual_axes={{{axes}}} "
        f"(%t{at}: {tile}) {{ sdy.return %t{at} : {tile} }} : ({kind}) -> {kind}"
    )
    if not is_even:
        cut = ", ".join(f"0:{size}" for size in value.shape)
        lines.append(f"%h{at} = stablehlo.slice %m{at} [{cut}] : ({kind}) -> {value.type}")
    return lines
