# SPDX-License-Identifier: Apache-2.0
"""Plans: the cheapest chain for a redistribution, with its costs, its bound and its tile program.

    >>> mesh = Mesh.parse("x=4,y=2")
    >>> source, target = Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
    >>> found = plan(mesh, (16, 16, 16), 32, source, target)
    >>> print(found.chain_text)
    all_to_all x: dim 2 -> 1, y: dim 0 -> 1
    >>> found.bytes_received, found.bound_bytes
    (1792, 1792)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import functools
import itertools
import math

from . import bounds, plan_json, steps, traffic
from .blocks import Blocks
from .exchange import TooManyPieces, plan_exchange
from .layout import Layout, LayoutError
from .mesh import Mesh
from .pricing import PER_SECOND, Pricing
from .problem import NoPlanError, Problem, refine
from .reduced_ends import completed, frozen, has_sums, reduced_first
from .search import Chain, SearchLimit, cheapest_chain
from .sharding import Sharding
from .steps import Step
from .tile_program import REDUCTIONS, Relayout, Reshape, Rounds, TileProgram, Transpose, collectives, lower
from .topology import DEFAULT, Topology

__all__ = ["NoPlanError", "Plan", "PlannedStep", "plan"]

MOST_EDGES = 1_000_000  # steps that the first search considers; seconds at worst
MOST_EDGES_BESIDE_EXCHANGE = 30_000  # where an exchange stands by
MOST_EDGES_WITH_SUMS = 100_000
MOST_EDGES_FOR_DETOURS = 20_000
MOST_FACTORS_FOR_DETOURS = 5
GREED_OF_LAST_RESORT = 3
OBJECTIVES = ("bytes", "time")


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with what it costs: bytes are per device, the busiest one; the time is modelled on the plan's topology."""

    step: Step
    text: str
    bytes_received: int
    tile_bytes_before: int
    tile_bytes_after: int
    time_s: float

    @property
    def op(self) -> str:
        return steps.name(self.step)


@dataclass(frozen=True, slots=True)
class Plan:
    """A chain with its costs and its certificate.

    Attributes:
      bits: bits of an element.
      steps: in execution order, relayouts included; empty if source and target place everything alike.
      bytes_received: R3's definition, the maximum over devices of the sum over steps; so is `bytes_sent`.
      bound_bytes: what the busiest device must receive whatever the method.
      largest_tile_bytes: the largest tile before, between and after the steps; by R2 that of source or target.
      peak_bytes: modelled peak of operand and result of one operation, copies of relayouts included.
      is_optimal: proved that no chain within the digits that `problem.py` offers receives less, or, with the objective
        "time", spends less in collectives; copies on the device and exchanges are outside of the proof.
      objective: "bytes" or "time". topology: its name. bound_time_s: what any method takes there, at least.
      dtype, seconds: what a caller who knows them adds: the element type's name, how long planning took.
      reduction: what makes an array of partial sums where source or target has unreduced axes.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    bits: int
    source: Sharding
    target: Sharding
    steps: tuple[PlannedStep, ...]
    tile_program: TileProgram
    bytes_received: int
    bytes_sent: int
    bound_bytes: int
    largest_tile_bytes: int
    peak_bytes: int
    is_optimal: bool
    objective: str
    topology: str
    bound_time_s: float
    dtype: str = ""
    seconds: float = field(default=0.0, compare=False)
    reduction: str = "sum"

    def to_dict(self) -> dict:
        """Returns what `reshard plan --json` prints; see `plan_json`."""
        return plan_json.as_dict(self)

    @property
    def chain_text(self) -> str:
        """Returns the steps in one line, relayouts left out; "nothing" for the empty chain."""
        return "; ".join(s.text for s in self.steps if s.op != "relayout") or "nothing"

    @property
    def collectives(self) -> int:
        return sum(steps.collectives(s.step) for s in self.steps)

    @property
    def time_s(self) -> float:
        """Returns the modelled time of all steps, relayouts included."""
        return sum(s.time_s for s in self.steps)

    @property
    def ratio_to_bound(self) -> float:
        """Returns bytes received over the bound; 1 where both are zero."""
        return self.bytes_received / self.bound_bytes if self.bound_bytes else 1.0


def plan(
    mesh: Mesh,
    shape: tuple[int, ...],
    bits: int,
    source: Sharding,
    target: Sharding,
    *,
    objective: str = "bytes",
    topology: Topology | None = None,
    with_exchange: bool = False,
    reduction: str = "sum",
) -> Plan:
    """Returns the cheapest way from `source` to `target`.

    Args:
      shape: the global shape, in elements. bits: of one element, e.g. 32 for f32.
      source, target: shardings of one array on `mesh`; open dimensions and priorities are ignored.
        Along unreduced axes the tiles are partial sums; in the target, any that add up to the array.
      objective: "bytes", the fewest received bytes, then the fewest collectives; "time", modelled on the topology.
      topology: of the network; None is `uniform`.
      with_exchange: consider exchanges too: in place of a chain, and behind its slices or before its gathers. Not where
        an axis is unreduced.
      reduction: what makes an array of partial sums: sum, prod, min, max, and, or.
    Raises:
      ShardingError, MeshError: a sharding that does not fit the mesh or the rank.
      TopologyError: a topology that does not fit the mesh.
      NoPlanError: without exchange, or with unreduced axes, dimensions that do not divide, and axes in two radices.
    Same problem, same plan, in every process (R5). Plans are memoised.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f'unknown objective "{objective}"; choose from {", ".join(OBJECTIVES)}')
    if reduction not in REDUCTIONS:
        raise ValueError(f'unknown reduction "{reduction}"; choose from {", ".join(REDUCTIONS)}')
    for sharding in (source, target):
        sharding.check(mesh, len(shape))
    if min(shape, default=0) < 0:
        raise NoPlanError(f"shape {list(shape)} has a negative size")
    on = topology or Topology.parse(DEFAULT)
    return _plan(mesh, tuple(shape), bits, source.closed(), target.closed(), objective, on, with_exchange, reduction)


@functools.lru_cache(maxsize=65536)
def _plan(mesh, shape, bits, source, target, objective: str, topology: Topology, with_exchange: bool, reduction: str) -> Plan:
    is_array = not (source.unreduced or target.unreduced)
    return _Planner(mesh, shape, bits, source, target, objective, topology, with_exchange and is_array, reduction).run()


@functools.lru_cache(maxsize=256)
def _pricing(topology: Topology, mesh: Mesh, bits: int) -> Pricing:
    return Pricing(topology, mesh, bits)


class _Planner:
    """One planning problem: `run` searches a chain, sets exchanges against it, and prices what is cheapest."""

    def __init__(self, mesh, shape, bits, source, target, objective, topology: Topology, with_exchange: bool, reduction: str):
        self.mesh, self.shape, self.bits = mesh, shape, bits
        self.source, self.target = source, target
        self.objective = objective
        self.with_exchange = with_exchange
        self.reduction = reduction
        self.most_edges = MOST_EDGES_BESIDE_EXCHANGE if with_exchange else MOST_EDGES
        self.pricing = _pricing(topology, mesh, bits)
        self.bound = bounds.received_elements_bound(mesh, shape, source, target)

    def run(self) -> Plan:
        if math.prod(self.shape) == 0:
            return self._without_elements()
        try:
            problem, chain, is_optimal = self._search()
        except NoPlanError:
            if not self.with_exchange:
                raise
            return self._exchange_alone()
        typed = _steps(chain)
        best = self._priced(problem, typed, is_optimal)
        if self._is_unbeatable(chain) or not self.with_exchange:
            return best
        alternatives = (self._priced(problem, each, False) for each in self._with_rounds(problem, typed))
        return min([best, *alternatives], key=self._key)

    def _key(self, plan: Plan) -> tuple:
        cost = plan.bytes_received, plan.collectives
        return (plan.time_s, *cost) if self.objective == "time" else cost

    # Chains

    @property
    def _search_pricing(self) -> Pricing | None:
        return self.pricing if self.objective == "time" else None

    def _is_unbeatable(self, chain: Chain) -> bool:
        """Returns whether the chain costs what any method must: the bound, in at most one collective."""
        at_least = (self.bound, int(self.bound > 0))
        if self.objective == "time":
            at_least = (self.pricing.least_picoseconds(self.bound), *at_least)
        return chain.cost <= at_least

    def _search(self) -> tuple[Problem, Chain, bool]:
        """Returns a problem, its chain, and whether nothing cheaper exists: coarse factors, then detours, then primes."""
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
            return cheapest_chain(problem, pricing=self._search_pricing, **limits)
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
            return cheapest_chain(problem, pricing=self._search_pricing, **limits) or first, True
        except SearchLimit:
            greedy = {"max_edges": MOST_EDGES_FOR_DETOURS, "greed": GREED_OF_LAST_RESORT}
            found = (first, self._chain_or_none(problem, **greedy), self._by_way_of(reduced_first(problem), problem))
            return min(filter(None, found), key=lambda chain: chain.cost, default=None), False

    def _by_way_of(self, simpler: Problem, problem: Problem) -> Chain | None:
        chain = self._chain_or_none(simpler, max_edges=MOST_EDGES_WITH_SUMS)
        return chain and completed(problem, chain, self._search_pricing)

    def _cheapest_below(self, problem: Problem, chain: Chain) -> Chain | None:
        limits = {"below": chain.cost, "max_edges": MOST_EDGES_FOR_DETOURS, "exhaustive": problem.is_misaligned}
        return cheapest_chain(problem, pricing=self._search_pricing, **limits)

    def _meets_bound(self, chain: Chain) -> bool:
        return self.objective == "bytes" and chain.cost[0] <= self.bound

    def _search_primes(self) -> tuple[Problem, Chain, bool]:
        problem = self._refine(into_primes=True)
        for greed, max_edges in ((1, MOST_EDGES_FOR_DETOURS), (GREED_OF_LAST_RESORT, self.most_edges)):
            try:
                chain = cheapest_chain(problem, pricing=self._search_pricing, max_edges=max_edges, greed=greed)
            except SearchLimit:
                continue
            if chain is not None:
                return problem, chain, False
        raise NoPlanError(f"no chain found from {self.source} to {self.target} on {self.mesh}")

    def _refine(self, **options: bool) -> Problem:
        return refine(self.mesh, self.shape, self.source, self.target, **options)

    # Exchanges

    def _exchange(self, before: Blocks, after: Blocks):
        round_elements = self.pricing.round_elements() if self.objective == "time" else 0
        distance = None if self.pricing.is_flat else self.pricing.distance
        return plan_exchange(before, after, distance=distance, round_elements=round_elements)

    def _with_rounds(self, problem: Problem, typed: list[Step]) -> Iterator[list[Step]]:
        """Yields chains with an exchange for their middle: between the leading slices and the trailing gathers, or all of it."""
        first = 1 if typed and isinstance(typed[0], steps.Slice) else 0
        last = len(typed)
        while last > first and isinstance(typed[last - 1], steps.AllGather):
            last -= 1
        for start, end in sorted({(a, b) for a in (0, first) for b in (last, len(typed)) if b > a}):
            before, after = (_layout_behind(problem.source, typed[:at]) for at in (start, end))
            try:
                ends = (Blocks.of_layout(self.mesh, each) for each in (before, after))
                found = self._exchange(*ends)
            except (LayoutError, TooManyPieces):
                continue
            yield [*typed[:start], steps.Exchanged(found, after), *typed[end:]]

    def _exchange_alone(self) -> Plan:
        """Returns the exchange between two placements that no chain of layouts connects."""
        ends = (Blocks.of_sharding(self.mesh, self.shape, side) for side in (self.source, self.target))
        try:
            found = self._exchange(*ends)
        except TooManyPieces as error:
            raise NoPlanError(str(error)) from None
        step = steps.Exchanged(found, None)
        program = TileProgram(self.mesh, found.source.tile_shape, found.target.tile_shape, ((step, (Rounds(found),)),))
        return self._plan_of(program, (self._priced_exchange(step),), found.largest_tile_elements, False)

    def _priced_exchange(self, step: steps.Exchanged) -> PlannedStep:
        found = step.exchange
        return PlannedStep(
            step=step,
            text=steps.text(None, step, self.mesh),
            bytes_received=_bytes(found.received_elements, self.bits),
            tile_bytes_before=_bytes(found.source.tile_elements, self.bits),
            tile_bytes_after=_bytes(found.target.tile_elements, self.bits),
            time_s=self.pricing.seconds(found.collectives(self.bits)) + self.pricing.relayout_seconds(found.target.tile_elements),
        )

    # Prices

    def _priced(self, problem: Problem, typed: list[Step], is_optimal: bool) -> Plan:
        """Returns the plan of a chain; R1: the rules, not the search, say where each step leads."""
        source, layouts = problem.source, [problem.source]
        for step in typed:
            layouts.append(steps.apply(layouts[-1], step))
        if layouts[-1] != problem.target:
            raise steps.RuleError(f"R1: the chain ends in {layouts[-1]}, not in {problem.target}")
        tiles = [layout.tile_elements for layout in layouts]
        if max(tiles) > max(tiles[0], tiles[-1]):
            raise steps.RuleError(f"R2: tiles {tiles}")
        program = lower(self.mesh, source, typed, self.reduction)
        return self._plan_of(program, self._priced_steps(source, program), max(tiles), is_optimal)

    def _priced_steps(self, layout: Layout, program: TileProgram) -> tuple[PlannedStep, ...]:
        found = []
        for step, operations in program.steps:
            after = steps.apply(layout, step)
            if isinstance(step, steps.Exchanged):
                found.append(self._priced_exchange(step))
            else:
                found.append(
                    PlannedStep(
                        step=step,
                        text=steps.text(layout, step, self.mesh),
                        bytes_received=_bytes(steps.received_elements(layout, step), self.bits),
                        tile_bytes_before=_bytes(layout.tile_elements, self.bits),
                        tile_bytes_after=_bytes(after.tile_elements, self.bits),
                        time_s=self._seconds(layout, step, after, operations),
                    )
                )
            layout = after
        return tuple(found)

    def _seconds(self, before: Layout, step: Step, after: Layout, operations) -> float:
        copies = sum(isinstance(each, Transpose) for each in operations)
        seconds = copies * self.pricing.relayout_seconds(after.tile_elements)
        match step:
            case steps.AllGather() | steps.AllToAll() | steps.ReduceScatter() | steps.AllReduce():
                seconds += self.pricing.picoseconds(steps.name(step), step.factors, before.tile_elements) / PER_SECOND
            case steps.Permute(_):
                seconds += self.pricing.permute_picoseconds(before, after, before.tile_elements) / PER_SECOND
        return seconds

    def _plan_of(self, program: TileProgram, priced, largest_tile: int, is_optimal: bool) -> Plan:
        moved = collectives(program, self.bits)
        received = traffic.bytes_received(moved, self.mesh.size)
        bound_bytes = _bytes(self.bound, self.bits)
        return Plan(
            mesh=self.mesh,
            shape=self.shape,
            bits=self.bits,
            source=self.source,
            target=self.target,
            steps=priced,
            tile_program=program,
            bytes_received=received,
            bytes_sent=traffic.bytes_sent(moved, self.mesh.size),
            bound_bytes=bound_bytes,
            largest_tile_bytes=_bytes(largest_tile, self.bits),
            peak_bytes=_peak_bytes(priced, math.prod(program.in_shape), self.bits),
            is_optimal=is_optimal or self.objective == "bytes" and received <= bound_bytes,
            objective=self.objective,
            topology=self.pricing.topology.name,
            bound_time_s=self._bound_seconds() if self.bound else 0.0,
            reduction=self.reduction,
        )

    def _bound_seconds(self) -> float:
        blocks_s = self.pricing.bound_seconds(self.shape, self.source, self.target)
        if not (self.source.unreduced or self.target.unreduced):
            return blocks_s
        return max(blocks_s, self.pricing.least_picoseconds(self.bound) / PER_SECOND)

    def _without_elements(self) -> Plan:
        """Returns the plan for an array of size 0: at most the tile's shape changes."""
        self._refine()  # says which dimension does not divide
        before, after = (side.tile_shape(self.mesh, self.shape) for side in (self.source, self.target))
        reshape = Relayout(f"{list(before)} to {list(after)}, no elements")
        operations = ((reshape, (Reshape(after),)),) if before != after else ()
        priced = tuple(PlannedStep(step, steps.text(None, step, self.mesh), 0, 0, 0, 0.0) for step, _ in operations)
        return self._plan_of(TileProgram(self.mesh, before, after, operations), priced, 0, True)


def _layout_behind(layout: Layout, typed: list[Step]) -> Layout:
    for step in typed:
        layout = steps.apply(layout, step)
    return layout


def _steps(chain: Chain) -> list[Step]:
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


def _peak_bytes(priced, source_tile: int, bits: int) -> int:
    """Returns the most that a step holds at once: the caller's source tile, the step's operand and its result."""
    source = _bytes(source_tile, bits)
    held = [source + (0 if i == 0 else s.tile_bytes_before) + s.tile_bytes_after for i, s in enumerate(priced)]
    return max(held, default=source)


def _bytes(elements: int, bits: int) -> int:
    return -(-elements * bits // 8)
