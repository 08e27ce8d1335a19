# SPDX-License-Identifier: Apache-2.0
"""The sizes of the pieces of an exchange: classes of pieces that share a shape, and ways to cut pieces into few shapes.

One collective_permute has one static shape. Pieces of unlike shapes cost padding if they share a round, and cost rounds
if they do not. This module looks for the classes whose rounds are cheapest together.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .exchange_pieces import Pieces

MOST_CUTS = 5  # ways of cutting pieces that are compared
MOST_CHUNKS_PER_PIECE = 6
MOST_CLASSES_FOR_ALL_MERGES = 16


class PieceClasses:
    """Pieces, and the classes into which they can be put, which are found once for all costs that are asked for."""

    def __init__(self, pieces: Pieces, devices: int):
        self.pieces = pieces
        self.devices = devices
        self._members: dict[tuple, list[Pieces]] = {}

    def cheapest(self, round_elements: float, all_rounds_count: bool = True) -> list[Pieces]:
        """Returns the pieces, some of them perhaps cut, in the classes whose rounds are cheapest together.

        The same classes are the same list whenever they are returned.

        Args:
          round_elements: the latency of a round, in elements.
          all_rounds_count: whether the elements of all rounds count, as on a network where devices share links; else
            those that the busiest device receives. If rounds cost nothing, only the latter count.
        """
        if self.pieces.are_alike:
            return self._alike
        weights = _Weights(float(round_elements), all_rounds_count and round_elements > 0)
        merged = (each for classes in self._ways for each in (classes.merged_cheapest(weights), classes.merged_all()))
        chosen = min(merged, key=lambda classes: classes.cost(weights))
        key = chosen.cuts, chosen.class_of.tobytes()
        if key not in self._members:
            self._members[key] = chosen.members(self.pieces)
        return self._members[key]

    @functools.cached_property
    def _alike(self) -> list[Pieces]:
        return [self.pieces] if len(self.pieces.src) else []

    @functools.cached_property
    def _ways(self) -> tuple[_Classes, ...]:
        """Returns the classes to compare: those of the pieces as they are, and of each way of cutting them."""
        whole = _Classes.of_pieces(self.pieces, self.devices)
        return (whole, *_ways_to_cut(whole))


@dataclass(frozen=True, slots=True)
class _Weights:
    """What classes cost: the elements that the latency of a round is worth, and whether all rounds' elements count."""

    round_elements: float
    all_rounds_count: bool


@dataclass(frozen=True, slots=True)
class _Cut:
    """Extents of one dimension cut into unit · 2^k, k < bits, large chunks first."""

    dim: int
    unit: int
    bits: int

    def of_pieces(self, pieces: Pieces) -> Pieces:
        left = pieces.extents[:, self.dim] // self.unit
        start = pieces.lo[:, self.dim].copy()
        rows, starts, sizes = [], [], []
        for bit in reversed(range(self.bits)):
            count = left >> bit
            row = np.repeat(np.arange(len(left)), count)
            number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
            rows.append(row)
            starts.append(start[row] + number * (self.unit << bit))
            sizes.append(np.full(len(row), self.unit << bit))
            start += count * (self.unit << bit)
            left = left - (count << bit)
        found = pieces.at(np.concatenate(rows))
        found.lo[:, self.dim] = np.concatenate(starts)
        found.hi[:, self.dim] = found.lo[:, self.dim] + np.concatenate(sizes)
        return found

    def of_shapes(self, origin: np.ndarray, shapes: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns what the cut makes of shapes: rows (shape before all cuts, shape of chunks, number of chunks)."""
        left, found = shapes[:, self.dim] // self.unit, []
        for bit in reversed(range(self.bits)):
            count = left >> bit
            rows = np.flatnonzero(count)
            chunks = shapes[rows]
            chunks[:, self.dim] = self.unit << bit
            found.append((origin[rows], chunks, number[rows] * count[rows]))
            left = left - (count << bit)
        return tuple(np.concatenate(each) for each in zip(*found))


def _ways_to_cut(whole: _Classes) -> Iterator[_Classes]:
    """Yields the classes of pieces with unlike extents cut into powers of two of a unit; the largest chunk gets
    smaller.

    The pieces of one shape are cut alike, so that the numbers of chunks follow from the shapes alone.
    """
    shapes = whole.shapes
    unlike = np.flatnonzero((shapes != shapes[0]).any(axis=0)).tolist()
    units = np.gcd.reduce(shapes, axis=0).tolist()
    most = shapes.max(axis=0).tolist()
    pieces = whole.degree[0].sum(axis=1)
    for fewer in range(min(max((most[dim] // units[dim]).bit_length() for dim in unlike), MOST_CUTS)):
        cuts = []
        origin, chunks, number = np.arange(len(shapes)), shapes, np.ones(len(shapes), np.int64)
        for dim in unlike:
            cuts.append(_Cut(dim, units[dim], max(1, (most[dim] // units[dim]).bit_length() - fewer)))
            origin, chunks, number = cuts[-1].of_shapes(origin, chunks, number)
            if pieces[origin] @ number > MOST_CHUNKS_PER_PIECE * pieces.sum():
                return
        yield whole.cut(tuple(cuts), origin, chunks, number)


def _distinct(shapes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct shapes, the smallest volumes first, and the row of each shape among them."""
    radix = shapes.max(axis=0) + 1
    key = shapes @ np.append(np.cumprod(radix[:0:-1])[::-1], 1)[: len(radix)]  # the number of a shape
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    by_size = np.argsort(shapes[first].prod(axis=1), kind="stable")
    return shapes[first][by_size], np.argsort(by_size)[number.reshape(-1)]


class _Classes:
    """Classes of pieces, each with one shape. A merged class has the smallest shape that holds all its pieces.

    State: `degree[end][k, d]` is the number of pieces of class k that device d receives (end 0) or sends (end 1).
    `class_of[s]` is the class of the pieces of shape s, in the order of `_distinct`. The pieces are those that `cuts`
    makes of the ones that are given.
    """

    def __init__(self, shapes: np.ndarray, degree: list[np.ndarray], cuts: tuple[_Cut, ...] = ()):
        self.shapes = shapes
        self.degree = degree
        self.cuts = cuts
        self.class_of = np.arange(len(shapes))

    @classmethod
    def of_pieces(cls, pieces: Pieces, devices: int) -> _Classes:
        shapes, shape_of = _distinct(pieces.extents)
        number = len(shapes) * devices
        ends = (shape_of * devices + device for device in (pieces.dst, pieces.src))
        return cls(shapes, [np.bincount(end, minlength=number).reshape(-1, devices) for end in ends])

    def cut(self, cuts: tuple[_Cut, ...], origin: np.ndarray, chunks: np.ndarray, number: np.ndarray) -> _Classes:
        """Returns the classes of the chunks of these unmerged classes; the rows are those of `_Cut.of_shapes`."""
        shapes, shape_of = _distinct(chunks)
        chunks_of = np.zeros((len(shapes), len(self.shapes)), np.int64)
        np.add.at(chunks_of, (shape_of, origin), number)
        return _Classes(shapes, [chunks_of @ degree for degree in self.degree], cuts)

    def members(self, pieces: Pieces) -> list[Pieces]:
        for cut in self.cuts:
            pieces = cut.of_pieces(pieces)
        class_of = self.class_of[_distinct(pieces.extents)[1]]
        return [pieces.at(np.flatnonzero(class_of == number)) for number in range(len(self.shapes))]

    def cost(self, weights: _Weights) -> tuple:
        """Returns (modelled elements, rounds, elements that the busiest device sends)."""
        volumes = self.shapes.prod(axis=1)
        rounds_of = np.maximum(self.degree[0].max(axis=1), self.degree[1].max(axis=1))
        rounds = int(rounds_of.sum())
        received, sent = (int((volumes @ degree).max()) for degree in self.degree)
        moved = int(volumes @ rounds_of) if weights.all_rounds_count else received
        return rounds * weights.round_elements + moved, rounds, sent

    def merged_all(self) -> _Classes:
        """Returns all classes merged into one, which gives the fewest rounds."""
        one = copy.copy(self)
        one.shapes = self.shapes.max(axis=0, keepdims=True)
        one.degree = [degree.sum(axis=0, keepdims=True) for degree in self.degree]
        one.class_of = np.zeros_like(self.class_of)
        return one

    def merged_cheapest(self, weights: _Weights) -> _Classes:
        """Returns the classes after merging, again and again, the two classes whose merger lowers the cost most."""
        found = copy.copy(self)
        while found._merge_cheapest(weights):
            pass
        return found

    def _merge_cheapest(self, weights: _Weights) -> bool:
        if len(self.shapes) == 1:
            return False
        first, second = self._mergeable()
        costs = list(zip(*self._costs_if_merged(first, second, weights)))
        best = min(range(len(costs)), key=costs.__getitem__)
        if costs[best] >= self.cost(weights):
            return False
        self._merge(int(first[best]), int(second[best]))
        return True

    def _mergeable(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of classes to consider: all pairs, or only neighbours in size if there are many classes."""
        count = len(self.shapes)
        if count <= MOST_CLASSES_FOR_ALL_MERGES:
            return np.triu_indices(count, 1)
        return np.arange(count - 1), np.arange(1, count)

    def _costs_if_merged(self, first, second, weights: _Weights) -> tuple[list, list, list]:
        volumes = self.shapes.prod(axis=1)
        merged = np.maximum(self.shapes[first], self.shapes[second]).prod(axis=1)
        busiest, most = [], []
        for degree in self.degree:
            now = volumes @ degree
            grown = (merged - volumes[first])[:, None] * degree[first] + (merged - volumes[second])[:, None] * degree[
                second
            ]
            busiest.append((now + grown).max(axis=1))
            most.append((degree[first] + degree[second]).max(axis=1))
        rounds_of = np.maximum(self.degree[0].max(axis=1), self.degree[1].max(axis=1))
        joint = np.maximum(*most)
        rounds = rounds_of.sum() - rounds_of[first] - rounds_of[second] + joint
        moved, sent = busiest
        if weights.all_rounds_count:
            apart = volumes * rounds_of
            moved = apart.sum() - apart[first] - apart[second] + merged * joint
        return (rounds * weights.round_elements + moved).tolist(), rounds.tolist(), sent.tolist()

    def _merge(self, first: int, second: int) -> None:
        """Merges class `second` into class `first`; old arrays stay as they are."""
        kept = np.arange(len(self.shapes)) != second
        shapes = self.shapes.copy()
        shapes[first] = np.maximum(shapes[first], shapes[second])
        self.shapes = shapes[kept]
        degrees = [degree.copy() for degree in self.degree]
        for degree in degrees:
            degree[first] += degree[second]
        self.degree = [degree[kept] for degree in degrees]
        joined = np.where(self.class_of == second, first, self.class_of)
        self.class_of = joined - (joined > second)
