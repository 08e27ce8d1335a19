# SPDX-License-Identifier: Apache-2.0
"""The sizes of the pieces of an exchange: classes of pieces that share a shape, and ways to cut pieces into few shapes.

One collective_permute has one static shape. Pieces of unlike shapes cost padding if they share a round, and cost rounds
if they do not. This module looks for the classes whose rounds are cheapest together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .exchange_pieces import Pieces

MOST_CUTS = 5  # ways of cutting pieces that are compared
MOST_CHUNKS_PER_PIECE = 6
MOST_CLASSES_FOR_ALL_MERGES = 16


def cheapest_classes(
    pieces: Pieces, devices: int, round_elements: float, all_rounds_count: bool = True
) -> list[Pieces]:
    """Returns the pieces, some of them perhaps cut, in the classes whose rounds are cheapest together.

    Args:
      round_elements: the latency of a round, in elements.
      all_rounds_count: whether the elements of all rounds count, as on a network where devices share links; else those
        that the busiest device receives. If rounds cost nothing, only the latter count.
    """
    if not len(pieces.src):
        return []
    if pieces.are_alike:
        return [pieces]
    weights = _Weights(float(round_elements), all_rounds_count and round_elements > 0)
    return min(_merged_classes(pieces, devices, weights), key=lambda classes: classes.cost(weights)).members()


@dataclass(frozen=True, slots=True)
class _Weights:
    """What classes cost: the elements that the latency of a round is worth, and whether all rounds' elements count."""

    round_elements: float
    all_rounds_count: bool


def _merged_classes(pieces: Pieces, devices: int, weights: _Weights) -> Iterator[_Classes]:
    """Yields the classes that are compared: for each way of cutting the pieces two ways of merging their classes."""
    for candidate in (pieces, *_ways_to_cut(pieces)):
        classes = _Classes(candidate, devices)
        yield classes.merged_cheapest(weights)
        yield classes.merged_all()


def _ways_to_cut(pieces: Pieces) -> Iterator[Pieces]:
    """Yields the pieces with unlike extents cut into powers of two of a unit; the largest chunk gets smaller."""
    extents = pieces.extents
    unlike = [dim for dim in range(extents.shape[1]) if (extents[:, dim] != extents[0, dim]).any()]
    if not unlike:
        return
    units = np.gcd.reduce(extents, axis=0)
    most_bits = max(int(extents[:, dim].max() // units[dim]).bit_length() for dim in unlike)
    for fewer in range(min(most_bits, MOST_CUTS)):
        found = pieces
        for dim in unlike:
            bits = max(1, int(extents[:, dim].max() // units[dim]).bit_length() - fewer)
            found = _cut_into_powers(found, dim, int(units[dim]), bits)
            if len(found.src) > MOST_CHUNKS_PER_PIECE * len(pieces.src):
                return
        yield found


def _cut_into_powers(pieces: Pieces, dim: int, unit: int, bits: int) -> Pieces:
    """Returns the pieces with their extents in one dimension cut into unit · 2^k, k < bits, large chunks first."""
    left = pieces.extents[:, dim] // unit
    start = pieces.lo[:, dim].copy()
    rows, starts, sizes = [], [], []
    for bit in reversed(range(bits)):
        count = left >> bit
        row = np.repeat(np.arange(len(left)), count)
        number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        rows.append(row)
        starts.append(start[row] + number * (unit << bit))
        sizes.append(np.full(len(row), unit << bit))
        start += count * (unit << bit)
        left = left - (count << bit)
    found = pieces.at(np.concatenate(rows))
    found.lo[:, dim] = np.concatenate(starts)
    found.hi[:, dim] = found.lo[:, dim] + np.concatenate(sizes)
    return found


class _Classes:
    """Pieces in classes of one shape. A merged class has the smallest shape that holds all its pieces.

    State: `degree[end][k, d]` is the number of pieces of class k that device d receives (end 0) or sends (end 1).
    """

    def __init__(self, pieces: Pieces, devices: int):
        self.pieces = pieces
        extents = pieces.extents
        radix = extents.max(axis=0) + 1
        key = extents @ np.append(np.cumprod(radix[:0:-1])[::-1], 1)[: len(radix)]  # the number of a shape
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        by_size = np.argsort(extents[first].prod(axis=1), kind="stable")
        self.shapes = extents[first][by_size]
        self.class_of = np.argsort(by_size)[number.reshape(-1)]
        self.degree = [
            np.bincount(self.class_of * devices + device, minlength=len(first) * devices).reshape(-1, devices)
            for device in (pieces.dst, pieces.src)
        ]

    def members(self) -> list[Pieces]:
        return [self.pieces.at(np.flatnonzero(self.class_of == number)) for number in range(len(self.shapes))]

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
