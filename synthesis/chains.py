# SPDX-License-Identifier: Apache-2.0
"""Which searches a request gets, and in what order: coarse factors, then detours, then primes; easier ones for sums.

A search is exact on its digits, and its digits are a choice (`problem.py`). So the coarse ones are searched first, which
are nearly always enough, and wider ones only for what costs less than what has been found. Searches stop after a number of steps
considered, never after a time, so that every process finds the same chain.
"""

from __future__ import annotations

from dataclasses import dataclass
import itertools

from . import steps
from .layout import Layout
from .pricing import Pricing
from .problem import NoPlanError, Problem, refine
from .reduced_ends import completed, frozen, has_sums, reduced_first
from .request import Request
from .search import Chain, SearchLimit, cheapest_chain
from .steps import Step

MOST_EDGES = 1_000_000  # steps that the first search considers; seconds at worst
MOST_EDGES_BESIDE_EXCHANGE = 30_000  # where an exchange stands by
MOST_EDGES_WITH_SUMS = 100_000
MOST_EDGES_FOR_DETOURS = 20_000
MOST_FACTORS_FOR_DETOURS = 5
GREED_OF_LAST_RESORT = 3


@dataclass(frozen=True, slots=True)
class FoundChain:
    """A chain of typed steps.

    Attributes:
      problem: the refined problem whose source the steps start at and whose target they end in.
      is_optimal: proved that no chain within the digits that `problem.py` offers costs less.
      is_unbeatable: it costs what any method must: the bound, in at most one collective.
    """

    problem: Problem
    steps: tuple[Step, ...]
    is_optimal: bool
    is_unbeatable: bool


def find_chain(request: Request, pricing: Pricing, bound: int) -> FoundChain:
    """Returns the cheapest chain that the searches find.

    Args:
      bound: the elements that the busiest device must receive.
    Raises: NoPlanError if a dimension does not divide, or an axis is used in two radices that have no common one.
    """
    return _Searches(request, pricing, bound).run()


class _Searches:
    def __init__(self, request: Request, pricing: Pricing, bound: int):
        self.request = request
        self.bound = bound
        self.is_by_time = request.objective == "time"
        self.pricing = pricing if self.is_by_time else None
        self.most_edges = MOST_EDGES_BESIDE_EXCHANGE if request.with_exchange else MOST_EDGES
        self.at_least = (bound, int(bound > 0))
        if self.is_by_time:
            self.at_least = (pricing.least_picoseconds(bound), *self.at_least)

    def run(self) -> FoundChain:
        problem, chain, is_optimal = self._search()
        return FoundChain(problem, tuple(typed_steps(chain)), is_optimal, self._is_unbeatable(chain))

    def _is_unbeatable(self, chain: Chain) -> bool:
        return chain.cost <= self.at_least

    def _search(self) -> tuple[Problem, Chain, bool]:
        """Returns a problem, its chain, and whether nothing cheaper exists."""
        problem = self._refine()
        if has_sums(problem):
            chain, is_optimal = self._search_with_sums(problem)
        else:
            chain, is_optimal = self._chain_or_none(problem, max_edges=self.most_edges), True
        if chain is None:
            return self._search_primes()
        if self._is_unbeatable(chain):
            return problem, chain, True
        for into_primes in (False, True):
            wide = self._refine(with_detours=True, into_primes=into_primes)
            if into_primes and (self._meets_bound(chain) or len(wide.movable) == len(problem.movable)):
                break  # at the bound, or the same factors again
            if len(wide.movable) > MOST_FACTORS_FOR_DETOURS:
                is_optimal = self._meets_bound(chain)
                break
            try:
                better = self._cheapest_below(wide, chain)
            except SearchLimit:
                is_optimal = self._meets_bound(chain)
                break
            problem, chain = (problem, chain) if better is None else (wide, better)
        return problem, chain, is_optimal

    def _chain_or_none(self, problem: Problem, **limits) -> Chain | None:
        try:
            return cheapest_chain(problem, pricing=self.pricing, **limits)
        except SearchLimit:
            return None

    def _search_with_sums(self, problem: Problem) -> tuple[Chain | None, bool]:
        """Returns a chain, None if there is none, and whether it is the problem's cheapest."""
        first = self._by_way_of(frozen(problem), problem) if problem.target.unreduced else None
        if first is not None and self._is_unbeatable(first):
            return first, True
        try:
            max_edges = MOST_EDGES_WITH_SUMS if first is None else MOST_EDGES_FOR_DETOURS
            limits = {"below": first and first.cost, "max_edges": max_edges}
            return cheapest_chain(problem, pricing=self.pricing, **limits) or first, True
        except SearchLimit:
            greedy = {"max_edges": MOST_EDGES_FOR_DETOURS, "greed": GREED_OF_LAST_RESORT}
            found = (first, self._chain_or_none(problem, **greedy), self._by_way_of(reduced_first(problem), problem))
            return min(filter(None, found), key=lambda chain: chain.cost, default=None), False

    def _by_way_of(self, simpler: Problem, problem: Problem) -> Chain | None:
        chain = self._chain_or_none(simpler, max_edges=MOST_EDGES_WITH_SUMS)
        return chain and completed(problem, chain, self.pricing)

    def _cheapest_below(self, problem: Problem, chain: Chain) -> Chain | None:
        limits = {"below": chain.cost, "max_edges": MOST_EDGES_FOR_DETOURS, "exhaustive": problem.is_misaligned}
        return cheapest_chain(problem, pricing=self.pricing, **limits)

    def _meets_bound(self, chain: Chain) -> bool:
        return not self.is_by_time and chain.cost[0] <= self.bound

    def _search_primes(self) -> tuple[Problem, Chain, bool]:
        problem = self._refine(into_primes=True)
        for greed, max_edges in ((1, MOST_EDGES_FOR_DETOURS), (GREED_OF_LAST_RESORT, self.most_edges)):
            try:
                chain = cheapest_chain(problem, pricing=self.pricing, max_edges=max_edges, greed=greed)
            except SearchLimit:
                continue
            if chain is not None:
                return problem, chain, False
        asked = self.request
        raise NoPlanError(f"no chain found from {asked.source} to {asked.target} on {asked.mesh}")

    def _refine(self, **options: bool) -> Problem:
        asked = self.request
        return refine(asked.mesh, asked.shape, asked.source, asked.target, **options)


def typed_steps(chain: Chain) -> list[Step]:
    """Returns the typed steps of a chain of layouts; slices in a row are one step."""
    typed: list[Step] = []
    for kind, before, after in zip(chain.kinds, chain.layouts, chain.layouts[1:]):
        moves = tuple((f, s) for f, s in after.owners if before.slot_of(f) != s)
        if kind == "slice" and typed and isinstance(typed[-1], steps.Slice):
            typed[-1] = steps.Slice(typed[-1].moves + moves)
        elif kind == "slice":
            typed.append(steps.Slice(moves))
        elif kind == "all_gather":
            typed.append(steps.AllGather(tuple(f for f, _ in before.owners if after.slot_of(f) is None)))
        elif kind == "all_to_all":
            typed.append(steps.AllToAll(moves))
        elif kind == "reduce_scatter":
            typed.append(steps.ReduceScatter(moves))
        elif kind == "all_reduce":
            typed.append(steps.AllReduce(tuple(f for f in before.unreduced if f not in after.unreduced)))
        elif kind == "to_unreduced":
            typed.append(steps.ToUnreduced(tuple(f for f in after.unreduced if f not in before.unreduced)))
        else:
            typed.append(steps.Permute(after))
    return _last_dimension_first(chain.layouts[0], typed)


def _last_dimension_first(layout: Layout, typed: list[Step]) -> list[Step]:
    """Returns the steps with gathers in a row sorted: one along dimension 0 puts tiles in place, so it ends the row."""
    ordered: list[Step] = []
    for is_gather, run in itertools.groupby(typed, lambda step: isinstance(step, steps.AllGather)):
        run = list(run)
        if is_gather:
            run.sort(key=lambda gather: -layout.slot_of(gather.factors[0]).dim)
        for step in run:
            layout = steps.apply(layout, step)
        ordered += run
    return ordered


