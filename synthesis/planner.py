# SPDX-License-Identifier: Apache-2.0
"""How a request is planned: candidates of several kinds, priced alike, of which the cheapest is the plan."""

from __future__ import annotations

from collections.abc import Iterator
import functools
import math

from . import steps
from .blocks import Blocks
from .chains import FoundChain, find_chain
from .costing import Costing
from .exchange import Exchange, TooManyPieces, plan_exchange
from .layout import LayoutError
from .mesh import Mesh
from .planned import Plan
from .pricing import PER_SECOND, Pricing
from .problem import NoPlanError, refine
from .request import Request
from .routes import Routes, layout_behind, middles
from .steps import Step
from .topology import Topology


def planned(request: Request) -> Plan:
    """Returns the cheapest plan.

    Raises: NoPlanError, TopologyError as `plan` says.
    """
    return _Planner(request).run()


@functools.lru_cache(maxsize=256)
def _pricing(topology: Topology, mesh: Mesh, bits: int) -> Pricing:
    return Pricing(topology, mesh, bits)


class _Planner:
    """One request: `run` finds a chain, sets exchanges against it, and takes what is cheapest."""

    def __init__(self, request: Request):
        self.request = request
        self.pricing = self._pricing_of(request.widest_mesh)
        self.costing = Costing(request, self.pricing)

    def run(self) -> Plan:
        asked = self.request
        if math.prod(asked.shape) == 0:
            if not asked.with_exchange and asked.target_mesh is None:
                refine(asked.mesh, asked.shape, asked.source, asked.target)  # says which dimension does not divide
            return self.costing.of_no_elements()
        return min(self._candidates(), key=self._key)

    def _key(self, plan: Plan) -> tuple:
        cost = plan.bytes_received, plan.collectives
        return (plan.time_s, *cost) if self.request.objective == "time" else cost

    def _candidates(self) -> Iterator[Plan]:
        asked = self.request
        if not asked.is_even and (asked.with_exchange or asked.target_mesh is not None):
            yield from self._routes().plans()
            return
        try:
            found = find_chain(asked, self.pricing, self.costing.bound)
        except NoPlanError:
            if not asked.with_exchange:
                raise
            yield from self._routes().plans_by_exchange()
            return
        yield self.costing.of_chain(found.problem, found.steps, found.is_optimal)
        if asked.with_exchange and not found.is_unbeatable:
            for typed in self._with_rounds(found):
                yield self.costing.of_chain(found.problem, typed, False)

    def _routes(self) -> Routes:
        return Routes(self.request, self.costing, self._pricing_of, self._exchange)

    def _pricing_of(self, mesh: Mesh) -> Pricing:
        return _pricing(self.request.topology, mesh, self.request.bits)

    def _with_rounds(self, found: FoundChain) -> Iterator[list[Step]]:
        """Yields chains with an exchange for their middle: between the leading slices and the trailing gathers, or all of it."""
        typed, mesh = found.steps, self.request.mesh
        for start, end in middles(found):
            before, after = (layout_behind(found.problem.source, typed[:at]) for at in (start, end))
            try:
                ends = (Blocks.of_layout(mesh, each) for each in (before, after))
                exchange = self._exchange(*ends)
            except (LayoutError, TooManyPieces):
                continue
            yield [*typed[:start], steps.Exchanged(exchange, after), *typed[end:]]

    def _exchange(self, before: Blocks, after: Blocks) -> Exchange:
        is_by_time = self.request.objective == "time"
        round_elements = self.pricing.round_elements() if is_by_time else 0
        least_s = self.pricing.least_picoseconds(1) / PER_SECOND if is_by_time and self.request.devices > 1 else 0
        most_rounds = self.costing.fastest_s / least_s if least_s else math.inf  # no slower than what has been priced
        distance = None if self.pricing.is_flat else self.pricing.distance
        return plan_exchange(before, after, distance=distance, round_elements=round_elements, most_rounds=most_rounds)

