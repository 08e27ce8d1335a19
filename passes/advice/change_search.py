# SPDX-License-Identifier: Apache-2.0
"""The search for few changes that make a program fast, where only a measurement tells what a set of changes gives.

Changes do not add up: two lines that disagree with a third one help only together. So no change is judged by its own
gain alone:

1. **Alone**: every change is measured by itself.
2. **Rounds**: the set grows by the change that makes it fastest. A round measures the changes that promise most by
   their last measurement, and once more each change that takes an annotation away, since others may just have made it
   useless. If no change helps, it measures pairs of those that harm least.
3. **Within the limits**: on the way, a set may need too much memory. The best set that may be advised grows on, by
   changes after which it still may be.
4. **The rest**: what is left of the measurements is for changes that were none of them by themselves, on top of the
   best set.
5. **Pruning**: a change without which the set is as fast is taken out.
6. **Order**: first comes the change without which the rest is slowest.

The search ends after a number of changes or measurements, or when nothing helps. It is deterministic.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_GAIN = 0.01  # the share of the time that a change has to give
SAME = 0.002  # the share of the time below which two sets are equally fast
WIDTH = 16  # changes that promise most, per round
PAIRED = 6  # changes of which pairs are measured if none helps alone

Change = tuple[int, Any]  # the number of an annotation, and what becomes of it; None takes it away
Changes = frozenset[Change]
Cost = Callable[[Changes], float]


@dataclass(frozen=True, slots=True)
class Trial:
    """The measurement of a set of changes.

    Attributes:
      seconds: the modelled time; infinite if the program does not compile.
      excess: the factor, at least 1, by which it needs more memory than it may.
      problem: why the set may not be advised; empty if it may.
      of: what was measured, for the caller.
    """

    seconds: float
    excess: float = 1.0
    problem: str = ""
    of: Any = None

    @property
    def score(self) -> float:
        """Returns what the search makes small: on the way to a good set, too much memory is a cost among others."""
        return self.seconds * self.excess


class ChangeSearch:
    """Searches for changes.

    Args:
      candidates: for each annotation what may become of it, the likeliest first.
      measured: measures a set of changes.
      foresee: is told the sets that are measured next, so that they can be measured at the same time.
      most: the largest number of changes. budget: the number of measurements.
      weighty: annotations of which each change is measured alone, however many others there are.

    Attributes:
      trials: the measurement of each set, in the order of the measurements.
    """

    def __init__(
        self,
        candidates: Mapping[int, Sequence[Any]],
        measured: Callable[[Changes], Trial],
        foresee: Callable[[Sequence[Changes]], None],
        most: int,
        budget: int,
        weighty: Collection[int] = (),
    ):
        self._all = [(number, new) for number, some in candidates.items() for new in some]
        self._measured, self._foresee = measured, foresee
        self._most, self._budget, self._weighty = most, budget, weighty
        self.trials: dict[Changes, Trial] = {}
        self._promise: dict[Change, float] = {}  # the score with the change ÷ without it, by the last measurement

    def run(self) -> list[Change]:
        """Returns the changes of the best set that may be advised, the most needed first; empty if none helps."""
        self._measure([frozenset()])
        if not self.trials[frozenset()].seconds:
            return []
        self._measure([frozenset([each]) for each in self._alone()])
        self._learn(frozenset())
        self._grow(frozenset(), self._score)
        self._grow(self._best(), self._seconds)
        self._grow_by_the_rest()
        best = self._best()
        return self._ordered(self._pruned(best)) if best else []

    def without(self, changes: Iterable[Change], change: Change) -> Trial:
        """Returns the measurement of changes that `run` has returned, without one of them."""
        return self.trials[frozenset(changes) - {change}]

    @property
    def _has_budget(self) -> bool:
        return len(self.trials) < self._budget

    def _alone(self) -> list[Change]:
        """Returns the changes to measure by themselves: half of the budget, some of each annotation."""
        weighty = sum(change[0] in self._weighty for change in self._all)
        return self._by_rank[: max(weighty, self._budget // 2)]

    @functools.cached_property
    def _by_rank(self) -> list[Change]:
        """Returns all changes: the weighty ones, the likeliest one of each annotation, the second one of each..."""
        first = [change for change in self._all if change[0] in self._weighty]
        by_rank: dict[int, list[Change]] = {}
        for _, some in itertools.groupby(self._all, key=lambda change: change[0]):
            for rank, change in enumerate(some):
                by_rank.setdefault(rank, []).append(change)
        return list(dict.fromkeys([*first, *itertools.chain(*by_rank.values())]))

    def _grow_by_the_rest(self) -> None:
        """Measures on top of the best set what was not measured yet, and lets the set grow by what helps there."""
        while self._has_budget and len(best := self._best()) < self._most:
            sets = [_with(best, [each]) for each in self._by_rank if each not in self._promise]
            self._measure(sets)
            self._learn(best)
            if (found := self._cheapest(sets, best, self._seconds)) is None:
                break
            self._grow(found, self._seconds)

    def _grow(self, changes: Changes, cost: Cost) -> None:
        """Measures larger and larger sets, as long as they cost less."""
        while len(changes) < self._most and self._has_budget:
            better = self._grown(changes, cost)
            if better is None:
                break
            changes = better

    def _score(self, changes: Changes) -> float:
        return self.trials[changes].score

    def _seconds(self, changes: Changes) -> float:
        """Returns the time of a set; infinite if it may not be advised."""
        trial = self.trials[changes]
        return math.inf if trial.problem else trial.seconds

    def _grown(self, changes: Changes, cost: Cost) -> Changes | None:
        """Returns the cheapest set with one change more, or with two if one does not help; None if none costs less."""
        open_ = self._open(changes)
        sets = [_with(changes, [each]) for each in open_]
        self._measure(sets)
        self._learn(changes)
        if (found := self._cheapest(sets, changes, cost)) is not None or len(changes) + 2 > self._most:
            return found
        hopeful = sorted(open_, key=lambda change: self._promise.get(change, 1.0))[:PAIRED]
        pairs = [_with(changes, pair) for pair in itertools.combinations(hopeful, 2) if pair[0][0] != pair[1][0]]
        self._measure(pairs)
        return self._cheapest(pairs, changes, cost)

    def _open(self, changes: Changes) -> list[Change]:
        """Returns the changes that the next round measures; of an annotation that is changed already, other ones."""
        known = [each for each in self._all if each in self._promise and each not in changes]
        removed = [each for each in known if each[1] is None]
        return list(dict.fromkeys([*sorted(known, key=self._promise.__getitem__)[:WIDTH], *removed]))

    def _cheapest(self, sets: Iterable[Changes], than: Changes, cost: Cost) -> Changes | None:
        known = [each for each in sets if each in self.trials]
        best = min(known, key=cost, default=than)
        return best if cost(best) < cost(than) * (1 - LEAST_GAIN) else None

    def _best(self) -> Changes:
        """Returns the fastest set that may be advised; the empty one if none gives enough."""
        able = [each for each, trial in self.trials.items() if not trial.problem and len(each) <= self._most]
        best = min(able, key=lambda each: (self.trials[each].seconds, len(each)), default=frozenset())
        stock = self.trials[frozenset()].seconds
        return best if best in self.trials and self.trials[best].seconds < stock * (1 - LEAST_GAIN) else frozenset()

    def _pruned(self, changes: Changes) -> Changes:
        while len(changes) > 1:
            fewer = [changes - {each} for each in sorted(changes, key=self._all.index)]
            self._measure(fewer, beyond_budget=True)
            limit = self.trials[changes].seconds * (1 + SAME)
            same = [each for each in fewer if not self.trials[each].problem and self.trials[each].seconds <= limit]
            if not same:
                break
            changes = min(same, key=lambda each: self.trials[each].seconds)
        return changes

    def _ordered(self, changes: Changes) -> list[Change]:
        self._measure([changes - {each} for each in changes], beyond_budget=True)
        known = [each for each in self._all if each in changes]
        return sorted(known, key=lambda each: -self.trials[changes - {each}].score)

    def _measure(self, sets: Iterable[Changes], *, beyond_budget: bool = False) -> None:
        new = [each for each in dict.fromkeys(sets) if each not in self.trials]
        new = new if beyond_budget else new[: max(0, self._budget - len(self.trials))]
        self._foresee(new)
        for each in new:
            self.trials[each] = self._measured(each)

    def _learn(self, base: Changes) -> None:
        """Notes what each change promises: its last measurement on top of the present set."""
        for change in self._all:
            trial = self.trials.get(_with(base, [change]))
            if trial is not None and change not in base:
                self._promise[change] = trial.score / max(self.trials[base].score, 1e-18)


def _with(changes: Changes, more: Iterable[Change]) -> Changes:
    """Returns the changes with more of them, which take the place of other changes of the same annotations."""
    new = dict(changes) | dict(more)
    return frozenset(new.items())
