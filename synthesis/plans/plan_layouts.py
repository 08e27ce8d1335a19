# SPDX-License-Identifier: Apache-2.0
"""The layouts before and after each step of a finished plan, derived from its typed steps only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..layouts.layout import Factor, Layout, LayoutError, layout_of, places_by_axis
from ..programs import steps
from ..programs.chain import Chain
from ..programs.steps import Step
from .plan import Plan


def layouts(plan: Plan) -> list[Layout] | None:
    """Returns the layout before the first step and after each one; None if layouts cannot express the plan."""
    if plan.target_mesh is not None:
        return None
    typed = [each.step for each in plan.steps]
    if any([isinstance(step, steps.Exchanged) and step.after is None for step in typed]):
        return None
    try:
        return list(Chain(in_pieces(layout_of(plan.mesh, plan.shape, plan.source), typed), tuple(typed)).layouts)
    except (LayoutError, steps.RuleError):  # a step pads tiles, or is an exchange that no layout expresses
        return None


def in_pieces(layout: Layout, typed: Sequence[Step]) -> Layout:
    """Returns the layout with its factors cut at all places where a step cuts their axis; no element moves."""
    return layout.with_factors_cut(places_by_axis(_factors(typed)))


def _factors(typed: Sequence[Step]) -> Iterator[Factor]:
    """Yields the factors that steps name."""
    for step in typed:
        match step:
            case steps.Chunked(steps=inside):
                yield from _factors(inside)
            case steps.Slice(moves) | steps.AllToAll(moves) | steps.ReduceScatter(moves):
                yield from (factor for factor, _ in moves)
            case steps.AllGather(along) | steps.AllReduce(along) | steps.ToUnreduced(along):
                yield from along
            case steps.Permute(after) | steps.Exchanged(_, after) if after is not None:
                yield from (factor for factor, _ in after.owners)
                yield from after.unreduced
