# SPDX-License-Identifier: Apache-2.0
"""How a request is planned: candidates of several kinds, priced alike, of which the cheapest is the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import functools
import itertools
import math

from . import budget, steps
from .blocks import Blocks
from .chains import find_chain, gathers_apart, has_joint_gather
from .costing import Costing, gap_to_bounds
from .exchange import MOST_PIECES_BESIDE_CHAIN, Exchange, TooManyPieces, plan_exchange
from .gathered_chains import gathered_chains
from .greedy_chain import greedy_chain, moves_at_once
from .layout import Layout, LayoutError
from .leading_axes import leading_axes_chain
from .mesh import Mesh
from .one_permute import one_permute_chains, rearranged
from .planned import Plan
from .pricing import PER_SECOND, Pricing
from .problem import NoPlanError, Problem, refine
from .request import Request
from .routes import Routes, layout_behind, middles
from .steps import Step
from .topology import Topology
from .waves import chain_of_waves, striped_chains

MOST_REARRANGED = 6  # chains with one permute whose arrangement is worked on, the fastest ones


def planned(request: Request) -> Plan:
    """Returns the cheapest plan.

    Raises: NoPlanError, TopologyError as `plan` says.
    """
    planner = _Planner(request)
    found = planner.run()
    if request.tile_limit is None:
        return found
    return min(found, *_within_both_ends(request), key=planner.costing.key)


def _within_both_ends(request: Request) -> list[Plan]:
    """Returns the plan without the tile limit, if there is one: a search with more room may end before it finds that."""
    with contextlib.suppress(NoPlanError):
        found = planned(dataclasses.replace(request, tile_limit=None))
        return [dataclasses.replace(found, is_optimal=False, proved_gap=gap_to_bounds(found))]
    return []


def pareto(request: Request) -> tuple[Plan, ...]:
    """Returns the plans that no other one beats in time and in peak, the fastest first.

    Raises: NoPlanError, TopologyError as `plan` says.
    """
    return _Planner(request).pareto()


@functools.lru_cache(maxsize=256)
def _pricing(topology: Topology, mesh: Mesh, bits: int, folds_copies: bool = False) -> Pricing:
    return Pricing(topology, mesh, bits, folds_copies)


def with_rounds(request: Request, problem: Problem, typed: Sequence[Step]) -> Iterator[Plan]:
    """Yields the plans in which an exchange does the middle of a chain, or all of it."""
    return _Planner(request)._with_rounds(problem, typed, None, None)


def exchange_alone(request: Request) -> Iterator[Plan]:
    """Yields the plans that need an exchange and no search. Raises: NoPlanError if it has too many pieces."""
    return _Planner(request)._routes().plans_by_exchange()


def exchange_between(request: Request, before: Layout, after: Layout) -> Exchange:
    """Returns the exchange that the planner would make between two blocked layouts. Raises: LayoutError, TooManyPieces."""
    return _Planner(request)._exchange(*(Blocks.of_layout(request.mesh, each) for each in (before, after)))


def chain_plan(request: Request, problem: Problem, typed: Sequence[Step], is_optimal: bool, proved_gap: float | None) -> Plan:
    """Returns the plan of typed steps: their rules are applied, and they are priced. Raises: RuleError if a rule forbids one."""
    return _Planner(request).costing.of_chain(problem, typed, is_optimal, proved_gap)


class _Planner:
    """One request: `run` finds a chain, sets exchanges against it, and takes what is cheapest."""

    def __init__(self, request: Request):
        self.request = request
        self.pricing = self._pricing_of(request.widest_mesh)
        self.costing = Costing(request, self.pricing)
        self.wants_small = request.memory_limit is not None  # what is slower may need less memory

    def run(self) -> Plan:
        asked = self.request
        if math.prod(asked.shape) == 0:
            if not asked.with_exchange and asked.target_mesh is None:
                refine(asked.mesh, asked.shape, asked.source, asked.target)  # says which dimension does not divide
            return self.costing.of_no_elements()
        if asked.memory_limit is not None:
            return budget.cheapest_within(asked.memory_limit, self._candidates(), self.costing.key, self._in_chunks)
        return min(self._candidates(), key=self.costing.key)

    def pareto(self) -> tuple[Plan, ...]:
        """Returns the plans that no other one beats in time and in peak; see `budget`."""
        if math.prod(self.request.shape) == 0:
            return (self.run(),)
        self.wants_small = True
        return budget.pareto(self._candidates(every=True), self._in_chunks)

    def _in_chunks(self, plan: Plan) -> Iterator[Plan]:
        return self.costing.in_chunks(plan, self._exchange)

    def _candidates(self, every: bool = False) -> Iterator[Plan]:
        """Yields plans; without `every` none that is sure to be dearer than one before it."""
        asked = self.request
        if not asked.is_even and (asked.with_exchange or asked.target_mesh is not None):
            yield from self._routes().plans()
            return
        try:
            found = find_chain(asked, self.pricing)
        except NoPlanError:
            known = tuple(self._without_search(None))
            if not known and not asked.with_exchange:
                raise
            yield from known
            if asked.with_exchange:
                with contextlib.suppress(NoPlanError if known else ()):
                    yield from self._routes().plans_by_exchange()
            return
        self.costing.bound = found.bound
        chain = self.costing.of_chain(found.problem, found.steps, found.is_optimal, found.proved_gap)
        yield chain
        needs_all = every or not self._fits(chain)
        best = None if needs_all else chain
        if asked.objective == "time" and has_joint_gather(found.problem.source, found.steps):
            plan = self.costing.of_chain(found.problem, gathers_apart(found.problem.source, found.steps), False)
            yield plan
            best = self._cheapest(best, plan)
        if asked.objective == "time" and self.pricing.has_free_copies:
            other = find_chain(asked, _pricing(asked.topology, asked.widest_mesh, asked.bits, folds_copies=True))
            plan = self.costing.of_chain(other.problem, other.steps, False)
            yield plan
            best = self._cheapest(best, plan)
        if needs_all or not found.is_optimal or chain.time_s > found.rivals_s and self._may_save_copies(chain, found.problem.source):
            for plan in self._without_search(best):
                yield plan
                best = self._cheapest(best, plan)
        if asked.tile_limit is not None and not asked.has_sums:
            for plan in self._gathered():
                yield plan
                best = self._cheapest(best, plan)
        if asked.with_exchange and self._may_gain_by_other_meshes(found.problem):
            for plan in self._on_other_meshes(found.problem, found.steps):
                yield plan
                best = self._cheapest(best, plan)
        if asked.with_exchange and (needs_all or not found.is_unbeatable):
            yield from self._with_rounds(found.problem, found.steps, best and chain, best)

    def _may_gain_by_other_meshes(self, problem: Problem) -> bool:
        is_by_time = self.request.objective == "time" and not self.request.has_sums
        return is_by_time and (not self.pricing.is_flat or problem.is_misaligned)

    def _on_other_meshes(self, problem: Problem, typed: Sequence[Step]) -> Iterator[Plan]:
        """Yields chains on meshes that are made for them; see `block_meshes.py`."""
        routes = self._routes()
        yield from routes.on_block_meshes()
        yield from routes.matched_along_replicas(problem, typed)
        primes = self._primes()
        seconds = functools.partial(self.costing.least_seconds, primes)
        others = sorted(one_permute_chains(primes), key=seconds)
        for number, other in enumerate(others):
            if number < MOST_REARRANGED:
                other = rearranged(primes, other, seconds)
                yield self.costing.of_chain(primes, other, False)
                if has_joint_gather(primes.source, other):
                    yield self.costing.of_chain(primes, gathers_apart(primes.source, other), False)
            yield from routes.matched_along_replicas(primes, other)

    def _primes(self) -> Problem:
        """Returns the problem in prime factors. Raises: NoPlanError if there are none that serve both sides."""
        asked = self.request
        options = {"into_primes": True, "tile_limit": asked.tile_limit_elements}
        return refine(asked.mesh, asked.shape, asked.source, asked.target, **options)

    def _routes(self) -> Routes:
        return Routes(self.request, self.costing, self._pricing_of, self._exchange)

    def _pricing_of(self, mesh: Mesh) -> Pricing:
        return _pricing(self.request.topology, mesh, self.request.bits)

    def _may_save_copies(self, chain: Plan, source: Layout) -> bool:
        """Returns whether there may be a faster chain though none spends less in collectives: searches do not see copies.

        None that needs no search saves the copy behind a gather along one dimension, where that is all there is to do.
        """
        if self.request.objective != "time":
            return False
        typed = [each.step for each in chain.steps if not isinstance(each.step, steps.Relayout)]
        if len(typed) == len(chain.steps):
            return False
        if len(typed) > 1 or not isinstance(typed[0], steps.AllGather):
            return True
        return len({source.slot_of(factor).dim for factor in typed[0].factors}) > 1

    def _fits(self, plan: Plan) -> bool:
        return self.request.memory_limit is None or plan.peak_bytes <= self.request.memory_limit

    def _cheapest(self, best: Plan | None, plan: Plan) -> Plan | None:
        """Returns what other plans have to beat: the best one so far, or one that fits and is cheaper; None if nothing counts."""
        return min(best, plan, key=self.costing.key) if best and self._fits(plan) else best

    def _without_search(self, chain: Plan | None) -> Iterator[Plan]:
        """Yields the plans that need no search; one that stopped early may have found worse, or none.

        Given the plan of a chain, only those that are cheaper than it and those before.
        """
        asked = self.request
        if asked.has_sums:
            return
        try:
            problem = self._primes()
        except NoPlanError:
            return
        is_by_time = asked.objective == "time"
        if is_by_time and not self.pricing.is_flat:
            waves = striped_chains(problem)
        else:
            waves = filter(None, [chain_of_waves(problem)])
        best = chain
        may_permute = functools.partial(self.costing.may_permute, chain) if chain else None
        chains = [(problem, typed) for typed in (leading_axes_chain(problem), *one_permute_chains(problem, may_permute), *waves)]
        for problem, typed in (*chains, *self._greedy()):
            if not is_by_time:
                typed = gathers_apart(problem.source, typed)
            plan = self.costing.of_cheaper_chain(problem, typed, best) if best else self.costing.of_chain(problem, typed, False)
            if plan is not None:
                yield plan
                best = self._cheapest(best, plan)

    def _gathered(self) -> Iterator[Plan]:
        """Yields the chains that gather more than the target needs, with one gather or one for each dimension."""
        problem = self._primes()
        routes = None if self.pricing.is_flat or not self.request.with_exchange else self._routes()
        for typed in gathered_chains(problem):
            for each in (typed, gathers_apart(problem.source, typed)):
                yield self.costing.of_chain(problem, each, False)
                if routes:
                    yield from routes.gathered_among_nearest(problem, each)

    def _greedy(self) -> Iterator[tuple[Problem, Sequence[Step]]]:
        """Yields the chain of `greedy_chain.py`, as it is and with neighbouring all_to_alls as one, each in its own pieces of axes."""
        asked = self.request
        found = greedy_chain(asked.mesh, asked.shape, asked.source, asked.target)
        if found is None:
            return
        start, typed = found
        problem = Problem(asked.mesh, asked.shape, start, layout_behind(start, typed), (), (), asked.tile_limit_elements)
        if any([layout_behind(start, typed[:at]).tile_elements > problem.largest_tile for at in range(len(typed))]):
            return
        yield problem, typed
        joined = moves_at_once(start, typed)
        if len(joined) < len(typed):
            yield problem, joined

    def _with_rounds(self, problem: Problem, typed: Sequence[Step], chain: Plan | None, best: Plan | None) -> Iterator[Plan]:
        """Yields chains with an exchange for their middle: between the leading slices and the trailing gathers, or all of it.

        Given the plan of the chain, and the best one so far, none that is sure to be no better than that and those before.
        """
        mesh = self.request.mesh
        if not typed or chain and self._is_faster_than_any_exchange(best, problem.target, typed):
            return
        layouts = [*itertools.accumulate(typed[:-1], steps.apply, initial=problem.source), problem.target]
        for start, end in middles(layouts, typed):
            if chain and self._is_an_exchange(typed[start:end]):
                continue
            before, after = layouts[start], layouts[end]
            others = [*typed[:start], *typed[end:]]
            if chain and self._least_with_rounds(before, after, chain, start, end) >= self.costing.key(best):
                continue
            try:
                ends = (Blocks.of_layout(mesh, each) for each in (before, after))
                exchange = self._exchange(*ends, MOST_PIECES_BESIDE_CHAIN, self._most_rounds(others, best))
            except (LayoutError, TooManyPieces):
                continue
            plan = self.costing.of_chain(problem, [*typed[:start], steps.Exchanged(exchange, after), *typed[end:]], False)
            yield plan
            best = best and min(best, plan, key=self.costing.key)

    def _is_faster_than_any_exchange(self, best: Plan, target: Layout, typed: Sequence[Step]) -> bool:
        """Returns whether the best plan by time takes no more than one round that leads to the target: what stands for a chain without a gather."""
        if self.request.objective != "time" or any([isinstance(step, steps.AllGather) for step in typed]):
            return False
        return best.time_s <= self.pricing.least_exchange_s(1, target.tile_elements, best.bound_bytes)

    def _is_an_exchange(self, typed: Sequence[Step]) -> bool:
        """Returns whether steps are a permute, where it does not matter who sends to whom: an exchange does no better than that.

        Behind the same digits two tiles are equal or apart, so who lacks a part lacks the whole tile; and a permute copies nothing.
        """
        return len(typed) == 1 and isinstance(typed[0], steps.Permute) and self.pricing.is_flat

    def _most_rounds(self, others: Sequence[Step], best: Plan | None) -> float:
        """Returns how many rounds beside other steps may still be better: by bytes fewer, where the bound is met already."""
        if best is None or self.request.objective == "time" or best.bytes_received > best.bound_bytes:
            return math.inf
        return best.collectives - 1 - sum(map(steps.collectives, others))

    def _least_with_rounds(self, before: Layout, after: Layout, chain: Plan, start: int, end: int) -> tuple:
        """Returns what `chain` costs at least with an exchange between two layouts in place of its steps from `start` to `end`.

        A round brings one piece, and a device's new tile meets as many old ones as their shapes say. What the other steps do not
        bring is brought in pieces too.
        """
        asked, tiles = self.request, list(zip(after.tile_shape, before.tile_shape))
        kept = [each for each in chain.steps if not isinstance(each.step, steps.Relayout)]
        ahead, behind = kept[:start], kept[end:]
        others = ahead + behind
        received_bits = self.costing.bound * asked.bits - 8 * sum([each.bytes_received for each in others])
        piece = math.prod([min(sizes) for sizes in tiles])
        pieces = math.prod([-(-new // old) for new, old in tiles])
        rounds = max(1, pieces - 1, -(-received_bits // (piece * asked.bits)))
        least = chain.bound_bytes, rounds + sum([steps.collectives(each.step) for each in others])
        if asked.objective == "bytes":
            return least
        if self.pricing.is_flat and not any([new % old and old % new for new, old in tiles]):
            least_s = self.pricing.rounds_s(rounds, piece, after.tile_elements)  # all pieces are alike
        else:
            least_s = self.pricing.least_exchange_s(rounds, after.tile_elements, max(0, received_bits // 8))
        return sum([*(each.time_s for each in ahead), least_s, *(each.time_s for each in behind)]), *least

    def _exchange(
        self, before: Blocks, after: Blocks, most_pieces: float = math.inf, most_rounds: float = math.inf
    ) -> Exchange:
        is_by_time = self.request.objective == "time"
        round_elements = self.pricing.round_elements() if is_by_time else 0
        least_s = self.pricing.least_picoseconds(1) / PER_SECOND if is_by_time and self.request.devices > 1 else 0
        if least_s and not self.wants_small:
            most_rounds = min(most_rounds, self.costing.fastest_s / least_s)  # no slower than what is known
        distance = None if self.pricing.is_flat else self.pricing.distance
        limits = {"most_rounds": most_rounds, "most_pieces": most_pieces}
        return plan_exchange(before, after, distance=distance, round_elements=round_elements, **limits)

