# SPDX-License-Identifier: Apache-2.0
"""Chains with at most one permute, which puts factors where the later steps need them; made without a search.

Slices come first, and an all_to_all at times. Then the permute gives each dimension the leading factors that the target
wants there, as far as the dimension has digits. Its other digits hold factors that other dimensions want, which
all_to_alls move there, and factors that the target replicates, which a gather frees. A search that is cut short may
miss such chains, since a layout has very many permutes.

Source: the idea of arranging all axes by one permute is that of Shardy's `sdy-reshard-to-collectives`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from ..layouts.layout import Factor, Layout, Slot, blocked
from ..layouts.refinement import Problem
from ..programs.chain import Chain
from ..programs.steps import AllGather, AllToAll, Permute, RuleError, Slice, Step


def one_permute_chains(problem: Problem, may_permute: Callable[[Chain], bool] | None = None) -> list[Chain]:
    """Returns chains from source to target, both without partial sums; none if digits are in each other's way.

    They differ in how much is sliced at first, in whether an all_to_all comes before the permute, in where factors wait
    behind the permute, in how many all_to_alls and gathers follow, and in the order of these.

    Args:
      problem: refined into primes.
      may_permute: whether chains are of use that begin with a given one, and permute next; None is all.

    Example:
      >>> from ..layouts.mesh import Mesh
      >>> from ..layouts.refinement import refine
      >>> from ..layouts.sharding import Sharding
      >>> from ..programs.steps import name
      >>> ends = Sharding.parse('[{"x","y"}]'), Sharding.parse('[{"z"}]')
      >>> problem = refine(Mesh.parse("x=2,y=2,z=2"), (8,), *ends, into_primes=True)
      >>> [name(step) for step in one_permute_chains(problem)[0]]
      ['permute', 'all_gather']
    """
    found: list[Chain] = []
    for head in _heads(problem):
        ways = (True, False) if may_permute is None or may_permute(head) else ()
        kept = (_arranged(head.target, problem.target, who_is_there_stays) for who_is_there_stays in ways)
        for arranged in dict.fromkeys((*kept, head.target)):
            found += [chain for chain in _by_way_of(problem, head, arranged) if chain not in found]
    return found


def rearranged(problem: Problem, chain: Chain, seconds: Callable[[Chain], float]) -> Chain:
    """Returns a chain of this kind with the fastest arrangement behind its permute that small changes find.

    The places of factors that all_to_alls and gathers take away later do not matter for the bytes; they decide which
    devices talk to each other. Two such factors exchange their places, or one and a replicated factor, as long as that
    makes the chain faster.

    Args:
      problem: the problem, refined into primes. seconds: returns the time of a chain.
    """
    found = next(((at, step) for at, step in enumerate(chain) if isinstance(step, Permute)), None)
    if found is None:
        return chain
    at, permute = found
    head, best_s = chain[:at], seconds(chain)
    arranged = permute.after
    while True:
        tried = [(other, each) for other in _neighbours(problem, arranged) for each in _by_way_of(problem, head, other)]
        priced = [(seconds(each), number) for number, (_, each) in enumerate(tried)]
        if not priced or min(priced)[0] >= best_s:
            return chain
        best_s, number = min(priced)
        arranged, chain = tried[number]


def _neighbours(problem: Problem, arranged: Layout) -> Iterator[Layout]:
    """Yields the layouts with two passing factors of one size exchanged, or one of them and a replicated factor.

    A factor is passing if the target has it in another place, or nowhere.
    """
    target = problem.target
    passing = [(factor, slot) for factor, slot in arranged.owners if target.slot_of(factor) != slot]
    for (one, here), (other, there) in itertools.combinations(passing, 2):
        if one.size == other.size:
            yield arranged.with_moved({one: there, other: here})
    free = [f for f in problem.movable if arranged.slot_of(f) is None and target.slot_of(f) is None]
    for (one, here), other in itertools.product(passing, free):
        if one.size == other.size and target.slot_of(one) is None:
            owners = [(other, here) if factor == one else (factor, slot) for factor, slot in arranged.owners]
            yield Layout(arranged.shape, tuple(sorted(owners, key=lambda owner: owner[1])))


def _by_way_of(problem: Problem, head: Chain, arranged: Layout) -> Iterator[Chain]:
    """Yields the chains within the rules that begin with the head, and then permute to `arranged`."""
    owned = dict(arranged.owners)
    if any([factor not in owned for factor, _ in problem.target.owners]):
        return
    permute = [Permute(arranged)] if arranged != head.target else []
    start = _extended(head, permute, problem.largest_tile)
    if start is None:
        return
    for tail in _tails(arranged, problem.target):
        chain = _extended(start, tail, problem.largest_tile)
        if chain is not None and chain.target == problem.target:
            yield chain


def _heads(problem: Problem) -> Iterator[Chain]:
    """Yields the parts of chains that may come before the permute."""
    slices = [*(_slices(problem, is_wide) for is_wide in (False, True)), _slices_beside(problem)]
    for number, head in enumerate(slices):
        if head in slices[:number]:
            continue
        yield head
        move = _surplus_to_where_it_lacks(head.target, problem.target)
        if move is not None:
            with contextlib.suppress(RuleError):
                yield head.then(move)


def _slices(problem: Problem, is_wide: bool) -> Chain:
    """Returns the slice of factors that the source replicates, behind the owned digits of each dimension.

    It takes as many factors of a size as the target has more than the source. A wide slice takes as many as dimensions
    lack, while the target owns some.
    """
    stacks, goals = (_stacks(layout) for layout in (problem.source, problem.target))
    wanted, moves = {factor for goal in goals for factor in goal}, {}
    for prime in sorted({factor.size for factor in wanted}):
        free = [f for f in wanted if f.size == prime and problem.source.slot_of(f) is None]
        lacks = [_count(goal, prime) - _count(stack, prime) for goal, stack in zip(goals, stacks)]
        while free and max(lacks) > 0 and (is_wide or sum(lacks) > 0):
            _, dim, factor = min((f not in goals[d], d, f) for d, lack in enumerate(lacks) if lack > 0 for f in free)
            moves[factor] = _next_slot(dim, stacks[dim], prime)
            stacks[dim].append(factor)
            free.remove(factor)
            lacks[dim] -= 1
    return _sliced(problem.source, moves)


def _sliced(source: Layout, moves: dict[Factor, Slot]) -> Chain:
    """Returns the slice as a chain, which is empty if nothing is sliced. Raises: RuleError if a digit is not local."""
    return Chain(source).then(*([Slice(tuple(moves.items()))] if moves else []))


def _slices_beside(problem: Problem) -> Chain:
    """Returns the slice of all factors that the target owns and the source replicates.

    A factor goes behind the one that it follows in the target, in the dimension where that one is now. The two then
    move together, often as a whole axis, and there may be less to copy.
    """
    stacks, moves = _stacks(problem.source), {}
    for dim, goal in enumerate(_stacks(problem.target)):
        for number, factor in enumerate(goal):
            if problem.source.slot_of(factor) is not None:
                continue
            here = next((d for d, stack in enumerate(stacks) if number and goal[number - 1] in stack), dim)
            moves[factor] = _next_slot(here, stacks[here], factor.size)
            stacks[here].append(factor)
    try:
        return _sliced(problem.source, moves)
    except RuleError:
        return Chain(problem.source)


def _surplus_to_where_it_lacks(start: Layout, target: Layout) -> Step | None:
    """Returns the all_to_all of minor-most digits to dimensions that lack digits of their size, or None."""
    stacks, goals = _stacks(start), _stacks(target)
    sizes = sorted({factor.size for goal in goals for factor in goal})
    lacks = {size: [_count(goal, size) - _count(stack, size) for goal, stack in zip(goals, stacks)] for size in sizes}
    routes: list[tuple[Factor, int]] = []
    for here, stack in enumerate(stacks):
        leaving = []
        while stack and min(lack := lacks.get(stack[-1].size, [0])) < 0 < max(lack) and lack[here] < 0:
            there = lack.index(max(lack))
            lack[here], lack[there] = lack[here] + 1, lack[there] - 1
            leaving.append((stack.pop(), there))
        routes += reversed(leaving)  # in the order in which they lie in memory, which saves copies
    moves = {}
    for factor, there in routes:
        moves[factor] = _next_slot(there, stacks[there], factor.size)
        stacks[there].append(factor)
    return AllToAll(tuple(sorted(moves.items()))) if moves else None


def _arranged(start: Layout, target: Layout, who_is_there_stays: bool) -> Layout:
    """Returns the layout after the permute; each dimension has as many digits of each size as at the start."""
    stacks, goals = _stacks(start), _stacks(target)
    rows = [_common_prefix(goal, stack) for goal, stack in zip(goals, stacks)]
    sizes = [_without(stack, row) for stack, row in zip(stacks, rows)]
    movers = [factor for goal, row in zip(goals, rows) for factor in goal[len(row) :]]
    others = [f for f, _ in start.owners if target.slot_of(f) is None]
    for dim, row in enumerate(rows):
        for number, size in enumerate(sizes[dim]):
            left = [*sizes[dim][number:], *itertools.chain(*sizes[dim + 1 :])].count(size)
            pool = [f for f in movers if f.size == size]
            if left > len(pool):
                pool += [f for f in others if f.size == size]
            slot = _next_slot(dim, row, size)
            factor = next((f for f in pool if who_is_there_stays and start.slot_of(f) == slot), pool[0])
            (movers if factor in movers else others).remove(factor)
            row.append(factor)
    return blocked(start.shape, tuple(map(tuple, rows)))


def _tails(arranged: Layout, target: Layout) -> Iterator[list[Step]]:
    """Yields the ways from the arranged layout to the target."""
    owned, wanted = dict(arranged.owners), dict(target.owners)
    moves = tuple(sorted([(f, slot) for f, slot in target.owners if owned.get(f) != slot]))
    gathered = tuple([f for f, _ in arranged.owners if f not in wanted])
    gathers: list[Step] = [AllGather(gathered)] if gathered else []

    def route(move: tuple[Factor, Slot]) -> tuple[int, int]:
        return owned[move[0]].dim, move[1].dim

    by_route = [
        tuple(run) for _, run in itertools.groupby(sorted(moves, key=lambda move: (route(move), move[1])), route)
    ]
    yield [*([AllToAll(moves)] if moves else []), *gathers]
    if moves and gathers:
        yield [*gathers, AllToAll(moves)]
    if len(by_route) > 1:
        yield [*map(AllToAll, by_route), *gathers]
    by_dim = itertools.groupby(reversed(gathered), lambda factor: owned[factor].dim)
    runs = [AllGather(tuple(run)[::-1]) for _, run in by_dim]
    if len(runs) > 1:  # the one along dimension 0, on the largest tile, puts tiles in place
        yield [*([AllToAll(moves)] if moves else []), *runs]


def _extended(chain: Chain, tail: Sequence[Step], most: int) -> Chain | None:
    """Returns the chain with further steps; None if a rule forbids one, or a tile has more than `most` elements."""
    try:
        found = chain.then(*tail)
    except RuleError:
        return None
    return found if found.largest_tile <= most else None


def _stacks(layout: Layout) -> list[list[Factor]]:
    return [[factor for factor, slot in layout.owners if slot.dim == dim] for dim in range(len(layout.shape))]


def _count(stack: list[Factor], prime: int) -> int:
    return sum(factor.size == prime for factor in stack)


def _common_prefix(goal: list[Factor], stack: list[Factor]) -> list[Factor]:
    """Returns the leading factors of the goal for which the stack has digits of their sizes, in any order."""
    left, prefix = [factor.size for factor in stack], []
    for factor in goal:
        if factor.size not in left:
            break
        left.remove(factor.size)
        prefix.append(factor)
    return prefix


def _without(stack: list[Factor], prefix: list[Factor]) -> list[int]:
    """Returns the sizes of the digits that are left when the prefix has taken its own."""
    sizes = [factor.size for factor in stack]
    for factor in prefix:
        sizes.remove(factor.size)
    return sizes


def _next_slot(dim: int, stack: list[Factor], size: int) -> Slot:
    start = math.prod(factor.size for factor in stack)
    return Slot(dim, start, start * size)
