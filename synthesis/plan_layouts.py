# SPDX-License-Identifier: Apache-2.0
"""The layouts that a finished plan goes through, derived from its typed steps alone."""

from __future__ import annotations

from collections.abc import Sequence

from . import steps
from .layout import Factor, Layout, LayoutError, Slot, layout_of
from .planned import Plan
from .steps import Step


def layouts(plan: Plan) -> list[Layout] | None:
    """Returns the layout before the first step and after each one; None if the plan's ends are not made of digits."""
    if plan.target_mesh is not None:
        return None
    typed = [each.step for each in plan.steps]
    try:
        found = [in_pieces(layout_of(plan.mesh, plan.shape, plan.source), typed)]
        for step in typed:
            layout = steps.apply(found[-1], step)
            if layout is None:
                return None
            found.append(layout)
    except (LayoutError, steps.RuleError):  # tiles are padded on their way
        return None
    return found


def in_pieces(layout: Layout, typed: Sequence[Step]) -> Layout:
    """Returns the layout with its factors cut wherever a step cuts their axis; the elements stay where they are."""
    return _cut(layout, _places(typed))


def _places(typed) -> list[tuple[str, int]]:
    """Returns (axis, place) for every place at which a step cuts an axis."""
    factors: list[Factor] = []
    found: list[tuple[str, int]] = []
    for step in typed:
        match step:
            case steps.Chunked(steps=inside):
                found += _places(inside)
            case steps.Slice(moves) | steps.AllToAll(moves) | steps.ReduceScatter(moves):
                factors += [factor for factor, _ in moves]
            case steps.AllGather(along) | steps.AllReduce(along) | steps.ToUnreduced(along):
                factors += along
            case steps.Permute(after) | steps.Exchanged(_, after) if after is not None:
                factors += [*(factor for factor, _ in after.owners), *after.unreduced]
    return sorted({*found, *((f.axis, place) for f in factors for place in (f.pre, f.pre * f.size))})


def _cut(layout: Layout, places: list[tuple[str, int]]) -> Layout:
    """Returns the layout with its factors cut at the places of their axes; the elements stay where they are."""
    owners = []
    for factor, slot in layout.owners:
        for piece in _pieces(factor, places):
            start = slot.start * (piece.pre // factor.pre)
            owners.append((piece, Slot(slot.dim, start, start * piece.size)))
    return Layout(layout.shape, tuple(owners), tuple(p for factor in layout.unreduced for p in _pieces(factor, places)))


def _pieces(factor: Factor, places: list[tuple[str, int]]) -> list[Factor]:
    found, start, stop = [], factor.pre, factor.pre * factor.size
    for place in (*(at for axis, at in places if axis == factor.axis and start < at < stop), stop):
        if place % start == 0 and stop % place == 0:
            found.append(Factor(factor.axis, start, place // start))
            start = place
    return found
