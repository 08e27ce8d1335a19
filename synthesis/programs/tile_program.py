# SPDX-License-Identifier: Apache-2.0
"""Tile programs: the operations of every device on its tile. They are the lowest form of a plan above IR.

A tile is a dense row-major array. Between steps the lowering describes it by a list of *atoms*: the local digits in the
order in which they lie in memory. It transposes the tile only where a collective needs digits in front, and at the end,
because copies cost time. `interpreter.py` runs programs with numpy, `dialect_utils/emission/tile_emission.py` writes
them as StableHLO; both have one branch per operation.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from ..layouts.layout import Factor, Layout, Slot, coordinates, groups
from ..layouts.mesh import Mesh
from .exchange import Exchange
from .steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Chunked,
    Exchanged,
    Permute,
    ReduceScatter,
    Relayout,
    Slice,
    Step,
    ToUnreduced,
    apply,
)
from .traffic import Collective, moved_in_pairs, received_in_group


@dataclass(frozen=True, slots=True)
class Reshape:
    """Reads the tile as another `shape` in the same row-major order, without a copy."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transpose:
    """Puts the axes of the tile into the order `axes`, which copies it."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Puts the entries of an axis side by side along the last one, in their order, which copies the tile."""

    axis: int


@dataclass(frozen=True, slots=True)
class TakeOwn:
    """Keeps, for each (axis, factor), the entry at the device's coordinate along the factor, and drops the axis."""

    picks: tuple[tuple[int, Factor], ...]


@dataclass(frozen=True, slots=True)
class KeepOwn:
    """Keeps, for each (axis, factor), the part of the axis at the device's coordinate, of equal parts along it."""

    picks: tuple[tuple[int, Factor], ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """All-gather: joins the tiles of the group along an axis, in the order of their coordinates."""

    factors: tuple[Factor, ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Swap:
    """All-to-all on an axis in equal parts: part j goes to member j of the group, where it becomes part (my index)."""

    factors: tuple[Factor, ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    """Collective-permute: for each pair (a, b) the tile of device a goes to device b.

    Each device sends once and receives once.
    """

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """An exchange: its rounds move pieces of the source tile into a new target tile."""

    exchange: Exchange


@dataclass(frozen=True, slots=True)
class Resize:
    """Gives the tile another `shape`: fills longer dimensions up with zeros at the end, and cuts shorter ones off."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class On:
    """Changes the mesh to which the factors of later operations belong; the tile stays as it is."""

    mesh: Mesh


@dataclass(frozen=True, slots=True)
class Reduce:
    """All-reduce: reduces the tiles of the group element by element."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class ReduceOwn:
    """Reduce-scatter on an axis in equal parts: reduces the group's tiles and keeps part (my index)."""

    factors: tuple[Factor, ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class PutOwn:
    """Adds one leading axis per factor: the tile is at the device's coordinates, the neutral element elsewhere."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class KeepFirst:
    """Keeps the tile if all coordinates of the device along the factors are 0, else fills it with neutral elements."""

    factors: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """Cuts one axis into `count` equal parts, runs `body` on each, and puts the results together along an axis.

    Attributes:
      taken, put: the number of the axis in the tile before, and in the tile after.
      body: the program for one part, which it sees as a tile of `body.in_shape` in the same row-major order.
      out_shape: the shape of the tile after.
    """

    count: int
    taken: int
    put: int
    body: TileProgram
    out_shape: tuple[int, ...]


Operation = (
    Reshape
    | Transpose
    | Join
    | TakeOwn
    | KeepOwn
    | Gather
    | Swap
    | Send
    | Rounds
    | Resize
    | On
    | Reduce
    | ReduceOwn
    | PutOwn
    | KeepFirst
    | Loop
)

REDUCTIONS = ("sum", "prod", "min", "max", "and", "or")


@dataclass(frozen=True, slots=True)
class TileProgram:
    """The operations of a plan on one tile.

    Attributes:
      mesh: the mesh of the factors, up to the first `On`.
      in_shape, out_shape: the shape of the tile before and after, in elements.
      steps: the typed steps, relayouts included, each with its operations.
      reduction: one of REDUCTIONS, which turns partial sums into the array.
    """

    mesh: Mesh
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    steps: tuple[tuple[Step, tuple[Operation, ...]], ...]
    reduction: str = "sum"

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple([operation for _, operations in self.steps for operation in operations])


def lower(
    mesh: Mesh, source: Layout, steps: Sequence[Step], reduction: str = "sum", layouts: Sequence[Layout] | None = None
) -> TileProgram:
    """Returns the tile program of a chain of typed steps that starts at `source`.

    Before the first and after the last step the tile is in canonical order: its digits lie as in the global array.

    Args:
      layouts: the layouts before, between and after the steps; None computes them by `steps.apply`.
    """
    return _Lowering(mesh, source).run(steps, reduction, layouts or itertools.accumulate(steps, apply, initial=source))


class _Lowering:
    """The lowering of a chain.

    State: `layout` is the layout before the next step, `atoms` are the local digits (slots) in memory order, `shape` is
    the shape of the array.
    Invariant: `shape` has the sizes of `atoms`, except that neighbouring atoms may be one axis, and that there may be
    axes of size 1. `_view` makes the two equal.
    """

    def __init__(self, mesh: Mesh, layout: Layout):
        self.mesh = mesh
        self.layout = layout
        self.atoms = _local_atoms(layout)
        self.shape = layout.tile_shape
        self.out: list[tuple[Step, tuple[Operation, ...]]] = []
        self.pending: list[Operation] = []

    def run(self, steps: Sequence[Step], reduction: str, layouts: Iterable[Layout]) -> TileProgram:
        in_shape = self.shape
        behind = itertools.islice(layouts, 1, None)
        for number, step in enumerate(steps):
            self._lower(step, is_last=number == len(steps) - 1)
            self.layout = next(behind)
        self._restore_order()
        tile_shape = self.layout.tile_shape
        self._reshape(tile_shape)
        self._close(Relayout("to row-major") if any([isinstance(o, Transpose) for o in self.pending]) else None)
        return TileProgram(self.mesh, in_shape, tile_shape, tuple(self.out), reduction)

    def _lower(self, step: Step, is_last: bool) -> None:
        match step:
            case Slice(moves):
                self._split(slot for _, slot in moves)
                self._take(moves)
            case AllGather(factors):
                if is_last and self._gathers_in_place(factors):
                    self._restore_order()  # while the tile is small; the result then needs no copy
                    self._reshape(self.layout.tile_shape)
                self._gather(factors)
            case AllToAll(moves):
                self._swap(moves, is_last)
            case Permute(after):
                pairs = permute_pairs(self.mesh, self.layout, after)
                self.pending.append(Send(pairs))
            case Exchanged(exchange, after):
                self._exchange(exchange, after)
            case ReduceScatter(moves):
                self._reduce_scatter(moves)
            case AllReduce(factors):
                self.pending.append(Reduce(factors))
            case ToUnreduced(factors):
                self._to_unreduced(factors)
            case Relayout():
                raise ValueError("relayouts are the lowering's to insert")
            case Chunked():
                raise ValueError("chunks are made of a program, not of steps")
        self._close(step)

    def _close(self, step: Step | None) -> None:
        """Adds the pending operations to the program; copies before a collective become a relayout of their own."""
        copies = [i for i, operation in enumerate(self.pending) if isinstance(operation, Transpose)]
        if copies and step is not None and not isinstance(step, Relayout):
            cut = copies[-1] + 1
            self.out.append((Relayout(copy_text(self.pending[:cut])), tuple(self.pending[:cut])))
            self.pending = self.pending[cut:]
        if step is None and self.pending and self.out:
            last, operations = self.out.pop()
            self.out.append((last, operations + tuple(self.pending)))
        elif step is not None:
            text = Relayout(copy_text(self.pending)) if isinstance(step, Relayout) else step
            self.out.append((text, tuple(self.pending)))
        self.pending = []

    def _take(self, moves) -> None:
        self._view()
        picks = tuple(sorted([(self.atoms.index(slot), factor) for factor, slot in moves]))
        self.pending.append(TakeOwn(picks))
        taken = {axis for axis, _ in picks}
        self.atoms = [atom for i, atom in enumerate(self.atoms) if i not in taken]
        self.shape = tuple([atom.size for atom in self.atoms])

    def _gather(self, factors) -> None:
        if not self.shape:
            self._reshape((1,))
        self.pending.append(Gather(tuple(factors)))
        n = math.prod([factor.size for factor in factors])
        self.shape = (n * self.shape[0], *self.shape[1:])
        self.atoms = [self.layout.owned_slot(factor) for factor in factors] + self.atoms

    def _exchange(self, exchange: Exchange, after: Layout | None) -> None:
        assert after is not None  # exchanges without a layout join the chains of a route, and are no steps of a chain
        self._restore_order()
        self._reshape(self.layout.tile_shape)
        self.pending.append(Rounds(exchange))
        self.atoms = _local_atoms(after)
        self.shape = after.tile_shape

    def _gathers_in_place(self, factors) -> bool:
        """Returns whether tiles in canonical order, joined one after the other, are in canonical order too."""
        front = [self.layout.owned_slot(factor) for factor in factors]
        return sorted(front + self.atoms)[: len(front)] == front

    def _swap(self, moves, is_last: bool) -> None:
        factors, rest = self._bring_to_front(moves, orders_rest=is_last and self._swaps_in_place(moves))
        self.pending.append(Swap(factors))
        self.atoms = [self.layout.owned_slot(factor) for factor in factors] + rest

    def _swaps_in_place(self, moves) -> bool:
        """Returns whether the tile is in canonical order behind the all_to_all if the digits that stay were before it.

        Then a copy before the all_to_all, which may be needed anyway, takes the place of the one behind it.
        """
        self._split(slot for _, slot in moves)
        moved = {slot for _, slot in moves}
        rest = sorted(atom for atom in self.atoms if atom not in moved)
        in_order = sorted(moves, key=lambda move: self.atoms.index(move[1]))
        front = [self.layout.owned_slot(factor) for factor, _ in in_order]
        return sorted(front + rest) == front + rest

    def _reduce_scatter(self, moves) -> None:
        factors, self.atoms = self._bring_to_front(moves)
        self.pending.append(ReduceOwn(factors))
        self.shape = (1, *self.shape[1:])

    def _to_unreduced(self, factors) -> None:
        owned = tuple(sorted((f for f in factors if self.layout.slot_of(f)), key=self.layout.owned_slot))
        replicated = tuple(sorted(set(factors) - set(owned)))
        if replicated:
            self.pending.append(KeepFirst(replicated))
        if owned:
            self.pending.append(PutOwn(owned))
            self.atoms = [self.layout.owned_slot(factor) for factor in owned] + self.atoms
            self.shape = (*(factor.size for factor in owned), *self.shape)

    def _bring_to_front(self, moves, orders_rest: bool = False) -> tuple[tuple[Factor, ...], list[Slot]]:
        """Makes the digits of the moves the leading axis; returns the factors in its order, and the other atoms.

        Args:
          orders_rest: whether the other atoms come into canonical order, too.
        """
        self._split(slot for _, slot in moves)
        moves = tuple(sorted(moves, key=lambda move: self.atoms.index(move[1])))  # in memory order, which saves copies
        front = [slot for _, slot in moves]
        rest = [atom for atom in self.atoms if atom not in front]
        rest = sorted(rest) if orders_rest else rest
        self._order(front + rest)
        factors = tuple(factor for factor, _ in moves)
        n = math.prod([factor.size for factor in factors])
        self._reshape((n, *_merged_sizes(rest)))
        return factors, rest

    def _split(self, wanted) -> None:
        """Makes each wanted slot an atom of its own, if necessary after restoring canonical order.

        Digits that are neighbours both in memory and in the array are one number, so they can be cut again in other
        radices.
        """
        wanted = tuple(wanted)
        if all([self._split_atom(slot) for slot in wanted]):
            return
        self.atoms = _merge_adjacent(self.atoms)
        if all([self._split_atom(slot) for slot in wanted]):
            return
        self._restore_order()
        self.atoms = _merge_adjacent(self.atoms)
        for slot in wanted:
            if not self._split_atom(slot):
                raise ValueError(f"{slot} is no local digit of {self.layout}")

    def _split_atom(self, slot: Slot) -> bool:
        for i, atom in enumerate(self.atoms):
            if atom.dim == slot.dim and slot.start % atom.start == 0 and atom.end % slot.end == 0:
                parts = [Slot(atom.dim, atom.start, slot.start), slot, Slot(atom.dim, slot.end, atom.end)]
                self.atoms[i : i + 1] = [part for part in parts if part.end > part.start]
                return True
        return False

    def _restore_order(self) -> None:
        self._order(sorted(self.atoms))

    def _order(self, wanted: list[Slot]) -> None:
        """Transposes the tile so that its atoms lie in the wanted order; runs that stay together are one axis."""
        if wanted == self.atoms:
            return
        runs = _runs_kept_together(self.atoms, wanted)
        self._reshape(tuple([math.prod([atom.size for atom in run]) for run in runs]))
        place = {run[0]: i for i, run in enumerate(runs)}
        axes = tuple([place[atom] for atom in wanted if atom in place])
        self.pending.append(Transpose(axes))
        self.shape = tuple([self.shape[axis] for axis in axes])
        self.atoms = list(wanted)

    def _view(self) -> None:
        self._reshape(tuple([atom.size for atom in self.atoms]))

    def _reshape(self, shape: tuple[int, ...]) -> None:
        if shape != self.shape:
            self.pending.append(Reshape(shape))
            self.shape = shape


def copy_text(operations: Iterable[Operation]) -> str:
    """Returns the transposes among the operations in words, e.g. `8x2x4 by [1, 0, 2]`."""
    shape, words = None, []
    for operation in operations:
        if isinstance(operation, Reshape):
            shape = operation.shape
        if isinstance(operation, Transpose):
            words.append(f"{'x'.join(map(str, shape)) + ' ' if shape else ''}by {list(operation.axes)}")
    return ", ".join(words)


def _local_atoms(layout: Layout) -> list[Slot]:
    """Returns the maximal local digits of a layout in canonical order."""
    atoms = []
    for dim, size in enumerate(layout.shape):
        at = 1
        for _, (other, start, end) in layout.owners:
            if other != dim:
                continue
            if start > at:
                atoms.append(Slot(dim, at, start))
            at = end
        if size > at:
            atoms.append(Slot(dim, at, size))
    return atoms


def _merge_adjacent(atoms: list[Slot]) -> list[Slot]:
    merged: list[Slot] = []
    for atom in atoms:
        if merged and merged[-1].dim == atom.dim and merged[-1].end == atom.start:
            merged[-1] = Slot(atom.dim, merged[-1].start, atom.end)
        else:
            merged.append(atom)
    return merged


def _merged_sizes(atoms: list[Slot]) -> tuple[int, ...]:
    """Returns the sizes of the atoms, with neighbours of one dimension joined into one axis."""
    sizes: list[int] = []
    last = None
    for atom in atoms:
        if last and last.dim == atom.dim:
            sizes[-1] *= atom.size
        else:
            sizes.append(atom.size)
        last = atom
    return tuple(sizes)


def _runs_kept_together(atoms: list[Slot], wanted: list[Slot]) -> list[list[Slot]]:
    """Returns `atoms` cut into the longest runs that are also runs of `wanted`."""
    follows = dict(zip(wanted, wanted[1:]))
    runs: list[list[Slot]] = []
    for atom in atoms:
        if runs and follows.get(runs[-1][-1]) == atom:
            runs[-1].append(atom)
        else:
            runs.append([atom])
    return runs


@functools.lru_cache(maxsize=8)  # a permute is priced first and lowered later
def permute_pairs(mesh: Mesh, before: Layout, after: Layout) -> tuple[tuple[int, int], ...]:
    """Returns the (from device, to device) pairs of a permute (rule T4), one for each receiving device.

    A device that already holds its block keeps it. The other devices, in the order of their positions, get their blocks
    from the remaining holders. Both layouts hold each block equally often, so every device is served.
    """
    held, wanted = block_ids(mesh, before), block_ids(mesh, after)
    (moving,) = (held != wanted).nonzero()
    to = np.arange(mesh.size)
    to[moving[held[moving].argsort(kind="stable")]] = moving[wanted[moving].argsort(kind="stable")]
    if mesh.device_ids is None:
        return tuple(enumerate(to.tolist()))
    devices = np.array(mesh.device_ids)
    senders = np.argsort(devices)  # the position of each device
    return tuple(zip(devices[senders].tolist(), devices[to[senders]].tolist()))


def block_ids(mesh: Mesh, layout: Layout) -> np.ndarray:
    """Returns for each mesh position a number of its block and partial sum; equal numbers mean equal tiles.

    Numbers of two layouts can be compared if their runs of owned digits have equal sizes and they have equally many
    partial sums.
    """
    block = np.zeros(mesh.size, dtype=np.int64)
    for number, factor in enumerate((*layout.unreduced, *[owner for owner, _ in layout.owners])):
        if number:
            block *= factor.size
        block += coordinates(mesh, factor)  # owners are sorted by slot: a run of owned digits is one number
    return block


def changes_hands(mesh: Mesh, before: Layout, after: Layout) -> bool:
    """Returns whether a permute (rule T4) from `before` to `after` changes the tile of some device."""
    factors = [[*layout.unreduced, *[owner for owner, _ in layout.owners]] for layout in (before, after)]
    if factors[0] == factors[1]:
        return False
    pieces = sorted({*factors[0], *factors[1]})
    if all([a.axis != b.axis or a.pre * a.size <= b.pre for a, b in itertools.pairwise(pieces)]):
        # coordinates along disjoint pieces are independent, so the numbers differ
        return True
    return bool((block_ids(mesh, before) != block_ids(mesh, after)).any())


def shape_after(operation: Operation, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the tile after an operation on a tile of `shape`."""
    match operation:
        case Reshape(after) | Resize(after):
            return after
        case Transpose(axes):
            return tuple([shape[axis] for axis in axes])
        case Join(axis):
            rest = (*shape[:axis], *shape[axis + 1 :])
            return (*rest[:-1], shape[axis] * rest[-1])
        case TakeOwn(picks):
            taken = {axis for axis, _ in picks}
            return tuple([size for i, size in enumerate(shape) if i not in taken])
        case Gather(factors, axis):
            joined = math.prod([factor.size for factor in factors]) * shape[axis]
            return (*shape[:axis], joined, *shape[axis + 1 :])
        case KeepOwn(picks):
            parts = {axis: factor.size for axis, factor in picks}
            return tuple([size // parts.get(axis, 1) for axis, size in enumerate(shape)])
        case ReduceOwn(factors, axis):
            kept = shape[axis] // math.prod([factor.size for factor in factors])
            return (*shape[:axis], kept, *shape[axis + 1 :])
        case PutOwn(factors):
            return (*(factor.size for factor in factors), *shape)
        case Rounds(exchange):
            return exchange.target.tile_shape
        case Loop():
            return operation.out_shape
    return shape


def collectives(program: TileProgram, bits_per_element: int) -> tuple[Collective, ...]:
    """Returns the collectives of the program, as `traffic` counts them."""
    return tuple(itertools.chain(*collectives_by_step(program, bits_per_element)))


def collectives_by_step(program: TileProgram, bits_per_element: int) -> tuple[tuple[Collective, ...], ...]:
    """Returns the collectives of each step of the program, as `traffic` counts them."""
    found: list[tuple[Collective, ...]] = []
    shape, mesh = program.in_shape, program.mesh
    for _, operations in program.steps:
        own: list[Collective] = []
        for operation in operations:
            if isinstance(operation, On):
                mesh = operation.mesh
            tile_bytes = -(-math.prod(shape) * bits_per_element // 8)
            own += _collectives_of(mesh, operation, tile_bytes, bits_per_element)
            shape = shape_after(operation, shape)
        found.append(tuple(own))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Copies:
    """The bytes that a device copies in its own memory.

    Attributes:
      relaid: written by relayouts, exchanges and loops. sliced: kept by slices, whose results are copied out of tiles.
      relaid_before, sliced_before: the same directly before an all_to_all, where a part of them may be free.
    """

    relaid: int = 0
    sliced: int = 0
    relaid_before: int = 0
    sliced_before: int = 0

    @property
    def all_relaid(self) -> int:
        return self.relaid + self.relaid_before

    def __add__(self, other: Copies) -> Copies:
        return Copies(*map(sum, zip(astuple(self), astuple(other))))

    def __mul__(self, times: int) -> Copies:
        return Copies(*(times * each for each in astuple(self)))


def copies(program: TileProgram, bits_per_element: int) -> Copies:
    """Returns the bytes that the program copies on a device, as plans are priced.

    Transposes copy the elements of `copied_elements`, and slices what they keep. An exchange writes its result once. A
    tile that is resized is written anew, the longer of both. A loop copies each part out of the tile and into the
    result.
    """

    def size(elements: int) -> int:
        return -(-elements * bits_per_element // 8)

    found, shape = Copies(), program.in_shape
    before = before_all_to_all(program)
    for (step, operations), copied, is_before in zip(program.steps, copied_elements(program), before, strict=True):
        for operation in operations:
            held, shape = shape, shape_after(operation, shape)
            ends = size(math.prod(held)), size(math.prod(shape))
            if isinstance(operation, Rounds):
                found += Copies(relaid=ends[1])
            elif isinstance(operation, Resize):
                found += Copies(relaid=max(ends))
            elif isinstance(operation, Loop):
                found += copies(operation.body, bits_per_element) * operation.count + Copies(relaid=sum(ends))
        own = size(copied), size(math.prod(shape)) if isinstance(step, Slice) else 0
        found += Copies(0, 0, *own) if is_before else Copies(*own)
    return found


def before_all_to_all(program: TileProgram) -> list[bool]:
    """Returns for each step whether it is an all_to_all, or copies on the device and only copies follow up to one."""
    found, is_before = [], False
    for step, _ in reversed(program.steps):
        is_before = isinstance(step, AllToAll) or is_before and isinstance(step, (Relayout, Slice))
        found.append(is_before)
    return found[::-1]


def copied_elements(program: TileProgram, tiles: Sequence[int] | None = None) -> list[int]:
    """Returns for each step the number of elements that its transposes copy.

    Compilers fuse consecutive transposes, and a slice after them, into one loop. It writes only the last result: the
    tile of the last transpose, or the part that the slice keeps.

    Args:
      tiles: the elements of the tile after each step, if the caller knows them.
    """
    has_copies = [
        any([isinstance(operation, Transpose) for operation in operations]) for _, operations in program.steps
    ]
    found = [0] * len(has_copies)
    if not any(has_copies):
        return found
    tiles = _tiles_behind(program) if tiles is None else tiles
    for at, ((step, _), is_copied) in enumerate(zip(program.steps, has_copies)):
        if is_copied:
            found[at] = tiles[at]
        if at and found[at - 1] and (is_copied or isinstance(step, Slice)):
            found[at - 1] = 0 if is_copied else tiles[at]
    return found


def _tiles_behind(program: TileProgram) -> list[int]:
    found, shape = [], program.in_shape
    for _, operations in program.steps:
        for operation in operations:
            shape = shape_after(operation, shape)
        found.append(math.prod(shape))
    return found


def _collectives_of(mesh: Mesh, operation: Operation, tile_bytes: int, bits_per_element: int) -> list[Collective]:
    match operation:
        case Gather(factors):
            members = groups(mesh, factors)
            return [Collective("all_gather", tile_bytes, tile_bytes * members.shape[1], groups=_as_tuples(members))]
        case Swap(factors):
            return [Collective("all_to_all", tile_bytes, tile_bytes, groups=_as_tuples(groups(mesh, factors)))]
        case Reduce(factors):
            return [Collective("all_reduce", tile_bytes, tile_bytes, groups=_as_tuples(groups(mesh, factors)))]
        case ReduceOwn(factors):
            members = groups(mesh, factors)
            return [
                Collective("reduce_scatter", tile_bytes, -(-tile_bytes // members.shape[1]), groups=_as_tuples(members))
            ]
        case Rounds(exchange):
            return list(exchange.collectives(bits_per_element))
        case Send(pairs):
            return [Collective("collective_permute", tile_bytes, tile_bytes, pairs=pairs)]
        case Loop(count, body=body):
            return [replace(each, trip_count=count * each.trip_count) for each in collectives(body, bits_per_element)]
    return []


def _as_tuples(array: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, array.tolist()))


def bytes_moved(program: TileProgram, bits_per_element: int, num_devices: int) -> tuple[int, int]:
    """Returns the bytes that the busiest device receives, and the bytes that the busiest device sends.

    These are the numbers of `traffic` for `collectives`, computed without listing groups.
    """
    apart = [each for each in program.operations if isinstance(each, (Send, Rounds, Loop, On))]
    if program.mesh.size == num_devices and (not apart or len(apart) == 1 and isinstance(apart[0], Send)):
        found = _moved_at_most(program, bits_per_element)
        return found, found
    moved = np.zeros((2, num_devices), np.int64)
    by_all = _add_moved(program, bits_per_element, moved)
    received, sent = moved.max(axis=1).tolist()
    return received + by_all, sent + by_all


def _moved_at_most(program: TileProgram, bits: int) -> int:
    """Returns the bytes that the busiest device receives and sends.

    The program has grouped collectives, and at most one permute.
    """
    shape, found = program.in_shape, 0
    for operation in program.operations:
        match operation:
            case Gather(factors) | Swap(factors) | Reduce(factors) | ReduceOwn(factors):
                found += _moved_in_group(operation, factors, shape, bits)
            case Send(pairs):
                found += -(-math.prod(shape) * bits // 8) * any(a != b for a, b in pairs)
        shape = shape_after(operation, shape)
    return found


def _add_moved(program: TileProgram, bits: int, moved: np.ndarray) -> int:
    """Adds the bytes that each device receives and sends to the rows of `moved`; returns bytes of all devices alike."""
    shape, devices, by_all = program.in_shape, _devices_of(program.mesh, moved), 0
    for operation in program.operations:
        match operation:
            case On(mesh):
                devices = _devices_of(mesh, moved)
            case Gather(factors) | Swap(factors) | Reduce(factors) | ReduceOwn(factors):
                each = _moved_in_group(operation, factors, shape, bits)
                if isinstance(devices, slice):
                    by_all += each
                else:
                    moved[:, devices] += each
            case Rounds(exchange):
                moved += exchange.bytes_moved(bits)
            case Send(pairs):
                moved += moved_in_pairs(pairs, -(-math.prod(shape) * bits // 8), moved.shape[1])
            case Loop(count, body=body):
                once = np.zeros_like(moved)
                by_all += count * _add_moved(body, bits, once)
                moved += count * once
        shape = shape_after(operation, shape)
    return by_all


def _moved_in_group(operation: Operation, factors: tuple[Factor, ...], shape: tuple[int, ...], bits: int) -> int:
    """Returns the bytes that each member of a group receives and sends, for tiles of `shape`."""
    size = math.prod([factor.size for factor in factors])
    if size == 1:
        return 0
    tile_bytes = -(-math.prod(shape) * bits // 8)
    return received_in_group(Collective(_GROUPED[type(operation)], tile_bytes, tile_bytes), size)


_GROUPED = {Gather: "all_gather", Swap: "all_to_all", Reduce: "all_reduce", ReduceOwn: "reduce_scatter"}


def _devices_of(mesh: Mesh, moved: np.ndarray) -> slice | list[int]:
    """Returns the columns of `moved` that belong to the devices of a mesh."""
    return slice(None) if mesh.size == moved.shape[1] else list(mesh.device_ids or range(mesh.size))
