# SPDX-License-Identifier: Apache-2.0
"""Chains of at most one collective that are proved cheapest by looking at the digits alone: what most pairs need.

**The chain.** Whatever the source replicates and the target splits is sliced at once, if its digits are local; behind that one
all_to_all, one all_gather or one permute leads to the target, or nothing has to.

**The proof.** A chain costs no less than the bounds of `cost_to_go.py` say: what a device lacks, received by one collective at
least. Where the one collective costs just that, no chain costs less; and none costs as much and writes as few elements: it has to
write the target tile, and each other step would write a tile more. So the search would find this chain and no other one.

Sums, and where it matters who sends to whom, are left to the search; so are times where the digits have several primes, since there
a permute may change which of them have to be vacated.
"""

from __future__ import annotations

import math

from .digits import local_part
from .layout import Factor, Layout, Slot
from .pricing import PER_SECOND, Pricing
from .problem import Problem, primes
from .steps import AllGather, AllToAll, Permute, Slice, Step, name, received_elements

Moves = tuple[tuple[Factor, Slot], ...]


def chain_at_once(problem: Problem, pricing: Pricing | None) -> tuple[tuple[Step, ...], tuple[int, ...]] | None:
    """Returns (steps, cost) of the cheapest chain if it is one that can be told at once, else None.

    Args:
      problem: as coarse as serves.
      pricing: what steps take; None counts elements alone. The cost is as `search.Chain` has it.

    Example:
      >>> from .mesh import Mesh
      >>> from .problem import refine
      >>> from .sharding import Sharding
      >>> ends = Sharding.parse('[{}, {"x"}]'), Sharding.parse('[{"x","y","z"}, {}]')
      >>> steps, cost = chain_at_once(refine(Mesh.parse("x=2,y=2,z=2"), (16, 4), *ends), None)
      >>> [type(step).__name__ for step in steps], cost
      (['Slice', 'AllToAll'], (4, 1))
    """
    source, target = problem.source, problem.target
    if source.unreduced or target.unreduced or pricing and not pricing.is_flat:
        return None
    owned, wanted = dict(source.owners), dict(target.owners)
    slices = [(factor, wanted[factor]) for factor in problem.movable if factor in wanted and factor not in owned]
    slices = [move for move in slices if _are_local([move], source)]
    layout = source.with_moved(dict(slices)) if slices else source
    first = (Slice(tuple(slices)),) if slices else ()
    if layout == target:
        return first, (0, 0, 0) if pricing else (0, 0)
    step = _one_collective(layout, target)
    cost = step and _proved_cost(problem, layout, step, pricing)
    return cost and ((*first, step), cost)


def _are_local(moves: Moves, layout: Layout) -> bool:
    """Returns whether the digits that factors move to are local in a layout."""
    return all([slot.agrees_with(owned) for _, slot in moves for _, owned in layout.owners])


def _one_collective(layout: Layout, target: Layout) -> Step | None:
    """Returns the step that leads from a layout to the target; None if there is none, or it may not be the only way."""
    owned, wanted = dict(layout.owners), dict(target.owners)
    moves = [(factor, slot) for factor, slot in target.owners if owned.get(factor) != slot]
    gathered = [(factor, slot) for factor, slot in layout.owners if factor not in wanted]
    if not moves:
        is_joint = len({slot.dim for _, slot in gathered}) > 1  # by bytes a gather for each dimension, by time a copy more
        return None if is_joint else AllGather(tuple([factor for factor, _ in gathered]))
    if not gathered and len(owned) == len(wanted) and _are_local(moves, layout):
        return AllToAll(tuple(moves))
    owner_of = {slot: factor for factor, slot in target.owners}
    takes_turns = any([owner_of.get(slot, factor) != factor for factor, slot in layout.owners])
    return Permute(target) if takes_turns and layout.owned_runs == target.owned_runs else None


def _proved_cost(problem: Problem, layout: Layout, step: Step, pricing: Pricing | None) -> tuple[int, ...] | None:
    """Returns the cost of the one collective of a chain, None if it is not proved that no chain costs less."""
    received = received_elements(layout, step)
    if pricing is None:
        return received, 1
    if not _have_one_prime(problem.movable):
        return None
    goals, vacated, displaced = dict(problem.target.owners), 1, 1
    for factor, slot in layout.owners:
        if goals.get(factor) != slot:
            vacated *= local_part(slot, problem.target)
            displaced *= factor.size
    least_s = received * pricing.least_seconds_per_element
    least_s += pricing.least_latency_s(vacated, displaced, pricing.least_hop_s, 1)
    factors = () if isinstance(step, Permute) else step.factors
    time = pricing.picoseconds(name(step), factors, layout.tile_elements)
    is_least = time - math.floor(least_s * PER_SECOND) <= 1  # costs are whole picoseconds, rounded up
    return (time, received, 1) if is_least else None


def _have_one_prime(factors: tuple[Factor, ...]) -> bool:
    return len(set(primes(math.prod([factor.size for factor in factors])))) <= 1
