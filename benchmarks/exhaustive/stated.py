# SPDX-License-Identifier: Apache-2.0
"""All solutions of a layout problem as it is stated: its nodes, edges, tiles and copies, and nothing of the solver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.assignment.memory import Copy, Memory

SAME = 1e-6  # the relative difference of times that are the same
_ROUNDING = 1e-6  # bytes, by which a sum of tiles may be off


@dataclass(frozen=True, slots=True)
class Least:
    """What trying all combinations finds.

    Attributes:
      seconds: of the best one; infinite if none is possible. combinations: how many were tried.
      possible: how many of them are, and keep the limit. mean_s: the seconds of these on average.
    """

    seconds: float
    combinations: int
    possible: int
    mean_s: float

    @classmethod
    def of(cls, seconds: np.ndarray, is_possible: np.ndarray) -> Least:
        """Returns what the seconds of all combinations tell, of which some are possible."""
        some = seconds[is_possible]
        least, mean_s = (float(some.min()), float(some.mean())) if some.size else (math.inf, math.inf)
        return cls(least, seconds.size, some.size, mean_s)

    def is_like(self, other: Least) -> bool:
        """Returns whether another way to try them finds as many combinations, and the same seconds."""
        counts = (self.combinations, self.possible), (other.combinations, other.possible)
        return counts[0] == counts[1] and is_same(self.seconds, other.seconds) and is_same(self.mean_s, other.mean_s)


def is_same(one: float, other: float) -> bool:
    """Returns whether two times are the same but for rounding."""
    return one == other or abs(one - other) <= SAME * min(abs(one), abs(other))


def op_nodes(problem: LayoutProblem) -> range:
    """Returns the nodes of the ops, which are behind those of the layouts."""
    count, ops = len(problem.problem.costs), len(problem.program.ops) - len(problem.clusters.ties)
    return range(count - ops, count)


def combinations(problem: LayoutProblem, is_limited: bool) -> int:
    """Returns how many combinations have to be tried: of layouts, and with a limit also of the ways of ops."""
    costs = problem.problem.costs
    return math.prod(len(each) for each in costs[: None if is_limited else op_nodes(problem).start])


def least_as_stated(problem: LayoutProblem, limit: int | None) -> Least:
    """Returns the least cost of all combinations.

    Each node that is tried has an axis of one large array, which has the cost of each combination. Without a limit an
    op has the best of all its ways for the layouts around it; with one, its ways are tried as well, since copies of
    what it takes are in memory.
    """
    pairwise, ops = problem.problem, op_nodes(problem)
    tried = range(len(pairwise.costs) if limit is not None else ops.start)
    total = np.zeros([len(pairwise.costs[node]) for node in tried])
    for node in tried:
        total = total + _on_axes(pairwise.costs[node], (node,), len(tried))
    for pair, costs in pairwise.edges.items():
        if pair[1] < len(tried):
            total = total + _on_axes(costs, pair, len(tried))
    for op in range(len(tried), len(pairwise.costs)):
        around = [(one, costs) for (one, other), costs in pairwise.edges.items() if other == op]
        nodes = sorted(one for one, _ in around)
        ways = _on_axes(pairwise.costs[op], (len(nodes),), len(nodes) + 1)
        for one, costs in around:
            ways = ways + _on_axes(costs, (nodes.index(one), len(nodes)), len(nodes) + 1)
        total = total + _on_axes(ways.min(axis=-1), nodes, len(tried))
    possible = np.isfinite(total)
    if limit is not None:
        possible &= _most_used(problem.memory, len(tried)) <= limit + _ROUNDING
    return Least.of(total, possible)


def _most_used(memory: Memory, rank: int) -> np.ndarray:
    """Returns for each combination the bytes at its fullest place."""
    pieces = [(tile.span, tile.sizes, () if tile.node is None else (tile.node,)) for tile in memory.tiles]
    pieces += [(copy.span, _added(copy), (copy.source, copy.target)) for copy in memory.copies]
    most = np.zeros((1,) * rank)
    for place in {span[0] for span, _, _ in pieces}:  # what is fullest begins with something
        used = np.zeros((1,) * rank)
        for (first, last), sizes, nodes in pieces:
            if first <= place <= last:
                used = used + (_on_axes(sizes, nodes, rank) if nodes else sizes[0])
        most = np.maximum(most, used)
    return most


def _added(copy: Copy) -> np.ndarray:
    """Returns what a conversion adds to memory, one row per state of its source, one column per state of its target."""
    found = np.zeros((len(copy.sources), len(copy.targets)))
    for row, source in enumerate(copy.sources.tolist()):
        for column, target in enumerate(copy.targets.tolist()):
            if source != target:
                found[row, column] = copy.sizes[row if copy.is_source else column]
    return found


def _on_axes(table: np.ndarray, axes: Sequence[int], rank: int) -> np.ndarray:
    """Returns a table over some axes as one over `rank` axes, of size 1 where it does not depend on them.

    Example:
      >>> _on_axes(np.zeros((4, 5)), (2, 0), 3).shape
      (5, 1, 4)
    """
    order = sorted(range(len(axes)), key=lambda at: axes[at])
    shape = [1] * rank
    for at in order:
        shape[axes[at]] = table.shape[at]
    return table.transpose(order).reshape(shape)
