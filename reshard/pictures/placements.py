# SPDX-License-Identifier: Apache-2.0
"""The parts of an array that each device holds, before the first step of a plan and after each step.

Dimensions are cut wherever any placement on the way cuts them; the pieces of a dimension are its *cells*. A device
holds a set of cells along each dimension: this is true of digits, of boxes, and of the results of exchanges. A part of
the array has a letter, for the block of the source that it comes from, and a number, for the block of the target that
it goes to: `B3` goes from the second block of the source to the fourth block of the target.

    >>> from reshard.planning.entry import plan
    >>> found = placements(plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=2", shape=(4, 4)))
    >>> for each in found.states:
    ...     print(f"{each.title}: {part_names(found, each, 0)}")
    before: [[['A0', 'A1']]]
    relayout 2x2x2 by [1, 0, 2]: [[['A0', 'A1']]]
    all_to_all x: dim 0 -> 1: [[['A0'], ['B0']]]
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reshard.synthesis.layouts.blocks import Blocks, both_ends
from reshard.synthesis.layouts.layout import Factor, Layout, coordinates, unreduced_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.plans.plan_layouts import layouts
from reshard.synthesis.programs.interpreter import run
from reshard.synthesis.programs.tile_program import KeepFirst, On, PutOwn, Reduce, ReduceOwn, TileProgram

MOST_RUN_ELEMENTS = 1 << 21  # of all tiles together, where layouts between the steps are found by running the plan
MOST_CELLS = 1 << 12  # along a dimension


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The parts of the array that the devices hold at one time.

    Attributes:
      title: "before", or the step that leads here. number: the number of the step, 0 before the first.
      holds: for each dimension a bool array (devices, cells); a device that holds nothing has False everywhere.
      tile_shape: in elements, padding included.
      bytes_received: the bytes received in the step. tile_bytes: the bytes of a tile after it.
      partial_sum: for each device the number of its partial sum; -1 if the tiles are elements of the array.
    """

    title: str
    number: int
    holds: tuple[np.ndarray, ...]
    tile_shape: tuple[int, ...]
    tile_bytes: int
    bytes_received: int = 0
    partial_sum: np.ndarray | None = None

    @property
    def key(self) -> bytes:
        """Returns a key that differs for different placements."""
        sums = b"" if self.partial_sum is None else self.partial_sum.tobytes()
        return b"|".join([*(np.packbits(each).tobytes() for each in self.holds), sums, str(self.tile_shape).encode()])


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """All states of a plan on one grid of cells.

    Attributes:
      edges: for each dimension the first index of each cell, and the dimension's size.
      states: the first is the source; `left_out` are numbers of steps whose result could not be told.
      source_block, target_block: for each dimension the block that each cell belongs to, on either side.
      source_counts, target_counts: for each dimension how many blocks there are.
      mesh: the mesh of the source, which names the places.
    """

    shape: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]
    states: tuple[State, ...]
    source_block: tuple[tuple[int, ...], ...]
    target_block: tuple[tuple[int, ...], ...]
    source_counts: tuple[int, ...]
    target_counts: tuple[int, ...]
    devices: int
    mesh: Mesh
    target_mesh: Mesh
    left_out: tuple[int, ...] = ()

    @property
    def cells(self) -> tuple[int, ...]:
        """Returns the number of cells along each dimension."""
        return tuple(len(each) - 1 for each in self.edges)

    @property
    def cut_dims(self) -> tuple[int, ...]:
        """Returns the dimensions that have several cells."""
        return tuple(dim for dim, count in enumerate(self.cells) if count > 1)

    @property
    def source_blocks(self) -> int:
        return math.prod(self.source_counts)

    @property
    def target_blocks(self) -> int:
        return math.prod(self.target_counts)

    def part(self, cells: tuple[int, ...]) -> tuple[int, int]:
        """Returns the source block and the target block that a cell of the array is in."""
        sides = ((self.source_block, self.source_counts), (self.target_block, self.target_counts))
        source, target = (_mixed(blocks, counts, cells) for blocks, counts in sides)
        return source, target

    def held_cells(self, state: State, device: int) -> tuple[tuple[int, ...], ...] | None:
        """Returns for each dimension the cells that a device holds; None if it holds nothing."""
        found = tuple(tuple(np.flatnonzero(each[device]).tolist()) for each in state.holds)
        return found if all(found) else None

    def place(self, device: int) -> str:
        """Returns the device's coordinates, e.g. `x=1, y=0`; empty if it is not on the source's mesh."""
        return _places(self.mesh).get(device, "")


def placements(plan: Plan) -> Placements:
    """Returns the placement of the array on the devices at each stage of a plan.

    If no layouts of digits lead from step to step (padded tiles, two meshes), the plan is run on tiles of element
    numbers. If these tiles are too large to run the plan, the result has only the source and the target.
    """
    finders = _states(plan)
    cut_at = [
        sorted(set().union(*(each.cuts(dim) for _, each in finders), {0, size})) for dim, size in enumerate(plan.shape)
    ]
    edges = tuple(tuple(_thinned(each)) if plan.shape[dim] else (0, 0) for dim, each in enumerate(cut_at))
    firsts = [np.array(each[:-1], np.int64) for each in edges]
    states = tuple(_state(plan, number, finder, firsts) for number, finder in finders)
    ends = [tuple(_classes(each) for each in state.holds) for state in (states[0], states[-1])]
    left_out = tuple(
        number for number in range(1, len(plan.steps) + 1) if number not in {each.number for each in states}
    )
    source, target = ends
    sources, targets = (tuple(max(each, default=0) + 1 for each in blocks) for blocks in ends)
    return Placements(
        plan.shape,
        edges,
        states,
        source,
        target,
        sources,
        targets,
        plan.devices,
        plan.mesh,
        plan.goal_mesh,
        left_out,
    )


def differing(found: Placements) -> Placements:
    """Returns the placements without the states that equal the state before them, such as those after relayouts."""
    kept = [state for i, state in enumerate(found.states) if i == 0 or state.key != found.states[i - 1].key]
    return replace(found, states=tuple(kept))


def letters(number: int) -> str:
    """Returns the letters that stand for a block's number: A to Z, then AA, AB, ...

    Example:
      >>> [letters(each) for each in (0, 25, 26, 701, 702)]
      ['A', 'Z', 'AA', 'ZZ', 'AAA']
    """
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(65 + digit) + text
    return text


def part_name(found: Placements, part: tuple[int, int]) -> str:
    """Returns the name of a part, e.g. `B3`; without the number if the target is one block."""
    source, target = part
    return letters(source) + (str(target) if found.target_blocks > 1 else "")


# ---- views


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring cells along one dimension that are in the same blocks on both sides.

    Attributes:
      cells: their numbers. elements: how many indices they are. text: e.g. `0:4`, or several such.
    """

    cells: tuple[int, ...]
    elements: int
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """The dimensions that go down and to the right, None if there is none, and those that are shown slice by slice."""

    rows: int | None
    columns: int | None
    slices: tuple[int, ...]


def view_of(found: Placements) -> View:
    """Returns the view with the two dimensions that have the most cells as rows and columns, in their order.

    Of dimensions with equally many cells the later ones are taken.
    """
    dims = sorted(found.cut_dims, key=lambda dim: (found.cells[dim], dim))
    shown = sorted(dims[-2:])
    rows = shown[0] if shown else None
    return View(rows, shown[1] if len(shown) > 1 else None, tuple(sorted(dims[:-2])))


def runs(
    found: Placements, dim: int | None, cells: tuple[int, ...], also: tuple[int, ...] | None = None
) -> tuple[Run, ...]:
    """Returns the cells of a dimension as runs; `also` has one more number for each cell, equal within a run."""
    if dim is None:
        return (Run((0,), 1, ""),)
    grouped: list[list[int]] = []
    kinds = (found.source_block[dim], found.target_block[dim], also or (0,) * found.cells[dim])
    for cell in cells:
        if grouped and all(kind[grouped[-1][-1]] == kind[cell] for kind in kinds):
            grouped[-1].append(cell)
        else:
            grouped.append([cell])
    return tuple(_run(found.edges[dim], each) for each in grouped)


def _run(edges: tuple[int, ...], cells: list[int]) -> Run:
    parts: list[list[int]] = []
    for cell in cells:
        start, stop = edges[cell], edges[cell + 1]
        if parts and parts[-1][1] == start:
            parts[-1][1] = stop
        else:
            parts.append([start, stop])
    shown = [f"{start}:{stop}" for start, stop in parts[:3]] + ["..."] * (len(parts) > 3)
    return Run(tuple(cells), sum(stop - start for start, stop in parts), " ".join(shown))


def part_names(found: Placements, state: State, device: int) -> list[list[list[str]]]:
    """Returns the names of the parts that a device holds, a table for each slice; empty if it holds nothing."""
    held = found.held_cells(state, device)
    if held is None:
        return []
    view = view_of(found)
    rows, columns = (runs(found, dim, () if dim is None else held[dim]) for dim in (view.rows, view.columns))
    return [
        [[part_name(found, part_at(found, view, held, at, row, column)) for column in columns] for row in rows]
        for at in slices(found, view, held)
    ]


def slices(found: Placements, view: View, held: tuple[tuple[int, ...], ...]) -> list[tuple[Run, ...]]:
    """Returns the combinations of runs of the dimensions that are shown slice by slice."""
    return list(itertools.product(*(runs(found, dim, held[dim]) for dim in view.slices)))


def part_at(found: Placements, view: View, held, at: tuple[Run, ...], row: Run, column: Run) -> tuple[int, int]:
    """Returns the part that the cells of a row, a column and a slice are in."""
    cells = [each[0] for each in held]
    for dim, run_ in (*zip(view.slices, at), (view.rows, row), (view.columns, column)):
        if dim is not None:
            cells[dim] = run_.cells[0]
    return found.part(tuple(cells))


def block_classes(state: State) -> tuple[tuple[int, ...], ...]:
    """Returns for each dimension the block of the state that each cell is in."""
    return tuple(map(_classes, state.holds))


def holders(state: State, cells: tuple[int, ...]) -> list[int]:
    """Returns the devices that hold a cell of the array."""
    held = (
        np.logical_and.reduce([each[:, cell] for each, cell in zip(state.holds, cells)])
        if cells
        else np.array([], bool)
    )
    return np.flatnonzero(held).tolist()


def originals(state: State) -> dict[int, int]:
    """Returns for each device that holds something the first device that holds exactly the same."""
    first: dict[bytes, int] = {}
    found = {}
    for device in range(len(state.holds[0]) if state.holds else 0):
        if all(each[device].any() for each in state.holds):
            sums = b"" if state.partial_sum is None else str(state.partial_sum[device]).encode()
            key = b"|".join([*(np.packbits(each[device]).tobytes() for each in state.holds), sums])
            found[device] = first.setdefault(key, device)
    return found


# ---- how states are found


@dataclass(frozen=True, slots=True, eq=False)
class _Digits:
    """A layout of digits: each device holds the indices whose owned digits equal its coordinates."""

    mesh: Mesh
    layout: Layout
    devices: int

    def cuts(self, dim: int) -> set[int]:
        ends = {slot.end for _, slot in self.layout.owners if slot.dim == dim}
        size = self.layout.shape[dim]
        last = max(ends, default=1)
        return set(range(0, size, size // last)) if last <= MOST_CELLS else {0}

    def holds(self, dim: int, index: np.ndarray) -> np.ndarray:
        held = np.ones((self.mesh.size, len(index)), bool)
        size = self.layout.shape[dim]
        for factor, slot in self.layout.owners:
            if slot.dim == dim:
                digit = index // (size // slot.end) % slot.size
                held &= coordinates(self.mesh, factor)[:, None] == digit[None, :]
        return _by_device(self.mesh, held, self.devices)

    @property
    def tile_shape(self) -> tuple[int, ...]:
        return self.layout.tile_shape

    @property
    def partial_sum(self) -> np.ndarray | None:
        return _partial_sums(self.mesh, self.layout.unreduced, self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class _Boxes:
    """One box for each device."""

    blocks: Blocks
    partial_sum: np.ndarray | None = None

    def cuts(self, dim: int) -> set[int]:
        held = self.blocks.elements > 0
        return {*self.blocks.starts[held, dim].tolist(), *self.blocks.stops[held, dim].tolist()}

    def holds(self, dim: int, index: np.ndarray) -> np.ndarray:
        starts, stops = (each[:, dim, None] for each in (self.blocks.starts, self.blocks.stops))
        return (starts <= index[None, :]) & (index[None, :] < stops) & (self.blocks.elements > 0)[:, None]

    @property
    def tile_shape(self) -> tuple[int, ...]:
        return self.blocks.tile_shape


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """The indices that each device held in a run of the plan: for each dimension a bool array (devices, size)."""

    held: tuple[np.ndarray, ...]
    tile_shape: tuple[int, ...]
    partial_sum: np.ndarray | None = None

    def cuts(self, dim: int) -> set[int]:
        changes = (self.held[dim][:, 1:] != self.held[dim][:, :-1]).any(axis=0)
        return set((np.flatnonzero(changes) + 1).tolist())

    def holds(self, dim: int, index: np.ndarray) -> np.ndarray:
        return self.held[dim][:, index]


def _states(plan: Plan) -> list[tuple[int, _Digits | _Boxes | _Seen]]:
    """Returns (number of the step, placement after it); the source is first, the target last."""
    found = layouts(plan)
    if found is not None and all(plan.shape):
        return [(number, _Digits(plan.mesh, layout, plan.devices)) for number, layout in enumerate(found)]
    ends = _ends(plan)
    if not plan.steps:
        return [(0, ends[0])]
    return [(0, ends[0]), *_run_between(plan), (len(plan.steps), ends[1])]


def _ends(plan: Plan) -> list[_Boxes]:
    ends = zip((plan.mesh, plan.goal_mesh), (plan.source, plan.target))
    sums = [_partial_sums(mesh, unreduced_factors(mesh, side), plan.devices) for mesh, side in ends]
    sides = both_ends(plan.mesh, plan.shape, plan.source, plan.target, plan.target_mesh)
    return [_Boxes(_of_rank(side, len(plan.shape)), each) for side, each in zip(sides, sums)]


def _of_rank(blocks: Blocks, rank: int) -> Blocks:
    """Returns the blocks as those of an array of this rank.

    A scalar that some devices lack comes as an array of one element.
    """
    return blocks if len(blocks.shape) == rank else Blocks((), (), blocks.starts[:, :0], blocks.stops[:, :0])


def _run_between(plan: Plan) -> list[tuple[int, _Seen]]:
    """Returns the states between the first and the last step.

    It leaves out states in which a device does not hold a set of cells along each dimension.
    """
    program = plan.tile_program
    tile_bits = max(8 * max(each.tile_bytes_before, each.tile_bytes_after) for each in plan.steps)
    if plan.devices * tile_bits // max(1, plan.bits) > MOST_RUN_ELEMENTS or not plan.shape or not all(plan.shape):
        return []
    numbers = np.arange(1, math.prod(plan.shape) + 1).reshape(plan.shape)  # 0 is padding
    tiles = _scattered(plan, numbers)
    mesh, shape, found = program.mesh, program.in_shape, []
    summed = {piece for factor in unreduced_factors(mesh, plan.source) for piece in factor.primes()}
    for number, (_, operations) in enumerate(program.steps[:-1], 1):
        steps: Any = ((None, operations),)  # the interpreter reads the operations alone
        piece = TileProgram(mesh, shape, shape, steps, "max")  # the numbers are equal, so the largest is any of them
        tiles = run(piece, tiles)
        mesh = next((each.mesh for each in reversed(operations) if isinstance(each, On)), mesh)
        summed = _summed_after(operations, summed)
        seen = _seen(plan, tiles, _partial_sums(mesh, sorted(summed), plan.devices))
        if seen is not None:
            found.append((number, seen))
    return found


def _summed_after(operations, summed: set[Factor]) -> set[Factor]:
    """Returns the factors, in pieces of prime size, along which tiles are partial sums after some operations."""
    for each in operations:
        if isinstance(each, (Reduce, ReduceOwn, PutOwn, KeepFirst)):
            pieces = {piece for factor in each.factors for piece in factor.primes()}
            summed = summed - pieces if isinstance(each, (Reduce, ReduceOwn)) else summed | pieces
    return summed


def _scattered(plan: Plan, numbers: np.ndarray) -> dict[int, np.ndarray]:
    held, _ = both_ends(plan.mesh, plan.shape, Sharding(plan.source.dims), Sharding(plan.target.dims), plan.target_mesh)
    tiles = {}
    for device in range(plan.devices):
        box = numbers[tuple(map(slice, held.starts[device].tolist(), held.stops[device].tolist()))]
        tile = np.zeros(plan.tile_program.in_shape, np.int64)
        tile[tuple(map(slice, box.shape))] = box
        tiles[device] = tile
    return tiles


def _seen(plan: Plan, tiles: dict[int, np.ndarray], partial_sum: np.ndarray | None) -> _Seen | None:
    held = tuple(np.zeros((plan.devices, size), bool) for size in plan.shape)
    for device in range(plan.devices):
        valid = np.unique(tiles[device][tiles[device] > 0]) - 1
        along = np.unravel_index(valid, plan.shape)
        for dim, indices in enumerate(along):
            held[dim][device, indices] = True
        if math.prod(int(each[device].sum()) for each in held) != len(valid):
            return None
    shape = tuple(next(iter(tiles.values())).shape)
    if len(shape) != len(plan.shape):  # the step ends in the middle of a copy
        shape = tuple(int(each.sum(axis=1).max()) for each in held)
    return _Seen(held, shape, partial_sum)


def _state(plan: Plan, number: int, finder, firsts: list[np.ndarray]) -> State:
    holds = tuple(finder.holds(dim, first) for dim, first in enumerate(firsts))
    step = plan.steps[number - 1] if number else None
    first_bytes = -(-math.prod(plan.tile_program.in_shape) * plan.bits // 8)
    tile_bytes = step.tile_bytes_after if step else first_bytes
    received = step.bytes_received if step else 0
    return State(
        step.text if step else "before", number, holds, finder.tile_shape, tile_bytes, received, finder.partial_sum
    )


def _by_device(mesh: Mesh, by_position: np.ndarray, devices: int) -> np.ndarray:
    ids = list(mesh.device_ids or range(mesh.size))
    found = np.zeros((devices, by_position.shape[1]), bool)
    found[ids] = by_position
    return found


def _partial_sums(mesh: Mesh, factors, devices: int) -> np.ndarray | None:
    if not factors:
        return None
    number = np.zeros(mesh.size, np.int64)
    for factor in factors:
        number = number * factor.size + coordinates(mesh, factor)
    found = np.full(devices, -1, np.int64)
    found[list(mesh.device_ids or range(mesh.size))] = number
    return found


def _thinned(cuts: list[int]) -> list[int]:
    """Returns the cuts; if they make more than MOST_CELLS cells, only every n-th cut."""
    stride = -(-(len(cuts) - 1) // MOST_CELLS)
    return cuts if stride <= 1 else [*cuts[:-1:stride], cuts[-1]]


def _classes(holds: np.ndarray) -> tuple[int, ...]:
    """Returns the number of the block that each cell is in, by first appearance.

    Cells that the same devices hold are in one block.
    """
    seen: dict[bytes, int] = {}
    columns = np.packbits(holds.T, axis=1)
    return tuple(seen.setdefault(column.tobytes(), len(seen)) for column in columns)


def _mixed(of_dims: tuple[tuple[int, ...], ...], counts: tuple[int, ...], cells: tuple[int, ...]) -> int:
    number = 0
    for blocks, count, cell in zip(of_dims, counts, cells):
        number = number * count + blocks[cell]
    return number


@functools.lru_cache(maxsize=16)
def _places(mesh: Mesh) -> dict[int, str]:
    sizes = [size for _, size in mesh.axes]
    named = ((mesh.device_at(i), zip(mesh.axis_names, position)) for i, position in enumerate(np.ndindex(*sizes)))
    return {device: ", ".join(f"{name}={at}" for name, at in along) for device, along in named}
