# SPDX-License-Identifier: Apache-2.0
"""The chain in which every factor goes straight to its digit, without permutes and without a search.

One slice takes all that the target wants and the source has on every device: at its own digit if that is local, else at a
spare one of the same dimension. Then come waves: an all_to_all of all factors whose digit is local by now, and a gather of those
that nobody wants where nothing else can move, or at the end.

Source: own work; the paper (arXiv 2112.01075) has neither spare digits nor moves of several factors at once.
"""

from __future__ import annotations

import math

from .layout import Factor, Layout, LayoutError, Slot
from .problem import Problem
from .steps import AllGather, AllToAll, Slice, Step, apply


def chain_of_waves(problem: Problem) -> list[Step] | None:
    """Returns the steps from source to target, both without partial sums.

    None where factors wait for each other in a ring, or for a gather that would leave a tile above both ends'.

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
    sliced = _slice(problem)
    if sliced is None:
        return None
    found: list[Step] = [sliced] if sliced.moves else []
    layout = apply(problem.source, sliced) if sliced.moves else problem.source
    most = max(problem.source.tile_elements, problem.target.tile_elements)
    while layout != problem.target:
        step = _wave(layout, problem.target)
        if step is None:
            return None
        found.append(step)
        layout = apply(layout, step)
        if layout.tile_elements > most:
            return None
    return found


def _slice(problem: Problem) -> Slice | None:
    """Returns the slice; None where a dimension has no room for a spare digit."""
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
    return Slice(tuple(moves))


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
