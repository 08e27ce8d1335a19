# SPDX-License-Identifier: Apache-2.0
"""Chains of at most one collective that are proved cheapest by looking at the digits alone: what most pairs need.

**The chain.** Whatever the source replicates and the target splits is sliced at once, if its digits are local; behind that one
all_to_all, one all_gather or one permute leads to the target, or nothing has to.

**The proof.** A chain costs no less than the bounds of `cost_to_go.py` say: what a device lacks, received by one collective at
least. Where the one collective costs just that, no chain costs less; and none costs as much and writes as few elements: it has to
write the target tile, and each other step would write a tile more. So the search would find this chain and no other one.

**Rivals** by time are all other chains. They have two collectives or more, or one of another kind or on other tiles. A permute
vacates no digits. Who slices later, or gathers what moves, receives twice as much; who slices elsewhere has to move that too, in
groups twice as large. Where the chain takes less than that with all its copies, no other one has to be looked at.

Sums, and where it matters who sends to whom, are left to the search; so are times where the digits have several primes, since there
a permute may change which of them have to be vacated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math

from .digits import local_part
from .layout import Factor, Layout, Slot
from .pricing import PER_SECOND, Pricing
from .problem import Problem, primes
from .steps import AllGather, AllToAll, Permute, Slice, Step, name, received_elements

Move = tuple[Factor, Slot]


@dataclass(frozen=True, slots=True)
class ChainAtOnce:
    """A cheapest chain; `cost` is as `search.Chain` has it.

    `rivals_s`: what any other chain takes at least, its copies left out; 0 if that is not known.
    """

    steps: tuple[Step, ...]
    cost: tuple[int, ...]
    rivals_s: float


def chain_at_once(problem: Problem, pricing: Pricing | None) -> ChainAtOnce | None:
    """Returns the cheapest chain if it is one that can be told at once, else None.

    Args:
      problem: as coarse as serves.
      pricing: what steps take; None counts elements alone.

    Example:
      >>> from .mesh import Mesh
      >>> from .problem import refine
      >>> from .sharding import Sharding
      >>> ends = Sharding.parse('[{}, {"x"}]'), Sharding.parse('[{"x","y","z"}, {}]')
      >>> found = chain_at_once(refine(Mesh.parse("x=2,y=2,z=2"), (16, 4), *ends), None)
      >>> [name(step) for step in found.steps], found.cost
      (['slice', 'all_to_all'], (4, 1))
    """
    source, target = problem.source, problem.target
    if source.unreduced or target.unreduced or pricing and not pricing.is_flat:
        return None
    slices = _slices(problem)
    if slices is None:
        return None
    layout = source.with_moved(dict(slices)) if slices else source
    first = (Slice(tuple(slices)),) if slices else ()
    if layout == target:
        return ChainAtOnce(first, (0, 0, 0) if pricing else (0, 0), 0.0)
    step = _one_collective(layout, target)
    if step is None or pricing is None and isinstance(step, AllGather) and _is_joint(layout, step):
        return None  # by bytes there is a gather for each dimension
    proved = _proved(problem, layout, step, pricing)
    return proved and ChainAtOnce((*first, step), *proved)


def _slices(problem: Problem) -> list[Move] | None:
    """Returns where replicated factors go: home, else any of them where the target has digits left, for a permute to set right.

    The largest ones of those first, which is less to write, as the search has it. None where some digits are none of the target's.
    """
    owned, wanted = dict(problem.source.owners), dict(problem.target.owners)
    free = [factor for factor in problem.movable if factor not in owned]
    home = [(f, wanted[f]) for f in free if f in wanted and _are_local([(f, wanted[f])], problem.source)]
    at_home = dict(home)
    if all(factor in owned or factor in at_home for factor in wanted):
        return home
    taken = {*owned.values(), *at_home.values()}
    left = [slot for slot in wanted.values() if slot not in taken]  # sorted, as owners are
    if len(taken) + len(left) > len(wanted):
        return None
    away = []
    for factor in sorted([f for f in free if f not in at_home], key=lambda f: -f.size):
        slot = next((slot for slot in left if slot.size == factor.size), None)
        if slot is not None:
            left.remove(slot)
            away.append((factor, slot))
    return None if left else home + away


def _are_local(moves: Sequence[Move], layout: Layout) -> bool:
    """Returns whether the digits that factors move to are local in a layout."""
    return all([slot.agrees_with(owned) for _, slot in moves for _, owned in layout.owners])


def _one_collective(layout: Layout, target: Layout) -> Step | None:
    """Returns the step that leads from a layout to the target; None if there is none, or it may not be the only way."""
    owned, wanted = dict(layout.owners), dict(target.owners)
    moves = [(factor, slot) for factor, slot in target.owners if owned.get(factor) != slot]
    gathered = [(factor, slot) for factor, slot in layout.owners if factor not in wanted]
    if not moves:
        return AllGather(tuple([factor for factor, _ in gathered]))
    if not gathered and len(owned) == len(wanted) and _are_local(moves, layout):
        return AllToAll(tuple(moves))
    owner_of = {slot: factor for factor, slot in target.owners}
    takes_turns = any([owner_of.get(slot, factor) != factor for factor, slot in layout.owners])
    return Permute(target) if takes_turns and layout.owned_runs == target.owned_runs else None


def _proved(problem: Problem, layout: Layout, step: Step, pricing: Pricing | None) -> tuple[tuple[int, ...], float] | None:
    """Returns the cost of the one collective of a chain, and `rivals_s`; None if it is not proved that no chain costs less."""
    received = received_elements(layout, step)
    if pricing is None:
        return (received, 1), 0.0
    if not have_one_prime(problem.movable):
        return None
    goals, vacated, displaced = dict(problem.target.owners), 1, 1
    for factor, slot in layout.owners:
        if goals.get(factor) != slot:
            vacated *= local_part(slot, problem.target)
            displaced *= factor.size
    transfer_s, hop_s = received * pricing.least_seconds_per_element, pricing.least_hop_s
    one_s, two_s = (transfer_s + pricing.least_latency_s(vacated, displaced, hop_s, number) for number in (1, 2))
    time = _picoseconds(layout, step, problem.target, pricing)
    rivals_s = 0.0
    if vacated > 1:  # by no permute alone
        more_s = transfer_s + pricing.least_latency_of_one_s(2 * displaced)
        rivals_s = min(two_s, more_s, one_s + transfer_s)
    is_least = time - math.floor(one_s * PER_SECOND) <= 1 or time < rivals_s * PER_SECOND  # costs are rounded up to whole picoseconds
    return ((time, received, 1), rivals_s) if is_least else None


def _picoseconds(layout: Layout, step: Step, target: Layout, pricing: Pricing) -> int:
    """Returns what the search counts for a collective: its time, and for a gather along several dimensions the copy behind it."""
    factors = () if isinstance(step, Permute) else step.factors
    time = pricing.picoseconds(name(step), factors, layout.tile_elements)
    if isinstance(step, AllGather) and _is_joint(layout, step):
        time += math.ceil(pricing.relayout_seconds(target.tile_elements) * PER_SECOND)
    return time


def _is_joint(layout: Layout, gather: AllGather) -> bool:
    return len({layout.slot_of(factor).dim for factor in gather.factors}) > 1


def have_one_prime(factors: Sequence[Factor]) -> bool:
    """Returns whether the sizes of all factors are powers of one prime: then bounds say the same of coarse digits and of prime ones."""
    return len(set(primes(math.prod([factor.size for factor in factors])))) <= 1
