# SPDX-License-Identifier: Apache-2.0
"""Pairwise problems: nodes that each take one of a few states, at a cost for each state and each pair of neighbours.

>>> problem = PairwiseProblem()
>>> one, other = problem.add([0.0, 1.0]), problem.add([3.0, 0.0])
>>> problem.join(one, other, np.array([[0.0, 2.0], [2.0, 0.0]]))
>>> problem.cost((1, 1))
1.0

A layout of a tensor is a state, a way of an op is one, and a conversion is a pair. Three reductions shrink a problem
without losing its best solution:

R1 **fold**: a node with one state, or one neighbour, or two, is taken out; the cost of its best state, given the
   states of its neighbours, goes to them: min over s of cost[s] + M[a, s] + N[b, s].
R2 **dominated states**: state s of a node goes if another state t never costs more: cost[t] - cost[s] plus, for each
   neighbour, the largest M[t, j] - M[s, j], is at most 0. Of two that never differ the first stays.
R3 **parallel edges** are one edge, the sum of both.

Source: the reductions of Boolean and weighted constraint problems as in Koster, van Hoesel, Kolen, "The partial
constraint satisfaction problem: facets and lifting theorems" (1998), and Goldstein, "Efficient rotamer elimination"
(1994) for R2.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

_HUGE = 1e300  # seconds, for what is impossible
_ROUNDING = 1e-12  # seconds, by which a sum may be off
_DIFFERENCES = 1 << 18  # numbers that are subtracted at once


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a sum over nodes and pairs of nodes, such as memory in bytes.

    Attributes:
      weights: node -> the weight of each of its states. most: the largest sum.
      pairs: (node, larger node) -> weights with a row per state of the first, a column per state of the second; there
        is an edge between them.
    """

    weights: Mapping[int, np.ndarray]
    most: float
    pairs: Mapping[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def used(self, states: Sequence[int]) -> float:
        """Returns the sum for a solution."""
        return sum(float(each[states[node]]) for node, each in self.weights.items()) + sum(
            float(matrix[states[one], states[other]]) for (one, other), matrix in self.pairs.items()
        )

    def around(self) -> dict[int, list[tuple[int | None, np.ndarray]]]:
        """Returns for each node its weights: one row per state; with the other node, None if there is none."""
        found: dict[int, list[tuple[int | None, np.ndarray]]] = {}
        for node, each in self.weights.items():
            found.setdefault(node, []).append((None, np.asarray(each, dtype=float)[:, None]))
        for (one, other), matrix in self.pairs.items():
            found.setdefault(one, []).append((other, matrix))
            found.setdefault(other, []).append((one, matrix.T))
        return found


@dataclass
class PairwiseProblem:
    """A problem; costs are in seconds, infinite for what is impossible.

    Attributes:
      costs: for each node the cost of each of its states.
      edges: (node, larger node) -> costs with one row per state of the first, one column per state of the second.
      limits: on sums of weights; nodes that have a weight are not folded.
    """

    costs: list[np.ndarray] = field(default_factory=list)
    edges: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    limits: list[Limit] = field(default_factory=list)

    def add(self, costs: Sequence[float] | np.ndarray) -> int:
        """Adds a node; returns its number."""
        self.costs.append(np.asarray(costs, dtype=float))
        return len(self.costs) - 1

    def join(self, one: int, other: int, costs: np.ndarray) -> None:
        """Adds costs for pairs of states, rows for `one`; edges between the same nodes add up (R3)."""
        if one == other:
            self.costs[one] = self.costs[one] + np.diagonal(costs)
            return
        key, matrix = ((one, other), costs) if one < other else ((other, one), costs.T)
        self.edges[key] = self.edges[key] + matrix if key in self.edges else np.array(matrix, dtype=float)

    def cost(self, states: Sequence[int]) -> float:
        """Returns the cost of a solution: one state for each node."""
        return sum(float(each[state]) for each, state in zip(self.costs, states, strict=True)) + sum(
            float(matrix[states[one], states[other]]) for (one, other), matrix in self.edges.items()
        )

    def shares(self, states: Sequence[int]) -> list[float]:
        """Returns what a solution takes of each limit, as a share of it."""
        return [each.used(states) / max(each.most, 1.0) for each in self.limits]

    def excess(self, states: Sequence[int]) -> float:
        """Returns by how much a solution is above a limit, at most; 0 if it keeps all of them."""
        return max((0.0, *(each.used(states) - each.most for each in self.limits)))


@dataclass(frozen=True, slots=True)
class _Fold:
    """A node that was taken out: its best state for each state of its neighbours, as they were numbered then.

    `rows` has for each neighbour, by the first number of a state, its number then; `states` the way back for the node.
    """

    node: int
    neighbours: tuple[int, ...]
    best: np.ndarray
    rows: tuple[dict[int, int], ...]
    states: np.ndarray


class Reduction:
    """A problem while it shrinks; `core` are the nodes that are left.

    Invariant: the least cost over `core`, plus `constant`, is the least cost of the whole problem.
    """

    def __init__(self, problem: PairwiseProblem):
        self.costs = [each.copy() for each in problem.costs]
        self.states = [np.arange(len(each)) for each in problem.costs]  # the ones that are left, by their first number
        self.around: list[dict[int, np.ndarray]] = [{} for _ in problem.costs]
        for (one, other), matrix in problem.edges.items():
            self.around[one][other], self.around[other][one] = matrix, matrix.T
        self.weights: dict[int, list[list[np.ndarray]]] = {}  # node -> for each limit on it those it adds up
        for limit in problem.limits:
            for node, some in limit.around().items():
                self.weights.setdefault(node, []).append([each for _, each in some])
        self.constant = 0.0
        self._folds: list[_Fold] = []
        self._left = set(range(len(problem.costs)))

    @property
    def core(self) -> list[int]:
        """Returns the nodes that are left, in order."""
        return sorted(self._left)

    def run(self) -> None:
        """Applies all rules until none applies."""
        for node in sorted(self._left):
            self._drop_impossible(node)
        waiting = [(len(self.around[node]), node) for node in self._left]
        heapq.heapify(waiting)
        while waiting:
            degree, node = heapq.heappop(waiting)
            if node not in self._left or degree != len(self.around[node]):
                continue
            neighbours = list(self.around[node])
            if self._may_fold(node):
                self._fold(node)
            elif not self._drop_dominated(node):
                continue
            elif self._may_fold(node):
                self._fold(node)
            for each in neighbours:
                if each in self._left:
                    heapq.heappush(waiting, (len(self.around[each]), each))

    def solution(self, core: Mapping[int, int]) -> tuple[int, ...]:
        """Returns the states of all nodes, by their numbers in the whole problem.

        Args:
          core: the state of each node that is left, by its number among those that are left of the node.
        """
        at = {node: int(self.states[node][state]) for node, state in core.items()}
        for fold in reversed(self._folds):
            rows = tuple(rows[at[each]] for each, rows in zip(fold.neighbours, fold.rows, strict=True))
            at[fold.node] = int(fold.states[fold.best[rows]])
        return tuple(at[node] for node in range(len(self.states)))

    def _may_fold(self, node: int) -> bool:
        if len(self.costs[node]) == 1:
            return True
        return node not in self.weights and len(self.around[node]) <= 2

    def _fold(self, node: int) -> None:
        costs, neighbours = self.costs[node], tuple(self.around[node])
        if len(costs) == 1:  # whatever the neighbours are
            for each in neighbours:
                self.costs[each] = self.costs[each] + self.around[node][each][0]
            neighbours = ()
            self.constant += float(costs[0])
        elif not neighbours:
            self.constant += float(costs.min())
        tables = [self.around[node][each].T for each in neighbours]
        least, best = _least_sums(costs, tables)
        if len(neighbours) == 1:
            self.costs[neighbours[0]] = self.costs[neighbours[0]] + least
        elif neighbours:
            one, other = neighbours
            if one in self.around[other]:
                least = least + self.around[one][other]
            self.around[one][other], self.around[other][one] = least, least.T
        rows = tuple({int(state): row for row, state in enumerate(self.states[each])} for each in neighbours)
        self._folds.append(_Fold(node, neighbours, best, rows, self.states[node]))
        for each in self.around[node]:
            del self.around[each][node]
        self.around[node] = {}
        self._left.discard(node)

    def _drop_impossible(self, node: int) -> None:
        possible: np.ndarray = np.isfinite(self.costs[node])
        for matrix in self.around[node].values():
            possible = np.logical_and(possible, np.isfinite(matrix).any(axis=1))
        if np.any(possible) and not np.all(possible):
            self._keep(node, np.asarray(possible))

    def _drop_dominated(self, node: int) -> bool:
        """Applies R2 to a node; returns whether a state went."""
        count = len(self.costs[node])
        if count == 1:
            return False
        never = _never_more(self.costs[node], list(self.around[node].values()))
        if never is None:
            return False
        for weights in self.weights.get(node, ()):
            one, other = np.nonzero(never)
            more = sum(_largest_differences(each[self.states[node]], one, other) for each in weights)
            never[one, other] = more <= 0
        both = never & never.T  # of states that never differ, the first stays
        never &= ~both | np.tri(count, dtype=bool).T
        dropped = never.any(axis=0)  # the relation is transitive, and has no circle: a state that stays dominates it
        if not dropped.any():
            return False
        self._keep(node, ~np.asarray(dropped))
        return True

    def _keep(self, node: int, kept: np.ndarray) -> None:
        self.costs[node], self.states[node] = self.costs[node][kept], self.states[node][kept]
        for each, matrix in self.around[node].items():
            self.around[node][each] = matrix[kept]
            self.around[each][node] = self.around[node][each].T


def _least_sums(costs: np.ndarray, tables: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the least cost of a node for each state of its neighbours, at most two, and the state that has it.

    Args:
      tables: for each neighbour the costs of the pairs, [its state, state of the node].
    """
    if len(tables) < 2:
        total = costs + tables[0] if tables else costs
        best = total.argmin(axis=-1)
        return np.take_along_axis(total, best[..., None], axis=-1)[..., 0], best
    one, other = tables
    least, best = np.empty((len(one), len(other))), np.empty((len(one), len(other)), int)
    step = max(1, _DIFFERENCES // max(1, other.size))  # rows at a time
    for start in range(0, len(one), step):
        total = (costs + one[start : start + step])[:, None, :] + other
        best[start : start + step] = found = total.argmin(axis=-1)
        least[start : start + step] = np.take_along_axis(total, found[..., None], axis=-1)[..., 0]
    return least, best


def _never_more(costs: np.ndarray, matrices: Sequence[np.ndarray]) -> np.ndarray | None:
    """Returns for pairs of states (t, s) whether t costs no more than s, whatever states the neighbours are in; None if
    that is so for no two states.

    Each largest difference is at least the one where the neighbour suits s best. So most pairs need not be looked at in
    all states of the neighbours, and others only of some.
    """
    with np.errstate(invalid="ignore"):
        least = [each[:, each.argmin(axis=1)] - each.min(axis=1) for each in matrices]
        at_least = costs[:, None] - costs[None, :] + sum(least)
        asked = ~(at_least > 0)
        np.fill_diagonal(asked, False)
        one, other = np.nonzero(asked)
        exact: list[np.ndarray] = []
        for number, matrix in enumerate(matrices):
            exact.append(_largest_differences(matrix, one, other))
            rest = sum(each[one, other] for each in least[number + 1 :])
            kept = ~(costs[one] - costs[other] + sum(exact) + rest > _ROUNDING)
            one, other, exact = one[kept], other[kept], [each[kept] for each in exact]
        more = costs[one] - costs[other]
        for each in exact:
            more = more + each
    if not len(one):
        return None
    never = np.zeros((len(costs), len(costs)), bool)
    never[one, other] = np.where(np.isnan(more), np.inf, more) <= 0
    return never


def _largest_differences(matrix: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns for pairs of rows the largest of matrix[t, j] - matrix[s, j]; where both are infinite, 0."""
    if 2 * len(one) > len(matrix) ** 2:
        return _largest_difference(matrix)[one, other]
    finite = np.where(np.isinf(matrix), _HUGE, matrix)
    found = np.empty(len(one))
    step = max(1, _DIFFERENCES // max(1, matrix.shape[1]))  # pairs at a time
    for start in range(0, len(one), step):
        some = slice(start, start + step)
        found[some] = (finite[one[some]] - finite[other[some]]).max(axis=1)
    return _as_infinite(found)


def _largest_difference(matrix: np.ndarray) -> np.ndarray:
    """Returns the same for all pairs of rows (t, s)."""
    finite = np.where(np.isinf(matrix), _HUGE, matrix)
    found = np.empty((len(matrix), len(matrix)))
    step = max(1, _DIFFERENCES // max(1, matrix.size))  # rows at a time
    for start in range(0, len(matrix), step):
        found[start : start + step] = (finite[start : start + step, None, :] - finite[None, :, :]).max(axis=2)
    return _as_infinite(found)


def _as_infinite(found: np.ndarray) -> np.ndarray:
    found[found > _HUGE / 2] = np.inf
    found[found < -_HUGE / 2] = -np.inf
    return found
