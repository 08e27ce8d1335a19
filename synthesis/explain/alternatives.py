# SPDX-License-Identifier: Apache-2.0
"""Rejected alternatives: other ways to fulfil a plan's request, with their prices and the reason for each rejection.

The ways differ in kind, so that their reasons are useful to a reader: they are plans for other objectives, of other
planners and with other steps. The planner does not use this module; it answers users who ask why.

    >>> from ..layouts.mesh import Mesh
    >>> from ..planner.entry import plan
    >>> from ..layouts.sharding import Sharding
    >>> ends = Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
    >>> found = plan(Mesh.parse("x=4,y=2"), (16, 16, 16), 32, *ends)
    >>> for each in rejected(found):
    ...     print(f"{each.way}: {each.reason}")
    exchange alone: 7 collectives instead of 1
    one axis at a time: receives 1.43x as much
    leading axes alone: receives 2.86x as much
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..common.numbers import bandwidth, bytes_text, time_text, times
from ..layouts.layout import LayoutError, layout_of
from ..layouts.refinement import NoPlanError, Problem, refine
from ..network.pricing import Pricing
from ..planner.canonical import canonical, canonical_steps, with_names_of
from ..planner.plan_cache import planned_or_read
from ..planner.planner import exchange_alone, with_rounds
from ..plans.costing import Costing
from ..plans.plan import Plan
from ..plans.plan_json import bound_tile_bytes
from ..plans.plan_layouts import in_pieces
from ..programs.chain import Chain
from ..programs.steps import AllGather, AllReduce, Chunked, Exchanged, Relayout, RuleError, Slice, Step, ToUnreduced
from ..programs.tile_program import On
from ..search import reduced_ends
from ..search.best_first import SearchLimit, cheapest_chain
from ..search.find_chain import find_chain
from ..search.leading_axes import leading_axes_chain
from .step_costs import StepCost, step_costs

MOST_SHOWN = 3
MOST_EDGES = 4_000  # steps that a search without one kind of step considers
MOST_DEVICES_WITH_ROUNDS = 256  # exchanges among more take seconds to schedule
_AS_LONG = 1.005  # times whose ratio is below this count as equal


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to fulfil the request of a plan, and the reason why it was rejected.

    Attributes:
      way: the name of the way, e.g. "one axis at a time".
      plan: the way with its costs.
      reason: why it was rejected, e.g. "receives 1.50x as much".
    """

    way: str
    plan: Plan
    reason: str

    def as_dict(self) -> dict:
        """Returns the object that JSON lists under `rejected`."""
        return {
            "way": self.way,
            "chain": self.plan.chain_text,
            "bytes_received": self.plan.bytes_received,
            "time_us": round(self.plan.time_s * 1e6, 6),
            "peak_bytes": self.plan.peak_bytes,
            "collectives": self.plan.collectives,
            "reason": self.reason,
        }


def rejected(plan: Plan, most: int = MOST_SHOWN) -> tuple[Alternative, ...]:
    """Returns at most `most` other ways, the best one first; none if source and target are on two meshes."""
    if not math.prod(plan.shape) or not plan.collectives or plan.target_mesh is not None:
        return ()
    ways = _Ways(plan)
    found: dict[str, tuple[str, Plan]] = {}
    for way, unnamed in ways.all():
        other = with_names_of(ways.asked, unnamed)
        if other.chain_text not in (plan.chain_text, *found):
            found[other.chain_text] = way, other
    best = sorted(found.values(), key=lambda each: _key(each[1], plan.objective))[:most]
    return tuple(Alternative(way, other, _reason(plan, other)) for way, other in best)


def _key(plan: Plan, objective: str) -> tuple:
    cost = plan.bytes_received, plan.collectives
    return (plan.time_s, *cost) if objective == "time" else cost


class _Ways:
    """All ways to fulfil the request of a plan; ways that do not exist for this request are left out."""

    def __init__(self, plan: Plan):
        self.asked = replace(plan.request, with_exchange=True, effort=1, memory_limit=None)
        self.request = canonical(self.asked)
        self.pricing = Pricing(self.request.topology, self.request.mesh, plan.bits)
        self.costing = Costing(self.request, self.pricing)
        self.plan = plan
        self.is_small = plan.mesh.size <= MOST_DEVICES_WITH_ROUNDS

    def all(self) -> Iterator[tuple[str, Plan]]:
        """Yields the name of each way with its plan; two ways may have the same chain."""
        yield from self._several(
            "fewest bytes" if self.request.objective == "time" else "least time", self._by_the_other_objective
        )
        yield from self._several("no exchange", lambda: self.costing.of_chain(self._chain()))
        yield from self._several("axes uncut", lambda: self._searched(lambda kind, moved: True))
        yield from self._several("one axis at a time", lambda: self._searched(lambda kind, moved: moved <= 1))
        for kind in ("permute", "all_to_all", *(["reduce_scatter"] if self.request.has_sums else [])):
            yield from self._several(f"no {kind}", lambda: self._searched(lambda each, moved: each != kind))
        if self.request.has_sums:
            yield from self._several("all_reduce first", self._reduced_first)
        else:
            yield from self._several("leading axes alone", self._leading_axes)
        yield from self._several("everything gathered, then sliced", self._gathered)
        if self.request.with_exchange and self.is_small:
            yield from self._several("exchange alone", lambda: exchange_alone(self.request))
            yield from self._several("exchange in the middle", lambda: with_rounds(self.request, self._chain()))

    def _several(self, way: str, made: Callable[[], Plan | Iterator[Plan]]) -> Iterator[tuple[str, Plan]]:
        try:
            found = made()
            yield from ((way, each) for each in ([found] if isinstance(found, Plan) else found))
        except (LayoutError, NoPlanError, RuleError, SearchLimit):
            return

    def _chain(self) -> Chain:
        """Returns the plan's own chain.

        If the plan has chunks, an exchange or steps on another mesh, returns the chain that the planner started from.
        """
        asked = self.request
        typed = canonical_steps(
            self.plan.mesh, (each.step for each in self.plan.steps if not isinstance(each.step, Relayout))
        )
        is_elsewhere = any(isinstance(each, On) for each in self.plan.tile_program.operations)
        if is_elsewhere or any(isinstance(step, (Chunked, Exchanged)) for step in typed):
            return find_chain(asked, self.pricing, self.costing.bound).chain
        return Chain(in_pieces(layout_of(asked.mesh, asked.shape, asked.source), typed), typed)

    def _by_the_other_objective(self) -> Plan:
        other = "bytes" if self.request.objective == "time" else "time"
        return planned_or_read(
            replace(self.request, objective=other, with_exchange=self.request.with_exchange and self.is_small)
        )

    def _refined(self, **options: Any) -> Problem:
        asked = self.request
        return refine(
            asked.mesh, asked.shape, asked.source, asked.target, tile_limit=asked.tile_limit_elements, **options
        )

    def _searched(self, allows: Callable[[str, int], bool]) -> Iterator[Plan]:
        """Yields the cheapest chain of the steps that are allowed, on uncut axes."""
        problem = self._refined()
        pricing = self.costing.objective.pricing_of_search(self.pricing)
        found = cheapest_chain(problem, pricing=pricing, max_edges=MOST_EDGES, allows=allows)
        if found is not None:
            yield self.costing.of_chain(found.chain)

    def _reduced_first(self) -> Iterator[Plan]:
        problem = self._refined()
        if problem.source.unreduced:
            pricing = self.costing.objective.pricing_of_search(self.pricing)
            found = cheapest_chain(reduced_ends.reduced_first(problem), pricing=pricing, max_edges=MOST_EDGES)
            if found is not None:
                yield self.costing.of_chain(reduced_ends.completed(problem, found, pricing).chain)

    def _leading_axes(self) -> Plan:
        problem = self._refined(into_primes=True)
        return self.costing.of_chain(leading_axes_chain(problem))

    def _gathered(self) -> Plan:
        """Returns the chain to which XLA falls back: gather the whole array on every device, then slice."""
        problem = self._refined()
        before, after = problem.source, problem.target
        typed: list[Step] = []
        if before.unreduced:
            typed.append(AllReduce(before.unreduced))
        if before.owners:
            typed.append(AllGather(tuple(factor for factor, _ in before.owners)))
        if after.owners:
            typed.append(Slice(after.owners))
        if after.unreduced:
            typed.append(ToUnreduced(after.unreduced))
        return self.costing.of_chain(Chain(before, tuple(typed)), keeps_tiles_small=False)


# ---- reasons


def _reason(plan: Plan, other: Plan) -> str:
    memory_limit, tile_limit = plan.request.memory_limit, plan.request.tile_limit
    if other.largest_tile_bytes > max(bound_tile_bytes(plan), tile_limit or 0):
        is_cheaper = _key(other, plan.objective) < _key(plan, plan.objective)
        hint = "; a tile limit may allow it" if is_cheaper and tile_limit is None else ""
        return f"needs a tile of {bytes_text(other.largest_tile_bytes)}, more than {_allowed(tile_limit)} (R2){hint}"
    if memory_limit is not None and other.peak_bytes > memory_limit:
        return f"peaks at {bytes_text(other.peak_bytes)}, above the memory limit"
    is_by_time = plan.objective == "time"
    if other.time_s * _AS_LONG < plan.time_s if is_by_time else _key(other, "bytes") < _key(plan, "bytes"):
        return "costs less; no search of the planner comes by it"
    if is_by_time and other.time_s > plan.time_s * _AS_LONG:
        return f"takes {times(other.time_s, plan.time_s)} as long: {_what_takes_long(plan, other)}"
    if other.bytes_received > plan.bytes_received:
        return f"receives {times(other.bytes_received, plan.bytes_received)} as much"
    if other.collectives > plan.collectives:
        return f"{other.collectives} collectives instead of {plan.collectives}"
    if other.peak_bytes > plan.peak_bytes:
        return f"peak {times(other.peak_bytes, plan.peak_bytes)}"
    return "costs as much"


def _allowed(tile_limit: int | None) -> str:
    return "source or target" if tile_limit is None else "source, target or the tile limit"


def _what_takes_long(plan: Plan, other: Plan) -> str:
    """Returns in words the part of the time that contributes most to the difference."""
    topology = plan.request.topology
    mine, theirs = step_costs(plan, topology), step_costs(other, topology)
    more = {part: _total(theirs, part) - _total(mine, part) for part in ("transfer_s", "latency_s", "copies_s")}
    part = max(more, key=more.__getitem__)
    if part == "copies_s":
        return "more copies on the device"
    if part == "latency_s" and other.collectives > plan.collectives:
        return f"{other.collectives} collectives instead of {plan.collectives}"
    slowest = max(theirs, key=lambda step: getattr(step, part))
    level = slowest.level
    assert level is not None  # a step that transfers bytes, or waits for them, crosses a level
    words = bandwidth(level.bandwidth_bytes_per_s) if part == "transfer_s" else f"{time_text(level.latency_s)} a step"
    if part == "latency_s" and slowest.op == "all_to_all" and level.message_s:
        words += f" and {time_text(level.message_s)} a message"
    return f"its {slowest.op} crosses {level.name}, {words}"


def _total(costs: tuple[StepCost, ...], part: str) -> float:
    return sum(getattr(step, part) for step in costs)
