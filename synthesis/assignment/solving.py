# SPDX-License-Identifier: Apache-2.0
"""Solving pairwise problems: reduce, then the linear program over states and pairs of states, then branch and bound.

The linear program has a variable in [0, 1] for each state of a node and for each pair of states of an edge; the pairs
of an edge add up to the states at both its ends. Its optimum is a lower bound. It is often integral, and then exact;
otherwise HiGHS branches until the gap is small or the time is over, and coordinate descent improves the best solution.

Source: Koster et al. (1998); Zheng et al., "Alpa" (OSDI 2022), for layouts; Huangfu and Hall (2018) for HiGHS.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .pairwise import PairwiseProblem, Reduction

SMALL_GAP = 1e-3  # the relative gap at which the search may end
TIME_LIMIT_S = 30.0
_FEW = 20_000  # combinations of states that are enumerated without a linear program


class InfeasibleError(ValueError):
    """No solution keeps the limits. `excess` is by how much the best one found is above; None if it is not known."""

    def __init__(self, message: str, excess: float | None = None):
        super().__init__(message)
        self.excess = excess


@dataclass(frozen=True, slots=True)
class Solution:
    """The answer to a problem.

    Attributes:
      states: one for each node. cost: of them. bound: no solution costs less.
      core: the number of nodes that were left for the linear program.
    """

    states: tuple[int, ...]
    cost: float
    bound: float
    core: int = 0

    @property
    def gap(self) -> float:
        """Returns by how much the cost may be above the least one, as a share of the bound."""
        return max(0.0, self.cost / self.bound - 1) if self.bound > 0 else 0.0


def solve(problem: PairwiseProblem, *, time_limit_s: float = TIME_LIMIT_S, gap: float = SMALL_GAP) -> Solution:
    """Returns a solution within `gap` of the least cost, or the best one that was found within the time.

    Raises: InfeasibleError if no solution is possible within the limits.
    """
    reduction = Reduction(problem)
    reduction.run()
    core = reduction.core
    if not core:
        return _checked(problem, reduction.solution({}), math.inf, 0)
    if not problem.limits and math.prod(len(reduction.costs[node]) for node in core) <= _FEW:
        return _checked(problem, reduction.solution(_enumerated(reduction, core)), math.inf, len(core))
    found, bound = _programmed(problem, reduction, core, time_limit_s, gap)
    states = reduction.solution(found)
    return _checked(problem, _descended(problem, states), bound + reduction.constant, len(core))


def _checked(problem: PairwiseProblem, states: tuple[int, ...], bound: float, core: int) -> Solution:
    cost, excess = problem.cost(states), problem.excess(states)
    if not math.isfinite(cost):
        raise InfeasibleError("no layout is possible")
    if excess > 0:
        raise InfeasibleError("no layout keeps the limit", excess)
    return Solution(states, cost, min(cost, bound), core)


def _enumerated(reduction: Reduction, core: Sequence[int]) -> dict[int, int]:
    """Returns the best states of few nodes, by trying all."""
    at = {node: number for number, node in enumerate(core)}
    total = np.zeros([len(reduction.costs[node]) for node in core])
    for node in core:
        total = total + _along(reduction.costs[node], (at[node],), len(core))
        for other, matrix in reduction.around[node].items():
            if node < other:
                total = total + _along(matrix, (at[node], at[other]), len(core))
    best = np.unravel_index(int(total.argmin()), total.shape)
    return {node: int(state) for node, state in zip(core, best, strict=True)}


def _along(costs: np.ndarray, axes: tuple[int, ...], rank: int) -> np.ndarray:
    shape = [1] * rank
    for axis, size in zip(axes, costs.shape, strict=True):
        shape[axis] = size
    return costs.reshape(shape)  # the core is in order, so the axes are


def _programmed(
    problem: PairwiseProblem, reduction: Reduction, core: Sequence[int], time_limit_s: float, gap: float
) -> tuple[dict[int, int], float]:
    """Returns the states of the core from the linear program, and its bound."""
    from scipy import optimize, sparse  # loading them takes longer than most programs

    first, count = {}, 0
    for node in core:
        first[node] = count
        count += len(reduction.costs[node])
    nodes_end = count
    edges = [(one, other, reduction.around[one][other]) for one in core for other in reduction.around[one] if one < other]
    pairs = []
    for one, other, matrix in edges:
        rows, columns = np.nonzero(np.isfinite(matrix))
        pairs.append((rows, columns, count))
        count += len(rows)
    costs = np.concatenate(
        [reduction.costs[node] for node in core]
        + [matrix[rows, columns] for (_, _, matrix), (rows, columns, _) in zip(edges, pairs, strict=True)]
    )
    allowed = np.isfinite(costs)
    scale = float(np.abs(costs[allowed]).max(initial=0.0)) or 1.0
    row_of: list[np.ndarray] = []
    column_of: list[np.ndarray] = []
    values: list[np.ndarray] = []
    low: list[float] = []
    rows_so_far = 0

    def add(rows: np.ndarray, columns: np.ndarray, entries: np.ndarray) -> None:
        row_of.append(rows)
        column_of.append(columns)
        values.append(entries)

    for node in core:
        size = len(reduction.costs[node])
        add(np.full(size, rows_so_far), first[node] + np.arange(size), np.ones(size))
        low.append(1.0)
        rows_so_far += 1
    for (one, other, matrix), (rows, columns, start) in zip(edges, pairs, strict=True):
        variables = start + np.arange(len(rows))
        for node, side, size in ((one, rows, matrix.shape[0]), (other, columns, matrix.shape[1])):
            add(rows_so_far + side, variables, np.ones(len(rows)))
            add(rows_so_far + np.arange(size), first[node] + np.arange(size), -np.ones(size))
            low += [0.0] * size
            rows_so_far += size
    equal = np.array(low)
    high = equal.copy()
    for limit in problem.limits:
        fixed = sum(float(w[reduction.states[node][0]]) for node, w in limit.weights.items() if node not in first)
        for node, weights in limit.weights.items():
            if node in first:
                kept = np.asarray(weights, dtype=float)[reduction.states[node]] / max(limit.most, 1.0)
                add(np.full(len(kept), rows_so_far), first[node] + np.arange(len(kept)), kept)
        equal, high = np.append(equal, -np.inf), np.append(high, (limit.most - fixed) / max(limit.most, 1.0))
        rows_so_far += 1
    matrix = sparse.csr_array(
        (np.concatenate(values), (np.concatenate(row_of), np.concatenate(column_of))), shape=(rows_so_far, count)
    )
    answer = optimize.milp(
        np.where(allowed, costs, 0.0) / scale,
        integrality=np.r_[np.ones(nodes_end), np.zeros(count - nodes_end)],
        bounds=optimize.Bounds(0.0, np.where(allowed, 1.0, 0.0)),
        constraints=optimize.LinearConstraint(matrix, equal, high),
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )
    if answer.x is None:
        if answer.status == 2:
            raise InfeasibleError("no layout keeps the limit")
        raise InfeasibleError(f"no layout was found within {time_limit_s:g} s: {answer.message}")
    states = {
        node: int(answer.x[first[node] : first[node] + len(reduction.costs[node])].argmax()) for node in core
    }
    bound = answer.mip_dual_bound if answer.mip_dual_bound is not None else -math.inf
    return states, float(bound) * scale


def _descended(problem: PairwiseProblem, states: tuple[int, ...]) -> tuple[int, ...]:
    """Returns states of which no single one can be bettered; keeps the limits if `states` does."""
    if problem.limits:
        return states
    around: dict[int, list[tuple[int, np.ndarray]]] = {}
    for (one, other), matrix in problem.edges.items():
        around.setdefault(one, []).append((other, matrix))
        around.setdefault(other, []).append((one, matrix.T))
    found = list(states)
    for _ in itertools.count():
        changed = False
        for node, costs in enumerate(problem.costs):
            total = costs + sum(matrix[:, found[other]] for other, matrix in around.get(node, ()))
            best = int(np.argmin(total))
            if total[best] < total[found[node]] * (1 - 1e-9):
                found[node], changed = best, True
        if not changed:
            return tuple(found)
    return tuple(found)
