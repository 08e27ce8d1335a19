# SPDX-License-Identifier: Apache-2.0
"""The order of a program's steps in which little is alive at once, as compilers choose it.

A program's text says what depends on what, not when it runs: gradients of weights often stand at its end, with their
operands made at its begin. Compilers take the step first that frees most, and keep the text's order if that is better.

Source: list scheduling as in XLA's `HloMemoryScheduler`, which takes the best of several orders likewise.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the values that it takes and makes, and the bytes that are alive inside of it alone.

    A value may be made again, by a step that writes into it.
    """

    takes: frozenset[int]
    makes: frozenset[int]
    within: int = 0


def order_of(steps: Sequence[Step], sizes: Mapping[int, int], kept: Set[int] = frozenset()) -> list[int]:
    """Returns the numbers of the steps in an order that keeps all dependences, and is no worse than the given one.

    Args:
      sizes: value -> bytes. kept: values that are alive to the end.

    Example:
      >>> nothing, a, b = frozenset(), frozenset({0}), frozenset({1})
      >>> order_of([Step(nothing, a), Step(nothing, b), Step(a, nothing), Step(b, nothing)], {0: 8, 1: 8})
      [0, 2, 1, 3]
    """
    orders = [list(range(len(steps))), *(_List(steps, sizes, kept, each).order() for each in (True, False))]
    return min(orders, key=lambda order: peak_of(order, steps, sizes, kept))


def peak_of(order: Iterable[int], steps: Sequence[Step], sizes: Mapping[int, int], kept: Set[int] = frozenset()) -> int:
    """Returns the most bytes that are alive at once, of values that are made and what is alive inside of steps."""
    takers = _takers(steps)
    made: set[int] = set()
    alive = peak = 0
    for number in order:
        step = steps[number]
        new = step.makes - made
        made |= new
        alive += sum(sizes[value] for value in new)
        peak = max(peak, alive + step.within)
        for value in step.takes | step.makes:
            takers[value].discard(number)
            if not takers[value] and value not in kept and value in made:
                alive -= sizes[value]
    return peak


def _takers(steps: Sequence[Step]) -> dict[int, set[int]]:
    """Returns for each value the steps that take it or make it: after the last of them it is free."""
    found: dict[int, set[int]] = {}
    for number, step in enumerate(steps):
        for value in step.takes | step.makes:
            found.setdefault(value, set()).add(number)
    return found


def _before(steps: Sequence[Step]) -> list[set[int]]:
    """Returns for each step those that it has to wait for: makers of what it takes, and users of what it writes to."""
    makers: dict[int, list[int]] = {}
    users: dict[int, list[int]] = {}
    found = []
    for number, step in enumerate(steps):
        own: set[int] = set()
        for value in step.takes | step.makes:
            own.update(makers.get(value, ())[-1:])  # which waits for the makers before it
        for value in step.makes:
            own.update(users.pop(value, ()))
            makers.setdefault(value, []).append(number)
        for value in step.takes - step.makes:
            users.setdefault(value, []).append(number)
        found.append(own)
    return found


class _List:
    """A list schedule: of the steps that are ready, the one next after which least is alive.

    A step that frees nothing and waits for none, such as one that makes zeros, runs when its result is needed. With
    `is_text_first`, steps that leave more alive than before go in the order of the text.
    """

    def __init__(
        self, steps: Sequence[Step], sizes: Mapping[int, int], kept: Set[int], is_text_first: bool = False
    ) -> None:
        self._steps, self._sizes, self._kept = steps, sizes, kept
        self._is_text_first = is_text_first
        self._left = _takers(steps)
        self._made: set[int] = set()
        self._waits = _before(steps)
        self._after: list[list[int]] = [[] for _ in steps]
        for number, others in enumerate(self._waits):
            for other in others:
                self._after[other].append(number)
        self._is_source = [
            bool(after) and not waits and step.takes <= kept
            for step, after, waits in zip(steps, self._after, self._waits, strict=True)
        ]
        self._ready: list[tuple[int, int]] = []
        self._order: list[int] = []
        self._is_done = [False] * len(steps)

    def order(self) -> list[int]:
        """Returns the numbers of the steps in that order."""
        missing = [sum(not self._is_source[other] for other in others) for others in self._waits]
        for number in (number for number, count in enumerate(missing) if not count and not self._is_source[number]):
            self._push(number)
        while self._ready:
            change, number = heapq.heappop(self._ready)
            if self._is_done[number]:
                continue
            if (now := self._priority(number)) != change:
                heapq.heappush(self._ready, (now, number))
                continue
            again = set[int]()
            for each in (*self._sources_of(number), number):
                again |= self._take(each)
            for other in self._after[number]:
                missing[other] -= 1
                again.add(other)
            for other in again:
                if not missing[other] and not self._is_done[other] and not self._is_source[other]:
                    self._push(other)
        assert len(self._order) == len(self._steps), "a step waits for itself"
        return self._order

    def _push(self, number: int) -> None:
        heapq.heappush(self._ready, (self._priority(number), number))

    def _take(self, number: int) -> set[int]:
        """Runs a step; returns those that free more from now on."""
        self._order.append(number)
        self._is_done[number] = True
        self._made |= self._steps[number].makes
        found: set[int] = set()
        for value in self._steps[number].takes | self._steps[number].makes:
            self._left[value].discard(number)
            if len(self._left[value]) == 1:
                found |= self._left[value]
        return found

    def _sources_of(self, number: int) -> list[int]:
        return sorted(other for other in self._waits[number] if self._is_source[other] and not self._is_done[other])

    def _priority(self, number: int) -> int:
        """Returns by how many bytes more is alive after a step."""
        step = self._steps[number]
        sources = self._sources_of(number)
        makes = step.makes.union(*(self._steps[other].makes for other in sources)) if sources else step.makes
        own = {number, *sources}
        freed = (value for value in step.takes | makes if value not in self._kept and self._left[value] <= own)
        change = sum(self._sizes[value] for value in makes - self._made) - sum(self._sizes[value] for value in freed)
        return min(change, 1) if self._is_text_first else change
