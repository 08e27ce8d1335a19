# SPDX-License-Identifier: Apache-2.0
"""Which searches a request gets, and in what order: coarse factors, then detours, then primes; easier ones for sums.

A search is exact on its digits, and its digits are a choice (`problem.py`). So the coarse ones are searched first, which
are nearly always enough, and wider ones only for what costs less than what has been found, unless the bound in prime
factors says that nothing does. Searches stop after a number of steps considered, never after a time, so that every
process finds the same chain; what no chain goes below is then still known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import itertools
import math

from . import steps
from .at_once import ChainAtOnce, chain_at_once, have_one_prime, is_joint_gather
from .bounds import received_elements_bound
from .layout import Layout
from .leading_axes import leading_axes_chain
from .pricing import PER_SECOND, Pricing
from .problem import NoPlanError, Problem, orders_of_primes, refine
from .reduced_ends import completed, frozen, has_sums, reduced_first
from .request import Request
from .search import Chain, Search, SearchLimit, cheapest_chain
from .steps import Step

# Steps that the searches consider at an effort of 1:
MOST_EDGES_AT_FIRST = 800
MOST_EDGES_WITH_GREED = 2_000
MOST_EDGES_FOR_DETOURS = 2_000
MOST_EDGES_OF_PRIMES = 1_000
MOST_EDGES_MISALIGNED = 64_000  # in place of both where the ends cut devices in two radices, if bounds on levels do not draw it out
EFFORT_ON_LEVELS = 8  # where it matters who sends to whom, the bounds say less
MOST_EDGES_IN_NEED = 10_000  # where no chain is known but the one on leading axes
MOST_EDGES_WITH_SUMS = 100_000  # where none is; a second at worst
MOST_EDGES_WITH_SUMS_BELOW = 20_000  # where one is known
GREED_OF_LAST_RESORT = 3

Cost = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundChain:
    """A chain of typed steps.

    Attributes:
      problem: the refined problem whose source the steps start at and whose target they end in.
      cost: as `search.Chain` has it; what the search counts, see there.
      least_cost: proved that every chain within the digits that `problem.py` offers, whatever the order of their primes, costs
        as much, in the same numbers.
      is_unbeatable: it costs what any method must: the bound, in at most one collective.
      bound: the elements that the busiest device must receive.
      rivals_s: what any other chain takes at least, its copies left out.
    """

    problem: Problem
    steps: tuple[Step, ...]
    cost: Cost
    least_cost: Cost
    is_unbeatable: bool
    bound: int
    rivals_s: float = 0.0

    @property
    def is_optimal(self) -> bool:
        """Returns whether no chain within the digits that `problem.py` offers, in any order of primes, costs less."""
        return self.cost <= self.least_cost

    @property
    def proved_gap(self) -> float | None:
        """Returns by what factor, at most, such a chain receives less, or by time takes less in collectives; None if nothing is proved."""
        if self.cost[0] <= self.least_cost[0]:
            return 1.0
        return self.cost[0] / self.least_cost[0] if self.least_cost[0] else None


def find_chain(request: Request, pricing: Pricing, bound: int | None = None) -> FoundChain:
    """Returns the cheapest chain that the searches find.

    Args:
      bound: the elements that the busiest device must receive; None is what `bounds` says of the request.
    Raises: NoPlanError if a dimension does not divide, or an axis is used in two radices that have no common one.
    """
    return _Searches(request, pricing, bound).run()


class _Searches:
    """One request. State: `problem`, the digits of `chain`, the cheapest one so far, which `coarse` may have found.

    No chain costs less than `least`, and no method less than `at_least`.
    """

    def __init__(self, request: Request, pricing: Pricing, bound: int | None):
        self.request = request
        self.is_by_time = request.objective == "time"
        self.pricing = pricing if self.is_by_time else None
        self.effort = request.effort * (EFFORT_ON_LEVELS if self.is_by_time and not pricing.is_flat else 1)
        self.problem = self._refine()
        self.chain: Chain | None = None
        self.coarse: Search | None = None
        self.bound = bound

    def run(self) -> FoundChain:
        known = chain_at_once(self.problem, self.pricing) if self._has_free_slices else None
        if known is not None:
            return self._found_at_once(known)
        if self.bound is None:
            asked = self.request
            self.bound = received_elements_bound(asked.mesh, asked.shape, asked.source, asked.target)
        self.at_least = self.least = self._at_least(self.bound)
        self._search()
        least = self.chain.cost if self._is_proved() else self.least
        if not self._has_free_slices or self._may_gain_by_leaving_home:
            least = self.at_least  # searches count slices in a row one by one, and keep at home who is there
        return self._found(typed_steps(self.chain), self.chain.cost, least)

    @property
    def _has_free_slices(self) -> bool:
        return self.pricing is None or self.pricing.has_free_slices

    @property
    def _may_gain_by_leaving_home(self) -> bool:
        """Returns whether it may pay to gather what is in its place: not within R2, nor where only the groups' sizes matter."""
        return self.request.tile_limit is not None and self.pricing is not None and not self.pricing.is_flat

    def _found_at_once(self, known: ChainAtOnce) -> FoundChain:
        """Returns the chain, which receives what the busiest device lacks: where tiles are not padded, that is the bound."""
        if self.bound is None:
            self.bound = known.cost[-2]
        self.at_least = self._at_least(self.bound)
        return self._found(known.steps, known.cost, known.cost, known.rivals_s)

    def _found(self, typed: Sequence[Step], cost: Cost, least: Cost, rivals_s: float = 0.0) -> FoundChain:
        return FoundChain(self.problem, tuple(typed), cost, least, cost <= self.at_least, self.bound, rivals_s)

    def _at_least(self, bound: int) -> Cost:
        """Returns what any method costs at least."""
        least = bound, int(bound > 0)
        return (self.pricing.least_picoseconds(bound), *least) if self.pricing else least

    def _search(self) -> None:
        if has_sums(self.problem):
            self._search_with_sums()
        else:
            self._search_coarse()
        if self.chain is None:
            self._search_primes()
        if self._is_proved() or self._is_proved_on_coarse_digits():
            return
        problem = self._refine(with_detours=True, into_primes=True)
        orders = orders_of_primes(problem, self.request.source, self.request.target)
        primes = [self._wide(problem)]
        if orders > 1:
            primes.append(self._wide(self._refine(with_detours=True, into_primes=True, largest_first=True)))
        self._raise_least(min(search.least_cost() for search in primes))
        if self._is_proved():
            return
        coarse = self._refine(with_detours=True)
        is_prime = coarse == problem
        if not is_prime:
            self._improve(self._wide(coarse), self._most_edges(coarse, MOST_EDGES_FOR_DETOURS))
        if not self._is_proved() and (not self._meets_bound() or is_prime):
            least = min([self._improve(search, self._most_edges(problem, MOST_EDGES_OF_PRIMES)) for search in primes])
            if orders <= len(primes):  # else there are digits that none of these searches has seen
                self._raise_least(least)

    def _most_edges(self, problem: Problem, usual: int) -> int:
        has_levels = self.is_by_time and not self.pricing.is_flat
        return MOST_EDGES_MISALIGNED if problem.is_misaligned and not has_levels else usual

    def _wide(self, problem: Problem) -> Search:
        return Search(problem, self.pricing, exhaustive=problem.is_misaligned)

    def _search_coarse(self) -> None:
        """Finds a chain in as few digits as serve: the cheapest one if that is soon done, else one that serves."""
        self.coarse = Search(self.problem, self.pricing)
        try:
            self.chain = self.coarse.run(None, MOST_EDGES_AT_FIRST * self.effort)
        except SearchLimit:
            max_edges = MOST_EDGES_WITH_GREED * self.effort
            found = [_run_or_none(self.coarse.anew(homeward), max_edges, GREED_OF_LAST_RESORT) for homeward in (True, False)]
            self.chain = min(filter(None, found), key=lambda chain: chain.cost, default=None)

    def _is_proved_on_coarse_digits(self) -> bool:
        """Returns whether the bound on coarse digits proves the chain; where it is that on prime digits, see `at_once.py`."""
        is_regular = self.pricing is None or self.pricing.is_flat
        if self.coarse is None or not is_regular or not have_one_prime(self.problem.movable):
            return False
        self._raise_least(self.coarse.least_cost())
        return self._is_proved()

    def _is_proved(self) -> bool:
        """Returns whether no chain costs less; times are whole picoseconds, rounded up for each collective, bounds down."""
        cost = self.chain.cost
        return cost <= self.least or self.is_by_time and cost[1:] <= self.least[1:] and cost[0] - self.least[0] <= cost[2]

    def _raise_least(self, least: Cost) -> None:
        self.least = max(self.least, least)

    def _meets_bound(self) -> bool:
        return not self.is_by_time and self.chain.cost[0] <= self.bound

    def _improve(self, search: Search, max_edges: int) -> Cost:
        """Searches other digits for what costs less than the chain so far; returns what they cost at least."""
        try:
            better, least = search.run(self.chain.cost, max_edges * self.effort), None
        except SearchLimit as stopped:
            better, least = stopped.best, stopped.least_cost
        if better is not None:
            self.problem, self.chain = search.problem, better
        return self.chain.cost if least is None else min(least, self.chain.cost)

    def _chain_or_none(self, problem: Problem, max_edges: int, greed: int = 1) -> Chain | None:
        return _run_or_none(Search(problem, self.pricing), max_edges, greed)

    def _search_with_sums(self) -> None:
        problem = self.problem
        first = self._by_way_of(frozen(problem), problem) if problem.target.unreduced else None
        self.chain = first
        if first is not None and self._is_proved():
            return
        try:
            max_edges = MOST_EDGES_WITH_SUMS if first is None else MOST_EDGES_WITH_SUMS_BELOW
            limits = {"below": first and first.cost, "max_edges": max_edges * self.effort}
            self.chain = cheapest_chain(problem, pricing=self.pricing, **limits) or first
        except SearchLimit as stopped:
            greedy = {"max_edges": MOST_EDGES_WITH_SUMS_BELOW, "greed": GREED_OF_LAST_RESORT}
            found = (first, stopped.best, self._chain_or_none(problem, **greedy), self._by_way_of(reduced_first(problem), problem))
            self.chain = min(filter(None, found), key=lambda chain: chain.cost, default=None)

    def _by_way_of(self, simpler: Problem, problem: Problem) -> Chain | None:
        chain = self._chain_or_none(simpler, max_edges=MOST_EDGES_WITH_SUMS)
        return chain and completed(problem, chain, self.pricing)

    def _search_primes(self) -> None:
        self.problem = self._refine(into_primes=True)
        if not has_sums(self.problem):
            greedy = self._chain_or_none(self.problem, max_edges=MOST_EDGES_IN_NEED * self.effort, greed=GREED_OF_LAST_RESORT)
            self.chain = min(filter(None, (greedy, self._on_leading_axes())), key=lambda chain: chain.cost)
            return
        for greed in (GREED_OF_LAST_RESORT, 1):
            self.chain = self._chain_or_none(self.problem, max_edges=MOST_EDGES_WITH_SUMS, greed=greed)
            if self.chain is not None:
                return
        asked = self.request
        raise NoPlanError(f"no chain found from {asked.source} to {asked.target} on {asked.mesh}")

    def _on_leading_axes(self) -> Chain:
        """Returns the chain of the problem in primes that needs no search."""
        typed = leading_axes_chain(self.problem)
        return chain_of(self.problem, typed if self.is_by_time else gathers_apart(self.problem.source, typed), self.pricing)

    def _refine(self, **options: bool) -> Problem:
        asked = self.request
        return refine(asked.mesh, asked.shape, asked.source, asked.target, tile_limit=asked.tile_limit_elements, **options)


def _run_or_none(search: Search, max_edges: int, greed: int) -> Chain | None:
    """Returns the chain that a search finds, the best one so far if it stops early."""
    try:
        return search.run(None, max_edges, greed)
    except SearchLimit as stopped:
        return stopped.best


def chain_of(problem: Problem, typed: Sequence[Step], pricing: Pricing | None) -> Chain:
    """Returns the chain that slices, gathers, all_to_alls and permutes are, with its cost as the search counts."""
    layouts, cost = [problem.source], [0, 0, 0]
    for step in typed:
        before, after = layouts[-1], steps.apply(layouts[-1], step)
        layouts.append(after)
        cost[0] += _picoseconds(before, step, after, pricing) if pricing else 0
        cost[1] += steps.received_elements(before, step)
        cost[2] += steps.collectives(step)
    return Chain(tuple(layouts), tuple(map(steps.name, typed)), tuple(cost if pricing else cost[1:]), 0)


def _picoseconds(before: Layout, step: Step, after: Layout, pricing: Pricing) -> int:
    match step:
        case steps.AllGather(factors):
            is_joint = is_joint_gather(before, step)
            copied = math.ceil(pricing.relayout_seconds(after.tile_elements) * PER_SECOND) if is_joint else 0
            return copied + pricing.picoseconds("all_gather", factors, before.tile_elements)
        case steps.AllToAll():
            return pricing.picoseconds("all_to_all", step.factors, before.tile_elements)
        case steps.Permute():
            return pricing.permute_picoseconds(before, after, before.tile_elements)
        case steps.Slice():
            return pricing.slice_picoseconds(after.tile_elements)
    return 0


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


def gathers_apart(source: Layout, typed: Sequence[Step]) -> list[Step]:
    """Returns steps that start at `source` with a gather of its own for each dimension: only the last copies a large tile."""
    apart: list[Step] = []
    layout = source
    for step in typed:
        if isinstance(step, steps.AllGather):
            dim_of = {factor: layout.slot_of(factor).dim for factor in step.factors}
            factors_of = {dim: tuple(f for f in step.factors if dim_of[f] == dim) for dim in sorted(set(dim_of.values()))}
            apart += map(steps.AllGather, factors_of.values())
        else:
            apart.append(step)
        layout = steps.apply(layout, step)
    return _last_dimension_first(source, apart)


def has_joint_gather(source: Layout, typed: Sequence[Step]) -> bool:
    """Returns whether a gather among steps that start at `source` is along several dimensions, after which the large tile is copied."""
    layouts = itertools.accumulate(typed, steps.apply, initial=source)
    return any([is_joint_gather(layout, step) for layout, step in zip(layouts, typed)])


def _last_dimension_first(layout: Layout, typed: list[Step]) -> list[Step]:
    """Returns the steps with gathers in a row sorted: one along dimension 0 puts tiles in place, so it ends the row."""
    if not any(isinstance(a, steps.AllGather) and isinstance(b, steps.AllGather) for a, b in itertools.pairwise(typed)):
        return typed
    ordered: list[Step] = []
    for is_gather, run in itertools.groupby(typed, lambda step: isinstance(step, steps.AllGather)):
        run = list(run)
        if is_gather:
            run.sort(key=lambda gather: -min(layout.slot_of(factor).dim for factor in gather.factors))
        for step in run:
            layout = steps.apply(layout, step)
        ordered += run
    return ordered


