# SPDX-License-Identifier: Apache-2.0
"""The chain in which every factor goes straight to its digit, without permutes and without a search.

One slice takes all that the target wants and the source has on every device: at its own digit if that is local, else at a
spare one of the same dimension. Then come waves: an all_to_all of all factors whose digit is local by now, and a gather of those
that nobody wants where nothing else can move, or at the end.

On networks of levels two more things pay: what nobody wants *steps aside*, to spare digits, where it is in the way of others, so
that it is gathered last, behind slow moves of small tiles; and factors that both sides leave replicated take *stripes* of the
tile for as long, and gather them in the end.

Source: own work; the paper (arXiv 2112.01075) has neither spare digits nor moves of several factors at once.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import math

from .layout import Factor, Layout, LayoutError, Slot
from .problem import Problem
from .steps import AllGather, AllToAll, Slice, Step, apply


def chain_of_waves(problem: Problem, stripes: Sequence[Factor] = (), steps_aside: bool = False) -> list[Step] | None:
    """Returns the steps from source to target, both without partial sums.

    None where factors wait for each other in a ring, or for a gather that would leave a tile above both ends'.

    Args:
      stripes: factors that neither side has, which split the tile on the way. steps_aside: what is in the way goes to spare digits.

    Example:
      >>> from .mesh import Mesh
      >>> from .problem import refine
      >>> from .sharding import Sharding
      >>> from .steps import name
      >>> ends = Sharding.parse('[{"x"}, {"y"}, {}]'), Sharding.parse('[{"z"}, {}, {"x"}]')
      >>> chain = chain_of_waves(refine(Mesh.parse("x=2,y=2,z=2"), (8, 8, 8), *ends))
      >>> [name(step) for step in chain]
      ['slice', 'all_to_all', 'all_to_all', 'all_gather']
    """
    sliced = _slice(problem, stripes)
    if sliced is None:
        return None
    found: list[Step] = [sliced] if sliced.moves else []
    layout = apply(problem.source, sliced) if sliced.moves else problem.source
    most = problem.largest_tile
    while layout != problem.target:
        step = _wave(layout, problem.target)
        if steps_aside and not isinstance(step, AllToAll):
            step, steps_aside = _aside(layout, problem.target) or step, False
        if step is None:
            return None
        found.append(step)
        layout = apply(layout, step)
        if layout.tile_elements > most:
            return None
    return found


def striped_chains(problem: Problem) -> list[list[Step]]:
    """Returns the different chains of waves with factors that step aside, or take stripes: all free ones, or those of one axis."""
    free = [f for f in problem.movable if problem.source.slot_of(f) is None and problem.target.slot_of(f) is None]
    axes = sorted({factor.axis for factor in free})
    stripes = [(), tuple(free), *(tuple(f for f in free if f.axis == axis) for axis in axes)]
    found: list[list[Step]] = []
    for taken, steps_aside in itertools.product(dict.fromkeys(stripes), (False, True)):
        chain = chain_of_waves(problem, taken, steps_aside)
        if chain and chain not in found:
            found.append(chain)
    return found


def _slice(problem: Problem, stripes: Sequence[Factor]) -> Slice | None:
    """Returns the slice; None where a dimension has no room for a spare digit. Stripes go where there is room, if there is."""
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
    """Returns a digit behind all that a dimension has, and will have: of the dimension that is split least."""
    tile = layout.tile_shape
    for dim in sorted(range(len(tile)), key=lambda dim: (-tile[dim], dim)):
        place = _spare(layout, target, Slot(dim, 1, factor.size))
        if layout.shape[dim] % place.end == 0:
            return place
    return None


def _aside(layout: Layout, target: Layout) -> Step | None:
    """Returns the moves to spare digits of what nobody wants and is in the way of others; None if that is nothing."""
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
    """Returns a digit behind all that the dimension has, and will have."""
    ends = (slot.end for _, slot in (*layout.owners, *target.owners) if slot.dim == wanted.dim)
    start = math.lcm(*ends)
    return Slot(wanted.dim, start, start * wanted.size)


def _wave(layout: Layout, target: Layout) -> Step | None:
    """Returns the moves to all digits that are local, else the gather of what nobody wants; None if neither is left."""
    moves = tuple(sorted((f, slot) for f, slot in target.owners if layout.slot_of(f) != slot and _is_local(layout, slot)))
    if moves:
        return AllToAll(moves)
    unwanted: tuple[Factor, ...] = tuple(f for f, _ in layout.owners if target.slot_of(f) is None)
    return AllGather(unwanted) if unwanted else None


def _is_local(layout: Layout, wanted: Slot) -> bool:
    return all(wanted.agrees_with(slot) for _, slot in layout.owners)
