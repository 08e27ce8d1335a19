# SPDX-License-Identifier: Apache-2.0
"""The searches that a request gets, in order: coarse factors, levels, detours, prime factors; simpler ones for sums.

A search is exact on its digits, and the digits are a choice (`refinement.py`). So the coarse digits are searched first;
they are nearly always enough. Wider digits are searched only for chains that cost less than the cheapest one so far,
unless the bound in prime factors proves that there are none. Searches stop after a number of steps considered, never
after a time, so that every process finds the same chain. A lower bound on all chains is known even then.
"""

from __future__ import annotations

from typing import Any

from ..layouts.refinement import NoPlanError, Problem, orders_of_primes, refine
from ..network.bounds import received_elements_bound
from ..network.pricing import Pricing
from ..plans.objective import objective
from ..plans.request import Request
from .best_first import Search, SearchLimit, cheapest_chain
from .budget import BUDGET
from .direct import chain_at_once, have_one_prime
from .found import Cost, Found, priced
from .leading_axes import leading_axes_chain
from .reduced_ends import completed, frozen, has_sums, reduced_first


def find_chain(request: Request, pricing: Pricing, bound: int | None = None) -> Found:
    """Returns the cheapest chain that the searches find.

    Args:
      bound: the elements that the busiest device must receive; None is what `bounds` says of the request.
    Raises: NoPlanError if a dimension does not divide, or an axis is used in two radices that have no common one.
    """
    return _Searches(request, pricing).run(bound)


class _Searches:
    """The searches of one request.

    State: `found`, the cheapest chain since the first search; `coarse`, the search on coarse digits. `problem` has the
    digits that are searched first. The busiest device receives at least `bound` elements, every chain costs at least
    `least`, and every method at least `at_least`.
    """

    found: Found
    bound: int
    least: Cost
    at_least: Cost

    def __init__(self, request: Request, pricing: Pricing):
        self.request = request
        judged = objective(request.objective)
        self.is_by_time = judged.is_by_time
        self.pricing = judged.pricing_of_search(pricing)
        self.effort = request.effort * (BUDGET.times_on_levels if self.is_by_time and not pricing.is_flat else 1)
        self.problem = self._refine()
        self.coarse: Search | None = None

    def run(self, bound: int | None) -> Found:
        known = chain_at_once(self.problem, self.pricing) if self._has_free_slices else None
        self.bound = self._least_received(known) if bound is None else bound
        self.at_least = self.least = self._at_least(self.bound)
        if known is not None:
            return self._proved(known, known.cost)
        self._search()
        least = self.found.cost if self._is_proved(self.found) else self.least
        if not self._has_free_slices or self._may_gain_by_leaving_home:
            least = self.at_least  # searches count each slice of a row, and keep factors at home
        return self._proved(self.found, least)

    @property
    def _has_free_slices(self) -> bool:
        return self.pricing is None or self.pricing.has_free_slices

    @property
    def _may_gain_by_leaving_home(self) -> bool:
        """Returns whether it may pay to gather factors at home: with a tile limit, on a network that is not flat."""
        return self.request.tile_limit is not None and self._has_levels

    @property
    def _has_levels(self) -> bool:
        """Returns whether times count, on a network that is not flat."""
        return self.pricing is not None and not self.pricing.is_flat

    def _least_received(self, known: Found | None) -> int:
        """Returns the elements that the busiest device must receive.

        A chain that is known at once receives as many as that device lacks; if tiles are not padded, that is the bound.
        """
        if known is not None:
            return known.cost[-2]
        asked = self.request
        return received_elements_bound(asked.mesh, asked.shape, asked.source, asked.target)

    def _proved(self, found: Found, least: Cost) -> Found:
        is_unbeatable = found.cost <= self.at_least
        return Found(found.problem, found.chain, found.cost, least, is_unbeatable, self.bound, found.rivals_s)

    def _at_least(self, bound: int) -> Cost:
        """Returns a lower bound on the cost of any method."""
        least = bound, int(bound > 0)
        return (self.pricing.least_picoseconds(bound), *least) if self.pricing else least

    def _search(self) -> None:
        first = self._search_with_sums() if has_sums(self.problem) else self._search_coarse()
        self.found = self._search_primes() if first is None else first
        if self._is_proved(self.found) or self._is_proved_on_coarse_digits():
            return
        self._search_levels()
        problem = self._refine(with_detours=True, into_primes=True)
        orders = orders_of_primes(problem, self.request.source, self.request.target)
        primes = [self._wide(problem)]
        if orders > 1:
            primes.append(self._wide(self._refine(with_detours=True, into_primes=True, largest_first=True)))
        self._raise_least(min(search.least_cost() for search in primes))
        if self._is_proved(self.found):
            return
        coarse = self._refine(with_detours=True)
        is_prime = coarse == problem
        if not is_prime:
            self._improve(self._wide(coarse), self._most_edges(coarse, BUDGET.detours))
        if not self._is_proved(self.found) and (not self._meets_bound() or is_prime):
            least = min([self._improve(search, self._most_edges(problem, BUDGET.primes)) for search in primes])
            if orders <= len(primes):  # else there are digits that none of these searches has seen
                self._raise_least(least)

    def _search_levels(self) -> None:
        """Searches in digits that are cut where the level of the network changes, if some axis crosses levels."""
        if not self._has_levels or self.pricing is None or not self.pricing.level_places:
            return
        problem = self._refine(places=self.pricing.level_places)
        if problem != self.problem:
            self._improve(Search(problem, self.pricing), BUDGET.levels)

    def _most_edges(self, problem: Problem, usual: int) -> int:
        return BUDGET.misaligned if problem.is_misaligned and not self._has_levels else usual

    def _wide(self, problem: Problem) -> Search:
        return Search(problem, self.pricing, exhaustive=problem.is_misaligned)

    def _search_coarse(self) -> Found | None:
        """Returns a chain in coarse digits: the cheapest if the budget allows it, else the better of two greedy ones.

        None if there is none.
        """
        self.coarse = Search(self.problem, self.pricing)
        try:
            return self.coarse.run(None, BUDGET.first * self.effort)
        except SearchLimit:
            max_edges = BUDGET.greedy * self.effort
            found = [_run_or_none(self.coarse.anew(homeward), max_edges, BUDGET.greed) for homeward in (True, False)]
            return min(filter(None, found), key=lambda chain: chain.cost, default=None)

    def _is_proved_on_coarse_digits(self) -> bool:
        """Returns whether the bound on coarse digits proves the chain; only if it equals the bound on prime digits.

        See `have_one_prime` in `direct.py`.
        """
        if self.coarse is None or self._has_levels or not have_one_prime(self.problem.movable):
            return False
        self._raise_least(self.coarse.least_cost())
        return self._is_proved(self.found)

    def _is_proved(self, found: Found) -> bool:
        """Returns whether a chain is proved cheapest.

        Times are whole picoseconds: the time of a collective is rounded up, a bound is rounded down.
        """
        cost = found.cost
        return (
            cost <= self.least or self.is_by_time and cost[1:] <= self.least[1:] and cost[0] - self.least[0] <= cost[2]
        )

    def _raise_least(self, least: Cost) -> None:
        self.least = max(self.least, least)

    def _meets_bound(self) -> bool:
        return not self.is_by_time and self.found.cost[0] <= self.bound

    def _improve(self, search: Search, max_edges: int) -> Cost:
        """Searches other digits for a cheaper chain, and keeps it; returns a lower bound on all their chains."""
        try:
            better, least = search.run(self.found.cost, max_edges * self.effort), None
        except SearchLimit as stopped:
            better, least = stopped.best, stopped.least_cost
        if better is not None:
            self.found = better
        return self.found.cost if least is None else min(least, self.found.cost)

    def _chain_or_none(self, problem: Problem, max_edges: int, greed: int = 1) -> Found | None:
        return _run_or_none(Search(problem, self.pricing), max_edges, greed)

    def _search_with_sums(self) -> Found | None:
        problem = self.problem
        first = self._by_way_of(frozen(problem), problem) if problem.target.unreduced else None
        if first is not None and self._is_proved(first):
            return first
        try:
            max_edges = BUDGET.with_sums if first is None else BUDGET.with_sums_below
            limits = {"below": first and first.cost, "max_edges": max_edges * self.effort}
            return cheapest_chain(problem, pricing=self.pricing, **limits) or first
        except SearchLimit as stopped:
            greedy = {"max_edges": BUDGET.with_sums_below, "greed": BUDGET.greed}
            found = (
                first,
                stopped.best,
                self._chain_or_none(problem, **greedy),
                self._by_way_of(reduced_first(problem), problem),
            )
            return min(filter(None, found), key=lambda chain: chain.cost, default=None)

    def _by_way_of(self, simpler: Problem, problem: Problem) -> Found | None:
        found = self._chain_or_none(simpler, max_edges=BUDGET.with_sums)
        return found and completed(problem, found, self.pricing)

    def _search_primes(self) -> Found:
        """Returns a chain in prime digits. Raises: NoPlanError if there are partial sums and no chain is found."""
        self.problem = self._refine(into_primes=True)
        if not has_sums(self.problem):
            greedy = self._chain_or_none(self.problem, max_edges=BUDGET.in_need * self.effort, greed=BUDGET.greed)
            return min(filter(None, (greedy, self._on_leading_axes())), key=lambda chain: chain.cost)
        for greed in (BUDGET.greed, 1):
            found = self._chain_or_none(self.problem, max_edges=BUDGET.with_sums, greed=greed)
            if found is not None:
                return found
        asked = self.request
        raise NoPlanError(f"no chain found from {asked.source} to {asked.target} on {asked.mesh}")

    def _on_leading_axes(self) -> Found:
        """Returns the chain on leading axes, which needs no search, with its cost."""
        chain = leading_axes_chain(self.problem)
        return priced(self.problem, chain if self.is_by_time else chain.with_gathers_apart(), self.pricing)

    def _refine(self, **options: Any) -> Problem:
        asked = self.request
        return refine(
            asked.mesh, asked.shape, asked.source, asked.target, tile_limit=asked.tile_limit_elements, **options
        )


def _run_or_none(search: Search, max_edges: int, greed: int) -> Found | None:
    """Returns the chain that a search finds; the best one so far, or None, if the search stops early."""
    try:
        return search.run(None, max_edges, greed)
    except SearchLimit as stopped:
        return stopped.best
