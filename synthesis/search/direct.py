# SPDX-License-Identifier: Apache-2.0
"""Chains that are proved cheapest by looking at the digits alone; most requests need no other.

**The chain.** Factors that the source replicates and the target owns are sliced at once: at their target digits if
these are local, else at other digits of the target. After that the chain is at the target, or one all_to_all,
all_gather or permute leads there. Otherwise an all_to_all or a permute brings factors to their target digits, and an
all_gather frees the rest.

**The proof.** A chain costs at least the bounds of `cost_to_go.py`: a device receives the elements that it lacks, by as
many collectives as are needed. If a chain costs just that, no chain costs less, and every other chain costs more or
writes more elements. So the search would find this chain. If several chains are alike, slices and permutes take factors
in the search's order.

- Two collectives are needed if some factors move and others are freed. Only a gather of all of them would need one, and
  it leaves too large a tile (R2), or receives more.
- No other two collectives receive as little. A permute and a gather from tiles of L to n of them receive n·L, an
  all_to_all in groups of m and a gather n·L - L/m: what is lacking. A gather that comes first makes larger the tiles
  that the other step moves. A chain that slices more at first has to gather more; behind a permute, that takes as many
  bytes, though more time. It is left to the search if only bytes count.

**Rivals** by time are all other chains than one collective. They have two collectives or more, or one of another kind
or on other tiles. A permute vacates no digits. A chain that slices later, or gathers factors that move, receives twice
as much. A chain that slices at other digits has to move these factors too, in groups twice as large. If a chain takes
less time than all of these, with all its copies, no other chain has to be looked at.

Three cases are left to the search: partial sums, networks on which it matters which devices send to which, and times if
the digits have several primes, since a permute may then change which digits have to be vacated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..layouts.layout import Factor, Layout, Slot, primes
from ..layouts.refinement import Problem
from ..network.pricing import PER_SECOND, Pricing
from ..programs.chain import Chain, is_joint_gather
from ..programs.steps import GROUPED, AllGather, AllToAll, Permute, Slice, Step, name
from .digits import local_part
from .found import Found

Move = tuple[Factor, Slot]


def chain_at_once(problem: Problem, pricing: Pricing | None) -> Found | None:
    """Returns the cheapest chain if the digits alone prove it cheapest, else None.

    Args:
      problem: the problem in as few digits as possible.
      pricing: the prices of steps; None means that only elements are counted.

    Example:
      >>> from ..layouts.mesh import Mesh
      >>> from ..layouts.refinement import refine
      >>> from ..layouts.sharding import Sharding
      >>> ends = Sharding.parse('[{}, {"x"}]'), Sharding.parse('[{"x","y","z"}, {}]')
      >>> found = chain_at_once(refine(Mesh.parse("x=2,y=2,z=2"), (16, 4), *ends), None)
      >>> [name(step) for step in found.chain], found.cost
      (['slice', 'all_to_all'], (4, 1))
    """
    source, target = problem.source, problem.target
    if source.unreduced or target.unreduced or pricing and not pricing.is_flat:
        return None
    slices = _slices(problem)
    if slices is None:
        return None
    sliced = Chain(source).then(Slice(tuple(slices))) if slices else Chain(source)
    layout = sliced.target
    if layout == target:
        free = (0, 0, 0) if pricing else (0, 0)
        return Found(problem, sliced, free, free)
    step = _one_collective(layout, target)
    typed = _two_collectives(problem, layout, bool(pricing)) if step is None else (step,)
    if typed is None:
        return None
    chain = sliced.then(*typed)
    moved = chain[len(sliced) :]
    if pricing is None and moved.has_joint_gather:
        return None  # by bytes there is a gather for each dimension
    proved = _proved(problem, moved, pricing)
    return proved and Found(problem, chain, proved[0], proved[0], rivals_s=proved[1])


def _slices(problem: Problem) -> list[Move] | None:
    """Returns the slots that replicated factors take: their target slots, else slots that are left in the target.

    A permute corrects the others later. The largest of them come first, as in the search, because that writes less.
    None if some digits would not be the target's.
    """
    owned, wanted = dict(problem.source.owners), dict(problem.target.owners)
    free = [factor for factor in problem.movable if factor not in owned]
    home = [(f, wanted[f]) for f in free if f in wanted and _are_local([(f, wanted[f])], problem.source)]
    at_home = dict(home)
    if all(factor in owned or factor in at_home for factor in wanted):
        return home
    taken = {*owned.values(), *at_home.values()}
    left = [slot for slot in wanted.values() if slot not in taken]  # sorted, as owners are
    if not left:
        return home
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
    return Permute(target) if layout.owned_runs == target.owned_runs else None


def _two_collectives(problem: Problem, layout: Layout, is_by_time: bool) -> tuple[Step, Step] | None:
    """Returns the all_to_all, or else the permute, that leads home, and the gather of the rest; or None."""
    owned, target = dict(layout.owners), problem.target
    wanted = dict(target.owners)
    gathered = tuple([factor for factor, _ in layout.owners if factor not in wanted])
    moves = [(factor, slot) for factor, slot in target.owners if owned.get(factor) != slot]
    if not gathered:
        return None
    if all(factor in owned for factor in wanted) and _are_local(moves, layout):
        return AllToAll(tuple(moves)), AllGather(gathered)
    if not is_by_time and any(factor not in owned for factor in problem.movable):
        return None  # a chain that slices more first gathers more, and receives as much
    arranged = _arranged(problem, layout)
    if arranged is None:
        return None
    return Permute(arranged), AllGather(tuple([factor for factor, _ in arranged.owners if factor not in wanted]))


def _arranged(problem: Problem, layout: Layout) -> Layout | None:
    """Returns the layout after a permute that brings home all factors of the target; None if the runs cannot be filled.

    The first factors that fit take the rest of the owned runs.
    """
    homes = {(slot.dim, slot.start): (factor, slot) for factor, slot in problem.target.owners}
    others = [(f, slots) for f, slots in zip(problem.movable, problem.slots) if problem.target.slot_of(f) is None]
    owners: list[Move] = []
    for dim, place, end in layout.owned_runs:
        while place < end:
            found = homes.pop((dim, place), None)
            if found is None:
                fitting = (
                    (f, Slot(dim, place, place * f.size), slots) for f, slots in others if end % (place * f.size) == 0
                )
                found = next(((f, slot) for f, slot, slots in fitting if slot in slots), None)
                others = [other for other in others if found is None or other[0] != found[0]]
            if found is None or end % found[1].end:
                return None
            owners.append(found)
            place = found[1].end
    return None if homes else Layout(layout.shape, tuple(owners))


def _proved(problem: Problem, moved: Chain, pricing: Pricing | None) -> tuple[tuple[int, ...], float] | None:
    """Returns the cost of the collectives behind the slice, and `rivals_s`.

    None if the chain is not proved cheapest.
    """
    layout, typed, owned = moved.source, moved.steps, dict(moved.source.owners)
    taken = {slot for factor, slot in problem.target.owners if owned.get(factor) != slot}
    if isinstance(typed[0], Permute) and not any(slot in taken for slot in owned.values()):
        return None  # devices may keep a part
    received = moved.received_elements
    if pricing is None:
        return (received, len(typed)), 0.0
    if not have_one_prime(problem.movable):
        return None
    goals, vacated, displaced = dict(problem.target.owners), 1, 1
    for factor, slot in layout.owners:
        if goals.get(factor) != slot:
            vacated *= local_part(slot, problem.target)
            displaced *= factor.size
    if len(typed) > 1 and layout.tile_elements * displaced <= problem.largest_tile:
        return None  # one gather of all factors, and a slice, may be enough
    transfer_s, hop_s = received * pricing.least_seconds_per_element, pricing.least_hop_s
    one_s, two_s = (transfer_s + pricing.least_latency_s(vacated, displaced, hop_s, number) for number in (1, 2))
    time = sum(_picoseconds(each, step, problem.target, pricing) for each, step, _ in moved.moves)
    rivals_s = 0.0
    if vacated > 1 and len(typed) == 1:  # a permute alone is not enough
        more_s = transfer_s + pricing.least_latency_of_one_s(2 * displaced)
        rivals_s = min(two_s, more_s, one_s + transfer_s)
    rounded = math.floor((one_s if len(typed) == 1 else two_s) * PER_SECOND) + len(
        typed
    )  # whole picoseconds for each collective
    return ((time, received, len(typed)), rivals_s) if time <= rounded or time < rivals_s * PER_SECOND else None


def _picoseconds(layout: Layout, step: Step, target: Layout, pricing: Pricing) -> int:
    """Returns the picoseconds that the search counts for a collective, with the copy behind a joint gather.

    A joint gather is one along several dimensions.
    """
    factors = step.factors if isinstance(step, GROUPED) else ()
    time = pricing.picoseconds(name(step), factors, layout.tile_elements)
    if is_joint_gather(layout, step):
        time += math.ceil(pricing.relayout_seconds(target.tile_elements) * PER_SECOND)
    return time


def have_one_prime(factors: Sequence[Factor]) -> bool:
    """Returns whether all sizes are powers of one prime; coarse and prime digits then have the same bounds."""
    return len(set(primes(math.prod([factor.size for factor in factors])))) <= 1
