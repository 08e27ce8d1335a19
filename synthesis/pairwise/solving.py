# SPDX-License-Identifier: Apache-2.0
"""Solving pairwise problems: reduce, then eliminate node by node, pass messages, or solve a linear program.

Elimination is exact, and fast while its tables are small. In wider problems messages (`messages`) find a solution and
a bound, mostly within a thousandth of each other. Where they are further apart, and for limits, there is the linear
program over pairs of states. That has a variable in [0, 1] for each state of a node and for each pair of states of an
edge; the pairs of an edge add up to the states at both its ends. Its optimum is a lower bound. It is often integral,
and then exact; otherwise HiGHS branches until the gap is small or the time is over, and coordinate descent improves the
best solution.

So that a solution does not depend on the machine, the number of variables says which linear programs are solved, and
the time limit is one that few problems come to.

Source: Koster et al. (1998); Zheng et al., "Alpa" (OSDI 2022), for layouts; Huangfu and Hall (2018) for HiGHS.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .elimination import Order, eliminated, order_of
from .messages import MOST_ENTRIES, Messages
from .problem import Limit, PairwiseProblem, Reduction

SMALL_GAP = 5e-3  # the relative gap at which the search may end
TIME_LIMIT_S = 40.0
_SMALL_PRICE = 1e-9  # of a limit as a whole, where the best solution without limits costs nothing
_HIGH_PRICE = 64  # times the first one: if two are all that can be tried, one has to keep the limits
_ROUNDING = 1e-12  # seconds
_CLOSE = 1.02  # the ratio of two prices between which no third is tried
_PRICES = 14  # that are tried for the weights in limits
_MOST_PRICED = 300_000  # variables of the linear programs at all prices together
_MOST_PASSED = 1_000_000_000  # entries of matrices that messages look through at all prices together
_MOST_AT_ONCE = 200_000  # variables of a linear program that is to better a solution
_SLACKS = 1e-5, 1e-3  # shares of the bound within which states are looked at together
_FEW_VARIABLES, _FEW_S = 30_000, 10.0  # of the linear program over these, and its time limit
_FEW = 15_000_000  # entries of tables up to which elimination is faster than the linear program


class InfeasibleError(ValueError):
    """No solution keeps the limits, or none was found in time, if `is_proved` is false.

    `closest` has the states that are the least above the limits, of those that were found; None if there are none.
    """

    def __init__(self, message: str, is_proved: bool = True, closest: tuple[int, ...] | None = None):
        super().__init__(message)
        self.is_proved, self.closest = is_proved, closest


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
      variables: of that program; 0 if there was none. entries: of matrices that messages have looked through.
    """

    states: tuple[int, ...]
    cost: float
    bound: float
    core: int = 0
    variables: int = 0
    entries: int = 0

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


def _solved(
    problem: PairwiseProblem,
    time_limit_s: float,
    gap: float,
    below: float,
    most_variables: float = math.inf,
    enough: float = 0.0,
    most_entries: int = MOST_ENTRIES,
) -> Solution:
    """Returns a solution within `gap`, or else within `enough` if messages find one without the linear program."""
    end_s = time.monotonic() + time_limit_s
    reduction = Reduction(problem)
    reduction.run()
    core = reduction.core
    if not core:
        return _checked(problem, reduction.solution({}), math.inf, 0)
    if not problem.limits and (order := _order(reduction, core)) is not None:
        costs = {node: reduction.costs[node] for node in core}
        return _checked(problem, reduction.solution(eliminated(costs, _edges(reduction), order)), math.inf, len(core))
    relaxation = _Relaxation(problem, time_limit_s * 2 / 3, gap, below) if problem.limits else None
    relaxed = relaxation.solution() if relaxation else _by_messages(problem, reduction, gap, most_entries)
    variables = _variables(reduction)
    if relaxed is not None and (relaxed.gap <= max(gap, enough) or variables > min(_MOST_AT_ONCE, most_variables)):
        return relaxed
    if variables > most_variables:
        raise InfeasibleError(f"{variables:,} variables are more than {most_variables:,.0f}", is_proved=False)
    try:
        left_s = max(1.0, time_limit_s / 3 if relaxed and relaxation else end_s - time.monotonic())
        found, bound = _programmed(problem, reduction, core, left_s, gap)
    except InfeasibleError as error:
        if relaxed is not None:
            return replace(relaxed, variables=variables)
        greedy = _descended(problem, tuple(int(costs.argmin()) for costs in problem.costs))
        if error.is_proved or not math.isfinite(problem.cost(greedy)) or problem.excess(greedy) > 0:
            error.closest = relaxation and relaxation.closest
            raise
        return Solution(greedy, problem.cost(greedy), -math.inf, len(core), variables)
    states = reduction.solution(found)
    solution = _checked(problem, _descended(problem, states), bound + reduction.constant, len(core))
    solution = replace(solution, variables=variables)
    return _better(solution, relaxed) if relaxed else solution


def _by_messages(problem: PairwiseProblem, reduction: Reduction, gap: float, most_entries: int) -> Solution | None:
    """Returns the solution that messages find, with their bound; None if they find none that is allowed."""
    core = reduction.core
    messages = Messages({node: reduction.costs[node] for node in core}, _edges(reduction))
    messages.run(gap, most_entries)
    for slack in _SLACKS:
        if messages.best_cost <= messages.bound + gap * abs(messages.bound):
            break
        _choose_near(messages, slack * abs(messages.bound), gap)
    if not math.isfinite(messages.best_cost):
        return None
    states = _descended(problem, reduction.solution(messages.best))
    found = _checked(problem, states, messages.bound + reduction.constant, len(core))
    return replace(found, entries=messages.entries)


def _choose_near(messages: Messages, slack: float, gap: float) -> None:
    """Gives messages the best solution among the states that are near their bound, if these are few."""
    states = messages.near(slack)
    nodes = sorted(states)
    number = {node: at for at, node in enumerate(nodes)}
    edges = {(number[one], number[other]): matrix for (one, other), matrix in messages.edges.items()}
    whole = PairwiseProblem([messages.costs[node] for node in nodes], edges)
    small = _restricted(whole, [states[node] for node in nodes])
    reduction = Reduction(small)
    try:
        reduction.run()
        core = reduction.core
        if core and (order := _order(reduction, core)) is not None:
            found = eliminated({node: reduction.costs[node] for node in core}, _edges(reduction), order)
        elif _variables(reduction) <= _FEW_VARIABLES:
            found = _programmed(small, reduction, core, _FEW_S, gap / 4)[0] if core else {}
        else:
            return
    except InfeasibleError:
        return
    chosen = reduction.solution(found)
    messages.keep({node: int(states[node][chosen[at]]) for at, node in enumerate(nodes)})


def _better(one: Solution, other: Solution) -> Solution:
    """Returns the cheaper solution, with the better bound."""
    best, bound = min(one, other, key=lambda each: each.cost), max(one.bound, other.bound)
    spent = {"variables": one.variables + other.variables, "entries": one.entries + other.entries}
    return replace(best, bound=min(best.cost, bound), **spent)


class _Relaxation:
    """Solutions that keep the limits, and a bound, from problems without limits.

    In the Lagrangian relaxation each state also costs a price for its weight in the limits that some solution broke.
    The least cost, less the price of all that these limits allow, is a lower bound for every price, concave in it. Each
    solution is a line above: one that rises is over these limits in sum, one that falls is not. The next price is where
    the last two of these cross (Kelley's cutting planes in one dimension), which ends at the best bound after few
    steps. The lowest price whose solution keeps each limit is then closed in on.
    """

    def __init__(self, problem: PairwiseProblem, time_limit_s: float, gap: float, below: float):
        self._problem, self._gap, self._below = problem, gap, below
        self._end = time.monotonic() + time_limit_s
        self._tries, self._variables, self._largest = _PRICES, _MOST_PRICED, 0
        self._entries = _MOST_PASSED
        self._seen: list[tuple[int, ...]] = []
        self._broken: set[int] = set()  # limits
        self._best: Solution | None = None
        self._bound = -math.inf
        self._above, self._kept = 0.0, math.inf  # prices: the highest that breaks a limit, the lowest that keeps all

    def solution(self) -> Solution | None:
        """Returns the best solution; None if no price gives one. Raises: NotBelowError."""
        if (free := self._at(0.0)) is None:
            return None
        unit = free.cost / 16 or _SMALL_PRICE
        self._raise_bound(free, unit)
        self._close_in(unit)
        if not self._is_close:
            mixed = _mixed(self._problem, self._seen, max(1.0, self._end - time.monotonic()))
            best = self._best
            self._best = mixed if mixed is not None and (best is None or mixed.cost < best.cost) else best
        return self._best and replace(self._best, bound=min(self._best.cost, self._bound))

    @property
    def closest(self) -> tuple[int, ...] | None:
        """Returns the solution that is the least above the limits; None if there is none."""
        return min(self._seen, key=self._problem.excess, default=None)

    @property
    def _is_close(self) -> bool:
        return self._best is not None and self._best.cost <= self._bound * (1 + self._gap)

    def _raise_bound(self, free: _Line, unit: float) -> None:
        """Finds the price with the best bound; `free` is the line at the price 0."""
        rising, falling, price = free, None, unit if self._variables > 2 * self._largest else _HIGH_PRICE * unit
        while rising.slope(self._broken) > 0 and not self._is_close and (found := self._at(price)) is not None:
            broken = self._broken
            value = found.at(price, broken)
            if falling is not None and value >= falling.at(price, broken) - self._gap * abs(value) / 10:
                return  # no line is below the two that cross here
            rising, falling = (found, falling) if found.slope(broken) > 0 else (rising, found)
            price = 4 * price
            if falling is not None and falling.slope(broken) < rising.slope(broken):
                price = (falling.cost - rising.cost) / (rising.slope(broken) - falling.slope(broken))

    def _close_in(self, unit: float) -> None:
        """Finds the lowest price whose solution keeps each limit."""
        while not self._is_close and self._above * _CLOSE < self._kept:
            price = max(unit, 2 * self._above) if math.isinf(self._kept) else math.sqrt(self._above * self._kept)
            if self._at(price or self._kept / 16) is None:
                return

    def _at(self, price: float) -> _Line | None:
        """Solves at a price; returns the line of the solution, or None if there is none or enough was solved."""
        if not self._tries or self._entries <= 0 or (self._seen and time.monotonic() > self._end):
            return None
        self._tries -= 1
        problem, time_limit_s = self._problem, max(1.0, self._end - time.monotonic())
        most = self._variables if len(self._seen) > 1 else math.inf
        try:
            priced = _priced(problem, price, self._broken)
            entries = min(MOST_ENTRIES, self._entries)
            found = _solved(priced, time_limit_s, self._gap / 4, math.inf, most, 2 * self._gap, entries)
        except InfeasibleError:
            return None
        self._entries -= found.entries
        self._variables, self._largest = self._variables - found.variables, max(self._largest, found.variables)
        self._bound = max(self._bound, found.bound - price * len(self._broken))
        if self._bound >= self._below:
            raise NotBelowError(self._bound)
        self._seen.append(found.states)
        if problem.excess(found.states) > 0:
            self._above = max(self._above, price)
        else:
            self._kept = min(self._kept, price)
            states = _descended(problem, found.states)
            best = Solution(states, problem.cost(states), self._bound, found.core)
            self._best = best if self._best is None or best.cost < self._best.cost else self._best
        shares = problem.shares(found.states)
        self._broken |= {number for number, share in enumerate(shares) if share > 1}
        return _Line(problem.cost(found.states), tuple(shares))


@dataclass(frozen=True, slots=True)
class _Line:
    """The value of a solution by the price of some limits: its cost, plus the price times what is above them in sum."""

    cost: float
    shares: tuple[float, ...]  # of the limits

    def slope(self, limits: Collection[int]) -> float:
        return sum(self.shares[each] - 1 for each in limits)

    def at(self, price: float, limits: Collection[int]) -> float:
        return self.cost + self.slope(limits) * price


def _mixed(problem: PairwiseProblem, seen: Sequence[tuple[int, ...]], time_limit_s: float) -> Solution | None:
    """Returns the best solution in which each node has one of the states that it has in one of several solutions."""
    states = [np.unique(each) for each in np.array(seen).T]
    small = _restricted(problem, states)
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


def _restricted(problem: PairwiseProblem, states: Sequence[np.ndarray]) -> PairwiseProblem:
    """Returns the problem in which each node has some of its states alone, in that order."""

    def between(matrices: Mapping[tuple[int, int], np.ndarray]) -> dict[tuple[int, int], np.ndarray]:
        return {(a, b): matrix[np.ix_(states[a], states[b])] for (a, b), matrix in matrices.items()}

    limits = [
        Limit(
            {node: np.asarray(weights)[states[node]] for node, weights in limit.weights.items()},
            limit.most,
            between(limit.pairs),
        )
        for limit in problem.limits
    ]
    costs = [each[some] for each, some in zip(problem.costs, states, strict=True)]
    return PairwiseProblem(costs, between(problem.edges), limits)


def _priced(problem: PairwiseProblem, price: float, limits: Collection[int]) -> PairwiseProblem:
    """Returns the problem without limits, at a price for each of some limits as a whole."""
    costs, edges = [each.copy() for each in problem.costs], dict(problem.edges)
    for limit in (problem.limits[each] for each in sorted(limits)):
        unit = price / max(limit.most, 1.0)
        for node, weights in limit.weights.items():
            costs[node] = costs[node] + unit * np.asarray(weights)
        for pair, weights in limit.pairs.items():
            edges[pair] = edges[pair] + unit * weights
    return PairwiseProblem(costs, edges)


def _checked(problem: PairwiseProblem, states: tuple[int, ...], bound: float, core: int) -> Solution:
    cost, excess = problem.cost(states), problem.excess(states)
    if not math.isfinite(cost):
        raise InfeasibleError("no layout is possible")
    if excess > 0:
        raise InfeasibleError("no layout keeps the limit", closest=states)
    return Solution(states, cost, min(cost, bound), core)


def _order(reduction: Reduction, core: Sequence[int]) -> Order | None:
    """Returns the order in which nodes are eliminated; None if the linear program is faster."""
    sizes = {node: len(reduction.costs[node]) for node in core}
    return order_of(sizes, {node: set(reduction.around[node]) for node in core}, _FEW)


def _edges(reduction: Reduction) -> dict[tuple[int, int], np.ndarray]:
    return {
        (one, other): matrix for one in reduction.core for other, matrix in reduction.around[one].items() if one < other
    }


def _variables(reduction: Reduction) -> int:
    """Returns how many variables the linear program of the core has."""
    pairs = sum(int(np.isfinite(matrix).sum()) for matrix in _edges(reduction).values())
    return pairs + sum(len(reduction.costs[node]) for node in reduction.core)


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
        self._pairs: dict[tuple[int, int], tuple[int, np.ndarray, np.ndarray]] = {}  # edge -> first column, its states
        for (one, other), matrix in _edges(reduction).items():
            rows, columns = np.nonzero(np.isfinite(matrix))
            self._pairs[one, other] = start, rows, columns
            costs.append(matrix[rows, columns])
            self._pair(start, one, rows, matrix.shape[0])
            self._pair(start, other, columns, matrix.shape[1])
            start += len(rows)
        self._costs = np.concatenate(costs)

    def limit(self, limit: Limit) -> None:
        """Adds a row: the weights of the states and pairs stay below the limit."""
        row, scale = len(self._low), max(limit.most, 1.0)
        states, fixed = self._reduction.states, 0.0
        for node, weights in limit.weights.items():
            fixed += self._weigh(row, node, np.asarray(weights, dtype=float)[states[node]] / scale)
        for (one, other), matrix in limit.pairs.items():
            kept = matrix[np.ix_(states[one], states[other])] / scale
            if (one, other) in self._pairs:
                start, rows, columns = self._pairs[one, other]
                self._entries.append((np.full(len(rows), row), start + np.arange(len(rows)), kept[rows, columns]))
            elif one in self._first:
                fixed += self._weigh(row, one, kept[:, 0])
            else:
                fixed += self._weigh(row, other, kept[0])
        self._low.append(-np.inf)
        self._high.append(limit.most / scale - fixed)

    def _weigh(self, row: int, node: int, weights: np.ndarray) -> float:
        """Adds the weights of a node's states to a row; returns that of a node with one state, which has no column."""
        if node not in self._first:
            return float(weights[0])
        columns = self._first[node] + np.arange(len(weights))
        self._entries.append((np.full(len(weights), row), columns, weights))
        return 0.0

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
    limits = [(limit.most, limit.around()) for limit in problem.limits]
    sums = [limit.used(states) for limit in problem.limits]
    for _ in itertools.count():
        changed = False
        for node, costs in enumerate(problem.costs):
            total = costs + sum(matrix[:, found[other]] for other, matrix in around.get(node, ()))
            more: dict[int, np.ndarray] = {}  # limit -> by how much each state is above the one that the node has
            for number, (most, parts) in enumerate(limits):
                if node in parts:
                    used = np.zeros(len(costs))
                    for other, each in parts[node]:
                        used = used + each[:, 0 if other is None else found[other]]
                    more[number] = used - used[found[node]]
                    total = np.where(sums[number] + more[number] > most, np.inf, total)
            best = int(np.argmin(total))
            if total[best] < total[found[node]] * (1 - 1e-9):
                for number, each in more.items():
                    sums[number] += float(each[best])
                found[node], changed = best, True
        if not changed:
            return tuple(found)
    return tuple(found)
