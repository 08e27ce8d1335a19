# SPDX-License-Identifier: Apache-2.0
"""The planner: it compares the chain of the search with the chains of a table of generators, and takes the cheapest."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

from ..layouts.blocks import Blocks
from ..layouts.layout import Layout
from ..layouts.refinement import NoPlanError, refine
from ..plans import memory_budget as budget
from ..plans.costing import gap_to_bounds
from ..plans.plan import Plan
from ..plans.request import Request
from ..programs.chain import Chain
from ..programs.exchange import Exchange
from ..search.find_chain import find_chain
from .generators import GENERATORS, Context, Searched, unsearched, with_exchanged_middle


def planned(request: Request) -> Plan:
    """Returns the cheapest plan.

    Raises: NoPlanError, TopologyError, as `entry.plan` does.
    """
    planner = _Planner(request)
    found = planner.run()
    if request.tile_limit is None:
        return found
    return min(found, *_within_both_ends(request), key=planner.context.costing.key)


def _within_both_ends(request: Request) -> list[Plan]:
    """Returns the plan without the tile limit, if there is one.

    The search with the limit has more choices, and may reach its own limits before it finds this plan.
    """
    with contextlib.suppress(NoPlanError):
        return [_as_answer(request, planned(dataclasses.replace(request, tile_limit=None)))]
    return []


def pareto(request: Request) -> tuple[Plan, ...]:
    """Returns the plans that no other plan beats in both time and peak, the fastest first.

    Raises: NoPlanError, TopologyError as `plan` says.
    """
    return _Planner(request).pareto()


def with_rounds(request: Request, chain: Chain) -> Iterator[Plan]:
    """Yields the plans in which an exchange does the middle of a chain, or all of it."""
    return with_exchanged_middle(Context(request), chain)


def exchange_alone(request: Request) -> Iterator[Plan]:
    """Yields the plans that need an exchange and no search. Raises: NoPlanError if it has too many pieces."""
    return Context(request).routes.plans_by_exchange()


def exchange_between(request: Request, before: Layout, after: Layout) -> Exchange:
    """Returns the exchange that the planner would make between two blocked layouts. Raises: LayoutError,
    TooManyPieces."""
    held, wanted = (Blocks.of_layout(request.mesh, each) for each in (before, after))
    return Context(request).exchange(held, wanted)


def chain_plan(request: Request, chain: Chain, is_optimal: bool = False, proved_gap: float | None = None) -> Plan:
    """Returns the plan of a chain. Raises: RuleError if a typing rule forbids one of its steps."""
    return Context(request).costing.of_chain(chain, is_optimal, proved_gap)


class _Planner:
    """Plans one request: `run` searches a chain, compares it with those of the table, and takes the cheapest plan."""

    def __init__(self, request: Request):
        self.request = request
        self.context = Context(request)

    def run(self) -> Plan:
        asked, key = self.request, self.context.costing.key
        if math.prod(asked.shape) == 0:
            return self._of_no_elements()
        if asked.memory_limit is not None:
            found = budget.cheapest_within(asked.memory_limit, self._candidates_within(), key, self._in_chunks)
            return found if found.request is asked else _as_answer(asked, found)
        return min(self.candidates(), key=key)

    def pareto(self) -> tuple[Plan, ...]:
        """Returns the plans that no other plan beats in both time and peak; see `budget`."""
        if math.prod(self.request.shape) == 0:
            return (self.run(),)
        self.context.wants_small = True
        return budget.pareto(self.candidates(every=True), self._in_chunks)

    def candidates(self, every: bool = False) -> Iterator[Plan]:
        """Yields plans; without `every`, those that surely cost more than an earlier one are left out."""
        asked, context = self.request, self.context
        if not asked.is_even and (asked.with_exchange or asked.target_mesh is not None):
            yield from context.routes.plans()
            return
        try:
            found = find_chain(asked, context.pricing)
        except NoPlanError as refusal:
            yield from self._without_search(refusal)
            return
        searched = Searched(context, found, every)
        yield searched.plan
        for generate in GENERATORS[asked.objective]:
            for candidate in generate(searched):
                plan = searched.priced(candidate)
                if plan is not None:
                    yield plan
                    searched.take(plan)

    def _candidates_within(self) -> Iterator[Plan]:
        """Yields the candidates; by time also those by bytes, if the fastest candidate needs more than the limit.

        Of all plans that fit in one piece, the fastest may be one that the search by time passes over.
        """
        asked, fastest = self.request, None
        for plan in self.candidates():
            fastest = plan if fastest is None or plan.time_s < fastest.time_s else fastest
            yield plan
        if not self.context.objective.is_by_time or fastest is None or fastest.peak_bytes <= (asked.memory_limit or 0):
            return
        by_bytes = _Planner(dataclasses.replace(asked, objective="bytes"))
        by_bytes.context.costing.take_bounds_of(self.context.costing)
        with contextlib.suppress(NoPlanError):
            yield from by_bytes.candidates()

    def _without_search(self, refusal: NoPlanError) -> Iterator[Plan]:
        """Yields the plans of a request for which the search finds no chain. Raises: the refusal if there are none."""
        known = [self.context.costing.of_chain(chain) for chain in unsearched(self.context)]
        yield from known
        if self.request.with_exchange:
            with contextlib.suppress(*[NoPlanError] if known else []):
                yield from self.context.routes.plans_by_exchange()
        elif not known:
            raise refusal

    def _of_no_elements(self) -> Plan:
        asked = self.request
        if not asked.with_exchange and asked.target_mesh is None:
            refine(asked.mesh, asked.shape, asked.source, asked.target)  # says which dimension does not divide
        return self.context.costing.of_no_elements()

    def _in_chunks(self, plan: Plan) -> Iterator[Plan]:
        if plan.request is self.request:  # not in chunks by bytes, which take long to schedule
            yield from self.context.costing.in_chunks(plan, self.context.exchange)


def _as_answer(request: Request, plan: Plan) -> Plan:
    """Returns the plan of another request as one of this request, whose costs it is not known to be the least of."""
    found = dataclasses.replace(plan, request=request, is_optimal=False)
    return dataclasses.replace(found, proved_gap=gap_to_bounds(found))
