# SPDX-License-Identifier: Apache-2.0
"""The exact solution of a pairwise problem of small width, node by node.

A node is taken out together with all tables that have it: their sum, least over its states, is a table over its
neighbours. It is the rule R1 of `pairwise` for any number of neighbours. The tables grow with the width of the problem:
a program is nearly a chain, so that on one mesh axis they stay small, and on more axes often.

Source: bucket elimination, Dechter, "Bucket elimination: a unifying framework for reasoning" (1999); the order is the
greedy one by the size of the next table, as in Kjaerulff (1990).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MOST_DIMS = 32  # of a table: numpy has no more


@dataclass(frozen=True, slots=True)
class Order:
    """An order in which nodes may go. `entries` is the number of entries of all tables together."""

    nodes: tuple[int, ...]
    entries: float


@dataclass(frozen=True, slots=True)
class _Table:
    """Costs of the states of some nodes, in ascending order: one dimension for each."""

    nodes: tuple[int, ...]
    costs: np.ndarray

    def over(self, nodes: Sequence[int]) -> np.ndarray:
        """Returns the costs with one dimension for each of these nodes, of size 1 for those that the table lacks."""
        size = dict(zip(self.nodes, self.costs.shape, strict=True))
        return self.costs.reshape([size.get(node, 1) for node in nodes])


def order_of(sizes: Mapping[int, int], around: Mapping[int, set[int]], most_entries: float = math.inf) -> Order | None:
    """Returns the order in which each time the node with the smallest table goes; None if the tables are too large.

    Args:
      sizes: node -> its number of states. around: node -> its neighbours.
      most_entries: of all tables together.

    Example:
      >>> order_of({0: 2, 1: 3, 2: 2}, {0: {1}, 1: {0, 2}, 2: {1}})
      Order(nodes=(0, 1, 2), entries=14)
    """
    left = {node: set(others) for node, others in around.items()}
    entries = {node: _entries(node, others, sizes) for node, others in left.items()}
    waiting = [(size, node) for node, size in entries.items()]
    heapq.heapify(waiting)
    order, total = [], 0
    while waiting:
        size, node = heapq.heappop(waiting)
        if node not in left or size != entries[node]:  # its table has changed since
            continue
        total += size
        neighbours = left.pop(node)
        if total > most_entries or len(neighbours) >= MOST_DIMS:
            return None
        order.append(node)
        for each in neighbours:
            left[each] = (left[each] | neighbours) - {each, node}
            entries[each] = _entries(each, left[each], sizes)
            heapq.heappush(waiting, (entries[each], each))
    return Order(tuple(order), total)


def eliminated(
    costs: Mapping[int, np.ndarray], edges: Mapping[tuple[int, int], np.ndarray], order: Order
) -> dict[int, int]:
    """Returns the state of each node in a solution of least cost; the first of equal states.

    Args:
      costs: node -> the cost of each state.
      edges: (node, larger node) -> costs with a row per state of the first, a column per state of the second.

    Example:
      >>> flip = np.array([[9.0, 0.0], [0.0, 9.0]])
      >>> eliminated({0: np.array([0.0, 1.0]), 1: np.array([0.0, 2.0])}, {(0, 1): flip}, Order((0, 1), 6))
      {1: 0, 0: 1}
    """
    tables = [_Table((node,), each) for node, each in costs.items()]
    tables += [_Table(nodes, each) for nodes, each in edges.items()]
    having: dict[int, list[_Table]] = {node: [] for node in costs}
    first = {node: number for number, node in enumerate(order.nodes)}
    for table in tables:
        having[min(table.nodes, key=first.__getitem__)].append(table)
    gone: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    for node in order.nodes:
        scope = tuple(sorted({each for table in having[node] for each in table.nodes}))
        total = sum(table.over(scope) for table in having.pop(node))
        axis = scope.index(node)
        rest = scope[:axis] + scope[axis + 1 :]
        gone.append((node, rest, np.argmin(total, axis=axis)))
        if rest:
            having[min(rest, key=first.__getitem__)].append(_Table(rest, np.min(total, axis=axis)))
    states: dict[int, int] = {}
    for node, rest, best in reversed(gone):
        states[node] = int(best[tuple(states[each] for each in rest)])
    return states


def _entries(node: int, neighbours: set[int], sizes: Mapping[int, int]) -> int:
    return sizes[node] * math.prod(sizes[each] for each in neighbours)
