# SPDX-License-Identifier: Apache-2.0
"""Chains that are proved cheapest by looking at the digits alone: what most pairs need.

**The chain.** What the source replicates and the target splits is sliced at once, if its digits are local, else wherever the target
has digits left. Behind that the target is there, or one all_to_all, all_gather or permute leads to it; or else an all_to_all or a
permute brings home what has one, and an all_gather frees the rest.

**The proof.** A chain costs no less than the bounds of `cost_to_go.py` say: what a device lacks, received by as many collectives as
there have to be. Where a chain costs just that, none costs less; and none that is another one costs as much and writes as few
elements. So the search would find this chain; where it has several alike, slices and permutes take factors in its order.

- Two collectives have to be where some factors move and others are freed: only a gather of all of them would do in one, which
  leaves too large a tile (R2), or receives more.
- Nobody else receives as little in two. A permute and a gather from tiles of L to n of them receive n·L, an all_to_all in
  groups of m and a gather n·L - L/m: what is lacking. A gather first makes the tiles larger that the other step moves; who slices
  first has to gather more. That is as many bytes behind a permute, though not as little time: left to the search if only bytes
  count.

**Rivals** by time are all other chains than one collective. They have two collectives or more, or one of another kind or on
other tiles. A permute vacates no digits. Who slices later, or gathers what moves, receives twice as much; who slices elsewhere has
to move that too, in groups twice as large. Where the chain takes less than that with all its copies, no other one has to be looked
at.

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
from .steps import AllGather, AllToAll, Permute, Slice, Step, apply, name, received_elements

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
    typed = _two_collectives(problem, layout, bool(pricing)) if step is None else (step,)
    if typed is None:
        return None
    layouts = (layout,) if len(typed) == 1 else (layout, apply(layout, typed[0]))
    if pricing is None and is_joint_gather(layouts[-1], typed[-1]):
        return None  # by bytes there is a gather for each dimension
    proved = _proved(problem, layouts, typed, pricing)
    return proved and ChainAtOnce((*first, *typed), *proved)


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
    """Returns the all_to_all that leads home, or else the permute, and the gather of what the target replicates; None if none do."""
    owned, target = dict(layout.owners), problem.target
    wanted = dict(target.owners)
    gathered = tuple([factor for factor, _ in layout.owners if factor not in wanted])
    moves = [(factor, slot) for factor, slot in target.owners if owned.get(factor) != slot]
    if not gathered:
        return None
    if all(factor in owned for factor in wanted) and _are_local(moves, layout):
        return AllToAll(tuple(moves)), AllGather(gathered)
    if not is_by_time and any(factor not in owned for factor in problem.movable):
        return None  # who slices first gathers more, and receives as much
    arranged = _arranged(problem, layout)
    if arranged is None:
        return None
    return Permute(arranged), AllGather(tuple([factor for factor, _ in arranged.owners if factor not in wanted]))


def _arranged(problem: Problem, layout: Layout) -> Layout | None:
    """Returns the owned runs of a layout with all that the target owns at home, and the first factors that fit in the rest."""
    homes = {(slot.dim, slot.start): (factor, slot) for factor, slot in problem.target.owners}
    others = [(f, slots) for f, slots in zip(problem.movable, problem.slots) if problem.target.slot_of(f) is None]
    owners: list[Move] = []
    for dim, place, end in layout.owned_runs:
        while place < end:
            found = homes.pop((dim, place), None)
            if found is None:
                fitting = ((f, Slot(dim, place, place * f.size), slots) for f, slots in others if end % (place * f.size) == 0)
                found = next(((f, slot) for f, slot, slots in fitting if slot in slots), None)
                others = [other for other in others if found is None or other[0] != found[0]]
            if found is None or end % found[1].end:
                return None
            owners.append(found)
            place = found[1].end
    return None if homes else Layout(layout.shape, tuple(owners))


def _proved(
    problem: Problem, layouts: Sequence[Layout], typed: Sequence[Step], pricing: Pricing | None
) -> tuple[tuple[int, ...], float] | None:
    """Returns the cost of collectives, each on its layout, and `rivals_s`; None if it is not proved that no chain costs less."""
    layout, owned = layouts[0], dict(layouts[0].owners)
    taken = {slot for factor, slot in problem.target.owners if owned.get(factor) != slot}
    if isinstance(typed[0], Permute) and not any(slot in taken for slot in owned.values()):
        return None  # devices may keep a part
    received = sum(map(received_elements, layouts, typed))
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
        return None  # one gather of all may do, and a slice
    transfer_s, hop_s = received * pricing.least_seconds_per_element, pricing.least_hop_s
    one_s, two_s = (transfer_s + pricing.least_latency_s(vacated, displaced, hop_s, number) for number in (1, 2))
    time = sum(_picoseconds(each, step, problem.target, pricing) for each, step in zip(layouts, typed))
    rivals_s = 0.0
    if vacated > 1 and len(typed) == 1:  # by no permute alone
        more_s = transfer_s + pricing.least_latency_of_one_s(2 * displaced)
        rivals_s = min(two_s, more_s, one_s + transfer_s)
    rounded = math.floor((one_s if len(typed) == 1 else two_s) * PER_SECOND) + len(typed)  # whole picoseconds for each collective
    return ((time, received, len(typed)), rivals_s) if time <= rounded or time < rivals_s * PER_SECOND else None


def _picoseconds(layout: Layout, step: Step, target: Layout, pricing: Pricing) -> int:
    """Returns what the search counts for a collective: its time, and for a gather along several dimensions the copy behind it."""
    factors = () if isinstance(step, Permute) else step.factors
    time = pricing.picoseconds(name(step), factors, layout.tile_elements)
    if is_joint_gather(layout, step):
        time += math.ceil(pricing.relayout_seconds(target.tile_elements) * PER_SECOND)
    return time


def is_joint_gather(layout: Layout, step: Step) -> bool:
    """Returns whether a step from a layout gathers along several dimensions."""
    return isinstance(step, AllGather) and len({layout.slot_of(factor).dim for factor in step.factors}) > 1


def have_one_prime(factors: Sequence[Factor]) -> bool:
    """Returns whether all sizes are powers of one prime: then bounds say the same of coarse digits and of prime ones."""
    return len(set(primes(math.prod([factor.size for factor in factors])))) <= 1
