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
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .pairwise import Limit, PairwiseProblem, Reduction

SMALL_GAP = 5e-3  # the relative gap at which the search may end
TIME_LIMIT_S = 15.0
_SMALL_PRICE = 1e-9  # of a limit as a whole, where the best solution without limits costs nothing
_ROUNDING = 1e-12  # seconds
_CLOSE = 1.02  # the ratio of two prices between which no third is tried
_PRICES = 14  # that are tried for the weights in limits
_FEW = 20_000  # combinations of states that are enumerated without a linear program


class InfeasibleError(ValueError):
    """No solution keeps the limits, or none was found in time, if `is_proved` is false.

    `excess` is by how much the best one that was found is above; None if it is not known.
    """

    def __init__(self, message: str, excess: float | None = None, is_proved: bool = True):
        super().__init__(message)
        self.excess, self.is_proved = excess, is_proved


class NotBelowError(ValueError):
    """No solution costs less than the caller asked for; `bound` is what the best one costs at least."""

    def __init__(self, bound: float):
        super().__init__(f"no solution costs less than {bound}")
        self.bound = bound


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
        if self.bound > 0:
            return max(0.0, self.cost / self.bound - 1)
        return 0.0 if self.cost <= self.bound + _ROUNDING else math.inf


def solve(
    problem: PairwiseProblem, *, time_limit_s: float = TIME_LIMIT_S, gap: float = SMALL_GAP, below: float = math.inf
) -> Solution:
    """Returns a solution within `gap` of the least cost, or the best one that was found within the time.

    Args:
      below: the cost from which on nobody wants the solution; then less time is spent.
    Raises:
      InfeasibleError: no solution is possible within the limits.
      NotBelowError: each solution costs `below` or more.
    """
    found = _solved(problem, time_limit_s, gap, below)
    if found.bound >= below:
        raise NotBelowError(found.bound)
    return found


def _solved(problem: PairwiseProblem, time_limit_s: float, gap: float, below: float) -> Solution:
    reduction = Reduction(problem)
    reduction.run()
    core = reduction.core
    if not core:
        return _checked(problem, reduction.solution({}), math.inf, 0)
    if not problem.limits and math.prod(len(reduction.costs[node]) for node in core) <= _FEW:
        return _checked(problem, reduction.solution(_enumerated(reduction, core)), math.inf, len(core))
    relaxed = _relaxed(problem, time_limit_s * 2 / 3, gap, below) if problem.limits else None
    if relaxed is not None and relaxed.gap <= gap:
        return relaxed
    try:
        found, bound = _programmed(problem, reduction, core, time_limit_s / 3 if relaxed else time_limit_s, gap)
    except InfeasibleError as error:
        if relaxed is not None:
            return relaxed
        greedy = _descended(problem, tuple(int(costs.argmin()) for costs in problem.costs))
        if error.is_proved or not math.isfinite(problem.cost(greedy)) or problem.excess(greedy) > 0:
            raise
        return Solution(greedy, problem.cost(greedy), -math.inf, len(core))
    states = reduction.solution(found)
    solution = _checked(problem, _descended(problem, states), bound + reduction.constant, len(core))
    return _better(solution, relaxed) if relaxed else solution


def _better(one: Solution, other: Solution) -> Solution:
    """Returns the cheaper solution, with the better bound."""
    best = min(one, other, key=lambda each: each.cost)
    return replace(best, bound=min(best.cost, max(one.bound, other.bound)))


def _relaxed(problem: PairwiseProblem, time_limit_s: float, gap: float, below: float) -> Solution | None:
    """Returns a solution that keeps the limits, from problems without limits; None if none of these gives one.

    In the Lagrangian relaxation each state also costs a price for its weight in each limit. The least cost, less the
    price of all that the limits allow, is a lower bound for every price; a high price leads to solutions that keep the
    limits. The price rises, then closes in from both sides. At last each node may choose among the states that it had
    in any of these solutions, which is a small problem.
    """
    end = time.monotonic() + time_limit_s
    best: Solution | None = None
    bound, low, high = -math.inf, 0.0, math.inf
    unit, seen = 0.0, []
    for step in range(_PRICES):
        price = 0.0 if step == 0 else unit * 4.0 ** (step - 1) if math.isinf(high) else math.sqrt(low * high)
        if price == 0.0 and step:
            price = high / 16
        try:
            found = solve(_priced(problem, price), time_limit_s=max(1.0, end - time.monotonic()), gap=gap / 4)
        except InfeasibleError:
            break
        bound = max(bound, found.bound - price * len(problem.limits))
        if bound >= below:
            raise NotBelowError(bound)
        seen.append(found.states)
        cost = problem.cost(found.states)
        unit = unit or cost / 16 or _SMALL_PRICE
        if problem.excess(found.states) > 0:
            low = price
        else:
            high = price
            states = _descended(problem, found.states)
            cost = problem.cost(states)
            if best is None or cost < best.cost:
                best = Solution(states, cost, bound, found.core)
        is_close = best is not None and (best.cost <= bound * (1 + gap) or price == 0.0)
        if is_close or high < low * _CLOSE or time.monotonic() > end:
            break
    if seen and (best is None or best.cost > bound * (1 + gap)):
        mixed = _mixed(problem, seen, max(1.0, end - time.monotonic()))
        best = mixed if mixed is not None and (best is None or mixed.cost < best.cost) else best
    return best and replace(best, bound=min(best.cost, bound))


def _mixed(problem: PairwiseProblem, seen: Sequence[tuple[int, ...]], time_limit_s: float) -> Solution | None:
    """Returns the best solution in which each node has one of the states that it has in one of several solutions."""
    states = [np.unique(each) for each in np.array(seen).T]
    limits = [
        Limit({node: np.asarray(w)[states[node]] for node, w in limit.weights.items()}, limit.most)
        for limit in problem.limits
    ]
    small = PairwiseProblem(
        [costs[some] for costs, some in zip(problem.costs, states, strict=True)],
        {(a, b): matrix[np.ix_(states[a], states[b])] for (a, b), matrix in problem.edges.items()},
        limits,
    )
    reduction = Reduction(small)
    reduction.run()
    try:
        core = _programmed(small, reduction, reduction.core, time_limit_s, SMALL_GAP)[0] if reduction.core else {}
        found = reduction.solution(core)
    except InfeasibleError:
        return None
    whole = tuple(int(some[state]) for some, state in zip(states, found, strict=True))
    whole = _descended(problem, whole) if not problem.excess(whole) else whole
    return Solution(whole, problem.cost(whole), -math.inf, len(reduction.core)) if not problem.excess(whole) else None


def _priced(problem: PairwiseProblem, price: float) -> PairwiseProblem:
    """Returns the problem without limits, at a price for each limit as a whole."""
    costs = [each.copy() for each in problem.costs]
    for limit in problem.limits:
        for node, weights in limit.weights.items():
            costs[node] = costs[node] + price * np.asarray(weights) / max(limit.most, 1.0)
    return PairwiseProblem(costs, problem.edges)


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
    """Returns the states of the core from the linear program, and its bound.

    Raises: InfeasibleError if there is no solution, or none was found within the time.
    """
    program = _LinearProgram(reduction, core)
    for limit in problem.limits:
        program.limit(limit)
    return program.solved(time_limit_s, gap)


class _LinearProgram:
    """The linear program of a core: a variable for each state of a node, then one for each pair of an edge.

    Rows: the states of a node add up to 1; the pairs of an edge with a state at one end add up to that state; limits.
    Costs are scaled to at most 1, weights by their limit.
    """

    def __init__(self, reduction: Reduction, core: Sequence[int]):
        self._reduction, self._core = reduction, core
        self._first: dict[int, int] = {}
        self._entries: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # rows, columns, values
        self._low: list[float] = []
        self._high: list[float] = []
        costs = []
        for node in core:
            self._first[node] = sum(map(len, costs))
            costs.append(reduction.costs[node])
        self._states_end = sum(map(len, costs))
        for node in core:
            columns = self._first[node] + np.arange(len(reduction.costs[node]))
            self._entries.append((np.full(len(columns), len(self._low)), columns, np.ones(len(columns))))
            self._low.append(1.0)
            self._high.append(1.0)
        start = self._states_end
        for one in core:
            for other, matrix in reduction.around[one].items():
                if one < other:
                    rows, columns = np.nonzero(np.isfinite(matrix))
                    costs.append(matrix[rows, columns])
                    self._pair(start, one, rows, matrix.shape[0])
                    self._pair(start, other, columns, matrix.shape[1])
                    start += len(rows)
        self._costs = np.concatenate(costs)

    def limit(self, limit: Limit) -> None:
        """Adds a row: the weights of the states stay below the limit."""
        fixed, row, scale = 0.0, len(self._low), max(limit.most, 1.0)
        for node, weights in limit.weights.items():
            kept = np.asarray(weights, dtype=float)[self._reduction.states[node]] / scale
            if node in self._first:
                columns = self._first[node] + np.arange(len(kept))
                self._entries.append((np.full(len(kept), row), columns, kept))
            else:
                fixed += float(kept[0])
        self._low.append(-np.inf)
        self._high.append(limit.most / scale - fixed)

    def solved(self, time_limit_s: float, gap: float) -> tuple[dict[int, int], float]:
        """Returns the state of each node, and a bound. Raises: InfeasibleError."""
        from scipy import optimize, sparse  # loading them takes longer than most programs

        allowed = np.isfinite(self._costs)
        scale = float(np.abs(self._costs[allowed]).max(initial=0.0)) or 1.0
        rows, columns, values = (np.concatenate(each) for each in zip(*self._entries))
        shape = (len(self._low), len(self._costs))
        bounds: Any = optimize.Bounds(0.0, np.where(allowed, 1.0, 0.0))  # pyright: ignore[reportArgumentType]
        constraints: Any = optimize.LinearConstraint(
            sparse.csr_array((values, (rows, columns)), shape=shape),
            np.array(self._low),  # pyright: ignore[reportArgumentType]  # the stubs know single numbers only
            np.array(self._high),  # pyright: ignore[reportArgumentType]
        )
        answer: Any = optimize.milp(
            np.where(allowed, self._costs, 0.0) / scale,
            integrality=np.arange(len(self._costs)) < self._states_end,
            bounds=bounds,
            constraints=constraints,
            options={"time_limit": time_limit_s, "mip_rel_gap": gap},
        )
        if answer.x is None:
            is_proved = answer.status == 2
            said = "no layout keeps the limit" if is_proved else f"no layout was found within {time_limit_s:.0f} s"
            raise InfeasibleError(said, is_proved=is_proved)
        sizes = {node: len(self._reduction.costs[node]) for node in self._core}
        states = {
            node: int(answer.x[self._first[node] : self._first[node] + size].argmax()) for node, size in sizes.items()
        }
        bound = -math.inf if answer.mip_dual_bound is None else float(answer.mip_dual_bound)
        return states, bound * scale

    def _pair(self, start: int, node: int, side: np.ndarray, size: int) -> None:
        """Adds the rows of one end of an edge whose pairs begin at `start`; `side` has the state of each pair there."""
        row = len(self._low)
        self._entries.append((row + side, start + np.arange(len(side)), np.ones(len(side))))
        self._entries.append((row + np.arange(size), self._first[node] + np.arange(size), -np.ones(size)))
        self._low += [0.0] * size
        self._high += [0.0] * size


def _descended(problem: PairwiseProblem, states: tuple[int, ...]) -> tuple[int, ...]:
    """Returns states of which no single one can be bettered; keeps the limits if `states` does."""
    around: dict[int, list[tuple[int, np.ndarray]]] = {}
    for (one, other), matrix in problem.edges.items():
        around.setdefault(one, []).append((other, matrix))
        around.setdefault(other, []).append((one, matrix.T))
    found = list(states)
    sums = [sum(float(w[states[node]]) for node, w in limit.weights.items()) for limit in problem.limits]
    for _ in itertools.count():
        changed = False
        for node, costs in enumerate(problem.costs):
            total = costs + sum(matrix[:, found[other]] for other, matrix in around.get(node, ()))
            for limit, used in zip(problem.limits, sums, strict=True):
                if node in limit.weights:
                    weights = np.asarray(limit.weights[node])
                    total = np.where(used - weights[found[node]] + weights > limit.most, np.inf, total)
            best = int(np.argmin(total))
            if total[best] < total[found[node]] * (1 - 1e-9):
                for number, limit in enumerate(problem.limits):
                    if node in limit.weights:
                        sums[number] += float(limit.weights[node][best] - limit.weights[node][found[node]])
                found[node], changed = best, True
        if not changed:
            return tuple(found)
    return tuple(found)
