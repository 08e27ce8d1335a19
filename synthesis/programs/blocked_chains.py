# SPDX-License-Identifier: Apache-2.0
"""Chains of Shardy's own collectives. Every layout of such a chain is blocked, since Shardy cannot express others.

    >>> mesh = Mesh.parse("x=4,y=2")
    >>> source, target = Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
    >>> chain = blocked_chain(mesh, (16, 16, 16), source, target)
    >>> for step in chain.steps: print(step.kind, step.after)
    all_to_all [{"y"}, {"x"}, {}]
    all_to_all [{}, {"x", "y"}, {}]
    >>> chain.received_elements
    640

A blocked chain may receive more than the best chain, which receives 448 elements here. The search is Dijkstra's. A
state lists, for each dimension, the axes or pieces of axes that split it, major to minor. The moves are those of
Shardy's ops: axes enter and leave a dimension at its minor end only. The search works on prime pieces of axes; if that
takes too many states, it works on the pieces that source and target name. No tile is larger than the larger one of the
source tile and the target tile (R2).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..layouts.layout import Factor, whole_factors
from ..layouts.mesh import Mesh
from ..layouts.sharding import AxisRef, Sharding

MOST_STATES = 2_000  # the search gives up after so many layouts, which takes a second or two

State = tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True, slots=True)
class Move:
    """One of Shardy's collectives.

    Attributes:
      kind: all_slice, all_gather, all_to_all, collective_permute.
      moved: the axes that enter or leave a dimension, each with its dimension before and after the move. A dimension is
        None if the axis is replicated. The whole field is None for a permute.
      after: the layout after the move.
    """

    kind: str
    moved: tuple[tuple[AxisRef, int | None, int | None], ...]
    after: Sharding


@dataclass(frozen=True, slots=True)
class BlockedChain:
    """Steps from source to target. `received_elements` is the sum over the steps of their busiest device's elements."""

    steps: tuple[Move, ...]
    received_elements: int


@functools.lru_cache(maxsize=4096)
def blocked_chain(mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding) -> BlockedChain | None:
    """Returns the blocked chain that receives the fewest elements, of equal ones the one with the fewest steps.

    Returns None if the search finds no chain. There is none if a dimension does not divide, if source and target cut an
    axis into pieces that do not nest, and if one of them has partial sums.
    """
    if source.unreduced or target.unreduced:
        return None
    sides = [whole_factors(mesh, side) for side in (source, target)]
    pieces = _pieces(sides)
    if pieces is None or not all(_divides(shape, side) for side in sides):
        return None
    for cut in ([prime for piece in pieces for prime in piece.primes()], pieces):
        start, goal = (tuple(tuple(p for axis in dim for p in _cut(axis, cut)) for dim in side) for side in sides)
        found = _Search(shape, cut, start, goal).run()
        if found is not None:
            return BlockedChain(tuple(_merged(mesh, found[1])), found[0])
    return None


def _pieces(sides) -> list[Factor] | None:
    """Returns the pieces into which source and target together cut their axes; None if the cuts do not nest."""
    axes = [axis for side in sides for dim in side for axis in dim]
    found = []
    for name in sorted({axis.axis for axis in axes}):
        ends = sorted({end for axis in axes if axis.axis == name for end in (axis.pre, axis.pre * axis.size)})
        if any(major and minor % major for major, minor in itertools.pairwise(ends)):
            return None
        found += [Factor(name, major, minor // major) for major, minor in itertools.pairwise(ends)]
    return found


def _cut(axis: Factor, pieces: list[Factor]) -> list[Factor]:
    return [p for p in pieces if p.axis == axis.axis and axis.pre <= p.pre < axis.pre * axis.size]


def _divides(shape: Sequence[int], side: State) -> bool:
    return all(size % math.prod(axis.size for axis in dim) == 0 for size, dim in zip(shape, side, strict=True))


class _Search:
    """Dijkstra's search.

    State: `queue` holds (elements received, steps, tie, layout, kind of the last step). `parents` has the layout before
    each layout whose cheapest chain is known.
    """

    def __init__(self, shape: tuple[int, ...], pieces: list[Factor], start: State, goal: State):
        self.shape = shape
        self.pieces = pieces
        self.start = start
        self.goal = goal
        self.largest = max(self._tile(start), self._tile(goal))

    def run(self) -> tuple[int, list[tuple[str, State]]] | None:
        """Returns the elements received, and the layouts of the chain, each with the kind of the step before it."""
        queue: list[tuple[int, int, int, State, str, State | None]] = [(0, 0, 0, self.start, "", None)]
        parents: dict[State, tuple[str, State | None]] = {}
        ties = itertools.count(1)
        while queue and len(parents) < MOST_STATES:
            cost, steps, _, state, kind, before = heapq.heappop(queue)
            if state in parents:
                continue
            parents[state] = kind, before
            if state == self.goal:
                return cost, self._path(parents)
            for kind_after, after, received in self._moves(state):
                if after not in parents:
                    heapq.heappush(queue, (cost + received, steps + 1, next(ties), after, kind_after, state))
        return None

    def _path(self, parents: dict[State, tuple[str, State | None]]) -> list[tuple[str, State]]:
        path, state = [], self.goal
        while state is not None:
            kind, before = parents[state]
            path.append((kind, state))
            state = before
        return path[::-1]

    def _tile(self, state: State) -> int:
        return math.prod(self.shape) // math.prod(axis.size for dim in state for axis in dim)

    def _moves(self, state: State) -> Iterator[tuple[str, State, int]]:
        tile = self._tile(state)
        used = {axis for dim in state for axis in dim}
        for axis in (axis for axis in self.pieces if axis not in used):
            for d in range(len(state)):
                yield from self._if_it_fits("all_slice", _with(state, {d: (*state[d], axis)}), 0)
        for d, dim in enumerate(state):
            for count in range(1, len(dim) + 1):
                stay, go = dim[:-count], dim[-count:]
                n = math.prod(axis.size for axis in go)
                yield from self._if_it_fits("all_gather", _with(state, {d: stay}), tile * (n - 1))
                for to in (to for to in range(len(state)) if to != d):
                    after = _with(state, {d: stay, to: (*state[to], *go)})
                    yield from self._if_it_fits("all_to_all", after, tile // n * (n - 1))
        for after in self._rearranged(state):
            yield from self._if_it_fits("collective_permute", after, tile)

    def _if_it_fits(self, kind: str, after: State, received: int) -> Iterator[tuple[str, State, int]]:
        if _divides(self.shape, after) and self._tile(after) <= self.largest:
            yield kind, after, received

    def _rearranged(self, state: State) -> Iterator[State]:
        """Yields layouts that a permute can reach: all dimensions keep their number of shards.

        These are the target, a layout near the target, and all layouts in which two axes are swapped.
        """
        if [math.prod(a.size for a in dim) for dim in state] == [math.prod(a.size for a in dim) for dim in self.goal]:
            yield self.goal
        homeward = self._homeward(state)
        if homeward is not None:
            yield homeward
        for one, other in itertools.combinations(self.pieces, 2):
            if one.size == other.size:
                swap = {one: other, other: one}
                yield tuple(tuple(swap.get(axis, axis) for axis in dim) for dim in state)
        for d, dim in enumerate(state):
            for i, j in itertools.combinations(range(len(dim)), 2):
                order = list(dim)
                order[i], order[j] = order[j], order[i]
                yield _with(state, {d: tuple(order)})

    def _homeward(self, state: State) -> State | None:
        """Returns a layout with as many shards per dimension and the target's axes in front; None if there is none."""
        rest = [math.prod(axis.size for axis in dim) for dim in state]
        dims: list[list[Factor]] = [[] for _ in state]
        for d, dim in enumerate(self.goal):
            for axis in itertools.takewhile(lambda axis: rest[d] % axis.size == 0, dim):
                dims[d].append(axis)
                rest[d] //= axis.size
        placed = {axis for dim in dims for axis in dim}
        for axis in (axis for dim in (*state, self.pieces) for axis in dim if axis not in placed):
            to = next((d for d, left in enumerate(rest) if left > 1 and left % axis.size == 0), None)
            if to is not None and axis not in placed:
                dims[to].append(axis)
                placed.add(axis)
                rest[to] //= axis.size
        return tuple(map(tuple, dims)) if all(left == 1 for left in rest) else None


def _with(state: State, changes: dict[int, tuple[Factor, ...]]) -> State:
    return tuple(changes.get(d, dim) for d, dim in enumerate(state))


def _merged(mesh: Mesh, path: list[tuple[str, State]]) -> Iterator[Move]:
    """Yields the steps, with consecutive slices joined into one, and consecutive gathers too."""
    start = path[0][1]
    for (kind, state), following in itertools.zip_longest(path[1:], path[2:]):
        if following and following[0] == kind and kind in ("all_slice", "all_gather"):
            continue
        yield _move(mesh, kind, start, state)
        start = state


def _move(mesh: Mesh, kind: str, before: State, after: State) -> Move:
    moved = []
    if kind != "collective_permute":
        places = [{axis: d for d, dim in enumerate(side) for axis in dim} for side in (before, after)]
        order = [axis for side in (before, after) for dim in side for axis in dim]
        for axis in dict.fromkeys(order):
            ends = places[0].get(axis), places[1].get(axis)
            if ends[0] != ends[1]:
                moved.append((axis, *ends))
    return Move(kind, tuple(_joined(mesh, moved)), Sharding(tuple(_references(mesh, dim) for dim in after)))


def _joined(mesh: Mesh, moved) -> Iterator[tuple[AxisRef, int | None, int | None]]:
    """Yields the moved axes; neighbouring pieces of one axis are joined if they move between the same dimensions."""
    for ends, group in itertools.groupby(moved, key=lambda each: each[1:]):
        for axis in _references(mesh, [axis for axis, *_ in group]):
            yield axis, *ends


def _references(mesh: Mesh, axes: Sequence[Factor]) -> tuple[AxisRef, ...]:
    whole: list[Factor] = []
    for axis in axes:
        joined = axis.joined(whole[-1]) if whole else None
        whole[-1:] = [joined] if joined else [*whole[-1:], axis]
    return tuple(
        AxisRef(axis.axis) if axis.size == mesh.axis_size(axis.axis) else AxisRef(axis.axis, axis.pre, axis.size)
        for axis in whole
    )
