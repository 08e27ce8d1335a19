# SPDX-License-Identifier: Apache-2.0
"""The paper's chains, as a peer: slices, moves between dimensions, one permute, gathers, only on blocked layouts.

**What it does.** A sharding splits a dimension by a stack of mesh axes. Axes stay whole where that is enough; otherwise
they are cut into primes. Dimensions that have to be split further are sliced first, at no cost. Then pieces move from
the minor end of one stack to the minor end of another, one all_to_all after the other; pieces along one route move
together. One permute puts the right axes into the right order. Dimensions that are split too far are gathered last. So
no tile is larger than the larger one of source tile and target tile, and every redistribution whose dimensions divide
has such a chain. The permute stands before the gathers, where tiles are small. A chain that is read backwards is
another chain in normal form; the chain that receives less counts. If a piece has to leave a stack in which another
piece is minor-most, an additional permute comes before the move.

**What it cannot do.** It has only leading digits, so it cannot slice or move from the middle of a dimension without a
permute. It cannot move axes along two routes in one collective. It has no networks: the better one of two chains is the
one with fewer bytes. The paper's own system also searches for the best order of moves, with a cost model that is not
published; here the fullest dimension gives to the emptiest one.

Source: "Memory-efficient array redistribution through portable collective communication" (arXiv 2112.01075), and
Theorem 5 in docs/theory.md, which proves what is said above.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

from reshard.synthesis.layouts.layout import Factor, Layout, Place, Slot
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import Problem, refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs.steps import (
    AllGather,
    AllToAll,
    Permute,
    RuleError,
    Slice,
    Step,
    apply,
    collectives,
    received_elements,
)
from reshard.synthesis.search.leading_axes import leading_axes_chain


def normal_form(mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding) -> tuple[Layout, list[Step]]:
    """Returns the layout of the source and the typed steps that lead to the target.

    Raises: NoPlanError if a dimension does not divide, or the sides cut an axis in two radices.

    Example:
      >>> from reshard.synthesis.programs.steps import name
      >>> mesh, ends = Mesh.parse("x=2,y=3"), [Sharding.parse(text) for text in ('[{"x"}]', '[{"y"}]')]
      >>> [name(step) for step in normal_form(mesh, (6,), *ends)[1]]
      ['slice', 'permute', 'all_gather']
    """
    found = [chain for into_primes in (False, True) for chain in _both_ways(mesh, shape, source, target, into_primes)]
    return min(found, key=lambda chain: _cost(*chain))


def _both_ways(
    mesh: Mesh, shape, source: Sharding, target: Sharding, into_primes: bool
) -> Iterator[tuple[Layout, list[Step]]]:
    """Yields chains from source to target, and chains from target to source that are turned around."""
    problem, back = (
        refine(mesh, shape, *ends, into_primes=into_primes) for ends in ((source, target), (target, source))
    )
    for chain in _chains(problem):
        yield problem.source, chain
    for chain in _chains(back):
        if (turned := _backwards(back, chain)) is not None:
            yield problem.source, turned


def _chains(problem: Problem) -> Iterator[list[Step]]:
    """Yields the chain with the permute at its end, and the one with the permute before the gathers.

    On axes that are not cut into primes there may be no chain.
    """
    for made in (leading_axes_chain, _gathered_last):
        try:
            chain = list(made(problem))
            list(itertools.accumulate(chain, apply, initial=problem.source))
        except (ValueError, IndexError):  # axes that are not cut into primes: 4 against 2 and 2
            continue
        yield chain


def _gathered_last(problem: Problem) -> list[Step]:
    gathered, before = _before_gathers(problem)
    last = [AllGather(gathered)] if gathered else []
    return [*leading_axes_chain(dataclasses.replace(problem, target=before)), *last]


def _before_gathers(problem: Problem) -> tuple[tuple[Factor, ...], Layout]:
    """Returns the factors to gather last, and the layout before: the target with these factors behind its stacks."""
    free = [factor for factor in problem.movable if problem.target.slot_of(factor) is None]
    held = {factor: slot.dim for factor, slot in problem.source.owners}
    ends = [1] * len(problem.shape)
    for _, slot in problem.target.owners:
        ends[slot.dim] = max(ends[slot.dim], slot.end)
    moved: dict[Factor, Place] = {}
    for prime in sorted({factor.size for factor in free}):
        for dim, count in enumerate(_surplus(problem, prime)):
            fitting = sorted(
                (f for f in free if f.size == prime and f not in moved), key=lambda f: (held.get(f) != dim, f)
            )
            for factor in fitting[:count]:
                moved[factor] = Slot(dim, ends[dim], ends[dim] * prime)
                ends[dim] *= prime
    return tuple(moved), problem.target.with_moved(moved)


def _surplus(problem: Problem, prime: int) -> list[int]:
    """Returns for each dimension how many digits of size `prime` it has to gather last.

    These are left over when the dimensions that lack digits have taken theirs.
    """
    over = [0] * len(problem.shape)
    for layout, sign in ((problem.source, 1), (problem.target, -1)):
        for factor, slot in layout.owners:
            over[slot.dim] += sign * (factor.size == prime)
    if sum(over) <= 0:
        return [0] * len(over)
    while min(over) < 0:
        over[over.index(max(over))] -= 1
        over[over.index(min(over))] += 1
    return over


def _backwards(problem: Problem, chain: Sequence[Step]) -> list[Step] | None:
    """Returns the reverse of a chain; None if one of its steps cannot be reversed."""
    layouts = list(itertools.accumulate(chain, apply, initial=problem.source))
    turned = [_undone(step, before) for step, before in zip(reversed(chain), reversed(layouts[:-1]))]
    try:
        list(itertools.accumulate(turned, apply, initial=problem.target))
    except RuleError:
        return None
    return turned


def _undone(step: Step, before: Layout) -> Step:
    match step:
        case Slice(moves):
            return AllGather(tuple(factor for factor, _ in moves))
        case AllGather(factors):
            return Slice(_slots(before, factors))
        case AllToAll():
            return AllToAll(_slots(before, step.factors))
        case Permute():
            return Permute(before)
    raise ValueError(f"{step} is in no normal form")


def _slots(layout: Layout, factors: Iterable[Factor]) -> tuple[tuple[Factor, Slot], ...]:
    """Returns the factors that own a digit, each with its slot in the layout."""
    return tuple((factor, slot) for factor in factors if (slot := layout.slot_of(factor)) is not None)


def _cost(layout: Layout, chain: Sequence[Step]) -> tuple[int, int]:
    """Returns the number of elements that a device receives at most, and the number of collectives."""
    layouts = itertools.accumulate(chain, apply, initial=layout)
    return sum(map(received_elements, layouts, chain)), sum(map(collectives, chain))
