# SPDX-License-Identifier: Apache-2.0
"""Chains of blocked layouts, as the paper has them: axes come and go at the minor end of a dimension's stack.

This is the construction in the proof of Theorem 5 (docs/theory.md): slices, then moves of the minor-most digit from one
dimension to another, then gathers, and permutes where another digit has to be the minor-most one, or in the end. The
planner does better, since its factors may own any digit; this chain is one of its candidates, and an alternative that
plans are compared with.

Source: "Memory-efficient array redistribution through portable collective communication" (arXiv 2112.01075).
"""

from __future__ import annotations

from ..layouts.layout import Factor, Layout, Slot
from ..layouts.refinement import Problem
from ..programs.chain import Chain
from ..programs.steps import AllGather, AllToAll, Permute, Slice, Step, apply


def leading_axes_chain(problem: Problem) -> Chain:
    """Returns the chain from source to target, both without partial sums.

    Args:
      problem: refined into primes.

    Example:
      >>> from ..layouts.mesh import Mesh
      >>> from ..layouts.refinement import refine
      >>> from ..layouts.sharding import Sharding
      >>> from ..programs.steps import name
      >>> ends = Sharding.parse('[{}, {"x"}]'), Sharding.parse('[{"x","y","z"}, {}]')
      >>> problem = refine(Mesh.parse("x=2,y=2,z=2"), (16, 4), *ends, into_primes=True)
      >>> [name(step) for step in leading_axes_chain(problem)]
      ['slice', 'all_to_all', 'permute']
    """
    return Chain(problem.source, tuple(_Stacks(problem).run()))


class _Stacks:
    """The factors that split each dimension, and the steps that lead there.

    Invariant: `stacks[dim]` owns the leading digits of dimension dim in that order, all factors are primes, and `out`
    leads there.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.shape = problem.shape
        self.stacks = [_owners(problem.source, dim) for dim in range(len(self.shape))]
        self.goals = [_owners(problem.target, dim) for dim in range(len(self.shape))]
        self.layout = problem.source
        self.out: list[Step] = []
        self.route: tuple[int, int] | None = None  # of the last step, from dimension to dimension, if it is a move

    def run(self) -> list[Step]:
        primes = sorted({factor.size for factor in self.problem.movable})
        for work in (self._slice, self._move, self._gather):
            for prime in primes:
                work(prime)
        if self.layout != self.problem.target:
            self._add(Permute(self.problem.target))
        return self.out

    def _lacks(self, prime: int) -> list[int]:
        """Returns for each dimension how many digits of size `prime` it still needs; negative is too many."""
        return [
            sum(f.size == prime for f in goal) - sum(f.size == prime for f in stack)
            for goal, stack in zip(self.goals, self.stacks)
        ]

    def _slice(self, prime: int) -> None:
        while sum(lacks := self._lacks(prime)) > 0:
            owning = {factor for stack in self.stacks for factor in stack}
            free = [f for f in self.problem.movable if f.size == prime and f not in owning]
            ways = [(f not in self.goals[dim], dim, f) for dim, lack in enumerate(lacks) if lack > 0 for f in free]
            _, dim, factor = min(ways)
            self._add(Slice(((factor, self._next_slot(dim, prime)),)))
            self.stacks[dim].append(factor)

    def _move(self, prime: int) -> None:
        while max(lacks := self._lacks(prime), default=0) > 0:
            here, there = lacks.index(min(lacks)), lacks.index(max(lacks))
            factor = self._brought_to_the_end(here, prime, self.goals[there])
            self._add(AllToAll(((factor, self._next_slot(there, prime)),)), (here, there))
            self.stacks[there].append(self.stacks[here].pop())

    def _gather(self, prime: int) -> None:
        while min(lacks := self._lacks(prime), default=0) < 0:
            dim = lacks.index(min(lacks))
            replicated = [f for f in self.problem.movable if self.problem.target.slot_of(f) is None]
            self._add(AllGather((self._brought_to_the_end(dim, prime, replicated),)))
            self.stacks[dim].pop()

    def _brought_to_the_end(self, dim: int, prime: int, wanted) -> Factor:
        """Returns a factor of size `prime` at the minor end of a dimension; a permute brings one there if needed."""
        stack = self.stacks[dim]
        if stack[-1].size != prime:
            factor = max((f for f in stack if f.size == prime), key=lambda f: (f in wanted, stack.index(f)))
            stack.remove(factor)
            stack.append(factor)
            self._add(Permute(self._with_stack(dim)))
        return stack[-1]

    def _with_stack(self, dim: int) -> Layout:
        start, moves = 1, {}
        for factor in self.stacks[dim]:
            moves[factor] = Slot(dim, start, start * factor.size)
            start *= factor.size
        return self.layout.with_moved(moves)

    def _next_slot(self, dim: int, size: int) -> Slot:
        start = 1
        for factor in self.stacks[dim]:
            start *= factor.size
        return Slot(dim, start, start * size)

    def _add(self, step: Step, route: tuple[int, int] | None = None) -> None:
        """Adds a step; slices, gathers, and moves along one route are joined with the step before them."""
        self.layout = apply(self.layout, step)
        last, last_route, self.route = self.out[-1] if self.out else None, self.route, route
        match last, step:
            case Slice(), Slice():
                self.out[-1] = Slice(last.moves + step.moves)
            case AllGather(), AllGather():
                self.out[-1] = AllGather(last.factors + step.factors)
            case AllToAll(), AllToAll() if route == last_route:
                self.out[-1] = AllToAll(last.moves + step.moves)
            case _:
                self.out.append(step)


def _owners(layout: Layout, dim: int) -> list[Factor]:
    return [factor for factor, slot in layout.owners if slot.dim == dim]
