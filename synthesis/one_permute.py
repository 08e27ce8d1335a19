# SPDX-License-Identifier: Apache-2.0
"""Chains with at most one permute, which puts all that moves between devices into place: made without a search.

Slices come first, and an all_to_all at times. Then the permute gives each dimension the leading digits that the target wants
there, as far as it has digits; what it has beyond holds factors that other dimensions want, which all_to_alls bring there, and
factors that nobody wants, which a gather frees. A search that is cut short may miss such chains, since a layout has very many
permutes.

Source: the idea of arranging all axes by one permute is that of Shardy's `sdy-reshard-to-collectives`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import itertools
import math

from .layout import Factor, Layout, LayoutError, Slot, blocked
from .problem import Problem
from .steps import AllGather, AllToAll, Permute, RuleError, Slice, Step, apply


def one_permute_chains(
    problem: Problem, may_permute: Callable[[Sequence[Step], Layout], bool] | None = None
) -> list[list[Step]]:
    """Returns chains from source to target, both without partial sums; none where digits are in each
    other's way.

    They differ in how much is sliced at first, in whether an all_to_all comes before the permute already, in who waits where
    behind it, in how many all_to_alls and gathers follow, and in what comes first.

    Args:
      problem: refined into primes.
      may_permute: whether chains that begin with some steps, and then permute the layout that these lead to, are of use; None is all.

    Example:
      >>> from .mesh import Mesh
      >>> from .problem import refine
      >>> from .sharding import Sharding
      >>> from .steps import name
      >>> ends = Sharding.parse('[{"x","y"}]'), Sharding.parse('[{"z"}]')
      >>> problem = refine(Mesh.parse("x=2,y=2,z=2"), (8,), *ends, into_primes=True)
      >>> [name(step) for step in one_permute_chains(problem)[0]]
      ['permute', 'all_gather']
    """
    found: list[list[Step]] = []
    for head, layout in _heads(problem):
        ways = (True, False) if may_permute is None or may_permute(head, layout) else ()
        kept = (_arranged(layout, problem.target, who_is_there_stays) for who_is_there_stays in ways)
        for arranged in dict.fromkeys((*kept, layout)):
            found += [chain for chain in _by_way_of(problem, head, layout, arranged) if chain not in found]
    return found


def rearranged(problem: Problem, chain: Sequence[Step], seconds: Callable[[Sequence[Step]], float]) -> Sequence[Step]:
    """Returns a chain of this kind with what is not in its last place behind the permute put there in the order that is fastest.

    Which of the factors lie where that all_to_alls and gathers take away does not matter for the bytes, but for who talks to
    whom. Two change their places, or one with a replicated one, as long as that makes the chain faster.

    Args:
      problem: refined into primes. seconds: what a chain takes.
    """
    at = next((at for at, step in enumerate(chain) if isinstance(step, Permute)), None)
    if at is None:
        return chain
    head, layout = list(chain[:at]), problem.source
    for step in head:
        layout = apply(layout, step)
    best_s = seconds(chain)
    arranged = chain[at].after
    while True:
        tried = [(other, each) for other in _neighbours(problem, arranged) for each in _by_way_of(problem, head, layout, other)]
        priced = [(seconds(each), number) for number, (_, each) in enumerate(tried)]
        if not priced or min(priced)[0] >= best_s:
            return chain
        best_s, number = min(priced)
        arranged, chain = tried[number]


def _neighbours(problem: Problem, arranged: Layout) -> Iterator[Layout]:
    """Yields the layout with two factors of a size exchanged that are both not in their last place, or one of them for one that is free."""
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


def _by_way_of(problem: Problem, head: list[Step], layout: Layout, arranged: Layout) -> Iterator[list[Step]]:
    """Yields the chains within the rules that permute what lies as in `layout`, behind the head, to `arranged`."""
    owned = dict(arranged.owners)
    if any([factor not in owned for factor, _ in problem.target.owners]):
        return
    most = problem.largest_tile
    start = [*head, Permute(arranged)] if arranged != layout else head
    behind = _behind(problem.source, start, most)
    if behind is None:
        return
    for tail in _tails(arranged, problem.target):
        if _behind(behind, tail, most) == problem.target:
            yield [*start, *tail]


def _heads(problem: Problem) -> Iterator[tuple[list[Step], Layout]]:
    """Yields the steps before the permute, and the layout behind them."""
    slices = [*(_slices(problem, is_wide) for is_wide in (False, True)), _slices_beside(problem)]
    for number, (head, layout) in enumerate(slices):
        if (head, layout) in slices[:number]:
            continue
        yield head, layout
        move = _surplus_to_where_it_lacks(layout, problem.target)
        if move is not None:
            with contextlib.suppress(RuleError):
                yield [*head, move], apply(layout, move)


def _slices(problem: Problem, is_wide: bool) -> tuple[list[Step], Layout]:
    """Returns the slice, if there is one, and the layout behind it: of factors that the source leaves replicated, behind the digits that dimensions own.

    As many as the target needs more of them than there are; if it is wide, all that some dimension lacks and the target owns.
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
    return ([Slice(tuple(moves.items()))] if moves else []), problem.source.with_moved(moves)


def _slices_beside(problem: Problem) -> tuple[list[Step], Layout]:
    """Returns the slice of all that the target owns and the source leaves replicated, and the layout behind it.

    A factor goes behind the one that it follows in the target, wherever that is now: the two move together then, whole axes
    often, and there may be less to copy.
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
        return ([Slice(tuple(moves.items()))] if moves else []), problem.source.with_moved(moves)
    except LayoutError:
        return [], problem.source


def _surplus_to_where_it_lacks(start: Layout, target: Layout) -> Step | None:
    """Returns the all_to_all of minor-most digits to dimensions that lack some of their size; None if none does."""
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
    """Returns the layout after the permute, which has as many digits of each size in each dimension as there are at the start."""
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

    by_route = [tuple(run) for _, run in itertools.groupby(sorted(moves, key=lambda move: (route(move), move[1])), route)]
    yield [*([AllToAll(moves)] if moves else []), *gathers]
    if moves and gathers:
        yield [*gathers, AllToAll(moves)]
    if len(by_route) > 1:
        yield [*map(AllToAll, by_route), *gathers]
    by_dim = itertools.groupby(reversed(gathered), lambda factor: owned[factor].dim)
    runs = [AllGather(tuple(run)[::-1]) for _, run in by_dim]
    if len(runs) > 1:  # the one along dimension 0, on the largest tile, puts tiles in place
        yield [*([AllToAll(moves)] if moves else []), *runs]


def _behind(layout: Layout, typed: Sequence[Step], most: int) -> Layout | None:
    """Returns the layout that steps lead to; None where a rule forbids one, or a tile has more than `most` elements."""
    try:
        for step in typed:
            layout = apply(layout, step)
            if layout.tile_elements > most:
                return None
    except RuleError:
        return None
    return layout


def _stacks(layout: Layout) -> list[list[Factor]]:
    return [[factor for factor, slot in layout.owners if slot.dim == dim] for dim in range(len(layout.shape))]


def _count(stack: list[Factor], prime: int) -> int:
    return sum(factor.size == prime for factor in stack)


def _common_prefix(goal: list[Factor], stack: list[Factor]) -> list[Factor]:
    """Returns the leading factors of the goal for which the stack has digits of their sizes, in whatever order."""
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
