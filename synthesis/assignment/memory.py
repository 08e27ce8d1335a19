# SPDX-License-Identifier: Apache-2.0
"""What is in memory at each moment, by the states of the nodes of a pairwise problem.

A tensor takes its tile in the layout of its cluster, while it lives. A conversion takes a copy beside it: where an op
needs another layout, the tile in that layout is in memory while the op runs; where several ops share the conversion,
from the first of them to the last; where it is made in front of a loop, while the loop runs. A result that is made in
another layout than it is kept in is in memory in both when it is made, such as partial sums that are then scattered.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..pairwise.problem import Limit
from .factored_program import FactoredProgram, Span


@dataclass(frozen=True, slots=True)
class Tile:
    """A tensor that is in memory.

    Attributes:
      span: its first and last place (`Timeline`). node: that decides on its layout; None if its layout is fixed.
      sizes: in bytes, by the state of the node.
    """

    span: Span
    node: int | None
    sizes: np.ndarray

    def size(self, states: Sequence[int]) -> float:
        """Returns the bytes in a solution."""
        return float(self.sizes[0 if self.node is None else states[self.node]])


@dataclass(frozen=True, slots=True)
class Copy:
    """What a conversion adds to memory: nothing where both its ends have the same layout.

    Attributes:
      span: the first and last place. source, target: the nodes at its ends.
      sources, targets: the layouts by state. sizes: of the tile that is added, in bytes, by the state of one end.
      is_source: whether that is the source.
    """

    span: Span
    source: int
    target: int
    sources: np.ndarray
    targets: np.ndarray
    sizes: np.ndarray
    is_source: bool = False

    def size(self, states: Sequence[int]) -> float:
        """Returns the bytes in a solution."""
        source, target = states[self.source], states[self.target]
        if (self.sources[source] == self.targets[target]).all():
            return 0.0
        return float(self.sizes[source if self.is_source else target])

    def weights(self) -> np.ndarray:
        """Returns the bytes for each pair of states, one row per state of the source."""
        differs = (self.sources[:, None, :] != self.targets[None, :, :]).any(axis=2)
        return np.where(differs, self.sizes[:, None] if self.is_source else self.sizes[None, :], 0.0)


@dataclass(frozen=True, slots=True)
class Memory:
    """The tiles and copies of a program."""

    tiles: tuple[Tile, ...]
    copies: tuple[Copy, ...] = ()

    def used(self, states: Sequence[int]) -> np.ndarray:
        """Returns the bytes at each place of the timeline in a solution."""
        return self._summed((piece.span, piece.size(states)) for piece in (*self.tiles, *self.copies))

    def peak(self, states: Sequence[int]) -> int:
        """Returns the bytes at the fullest place of a solution."""
        return int(self.used(states).max(initial=0.0))

    def least(self) -> int:
        """Returns a bound on the peak of all solutions: each tensor in its smallest tile, and nothing is converted."""
        return int(self._summed((tile.span, float(tile.sizes.min())) for tile in self.tiles).max(initial=0.0))

    def whole(self) -> np.ndarray:
        """Returns the bytes at each place with each tensor in its largest tile, and nothing converted."""
        return self._summed((tile.span, float(tile.sizes.max())) for tile in self.tiles)

    def limit(self, place: int, most: float) -> Limit:
        """Returns the limit on what is in memory at a place."""
        weights: dict[int, np.ndarray] = {}
        pairs: dict[tuple[int, int], np.ndarray] = {}
        for tile in self.tiles:
            if not _has(tile.span, place):
                continue
            if tile.node is None:
                most -= float(tile.sizes[0])
            else:
                weights[tile.node] = weights.get(tile.node, 0.0) + tile.sizes
        for copy in self.copies:
            if not _has(copy.span, place):
                continue
            pair, added = (copy.source, copy.target), copy.weights()
            if copy.source > copy.target:
                pair, added = (copy.target, copy.source), added.T
            if added.any():
                pairs[pair] = pairs.get(pair, 0.0) + added
        return Limit(weights, most, pairs)

    def _summed(self, pieces: Iterable[tuple[Span, float]]) -> np.ndarray:
        end = max((piece.span[1] for piece in (*self.tiles, *self.copies)), default=-1) + 2
        change = np.zeros(end + 1)
        for (first, last), size in pieces:
            change[first] += size
            change[last + 1] -= size
        return np.cumsum(change)[:end]


def hills(sizes: np.ndarray, most: int) -> list[int]:
    """Returns the places at which most bytes are in memory, one per hill, the highest first.

    Example:
      >>> hills(np.array([1.0, 3.0, 2.0, 5.0, 5.0, 0.0]), 8)
      [3, 1]
    """
    found = [
        at
        for at, size in enumerate(sizes)
        if size == max(sizes[max(0, at - 1) : at + 2]) and (at == 0 or sizes[at - 1] < size)
    ]
    return sorted(found, key=lambda at: -sizes[at])[:most]


class Timeline:
    """When tensors, and the copies that conversions make, are in memory: by the places of the ops as they run.

    An op that makes nothing in memory by itself has its place in front of the first op that it is a part of, behind
    those that are in front of it in the program. What is converted for it is needed until those run that take what it
    makes. `_places` has the place of each op that is needed, `_of_moment` the first and the last place of each moment.
    """

    def __init__(self, program: FactoredProgram):
        self._program = program
        self._takers: dict[int, list[int]] = {}
        for number, op in enumerate(program.ops):
            for tensor in op.operands:
                self._takers.setdefault(tensor, []).append(number)
        self._born = {each.tensor: each.first for each in program.lives}
        self._end = max((*(each.last for each in program.lives), *filter(None, program.moments)), default=0)
        at_moment: dict[int, list[int]] = {}
        for op, moment in self._moments().items():
            at_moment.setdefault(moment, []).append(op)
        self._places: dict[int, int] = {}
        self._of_moment: list[Span] = []
        place = 0
        for moment in range(self._end + 1):
            ops = sorted(at_moment.get(moment, ()), key=lambda op: (self.makes(op), op))
            self._places |= {op: place + number for number, op in enumerate(ops)}
            self._of_moment.append((place, place + max(1, len(ops)) - 1))
            place += max(1, len(ops))

    def makes(self, op: int) -> bool:
        """Returns whether an op makes something in memory by itself."""
        return op < len(self._program.moments) and self._program.moments[op] is not None

    def of_moments(self, first: int, last: int) -> Span:
        """Returns the places from the first moment to the last."""
        return self._of_moment[first][0], self._of_moment[last][1]

    def of_operand(self, op: int, tensor: int, is_hoisted: bool) -> Span | None:
        """Returns when a converted operand is needed; `is_hoisted` if it is converted in front of the loops around."""
        span = self._of_op(op)
        if span is None or not is_hoisted or tensor not in self._born:
            return span
        born, _ = self.of_moments(self._born[tensor], self._born[tensor])
        loops = (self.of_moments(*loop) for loop in self._program.loops)
        return _hull((span, *(loop for loop in loops if _has(loop, span[0]) and not _has(loop, born))))

    def of_shared(self, tensor: int, ops: Iterable[int]) -> Span | None:
        """Returns when some of the ops that take a tensor need it."""
        return _hull(self._of_op(op) for op in ops)

    def of_result(self, op: int, tensor: int) -> Span | None:
        """Returns when a result is in memory twice: when it is made, or needed if the op makes nothing by itself."""
        if self.makes(op):
            return self._of_op(op)
        return _hull((self.of_shared(tensor, self._takers.get(tensor, ())), *self._after(tensor)))

    def _of_op(self, op: int) -> Span | None:
        """Returns when the operands of an op are needed; None if nothing needs what it makes."""
        if op not in self._places:
            return None
        own = self._places[op], self._places[op]
        if self.makes(op):
            return own
        made = self._program.ops[op].results
        takers = [each for tensor in made for each in self._takers.get(tensor, ()) if each in self._places]
        spans = [(self._places[each], self._places[each]) for each in takers]
        return _hull((own, *spans, *(span for tensor in made for span in self._after(tensor))))

    def _after(self, tensor: int) -> list[Span]:
        """Returns the last place, for a result of the program."""
        return [self.of_moments(self._end, self._end)] if tensor in self._results else []

    @functools.cached_property
    def _results(self) -> frozenset[int]:
        return frozenset(self._program.results)

    def _moments(self) -> dict[int, int]:
        """Returns for each op that is needed its moment, or the first moment of those that it is a part of."""
        found: dict[int, int] = {}
        for op in reversed(range(len(self._program.moments))):
            made = self._program.ops[op].results
            takers = [found[each] for tensor in made for each in self._takers.get(tensor, ()) if each in found]
            takers += [self._end for tensor in made if tensor in self._results]
            moment = self._program.moments[op]
            if moment is not None or takers:
                found[op] = min(takers) if moment is None else moment
        return found


def _has(span: Span, place: int) -> bool:
    return span[0] <= place <= span[1]


def _hull(spans: Iterable[Span | None]) -> Span | None:
    """Returns the first and the last moment of several spans; None if there is none."""
    some = [each for each in spans if each is not None]
    return (min(first for first, _ in some), max(last for _, last in some)) if some else None
