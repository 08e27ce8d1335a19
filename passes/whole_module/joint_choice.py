# SPDX-License-Identifier: Apache-2.0
"""The joint choice: the subset of sites that makes a module cheapest, found with few measurements.

Sites do not add up: XLA converts once for several users, or partitions a neighbour in another way. So the gains of
single sites propose sets, and a measurement of the whole module decides:

1. **Starts**: the sets that are measured first, such as the one that the gains propose, and all groups. The best set so
   far is never worse than any of them, nor than the empty set.
2. **Disappointment**: if the best set gains less than its groups promised, groups in it are taken out; if a set with
   more groups did better than promised, or could not be used, groups are put in.
3. **Bisection**: a block of groups is flipped, taken out or put in, all at once, and stays so if that is better. Then
   both halves are tried in the same way, unless the block was put in, gains what it promised, and has no group that
   promised a loss. Groups that promise alike are halved together, in the order of the program, and the block with the
   most hope per group is next.

A measurement takes time, so a block is flipped only if there is *hope* that the module gains enough. Suppose that no
group gains more than it promised. If the best set falls short of its promise by s, then each block B in it gains at
least promise(B) - s, since the others gain at most their promises; so its removal gains at most s - promise(B). An
addition gains at most promise(B), or as much more as a set with more groups did better than promised.

The search ends when no block has hope, after a number of measurements, or, behind the starts, once all hope together
does not reach a goal that the caller has: another form of the module that is faster. It always knows the set that it
measures next if this one is no better, so both can be measured at the same time; which sets are measured does not
depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

Groups = frozenset[int]
_Block = tuple[int, ...]  # groups that are flipped together, in the order in which they are halved
ENOUGH = 0.9  # the share of the promised gain below which a set disappoints


@dataclass(frozen=True, slots=True)
class Outcome:
    """The measurement of one set of groups.

    Attributes:
      problem: why the set may not be used; empty if it may.
      seconds: the modelled time of the module.
      ties: costs that decide between equal times, the most important first.
      of: what was measured, for the caller.
      sent: the share of the time in which data moves between processes, on a network that was measured.
      generated_s: the time with local work as the compiler's code generator prices it; None if it does not.
    """

    problem: str
    seconds: float
    ties: tuple[float, ...] = ()
    of: Any = None
    sent: float = 0.0
    generated_s: float | None = None


@dataclass(frozen=True, slots=True)
class Flip:
    """A block of groups whose removal or addition made the module better, with the outcomes before and after."""

    block: Groups
    is_removal: bool
    before: Outcome
    after: Outcome


class JointChoice:
    """Chooses among groups 0..n-1.

    Args:
      gains: the promised gain of each group in seconds, in program order; what is not known is 0.
      measure: returns the outcome of a set. It is called once for a set, and not for the empty set.
      none: the outcome of the empty set.
      is_better: whether the first of two outcomes is better.
      budget: the most calls of `measure`.
      least_gain_s: the seconds that a block must hope to gain to be flipped.
      foresee: told before a measurement which sets are measured next: this one, and the one that follows if this one
        is neither better nor a surprise.
      goal_s: the seconds above which nobody wants a set; infinite if there is no goal. It needs known gains.
    State: `outcomes` by set; `best`, the best set so far; `flips`, the blocks that have made it better.
    """

    def __init__(
        self,
        gains: Sequence[float],
        measure: Callable[[Groups], Outcome],
        none: Outcome,
        is_better: Callable[[Outcome, Outcome], bool],
        budget: int,
        least_gain_s: float = 0.0,
        foresee: Callable[[Sequence[Groups]], None] = lambda sets: None,
        goal_s: float = math.inf,
    ):
        self._gains, self._measure, self._is_better, self._budget = gains, measure, is_better, budget
        self._least_gain_s, self._foresee, self._goal_s = least_gain_s, foresee, goal_s
        self.outcomes: dict[Groups, Outcome] = {frozenset(): none}
        self.best: Groups = frozenset()
        self.flips: list[Flip] = []

    @property
    def outcome(self) -> Outcome:
        """Returns the outcome of the best set."""
        return self.outcomes[self.best]

    def run(self, starts: Sequence[Collection[int]]) -> Groups:
        """Returns the best set found. The starts are measured in their order, as far as the budget goes."""
        for start in starts:
            self.attempt(frozenset(start))
        blocks = self._first_blocks()
        while blocks and self._has_room and self._reaches_goal:
            block, others = self._next(blocks)
            if self._is_hopeful(block):
                self._foresee_flips(block, others)
            is_settled = self._is_hopeful(block) and self._is_settled_by_flipping(block)
            blocks = others if is_settled else [*others, *_halves(block)]
        return self.best

    def _next(self, blocks: list[_Block]) -> tuple[_Block, list[_Block]]:
        """Returns the block with the most hope per group, and the others."""
        first = max(blocks, key=lambda each: self._hope(each) / len(each))
        return first, [each for each in blocks if each is not first]

    def _foresee_flips(self, block: _Block, others: list[_Block]) -> None:
        """Tells of the flip of a block that has hope, and of the one after it if it is no better."""
        sets, rest = [self.best ^ frozenset(block)], [*others, *_halves(block)]
        while rest and len(sets) == 1:
            second, rest = self._next(rest)
            sets += [self.best ^ frozenset(second)] if self._is_hopeful(second) else []
            rest += _halves(second)
        room = self._budget + 1 - len(self.outcomes)
        self._foresee([each for each in sets if each and each not in self.outcomes][:room])

    def _is_hopeful(self, block: _Block) -> bool:
        hope = self._hope(block)
        return hope >= self._least_gain_s and (hope > 0 or self._is_surprised())

    def _hope(self, block: _Block) -> float:
        """Returns the most seconds by which the flip of a block may make the module faster."""
        promised = self._promised(frozenset(block))
        if block[0] not in self.best:
            return promised + self._surplus()
        return self._promised(self.best) - self._gained(self.best) - promised

    @property
    def _reaches_goal(self) -> bool:
        """Returns whether a set may take no longer than the goal, if everything that is hoped for comes true."""
        if any(outcome.problem for groups, outcome in self.outcomes.items() if groups > self.best):
            return True  # nobody knows whether it would have been a surprise
        gains = [gain for i, gain in enumerate(self._gains) if (gain > 0) != (i in self.best)]  # to put in, to take out
        missing = max(0.0, self._promised(self.best) - self._gained(self.best) - sum(min(0.0, each) for each in gains))
        added = sum(max(0.0, each) for each in gains)
        return self.outcome.seconds - added - missing - self._surplus() <= self._goal_s

    @property
    def _has_room(self) -> bool:
        return len(self.outcomes) <= self._budget  # the empty set is one of them

    def attempt(self, groups: Groups) -> bool:
        """Measures a set, if it is new and there is room; returns whether it is the best one now."""
        if groups not in self.outcomes:
            if not self._has_room:
                return False
            self.outcomes[groups] = self._measure(groups)
        if groups == self.best or not self._is_better(self.outcomes[groups], self.outcome):
            return False
        self.best = groups
        return True

    def attempted(self, groups: Groups) -> Outcome:
        """Returns the outcome of a set; if it is the best one now, it is chosen."""
        self.attempt(groups)
        return self.outcomes[groups]

    def revise(self, groups: Groups, outcome: Outcome) -> None:
        """Takes another outcome of a set that is measured, and chooses again."""
        self.outcomes[groups] = outcome
        self.best = frozenset()
        for each in self.outcomes:
            if self._is_better(self.outcomes[each], self.outcome):
                self.best = each

    def _is_settled_by_flipping(self, block: _Block) -> bool:
        """Takes the groups of a block out of the best set, or puts them in, if that is better.

        Returns: whether its parts need not be tried: the block was put in and gains what it promised, each group in it
          more than nothing.
        """
        before, is_removal = self.outcome, block[0] in self.best
        if not self.attempt(self.best ^ frozenset(block)):
            return False
        self.flips.append(Flip(frozenset(block), is_removal, before, self.outcome))
        if is_removal or any(self._gains[each] < 0 for each in block):
            return False
        gained = before.seconds - self.outcome.seconds
        return bool(before.problem) or gained >= ENOUGH * self._promised(frozenset(block))

    def _first_blocks(self) -> list[_Block]:
        """Returns the blocks with which the bisection begins: those in the best set, and those outside of it."""
        inside = sorted(self.best, key=lambda each: (self._gains[each], each))
        others = (each for each in range(len(self._gains)) if each not in self.best)
        outside = sorted(others, key=lambda each: (-self._gains[each], each))
        return [tuple(block) for block in (inside, outside) if block]

    def _is_surprised(self) -> bool:
        """Returns whether a set with more groups than the best one did better than promised, or could not be used
        although it promised no loss."""
        return self._surplus() > 0 or any(
            bool(outcome.problem) and self._promised(groups) >= 0
            for groups, outcome in self.outcomes.items()
            if groups > self.best
        )

    def _surplus(self) -> float:
        """Returns by how many seconds a set with more groups than the best one did better than promised, at most."""
        more = (self._gained(groups) - self._promised(groups) for groups in self.outcomes if groups > self.best)
        return max((each for each in more if each > 0), default=0.0)

    def _gained(self, groups: Groups) -> float:
        return self.outcomes[frozenset()].seconds - self.outcomes[groups].seconds

    def _promised(self, groups: Groups) -> float:
        return sum(self._gains[each] for each in groups)


def _halves(block: _Block) -> list[_Block]:
    half = len(block) // 2
    return [block[:half], block[half:]] if half else []
