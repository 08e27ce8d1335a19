# SPDX-License-Identifier: Apache-2.0
"""The table of generators: each yields other ways to do what a searched chain does.

A generator takes what the search found for one request, and yields chains or whole plans. The planner prices a chain
unless a bound says that it is no cheaper than the best plan so far. A way that is more than one chain on one mesh comes
as a plan. A generator yields nothing if the request, or the proof about the searched chain, shows that its way cannot
be cheaper.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from ..layouts.blocks import Blocks
from ..layouts.layout import Factor, Layout, LayoutError
from ..layouts.mesh import Mesh
from ..layouts.refinement import NoPlanError, Problem, refine
from ..network.pricing import PER_SECOND, Pricing
from ..network.topology import Topology
from ..plans.costing import Costing
from ..plans.plan import Plan, PlannedStep
from ..plans.request import Request
from ..programs import steps
from ..programs.chain import Chain
from ..programs.exchange import MOST_PIECES_BESIDE_CHAIN, Exchange, TooManyPieces, plan_exchange
from ..programs.peak import exchange_peak_bytes
from ..programs.tile_program import lower
from ..search.arranged import one_permute_chains, rearranged
from ..search.budget import BUDGET
from ..search.find_chain import find_chain
from ..search.found import Found
from ..search.gathered_chains import gathered_chains
from ..search.greedy_chain import greedy_chain
from ..search.leading_axes import leading_axes_chain
from ..search.waves import chain_of_waves, striped_chains
from .routes import Leg, Routes, middles


@functools.lru_cache(maxsize=256)
def pricing_of(topology: Topology, mesh: Mesh, bits: int, folds_copies: bool = False) -> Pricing:
    """Returns what steps cost on a mesh; remembered, since requests on one mesh are many."""
    return Pricing(topology, mesh, bits, folds_copies)


class Context:
    """The facts about one request that are known without a search."""

    def __init__(self, request: Request):
        self.request = request
        self.pricing = self.pricing_on(request.widest_mesh)
        self.costing = Costing(request, self.pricing)
        self.wants_small = request.memory_limit is not None  # a slower plan may need less memory
        self.objective = self.costing.objective

    def pricing_on(self, mesh: Mesh) -> Pricing:
        return pricing_of(self.request.topology, mesh, self.request.bits)

    @functools.cached_property
    def routes(self) -> Routes:
        return Routes(self.request, self.costing, self.pricing_on, self.exchange)

    @functools.cached_property
    def primes(self) -> Problem | None:
        """Returns the problem in prime factors; None with partial sums, or if no prime factors serve both sides."""
        asked = self.request
        if asked.has_sums:
            return None
        options = {"into_primes": True, "tile_limit": asked.tile_limit_elements}
        try:
            return refine(asked.mesh, asked.shape, asked.source, asked.target, **options)
        except NoPlanError:
            return None

    def with_cheap_gathers(self, chain: Chain) -> Chain:
        """Returns the chain; by bytes with a gather for each dimension, since only the last one copies a large tile."""
        return chain if self.objective.is_by_time else chain.with_gathers_apart()

    def exchange(
        self, before: Blocks, after: Blocks, most_pieces: float = math.inf, most_rounds: float = math.inf
    ) -> Exchange:
        """Returns the exchange between two placements. Raises: TooManyPieces if it has too many pieces."""
        round_elements, least_s, price = 0, 0.0, None
        if self.objective.is_by_time:
            round_elements, price = self.pricing.round_elements(), self._exchange_price
            least_s = self.pricing.least_picoseconds(1) / PER_SECOND if self.request.devices > 1 else 0.0
        if least_s and not self.wants_small:
            most_rounds = min(most_rounds, self.costing.fastest_s / least_s)  # no slower than a known plan
        distance = None if self.pricing.is_flat else self.pricing.distance
        limits = {"most_rounds": most_rounds, "most_pieces": most_pieces}
        return plan_exchange(before, after, distance=distance, round_elements=round_elements, price=price, **limits)

    def _exchange_price(self, exchange: Exchange) -> tuple[float, float]:
        """Returns what decides between schedules: the bytes above the memory limit, then the time."""
        excess, limit = 0, self.request.memory_limit
        if limit is not None:
            beside = sum([-(-tile * self.request.bits // 8) for tile in self._tiles_beside(exchange)])
            excess = max(0, exchange_peak_bytes(exchange, self.request.bits) + beside - limit)
        return excess, self.pricing.exchange_seconds(exchange)

    def _tiles_beside(self, exchange: Exchange) -> Iterator[int]:
        """Yields the elements of the tiles of source and target that devices hold beside the exchange's own tiles.

        The source's tile is held to the end and the target's from the beginning. The exchange uses them in place of
        tiles of its own only if it is the first step, or the last one.
        """
        asked, (held, wanted) = self.request, self.routes.ends
        if asked.source.unreduced or not exchange.source.places_like(held):
            yield held.tile_elements
        if asked.target.unreduced or not exchange.target.places_like(wanted):
            yield wanted.tile_elements


class Searched:
    """The facts about one request that generators use: the chain that the search found, and the best plan so far.

    State: `best`, the cheapest plan so far that fits the memory limit. It is None if all ways are asked for, cheap or
    not, or if `plan`, the plan of the found chain, does not fit.
    """

    def __init__(self, context: Context, found: Found, every: bool):
        self.context = context
        self.found = found
        self.costing = context.costing
        self.costing.refined_ends = found.problem.source, found.problem.target
        if found.bound is not None:
            self.costing.bound = found.bound
        self.plan = self.costing.of_chain(found.chain, found.is_optimal, found.proved_gap)
        self.best = None if every or not self._fits(self.plan) else self.plan

    def priced(self, candidate: Chain | Plan) -> Plan | None:
        """Returns the plan of a candidate; None if a bound says that it is no cheaper than the best plan."""
        if isinstance(candidate, Plan):
            return candidate
        return self.costing.of_cheaper_chain(candidate, self.best) if self.best else self.costing.of_chain(candidate)

    def take(self, plan: Plan) -> None:
        """Makes a plan the best one, if it is cheaper and fits the memory limit."""
        if self.best is not None and self._fits(plan):
            self.best = min(self.best, plan, key=self.costing.key)

    def _fits(self, plan: Plan) -> bool:
        limit = self.context.request.memory_limit
        return limit is None or plan.peak_bytes <= limit


# ---- the searched chain in other steps


def gathers_apart(searched: Searched) -> Iterator[Chain]:
    """Yields the searched chain with a gather for each dimension in place of joint ones."""
    chain = searched.found.chain
    if chain.has_joint_gather:
        yield chain.with_gathers_apart()


def searched_with_free_copies(searched: Searched) -> Iterator[Chain]:
    """Yields the chain of another search, for which all_to_alls do the copies before them at no cost."""
    context = searched.context
    if context.pricing.has_free_copies:
        asked = context.request
        folding = pricing_of(asked.topology, asked.widest_mesh, asked.bits, folds_copies=True)
        yield find_chain(asked, folding).chain


def gathers_before_moves(searched: Searched) -> Iterator[Chain]:
    """Yields the searched chain with a gather before the all_to_all that it follows.

    The gathered tile is copied either way, and right before an all_to_all that costs less. The search sees no copies,
    and gathers last, since the all_to_all then moves a smaller tile.
    """
    if not searched.context.pricing.has_free_copies:
        return
    chain, asked = searched.found.chain, searched.context.request
    most = max(chain.source.tile_elements, chain.target.tile_elements, asked.tile_limit_elements)
    for at, (move, gather) in enumerate(itertools.pairwise(chain)):
        if isinstance(move, steps.AllToAll) and isinstance(gather, steps.AllGather):
            with contextlib.suppress(steps.RuleError):
                exchanged = chain.with_steps(at, at + 2, gather, move)
                if exchanged.largest_tile <= most:
                    yield exchanged


# ---- chains that are made without a search


def constructed(searched: Searched) -> Iterator[Chain]:
    """Yields the chains that need no search: a search that stopped early, or does not see copies, may miss them."""
    if _may_be_beaten(searched):
        yield from unsearched(searched.context, searched.best)


def unsearched(context: Context, best: Plan | None = None) -> Iterator[Chain]:
    """Yields the chains that need no search, without those whose head says that they are no cheaper than `best`.

    Each of the four carries plans that nothing else finds: if one is left out, `benchmarks/plan_costs.py` lists worse
    plans. More chains of the search itself do not replace them. A search keeps one way to each state, so it drops
    chains that cost the same without copies; and stripes and steps aside cost more as it counts.
    """
    primes = context.primes
    if primes is not None:
        may_permute = functools.partial(context.costing.may_permute, best) if best else None
        permuted = one_permute_chains(primes, may_permute)
        for chain in (leading_axes_chain(primes), *permuted, *_waves(context, primes), *_greedy(context)):
            yield context.with_cheap_gathers(chain)


def _may_be_beaten(searched: Searched) -> bool:
    found, plan = searched.found, searched.plan
    if searched.best is None or not found.is_optimal:
        return True
    return plan.time_s > found.rivals_s and _may_save_copies(searched.context, plan, found.chain)


def _may_save_copies(context: Context, plan: Plan, chain: Chain) -> bool:
    """Returns whether there may be a faster chain though none spends less in collectives: searches do not see copies.

    No chain that needs no search saves the copy behind a gather along one dimension, where that is all there is to do.
    """
    if not context.objective.is_by_time or len(chain) == len(plan.steps):
        return False
    return len(chain) > 1 or not isinstance(chain[0], steps.AllGather) or chain.has_joint_gather


def _waves(context: Context, primes: Problem) -> Sequence[Chain]:
    if context.objective.is_by_time and not context.pricing.is_flat:
        return striped_chains(primes)
    chain = chain_of_waves(primes)
    return [] if chain is None else [chain]


def _greedy(context: Context) -> Iterator[Chain]:
    """Yields the chain of `greedy_chain.py`, as it is and with neighbouring all_to_alls as one.

    Without it some plans take longer than Shardy's chain: it has the same steps, with the factors of one dimension in
    another order behind the permute.
    """
    asked = context.request
    chain = greedy_chain(asked.mesh, asked.shape, asked.source, asked.target)
    if chain is None:
        return
    ends = chain.source.tile_elements, chain.target.tile_elements
    if chain.largest_tile > max(*ends, asked.tile_limit_elements):
        return
    yield chain
    joint = chain.with_joint_moves()
    if len(joint) < len(chain):
        yield joint


def gathered_first(searched: Searched) -> Iterator[Chain | Plan]:
    """Yields the chains that gather more than the target needs, with one gather or one for each dimension."""
    context = searched.context
    if context.request.tile_limit is None or context.primes is None:
        return
    routes = None if context.pricing.is_flat or not context.request.with_exchange else context.routes
    for chain in gathered_chains(context.primes):
        for each in (chain, chain.with_gathers_apart()):
            yield each
            if routes:
                yield from routes.gathered_among_nearest(each)


# ---- chains on meshes that are made for them


def on_other_meshes(searched: Searched) -> Iterator[Chain | Plan]:
    """Yields chains on other meshes of the same devices; see `relabelled.py`."""
    context, found = searched.context, searched.found
    if not context.request.with_exchange or context.pricing.is_flat and not found.problem.is_misaligned:
        return
    if context.primes is None:
        return
    routes, seconds = context.routes, context.costing.least_seconds
    yield from routes.on_block_meshes()
    yield from routes.matched_along_replicas(found.chain)
    for number, chain in enumerate(sorted(one_permute_chains(context.primes), key=seconds)):
        if number < BUDGET.rearranged:
            chain = rearranged(context.primes, chain, seconds)
            yield chain
            if chain.has_joint_gather:
                yield chain.with_gathers_apart()
        yield from routes.matched_along_replicas(chain)


# ---- exchanges


def exchanged_middles(searched: Searched) -> Iterator[Plan]:
    """Yields the searched chain with an exchange for its middle, where that may be cheaper than the best plan."""
    context, found, best = searched.context, searched.found, searched.best
    if not context.request.with_exchange or best is not None and found.is_unbeatable:
        return
    if best is not None and _is_faster_than_any_exchange(context, best, found.chain):
        return
    for start, stop in middles(found.chain):
        best = searched.best  # it may be one of those that were yielded
        if best is None or _may_gain_by_exchange(searched, best, start, stop):
            yield from _exchanged(context, found.chain, start, stop, best)


def exchanged_parts(searched: Searched) -> Iterator[Plan]:
    """Yields an exchange that divides the target's tiles among their replicas, and a gather of the parts.

    The chain of the search splits a dimension that is split on neither side only if that saves bytes. Here it may save
    copies: a gather along the leading dimension needs none.
    """
    context, found, best = searched.context, searched.found, searched.best
    if not context.request.with_exchange or context.request.has_sums:
        return  # an exchange moves no partial sums
    if best is not None and found.is_unbeatable:
        return
    mesh, tile = context.request.mesh, found.problem.target.tile_elements
    replicas = mesh.size // math.prod(context.request.target.shards(mesh))
    if replicas == 1:
        return
    if best is not None and context.pricing.is_flat:  # there is one group of replicas, that of all
        part = -(-tile // replicas)
        least_s = context.pricing.least_picoseconds_of_one(replicas, part * (replicas - 1)) / PER_SECOND
        if _least_with_gather_s(context, tile, replicas, best.bound_bytes, least_s) >= best.time_s:
            return

    def may_gain(leg: Leg) -> bool:
        if leg.chain.source.shape != context.request.shape:
            return False  # it would be padded
        best = searched.best
        return best is None or _least_before(context, leg, best.bound_bytes) < context.costing.key(best)

    def may_gather(factors: tuple[Factor, ...]) -> bool:
        best = searched.best
        if best is None:
            return True
        parts = math.prod([factor.size for factor in factors])
        gather_s = context.pricing.picoseconds("all_gather", factors, -(-tile // parts)) / PER_SECOND
        return _least_with_gather_s(context, tile, parts, best.bound_bytes, gather_s) < best.time_s

    yield from context.routes.through_parts_of_target(may_gather, may_gain)


def _least_with_gather_s(context: Context, tile: int, parts: int, bound_bytes: int, gather_s: float) -> float:
    """Returns the least time of an exchange of parts of tiles, and a gather of the parts that takes `gather_s`."""
    part = -(-tile // parts)
    received = max(0, bound_bytes - part * (parts - 1) * context.request.bits // 8)
    return context.pricing.least_exchange_s(1, part, received) + gather_s


def _least_before(context: Context, leg: Leg, bound_bytes: int) -> tuple[float, ...]:
    """Returns the least cost of a plan of an exchange and a leg."""
    chain = leg.chain
    program = lower(leg.pricing.mesh, chain.source, chain.steps, context.request.reduction, chain.layouts)
    behind = context.costing.priced_steps(leg.pricing, program, chain)
    before, _ = context.costing.ends
    return least_with_exchange(context, before, chain.source, bound_bytes, (), behind)


def with_exchanged_middle(context: Context, chain: Chain) -> Iterator[Plan]:
    """Yields a chain with an exchange for its middle: all of it, or all between leading slices and trailing gathers."""
    for start, stop in middles(chain):
        yield from _exchanged(context, chain, start, stop)


def _exchanged(context: Context, chain: Chain, start: int, stop: int, best: Plan | None = None) -> Iterator[Plan]:
    """Yields the chain with an exchange for its steps from `start` to `stop`, if there is one that is worth it.

    Args:
      best: the plan that it has to beat.
    """
    mesh, before, after = context.request.mesh, chain.layouts[start], chain.layouts[stop]
    others = [*chain.steps[:start], *chain.steps[stop:]]
    try:
        held, wanted = Blocks.of_layout(mesh, before), Blocks.of_layout(mesh, after)
        exchange = context.exchange(held, wanted, MOST_PIECES_BESIDE_CHAIN, _most_rounds(context, best, others))
    except (LayoutError, TooManyPieces):
        return
    yield context.costing.of_chain(chain.with_steps(start, stop, steps.Exchanged(exchange, after)))


def _is_faster_than_any_exchange(context: Context, best: Plan, chain: Chain) -> bool:
    """Returns whether the best plan by time takes no more than one round that leads to the target, which is the least
    that an exchange in a chain without a gather takes."""
    if not context.objective.is_by_time or any([isinstance(step, steps.AllGather) for step in chain]):
        return False
    return best.time_s <= context.pricing.least_exchange_s(1, chain.target.tile_elements, best.bound_bytes)


def _may_gain_by_exchange(searched: Searched, best: Plan, start: int, stop: int) -> bool:
    """Returns whether the searched chain may be cheaper than the best plan with an exchange from `start` to `stop`.

    It is not where these steps are a permute, and it does not matter who sends to whom: behind the same digits two
    tiles are equal or apart, so a device that lacks a part lacks the whole tile; and a permute copies nothing.
    """
    context, chain = searched.context, searched.found.chain
    if stop == start + 1 and isinstance(chain[start], steps.Permute) and context.pricing.is_flat:
        return False
    ends = chain.layouts[start], chain.layouts[stop]
    kept = [each for each in searched.plan.steps if not isinstance(each.step, steps.Relayout)]
    least = least_with_exchange(context, *ends, searched.plan.bound_bytes, kept[:start], kept[stop:])
    return least < context.costing.key(best)


def _most_rounds(context: Context, best: Plan | None, others: Sequence[steps.Step]) -> float:
    """Returns how many rounds beside other steps may still be better: by bytes fewer, where the bound is met
    already."""
    if best is None or context.objective.is_by_time or best.bytes_received > best.bound_bytes:
        return math.inf
    return best.collectives - 1 - sum(map(steps.collectives, others))


def least_with_exchange(
    context: Context,
    before: Layout,
    after: Layout,
    bound_bytes: int,
    ahead: Sequence[PlannedStep],
    behind: Sequence[PlannedStep],
) -> tuple[float, ...]:
    """Returns the least cost of a plan of some steps, an exchange between two layouts, and some steps more.

    A round brings one piece, and a device's new tile meets as many old ones as their shapes say. What the other steps
    do not bring is brought in pieces too.

    Args:
      bound_bytes: the bytes that the busiest device must receive in any plan.
      ahead, behind: the steps before and after the exchange, with their prices.
    """
    asked, pricing, tiles = context.request, context.pricing, list(zip(after.tile_shape, before.tile_shape))
    others = [*ahead, *behind]
    received_bits = context.costing.bound * asked.bits - 8 * sum([each.bytes_received for each in others])
    piece = math.prod([min(sizes) for sizes in tiles])
    pieces = math.prod([-(-new // old) for new, old in tiles])
    rounds = max(1, pieces - 1, -(-received_bits // (piece * asked.bits)))
    least = bound_bytes, rounds + sum([steps.collectives(each.step) for each in others])
    if not context.objective.is_by_time:
        return least
    if pricing.is_flat and not any([new % old and old % new for new, old in tiles]):
        least_s = pricing.rounds_s(rounds, piece, after.tile_elements)  # all pieces are alike
    else:
        least_s = pricing.least_exchange_s(rounds, after.tile_elements, max(0, received_bits // 8))
    return sum([*(each.time_s for each in ahead), least_s, *(each.time_s for each in behind)]), *least


Generator = Callable[[Searched], Iterator[Chain | Plan]]

GENERATORS: dict[str, tuple[Generator, ...]] = {  # by objective
    "bytes": (constructed, gathered_first, exchanged_middles),
    "time": (
        gathers_apart,
        searched_with_free_copies,
        gathers_before_moves,
        constructed,
        gathered_first,
        on_other_meshes,
        exchanged_middles,
        exchanged_parts,
    ),
}
