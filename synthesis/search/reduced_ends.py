# SPDX-License-Identifier: Apache-2.0
"""Simpler problems in place of those with partial sums; a step at each end completes their chains.

The bound that guides the search is weak if the target has partial sums, and a chain that is found first spares the
search all chains that cost more. So factors that both sides leave unreduced stay unreduced (*frozen*). Factors that
only the target leaves unreduced are replicated until the end, and become unreduced there for nothing. As a last resort,
factors that only the source leaves unreduced are reduced at once.
"""

from __future__ import annotations

import dataclasses

from ..layouts.layout import Layout
from ..layouts.refinement import Problem
from ..network.pricing import Pricing
from ..programs.chain import Chain
from ..programs.steps import AllReduce, ToUnreduced, received_elements
from .found import Found


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
    """Returns the frozen problem that is left after an all_reduce of all other sums of the source."""
    return dataclasses.replace(frozen(problem), source=Layout(problem.shape, problem.source.owners, _common(problem)))


def _common(problem: Problem):
    return tuple(factor for factor in problem.source.unreduced if factor in problem.target.unreduced)


def completed(problem: Problem, found: Found, pricing: Pricing | None) -> Found:
    """Returns the chain of a simpler problem, completed with steps from the problem's source and to its target."""
    chain, cost = Chain(problem.source), found.cost
    sums = tuple(f for f in problem.source.unreduced if f not in found.chain.source.unreduced)
    if sums:
        step = AllReduce(sums)
        spent = (received_elements(problem.source, step), 1)
        if pricing is not None:
            spent = (pricing.picoseconds("all_reduce", sums, problem.source.tile_elements), *spent)
        cost = tuple(a + b for a, b in zip(cost, spent, strict=True))
        chain = chain.then(step)
    chain = chain.then(*found.chain)
    made = tuple(f for f in problem.target.unreduced if f not in chain.target.unreduced)
    chain = chain.then(ToUnreduced(made)) if made else chain
    return Found(problem, chain, cost)
