# SPDX-License-Identifier: Apache-2.0
"""The answer of a search: a chain, its cost, and the bounds that are proved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..layouts.layout import Layout
from ..layouts.refinement import Problem
from ..network.pricing import PER_SECOND, Pricing
from ..programs import steps
from ..programs.chain import Chain, is_joint_gather
from ..programs.steps import Step

Cost = tuple[int, ...]  # (received elements, collectives); by time the picoseconds come before them
Kind = Literal["slice", "all_gather", "all_to_all", "permute", "reduce_scatter", "all_reduce", "to_unreduced"]


@dataclass(frozen=True, slots=True)
class Found:
    """A chain that a search found, with its cost and the bounds that are proved.

    Attributes:
      problem: the refined problem that the chain solves.
      cost: the sum over the steps of what each costs on its busiest device. Searches count elements, and leave out
        most copies on the device.
      least_cost: it is proved that every chain within the digits that `refinement.py` offers, whatever the order of
        their primes, costs as much; empty if nothing is proved.
      is_unbeatable: the chain costs what any method must: the bound, in at most one collective.
      bound: the elements that the busiest device must receive; None if that was not looked for.
      rivals_s: the time that any other chain takes at least, its copies left out; 0 if that is not known.
    """

    problem: Problem
    chain: Chain
    cost: Cost
    least_cost: Cost = ()
    is_unbeatable: bool = False
    bound: int | None = None
    rivals_s: float = 0.0

    @property
    def is_optimal(self) -> bool:
        """Returns whether the chain is proved cheapest among the digits of `refinement.py`, in any order of primes."""
        return self.cost <= self.least_cost

    @property
    def proved_gap(self) -> float | None:
        """Returns the largest factor by which another chain may be better; None if that is not known.

        The factor compares received elements or, by time, the picoseconds of the collectives.
        """
        if not self.least_cost:
            return None
        if self.cost[0] <= self.least_cost[0]:
            return 1.0
        return self.cost[0] / self.least_cost[0] if self.least_cost[0] else None


def priced(problem: Problem, chain: Chain, pricing: Pricing | None) -> Found:
    """Returns a chain with its cost as the searches count it."""
    cost = chain.received_elements, chain.collectives
    if pricing is not None:
        cost = (_picoseconds(chain, pricing), *cost)
    return Found(problem, chain, cost)


def _picoseconds(chain: Chain, pricing: Pricing) -> int:
    return sum(_picoseconds_of_step(*move, pricing) for move in chain.moves)


def _picoseconds_of_step(before: Layout, step: Step, after: Layout, pricing: Pricing) -> int:
    match step:
        case steps.AllGather(factors):
            is_joint = is_joint_gather(before, step)
            copied = math.ceil(pricing.relayout_seconds(after.tile_elements) * PER_SECOND) if is_joint else 0
            return copied + pricing.picoseconds("all_gather", factors, before.tile_elements)
        case steps.AllToAll() | steps.ReduceScatter():
            return pricing.picoseconds(steps.name(step), step.factors, before.tile_elements)
        case steps.AllReduce(factors):
            return pricing.picoseconds("all_reduce", factors, before.tile_elements)
        case steps.Permute():
            return pricing.permute_picoseconds(before, after, before.tile_elements)
        case steps.Slice():
            return pricing.slice_picoseconds(after.tile_elements)
    return 0


def with_fewest_copies(chain: Chain, pricing: Pricing | None) -> Chain:
    """Returns a chain with its consecutive gathers in the order that copies least, unless that is dearer.

    Which devices send to which matters on a network with levels: there the slow level comes first, with small tiles.

    Args:
      pricing: None where all pairs of devices are alike.
    """
    ordered = chain.with_last_dimension_first()
    if pricing is None or ordered.steps == chain.steps:
        return ordered
    return ordered if _picoseconds(ordered, pricing) <= _picoseconds(chain, pricing) else chain


def chain_through(layouts: Sequence[Layout], kinds: Sequence[Kind]) -> Chain:
    """Returns the chain that leads through layouts by steps of given kinds; slices in a row are one step."""
    typed: list[Step] = []
    for kind, before, after in zip(kinds, layouts, layouts[1:]):
        step = _step(kind, before, after)
        if isinstance(step, steps.Slice) and typed and isinstance(typed[-1], steps.Slice):
            typed[-1] = steps.Slice(typed[-1].moves + step.moves)
        else:
            typed.append(step)
    return Chain(layouts[0], tuple(typed))


def _step(kind: Kind, before: Layout, after: Layout) -> Step:
    """Returns the step of a kind that leads from one layout to another."""
    match kind:
        case "all_gather":
            return steps.AllGather(tuple(f for f, _ in before.owners if after.slot_of(f) is None))
        case "all_reduce":
            return steps.AllReduce(tuple(f for f in before.unreduced if f not in after.unreduced))
        case "to_unreduced":
            return steps.ToUnreduced(tuple(f for f in after.unreduced if f not in before.unreduced))
        case "permute":
            return steps.Permute(after)
    made = {"slice": steps.Slice, "all_to_all": steps.AllToAll, "reduce_scatter": steps.ReduceScatter}[kind]
    return made(tuple((f, s) for f, s in after.owners if before.slot_of(f) != s))
