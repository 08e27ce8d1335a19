# SPDX-License-Identifier: Apache-2.0
"""Rejected alternatives: other ways to do what a plan does, priced alike, each with the reason why it is not the plan.

The ways are chosen to differ, so that the reasons tell: what other objectives, other planners and other steps would have come
to. Nothing here is on the way to a plan; it is done for those who ask why.

    >>> from .mesh import Mesh
    >>> from .plan import plan
    >>> from .sharding import Sharding
    >>> ends = Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
    >>> found = plan(Mesh.parse("x=4,y=2"), (16, 16, 16), 32, *ends)
    >>> for each in rejected(found, Topology.parse("uniform")):
    ...     print(f"{each.way}: {each.reason}")
    exchange alone: 7 collectives instead of 1
    one axis at a time: receives 1.43x as much
    leading axes alone: receives 2.86x as much
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
import math

from . import reduced_ends
from .canonical import canonical, canonical_steps, with_names_of
from .chains import find_chain, typed_steps
from .costing import Costing
from .layout import LayoutError, layout_of
from .leading_axes import leading_axes_chain
from .plan_cache import planned_or_read
from .plan_json import bound_tile_bytes
from .plan_layouts import in_pieces
from .planned import Plan
from .planner import exchange_alone, with_rounds
from .pricing import Pricing
from .problem import NoPlanError, Problem, refine
from .request import Request
from .search import SearchLimit, cheapest_chain
from .step_costs import StepCost, step_costs
from .steps import AllGather, AllReduce, Chunked, Exchanged, Relayout, RuleError, Slice, Step, ToUnreduced
from .tile_program import On
from .topology import Topology

MOST_SHOWN = 3
MOST_EDGES = 4_000  # steps that a search with a kind of step left out considers
MOST_DEVICES_WITH_ROUNDS = 256  # exchanges among more take seconds to schedule
_AS_LONG = 1.005  # what takes so many times as long does not take as long


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to do what a plan does.

    Attributes:
      way: in words, e.g. "one axis at a time".
      plan: the way with its costs.
      reason: why it was rejected, e.g. "receives 1.50x as much".
    """

    way: str
    plan: Plan
    reason: str

    def as_dict(self) -> dict:
        """Returns what `rejected` lists in JSON."""
        return {
            "way": self.way,
            "chain": self.plan.chain_text,
            "bytes_received": self.plan.bytes_received,
            "time_us": round(self.plan.time_s * 1e6, 6),
            "peak_bytes": self.plan.peak_bytes,
            "collectives": self.plan.collectives,
            "reason": self.reason,
        }


def rejected(
    plan: Plan,
    topology: Topology,
    most: int = MOST_SHOWN,
    *,
    memory_limit: int | None = None,
    tile_limit: int | None = None,
) -> tuple[Alternative, ...]:
    """Returns the best other ways, the best one first; fewer where there are no more, none between two meshes.

    Args:
      topology, memory_limit, tile_limit: those that the plan was made for.
    """
    if not math.prod(plan.shape) or not plan.collectives or plan.target_mesh is not None:
        return ()
    ways = _Ways(plan, topology, tile_limit)
    found: dict[str, tuple[str, Plan]] = {}
    for way, unnamed in ways.all():
        other = with_names_of(ways.asked, unnamed)
        if other.chain_text not in (plan.chain_text, *found):
            found[other.chain_text] = way, other
    best = sorted(found.values(), key=lambda each: _key(each[1], plan.objective))[:most]
    return tuple(Alternative(way, other, _reason(plan, other, topology, memory_limit, tile_limit)) for way, other in best)


def _key(plan: Plan, objective: str) -> tuple:
    cost = plan.bytes_received, plan.collectives
    return (plan.time_s, *cost) if objective == "time" else cost


class _Ways:
    """All ways to fulfil the request that a plan was made for; those that there are not here are left out."""

    def __init__(self, plan: Plan, topology: Topology, tile_limit: int | None):
        ends = plan.source.closed(), plan.target.closed()
        options = {"tile_limit": tile_limit}
        self.asked = Request(plan.mesh, plan.shape, plan.bits, *ends, plan.objective, topology, True, plan.reduction, **options)
        self.request = canonical(self.asked)
        self.pricing = Pricing(topology, self.request.mesh, plan.bits)
        self.costing = Costing(self.request, self.pricing)
        self.plan = plan
        self.is_small = plan.mesh.size <= MOST_DEVICES_WITH_ROUNDS

    def all(self) -> Iterator[tuple[str, Plan]]:
        """Yields ways in words with their plans; the same chain may come twice."""
        yield from self._several("fewest bytes" if self.request.objective == "time" else "least time", self._by_the_other_objective)
        yield from self._several("no exchange", lambda: self.costing.of_chain(*self._chain(), False))
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
            yield from self._several("exchange in the middle", lambda: with_rounds(self.request, *self._chain()))

    def _several(self, way: str, made: Callable[[], Plan | Iterator[Plan]]) -> Iterator[tuple[str, Plan]]:
        try:
            found = made()
            yield from ((way, each) for each in ([found] if isinstance(found, Plan) else found))
        except (LayoutError, NoPlanError, RuleError, SearchLimit):
            return

    def _chain(self) -> tuple[Problem, tuple[Step, ...]]:
        """Returns the plan's own chain on its problem, or, if it has chunks, an exchange or steps on another mesh, what the planner had first."""
        asked = self.request
        typed = canonical_steps(self.plan.mesh, (each.step for each in self.plan.steps if not isinstance(each.step, Relayout)))
        is_elsewhere = any(isinstance(each, On) for each in self.plan.tile_program.operations)
        if is_elsewhere or any(isinstance(step, (Chunked, Exchanged)) for step in typed):
            found = find_chain(asked, self.pricing, self.costing.bound)
            return found.problem, found.steps
        ends = (in_pieces(layout_of(asked.mesh, asked.shape, side), typed) for side in (asked.source, asked.target))
        return Problem(asked.mesh, asked.shape, *ends, (), ()), typed

    def _by_the_other_objective(self) -> Plan:
        other = "bytes" if self.request.objective == "time" else "time"
        return planned_or_read(replace(self.request, objective=other, with_exchange=self.request.with_exchange and self.is_small))

    def _refined(self, **options: bool) -> Problem:
        asked = self.request
        return refine(asked.mesh, asked.shape, asked.source, asked.target, tile_limit=asked.tile_limit_elements, **options)

    def _searched(self, allows: Callable[[str, int], bool]) -> Iterator[Plan]:
        """Yields the cheapest chain of the steps that are allowed, on uncut axes."""
        problem = self._refined()
        pricing = self.pricing if self.request.objective == "time" else None
        chain = cheapest_chain(problem, pricing=pricing, max_edges=MOST_EDGES, allows=allows)
        if chain is not None:
            yield self.costing.of_chain(problem, typed_steps(chain), False)

    def _reduced_first(self) -> Iterator[Plan]:
        problem = self._refined()
        if problem.source.unreduced:
            pricing = self.pricing if self.request.objective == "time" else None
            chain = cheapest_chain(reduced_ends.reduced_first(problem), pricing=pricing, max_edges=MOST_EDGES)
            if chain is not None:
                yield self.costing.of_chain(problem, typed_steps(reduced_ends.completed(problem, chain, pricing)), False)

    def _leading_axes(self) -> Plan:
        problem = self._refined(into_primes=True)
        return self.costing.of_chain(problem, leading_axes_chain(problem), False)

    def _gathered(self) -> Plan:
        """What XLA falls back to: the whole array on every device."""
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
        return self.costing.of_chain(problem, typed, False, keeps_tiles_small=False)


# ---- reasons


def _reason(plan: Plan, other: Plan, topology: Topology, memory_limit: int | None, tile_limit: int | None) -> str:
    if other.largest_tile_bytes > max(bound_tile_bytes(plan), tile_limit or 0):
        is_cheaper = _key(other, plan.objective) < _key(plan, plan.objective)
        hint = "; a tile limit may allow it" if is_cheaper and tile_limit is None else ""
        return f"needs a tile of {_size(other.largest_tile_bytes)}, more than {_allowed(tile_limit)} (R2){hint}"
    if memory_limit is not None and other.peak_bytes > memory_limit:
        return f"peaks at {_size(other.peak_bytes)}, above the memory limit"
    is_by_time = plan.objective == "time"
    if other.time_s * _AS_LONG < plan.time_s if is_by_time else _key(other, "bytes") < _key(plan, "bytes"):
        return "costs less; no search of the planner comes by it"
    if is_by_time and other.time_s > plan.time_s * _AS_LONG:
        return f"takes {_times(other.time_s, plan.time_s)} as long: {_what_takes_long(plan, other, topology)}"
    if other.bytes_received > plan.bytes_received:
        return f"receives {_times(other.bytes_received, plan.bytes_received)} as much"
    if other.collectives > plan.collectives:
        return f"{other.collectives} collectives instead of {plan.collectives}"
    if other.peak_bytes > plan.peak_bytes:
        return f"peak {_times(other.peak_bytes, plan.peak_bytes)}"
    return "costs as much"


def _allowed(tile_limit: int | None) -> str:
    return "source or target" if tile_limit is None else "source, target or the tile limit"


def _what_takes_long(plan: Plan, other: Plan, topology: Topology) -> str:
    """Returns the part of the time that makes most of the difference, in words."""
    mine, theirs = step_costs(plan, topology), step_costs(other, topology)
    more = {part: _total(theirs, part) - _total(mine, part) for part in ("transfer_s", "latency_s", "copies_s")}
    part = max(more, key=more.__getitem__)
    if part == "copies_s":
        return "more copies on the device"
    if part == "latency_s" and other.collectives > plan.collectives:
        return f"{other.collectives} collectives instead of {plan.collectives}"
    slowest = max(theirs, key=lambda step: getattr(step, part))
    return f"its {slowest.op} crosses {slowest.level.name}, " + (
        f"{slowest.level.bandwidth_bytes_per_s / 1e9:g} GB/s" if part == "transfer_s" else f"{slowest.level.latency_s * 1e6:g} us a step"
    )


def _total(costs: tuple[StepCost, ...], part: str) -> float:
    return sum(getattr(step, part) for step in costs)


def _times(other: float, mine: float) -> str:
    if not mine:
        return "infinitely"
    ratio = other / mine
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2f}x" if ratio >= _AS_LONG else f"{ratio:.4f}x"


def _size(num_bytes: int) -> str:
    """Returns bytes in the largest unit that they fill, e.g. `4 MiB`.

    Example:
      >>> [_size(each) for each in (100, 2048, 5 << 19)]
      ['100 bytes', '2 KiB', '2.5 MiB']
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1 << (10 * power):
            return f"{num_bytes / (1 << (10 * power)):.4g} {unit}"
    return f"{num_bytes} bytes"
