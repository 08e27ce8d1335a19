# SPDX-License-Identifier: Apache-2.0
"""The chain in which every factor goes straight to its digit, without permutes and without a search.

One slice takes all factors that the target owns and the source replicates: at their target digits if these are local,
else at spare digits of the same dimension. Then come waves: an all_to_all of all factors whose target digit is local by
now, and a gather of the factors that the target replicates, if no factor can move, or at the end.

On networks of levels two more things pay. Factors that the target replicates *step aside* to spare digits if they are
in the way of others; so they are gathered last, after slow moves of small tiles. And factors that both sides replicate
take *stripes* of the tile on the way, and gather them in the end.

Source: own work; the paper (arXiv 2112.01075) has neither spare digits nor moves of several factors at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ..layouts.layout import Factor, Layout, LayoutError, Slot
from ..layouts.refinement import Problem
from ..programs.chain import Chain
from ..programs.steps import AllGather, AllToAll, Slice, Step


def chain_of_waves(problem: Problem, stripes: Sequence[Factor] = (), steps_aside: bool = False) -> Chain | None:
    """Returns the chain from source to target, both without partial sums.

    None if factors wait for each other in a ring, or if a tile becomes larger than the problem allows.

    Args:
      stripes: factors that neither side has, which split the tile on the way. steps_aside: what is in the way goes to
        spare digits.

    Example:
      >>> from ..layouts.mesh import Mesh
      >>> from ..layouts.refinement import refine
      >>> from ..layouts.sharding import Sharding
      >>> from ..programs.steps import name
      >>> ends = Sharding.parse('[{"x"}, {"y"}, {}]'), Sharding.parse('[{"z"}, {}, {"x"}]')
      >>> chain = chain_of_waves(refine(Mesh.parse("x=2,y=2,z=2"), (8, 8, 8), *ends))
      >>> [name(step) for step in chain]
      ['slice', 'all_to_all', 'all_to_all', 'all_gather']
    """
    sliced = _slice(problem, stripes)
    if sliced is None:
        return None
    chain = Chain(problem.source).then(*([sliced] if sliced.moves else []))
    while chain.target != problem.target:
        step = _wave(chain.target, problem.target)
        if steps_aside and not isinstance(step, AllToAll):
            step, steps_aside = _aside(chain.target, problem.target) or step, False
        if step is None:
            return None
        chain = chain.then(step)
        if chain.target.tile_elements > problem.largest_tile:
            return None
    return chain


def striped_chains(problem: Problem) -> list[Chain]:
    """Returns the different chains of waves, with and without steps aside, and with several choices of stripes.

    The stripes are no factors, all that both sides replicate, or those of one axis among them.
    """
    free = [f for f in problem.movable if problem.source.slot_of(f) is None and problem.target.slot_of(f) is None]
    axes = sorted({factor.axis for factor in free})
    stripes = [(), tuple(free), *(tuple(f for f in free if f.axis == axis) for axis in axes)]
    found: list[Chain] = []
    for taken, steps_aside in itertools.product(dict.fromkeys(stripes), (False, True)):
        chain = chain_of_waves(problem, taken, steps_aside)
        if chain and chain not in found:
            found.append(chain)
    return found


def _slice(problem: Problem, stripes: Sequence[Factor]) -> Slice | None:
    """Returns the slice; None if a dimension has no room for a spare digit. Stripes without room are left out."""
    source, target = problem.source, problem.target
    layout, moves = source, []
    for factor, slot in target.owners:
        if source.slot_of(factor) is not None:
            continue
        place = slot if _is_local(layout, slot) else _spare(layout, target, slot)
        if problem.shape[slot.dim] % place.end:
            return None
        try:
            layout = layout.with_moved({factor: place})
        except LayoutError:
            return None
        moves.append((factor, place))
    for factor in stripes:
        place = _spare_anywhere(layout, target, factor)
        if place is not None:
            layout = layout.with_moved({factor: place})
            moves.append((factor, place))
    return Slice(tuple(moves))


def _spare_anywhere(layout: Layout, target: Layout, factor: Factor) -> Slot | None:
    """Returns a spare digit of the dimension with the largest tile that has room for it; None if none has room."""
    tile = layout.tile_shape
    for dim in sorted(range(len(tile)), key=lambda dim: (-tile[dim], dim)):
        place = _spare(layout, target, Slot(dim, 1, factor.size))
        if layout.shape[dim] % place.end == 0:
            return place
    return None


def _aside(layout: Layout, target: Layout) -> Step | None:
    """Returns the moves that bring factors out of the way of others, to spare digits; None if there are none.

    Only factors that the target replicates move.
    """
    waiting = [slot for factor, slot in target.owners if layout.slot_of(factor) != slot]
    moves: dict[Factor, Slot] = {}
    after = layout
    for factor, slot in layout.owners:
        if target.slot_of(factor) is None and not all(slot.agrees_with(wanted) for wanted in waiting):
            place = _spare_anywhere(after, target, factor)
            if place is not None:
                moves[factor] = place
                after = after.with_moved({factor: place})
    return AllToAll(tuple(sorted(moves.items()))) if moves else None


def _spare(layout: Layout, target: Layout, wanted: Slot) -> Slot:
    """Returns a digit behind all digits that the layout and the target own in the dimension."""
    ends = (slot.end for _, slot in (*layout.owners, *target.owners) if slot.dim == wanted.dim)
    start = math.lcm(*ends)
    return Slot(wanted.dim, start, start * wanted.size)


def _wave(layout: Layout, target: Layout) -> Step | None:
    """Returns the moves to all target digits that are local, else the gather of unwanted factors, else None."""
    moves = tuple(
        sorted((f, slot) for f, slot in target.owners if layout.slot_of(f) != slot and _is_local(layout, slot))
    )
    if moves:
        return AllToAll(moves)
    unwanted: tuple[Factor, ...] = tuple(f for f, _ in layout.owners if target.slot_of(f) is None)
    return AllGather(unwanted) if unwanted else None


def _is_local(layout: Layout, wanted: Slot) -> bool:
    return all(wanted.agrees_with(slot) for _, slot in layout.owners)
