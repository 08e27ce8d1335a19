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

from dataclasses import dataclass
import functools
import itertools
import math

from . import bounds, steps, traffic
from .layout import Layout
from .mesh import Mesh
from .problem import NoPlanError, Problem, refine
from .search import Chain, SearchLimit, cheapest_chain
from .sharding import Sharding
from .steps import Step
from .tile_program import Relayout, Reshape, TileProgram, collectives, lower

__all__ = ["NoPlanError", "Plan", "PlannedStep", "plan"]

MOST_EDGES = 1_000_000  # steps that the first search considers; seconds at worst
MOST_EDGES_FOR_DETOURS = 20_000
MOST_FACTORS_FOR_DETOURS = 5
GREED_OF_LAST_RESORT = 3


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with what it costs: bytes are per device, the busiest one."""

    step: Step
    text: str
    bytes_received: int
    tile_bytes_before: int
    tile_bytes_after: int

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
      is_optimal: no cheaper chain exists within the digits that `problem.py` offers.
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

    @property
    def chain_text(self) -> str:
        """Returns the steps in one line, relayouts left out; "nothing" for the empty chain."""
        return "; ".join(s.text for s in self.steps if s.op != "relayout") or "nothing"

    @property
    def collectives(self) -> int:
        return sum(steps.is_collective(s.step) for s in self.steps)

    @property
    def ratio_to_bound(self) -> float:
        """Returns bytes received over the bound; 1 where both are zero."""
        return self.bytes_received / self.bound_bytes if self.bound_bytes else 1.0


def plan(mesh: Mesh, shape: tuple[int, ...], bits: int, source: Sharding, target: Sharding) -> Plan:
    """Returns the chain with the fewest received bytes, then the fewest collectives, from `source` to `target`.

    Args:
      shape: the global shape, in elements. bits: of one element, e.g. 32 for f32.
      source, target: shardings of one array on `mesh`; open dimensions and priorities are ignored.
    Raises:
      ShardingError, MeshError: a sharding that does not fit the mesh or the rank.
      NoPlanError: dimensions that do not divide, unreduced axes, axes in two radices.
    Same problem, same plan, in every process (R5). Plans are memoised.
    """
    for sharding in (source, target):
        sharding.check(mesh, len(shape))
        if sharding.unreduced:
            raise NoPlanError(f"{sharding} is unreduced; reductions are not planned yet")
    if min(shape, default=0) < 0:
        raise NoPlanError(f"shape {list(shape)} has a negative size")
    if math.prod(shape) == 0:
        return _plan_without_elements(mesh, tuple(shape), bits, source.closed(), target.closed())
    return _plan(mesh, tuple(shape), bits, source.closed(), target.closed())


@functools.lru_cache(maxsize=65536)
def _plan(mesh: Mesh, shape: tuple[int, ...], bits: int, source: Sharding, target: Sharding) -> Plan:
    bound = bounds.received_elements_bound(mesh, shape, source, target)
    problem, chain, is_optimal = _search(mesh, shape, source, target, bound)
    typed = _steps(chain)
    layout, priced = problem.source, []
    tiles = [layout.tile_elements]
    for step in typed:
        layout = steps.apply(layout, step)  # R1: the rules, not the search, say where each step leads
        tiles.append(layout.tile_elements)
    if layout != problem.target:
        raise steps.RuleError(f"R1: the chain ends in {layout}, not in {problem.target}")
    if max(tiles) > max(tiles[0], tiles[-1]):
        raise steps.RuleError(f"R2: tiles {tiles}")
    program = lower(mesh, problem.source, typed)
    priced = _priced(mesh, problem.source, program, bits)
    moved = collectives(program, bits)
    return Plan(
        mesh=mesh,
        shape=shape,
        bits=bits,
        source=source,
        target=target,
        steps=priced,
        tile_program=program,
        bytes_received=traffic.bytes_received(moved, mesh.size),
        bytes_sent=traffic.bytes_sent(moved, mesh.size),
        bound_bytes=_bytes(bound, bits),
        largest_tile_bytes=_bytes(max(tiles), bits),
        peak_bytes=_peak_bytes(priced, tiles[0], bits),
        is_optimal=is_optimal,
    )


def _plan_without_elements(mesh: Mesh, shape: tuple[int, ...], bits: int, source: Sharding, target: Sharding) -> Plan:
    """Returns the plan for an array of size 0: at most the tile's shape changes."""
    refine(mesh, shape, source, target)  # says which dimension does not divide
    before, after = source.tile_shape(mesh, shape), target.tile_shape(mesh, shape)
    reshape = Relayout(f"{list(before)} to {list(after)}, no elements")
    operations = ((reshape, (Reshape(after),)),) if before != after else ()
    return Plan(
        mesh=mesh,
        shape=shape,
        bits=bits,
        source=source,
        target=target,
        steps=tuple(PlannedStep(step, steps.text(None, step, mesh), 0, 0, 0) for step, _ in operations),
        tile_program=TileProgram(mesh, before, after, operations),
        bytes_received=0,
        bytes_sent=0,
        bound_bytes=0,
        largest_tile_bytes=0,
        peak_bytes=0,
        is_optimal=True,
    )


def _search(mesh, shape, source, target, bound: int) -> tuple[Problem, Chain, bool]:
    """Returns a problem, its chain, and whether nothing cheaper exists: coarse factors, then detours, then primes."""
    problem = refine(mesh, shape, source, target)
    try:
        chain = cheapest_chain(problem, max_edges=MOST_EDGES)
    except SearchLimit:
        chain = None
    if chain is None:
        return _search_primes(mesh, shape, source, target)
    if chain.cost[0] <= bound and chain.cost[1] <= 1:
        return problem, chain, True
    is_optimal = True
    for into_primes in (False, True):
        wide = refine(mesh, shape, source, target, with_detours=True, into_primes=into_primes)
        if into_primes and (chain.cost[0] <= bound or len(wide.movable) == len(problem.movable)):
            break  # at the bound, or the same factors again
        if len(wide.movable) > MOST_FACTORS_FOR_DETOURS:
            is_optimal = chain.cost[0] <= bound
            break
        try:
            better = cheapest_chain(wide, below=chain.cost, max_edges=MOST_EDGES_FOR_DETOURS, exhaustive=True)
        except SearchLimit:
            is_optimal = chain.cost[0] <= bound
            break
        problem, chain = (problem, chain) if better is None else (wide, better)
    return problem, chain, is_optimal


def _search_primes(mesh, shape, source, target) -> tuple[Problem, Chain, bool]:
    problem = refine(mesh, shape, source, target, into_primes=True)
    for greed, max_edges in ((1, MOST_EDGES_FOR_DETOURS), (GREED_OF_LAST_RESORT, MOST_EDGES)):
        try:
            chain = cheapest_chain(problem, max_edges=max_edges, greed=greed)
        except SearchLimit:
            continue
        if chain is not None:
            return problem, chain, False
    raise NoPlanError(f"no chain found from {source} to {target} on {mesh}")


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


def _priced(mesh: Mesh, layout: Layout, program: TileProgram, bits: int) -> tuple[PlannedStep, ...]:
    found = []
    for step, _ in program.steps:
        after = steps.apply(layout, step)
        found.append(
            PlannedStep(
                step=step,
                text=steps.text(layout, step, mesh),
                bytes_received=_bytes(steps.received_elements(layout, step), bits),
                tile_bytes_before=_bytes(layout.tile_elements, bits),
                tile_bytes_after=_bytes(after.tile_elements, bits),
            )
        )
        layout = after
    return tuple(found)


def _peak_bytes(priced, source_tile: int, bits: int) -> int:
    """Returns the most that a step holds at once: the caller's source tile, the step's operand and its result."""
    source = _bytes(source_tile, bits)
    held = [source + (0 if i == 0 else s.tile_bytes_before) + s.tile_bytes_after for i, s in enumerate(priced)]
    return max(held, default=source)


def _bytes(elements: int, bits: int) -> int:
    return -(-elements * bits // 8)
