# SPDX-License-Identifier: Apache-2.0
"""Simpler problems for those with partial sums, whose chains are chains of the given problem at both ends.

The bound that guides the search says little where the target has partial sums, and a chain found first spares the search
whatever costs more. So: what both sides leave unreduced stays so (*frozen*), what the target alone has unreduced becomes
so from replicated at the end, for nothing; and, as a last resort, what the source alone has is reduced at once.
"""

from __future__ import annotations

import dataclasses
import math

from .layout import Layout
from .pricing import Pricing
from .problem import Problem
from .search import Chain


def has_sums(problem: Problem) -> bool:
    return bool(problem.source.unreduced or problem.target.unreduced)


def frozen(problem: Problem) -> Problem:
    """Returns the problem in which common sums stay as they are and the target has no others."""
    common = _common(problem)
    movable = [i for i, factor in enumerate(problem.movable) if factor not in common]
    return dataclasses.replace(
        problem,
        target=Layout(problem.shape, problem.target.owners, common),
        movable=tuple(problem.movable[i] for i in movable),
        slots=tuple(problem.slots[i] for i in movable),
    )


def reduced_first(problem: Problem) -> Problem:
    """Returns the frozen problem behind an all_reduce of all the source's other sums."""
    return dataclasses.replace(frozen(problem), source=Layout(problem.shape, problem.source.owners, _common(problem)))


def _common(problem: Problem):
    return tuple(factor for factor in problem.source.unreduced if factor in problem.target.unreduced)


def completed(problem: Problem, chain: Chain, pricing: Pricing | None) -> Chain:
    """Returns the chain of a simpler problem with the steps that lead from the problem's source and to its target."""
    layouts, kinds, cost = chain.layouts, chain.kinds, chain.cost
    if layouts[0] != problem.source:
        factors = tuple(f for f in problem.source.unreduced if f not in layouts[0].unreduced)
        layouts, kinds = (problem.source, *layouts), ("all_reduce", *kinds)
        n, tile = math.prod(f.size for f in factors), problem.source.tile_elements
        step = (-(-2 * tile * (n - 1) // n), 1)
        if pricing is not None:
            step = (pricing.picoseconds("all_reduce", factors, tile), *step)
        cost = tuple(a + b for a, b in zip(cost, step, strict=True))
    if layouts[-1] != problem.target:
        layouts, kinds = (*layouts, problem.target), (*kinds, "to_unreduced")
    return Chain(layouts, kinds, cost, chain.states_expanded)
