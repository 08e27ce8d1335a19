# SPDX-License-Identifier: Apache-2.0
"""The paper's chains, as a peer: slices, moves between dimensions, one permute, gathers, on blocked layouts alone.

**What it knows.** A sharding splits a dimension by a stack of mesh axes, which stay whole where that will do, and are cut into
primes where not. What has to be split further is sliced first, at no cost; then pieces move from the minor end of one stack to the
minor end of another, all_to_all by all_to_all, those along one route at once; one permute puts the right axes into the right order;
what is split too far is gathered last. So no tile is above that of source and target, and every redistribution whose dimensions
divide has such a chain. The permute stands before the gathers, where tiles are small. Chains may be read backwards, which is another
chain in normal form: the one that receives less counts. Where a piece has to leave a stack in which another one is
minor-most, a permute of its own comes before the move.

**What it does not know.** Digits other than the leading ones, so that it cannot slice or move from the middle of a dimension without
a permute; moves of axes along two routes in one collective; networks: of two chains the one with fewer bytes is the better one.
The paper's own system also searches among orders of moves for a cost model that it does not publish; here the fullest dimension
gives to the emptiest one.

Source: "Memory-efficient array redistribution through portable collective communication" (arXiv 2112.01075), and Theorem 5 in
docs/theory.md, which proves what is said above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import itertools

from reshard.synthesis.layout import Factor, Layout, Slot
from reshard.synthesis.leading_axes import leading_axes_chain
from reshard.synthesis.mesh import Mesh
from reshard.synthesis.problem import Problem, refine
from reshard.synthesis.sharding import Sharding
from reshard.synthesis.steps import (
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


def normal_form(mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding) -> tuple[Layout, list[Step]]:
    """Returns the layout of the source and the typed steps that lead to the target.

    Raises: NoPlanError if a dimension does not divide, or the sides cut an axis in two radices.

    Example:
      >>> from reshard.synthesis.steps import name
      >>> mesh, ends = Mesh.parse("x=2,y=3"), [Sharding.parse(text) for text in ('[{"x"}]', '[{"y"}]')]
      >>> [name(step) for step in normal_form(mesh, (6,), *ends)[1]]
      ['slice', 'permute', 'all_gather']
    """
    found = [chain for into_primes in (False, True) for chain in _both_ways(mesh, shape, source, target, into_primes)]
    return min(found, key=lambda chain: _cost(*chain))


def _both_ways(mesh: Mesh, shape, source: Sharding, target: Sharding, into_primes: bool) -> Iterator[tuple[Layout, list[Step]]]:
    """Yields chains from source to target, and those the other way, turned around."""
    problem, back = (refine(mesh, shape, *ends, into_primes=into_primes) for ends in ((source, target), (target, source)))
    for chain in _chains(problem):
        yield problem.source, chain
    for chain in _chains(back):
        if (turned := _backwards(back, chain)) is not None:
            yield problem.source, turned


def _chains(problem: Problem) -> Iterator[list[Step]]:
    """Yields the chain with its permute in the end, and the one with it before the gathers; there may be none on uncut axes."""
    for made in (leading_axes_chain, _gathered_last):
        try:
            chain = made(problem)
            list(itertools.accumulate(chain, apply, initial=problem.source))
        except (ValueError, IndexError):  # sizes that are no primes: 4 against 2 and 2
            continue
        yield chain


def _gathered_last(problem: Problem) -> list[Step]:
    gathered, before = _before_gathers(problem)
    last = [AllGather(gathered)] if gathered else []
    return [*leading_axes_chain(dataclasses.replace(problem, target=before)), *last]


def _before_gathers(problem: Problem) -> tuple[tuple[Factor, ...], Layout]:
    """Returns the factors to gather last, and the layout then: the target with these behind the stacks that are too long."""
    free = [factor for factor in problem.movable if problem.target.slot_of(factor) is None]
    held = {factor: slot.dim for factor, slot in problem.source.owners}
    ends = [1] * len(problem.shape)
    for _, slot in problem.target.owners:
        ends[slot.dim] = max(ends[slot.dim], slot.end)
    moved: dict[Factor, Slot] = {}
    for prime in sorted({factor.size for factor in free}):
        for dim, count in enumerate(_surplus(problem, prime)):
            fitting = sorted((f for f in free if f.size == prime and f not in moved), key=lambda f: (held.get(f) != dim, f))
            for factor in fitting[:count]:
                moved[factor] = Slot(dim, ends[dim], ends[dim] * prime)
                ends[dim] *= prime
    return tuple(moved), problem.target.with_moved(moved)


def _surplus(problem: Problem, prime: int) -> list[int]:
    """Returns for each dimension how many digits of size `prime` are left to gather when all that lack some have theirs."""
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
    """Returns the chain that undoes one, None where a step of several moves cannot be turned around."""
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
            return Slice(tuple((factor, before.slot_of(factor)) for factor in factors))
        case AllToAll():
            return AllToAll(tuple((factor, before.slot_of(factor)) for factor in step.factors))
        case Permute():
            return Permute(before)
    raise ValueError(f"{step} is in no normal form")


def _cost(layout: Layout, chain: Sequence[Step]) -> tuple[int, int]:
    """Returns what a device receives at most, in elements, and how many collectives there are."""
    layouts = itertools.accumulate(chain, apply, initial=layout)
    return sum(map(received_elements, layouts, chain)), sum(map(collectives, chain))
