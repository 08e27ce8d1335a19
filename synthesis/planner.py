# SPDX-License-Identifier: Apache-2.0
"""How a request is planned: candidates of several kinds, priced alike, of which the cheapest is the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
import math

from . import budget, steps
from .blocks import Blocks
from .chains import find_chain
from .costing import Costing
from .exchange import Exchange, TooManyPieces, plan_exchange
from .layout import Layout, LayoutError
from .leading_axes import leading_axes_chain
from .mesh import Mesh
from .one_permute import one_permute_chains
from .planned import Plan
from .pricing import Pricing
from .problem import NoPlanError, Problem, refine
from .request import Request
from .steps import Step
from .topology import Topology
from .waves import chain_of_waves


def planned(request: Request) -> Plan:
    """Returns the cheapest plan.

    Raises: NoPlanError, TopologyError as `plan` says.
    """
    return _Planner(request).run()


def pareto(request: Request) -> tuple[Plan, ...]:
    """Returns the plans that no other one beats in time and in peak, the fastest first.

    Raises: NoPlanError, TopologyError as `plan` says.
    """
    return _Planner(request).pareto()


@functools.lru_cache(maxsize=256)
def _pricing(topology: Topology, mesh: Mesh, bits: int) -> Pricing:
    return Pricing(topology, mesh, bits)


def with_rounds(request: Request, problem: Problem, typed: Sequence[Step]) -> Iterator[Plan]:
    """Yields the plans in which an exchange does the middle of a chain, or all of it."""
    planner = _Planner(request)
    return (planner.costing.of_chain(problem, each, False) for each in planner._with_rounds(problem, typed, None))


def exchange_alone(request: Request) -> Plan:
    """Returns the plan that is one exchange. Raises: NoPlanError if it has too many pieces."""
    return _Planner(request)._exchange_alone()


def exchange_between(request: Request, before: Layout, after: Layout) -> Exchange:
    """Returns the exchange that the planner would make between two blocked layouts. Raises: LayoutError, TooManyPieces."""
    return _Planner(request)._exchange(*(Blocks.of_layout(request.mesh, each) for each in (before, after)))


def chain_plan(request: Request, problem: Problem, typed: Sequence[Step], is_optimal: bool, proved_gap: float) -> Plan:
    """Returns the plan of typed steps: their rules are applied, and they are priced. Raises: RuleError if a rule forbids one."""
    return _Planner(request).costing.of_chain(problem, typed, is_optimal, proved_gap)


class _Planner:
    """One request: `run` finds a chain, sets exchanges against it, and takes what is cheapest."""

    def __init__(self, request: Request):
        self.request = request
        self.pricing = _pricing(request.topology, request.mesh, request.bits)
        self.costing = Costing(request, self.pricing)

    def run(self) -> Plan:
        asked = self.request
        if math.prod(asked.shape) == 0:
            refine(asked.mesh, asked.shape, asked.source, asked.target)  # says which dimension does not divide
            return self.costing.of_no_elements()
        if asked.memory_limit is not None:
            return budget.cheapest_within(asked.memory_limit, self._candidates(), self._key, self._in_chunks)
        return min(self._candidates(), key=self._key)

    def pareto(self) -> tuple[Plan, ...]:
        """Returns the plans that no other one beats in time and in peak; see `budget`."""
        if math.prod(self.request.shape) == 0:
            return (self.run(),)
        return budget.pareto(self._candidates(every=True), self._in_chunks)

    def _in_chunks(self, plan: Plan) -> Iterator[Plan]:
        return self.costing.in_chunks(plan, self._exchange)

    def _key(self, plan: Plan) -> tuple:
        cost = plan.bytes_received, plan.collectives
        return (plan.time_s, *cost) if self.request.objective == "time" else cost

    def _candidates(self, every: bool = False) -> Iterator[Plan]:
        """Yields plans; without `every` none that is sure to be dearer than one before it."""
        try:
            found = find_chain(self.request, self.pricing, self.costing.bound)
        except NoPlanError:
            known = tuple(self._without_search(None))
            if not known and not self.request.with_exchange:
                raise
            yield from known
            if self.request.with_exchange:
                yield self._exchange_alone()
            return
        chain = self.costing.of_chain(found.problem, found.steps, found.is_optimal, found.proved_gap)
        yield chain
        needs_all = every or not self._fits(chain)
        if needs_all or not found.is_optimal or self._has_copies(chain):
            yield from self._without_search(None if needs_all else chain)
        if self.request.with_exchange and (needs_all or not found.is_unbeatable):
            for typed in self._with_rounds(found.problem, found.steps, None if needs_all else chain):
                yield self.costing.of_chain(found.problem, typed, False)

    def _has_copies(self, chain: Plan) -> bool:
        """Returns whether there may be a faster chain though none spends less in collectives: searches do not see copies."""
        return self.request.objective == "time" and any(each.op == "relayout" for each in chain.steps)

    def _fits(self, plan: Plan) -> bool:
        return self.request.memory_limit is None or plan.peak_bytes <= self.request.memory_limit

    def _without_search(self, chain: Plan | None) -> Iterator[Plan]:
        """Yields the plans that need no search; one that stopped early may have found worse, or none.

        Given the plan of a chain, none that is sure to be slower by time.
        """
        asked = self.request
        if asked.has_sums:
            return
        try:
            problem = refine(asked.mesh, asked.shape, asked.source, asked.target, into_primes=True)
        except NoPlanError:
            return
        waves = chain_of_waves(problem)
        for typed in (leading_axes_chain(problem), *one_permute_chains(problem), *([waves] if waves else [])):
            if chain and asked.objective == "time" and self.costing.least_seconds(problem, typed) > chain.time_s:
                continue
            yield self.costing.of_chain(problem, typed, False)

    def _with_rounds(self, problem: Problem, typed: Sequence[Step], chain: Plan | None) -> Iterator[list[Step]]:
        """Yields chains with an exchange for their middle: between the leading slices and the trailing gathers, or all of it.

        Given the plan of the chain, none that is sure to be no better.
        """
        mesh = self.request.mesh
        first = 1 if typed and isinstance(typed[0], steps.Slice) else 0
        last = len(typed)
        while last > first and isinstance(typed[last - 1], steps.AllGather):
            last -= 1
        for start, end in sorted({(a, b) for a in (0, first) for b in (last, len(typed)) if b > a}):
            before, after = (_layout_behind(problem.source, typed[:at]) for at in (start, end))
            if chain and self._least_with_rounds(before, after, [*typed[:start], *typed[end:]], chain) >= self._key(chain):
                continue
            try:
                ends = (Blocks.of_layout(mesh, each) for each in (before, after))
                exchange = self._exchange(*ends)
            except (LayoutError, TooManyPieces):
                continue
            yield [*typed[:start], steps.Exchanged(exchange, after), *typed[end:]]

    def _least_with_rounds(self, before: Layout, after: Layout, others: Sequence[Step], chain: Plan) -> tuple:
        """Returns what `chain` costs at least with an exchange between two layouts and only the `others` of its steps.

        A round brings one piece, and a device's new tile meets as many old ones as their shapes say.
        """
        pieces = math.prod(-(-new // old) for new, old in zip(after.tile_shape, before.tile_shape))
        rounds = max(1, pieces - 1)
        least = chain.bound_bytes, rounds + sum(map(steps.collectives, others))
        if self.request.objective == "bytes":
            return least
        kept = tuple(each.time_s for each in chain.steps if each.step in others)
        return sum(kept) + self.pricing.least_exchange_s(rounds, after.tile_elements), *least

    def _exchange_alone(self) -> Plan:
        asked = self.request
        ends = (Blocks.of_sharding(asked.mesh, asked.shape, side) for side in (asked.source, asked.target))
        try:
            return self.costing.of_exchange(self._exchange(*ends))
        except TooManyPieces as error:
            raise NoPlanError(str(error)) from None

    def _exchange(self, before: Blocks, after: Blocks) -> Exchange:
        round_elements = self.pricing.round_elements() if self.request.objective == "time" else 0
        distance = None if self.pricing.is_flat else self.pricing.distance
        return plan_exchange(before, after, distance=distance, round_elements=round_elements)


def _layout_behind(layout: Layout, typed) -> Layout:
    for step in typed:
        layout = steps.apply(layout, step)
    return layout
