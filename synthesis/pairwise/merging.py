# SPDX-License-Identifier: Apache-2.0
"""Pairwise problems in which some nodes must take the same state: they are one node, at the sum of their costs.

>>> problem = PairwiseProblem()
>>> nodes = [problem.add(costs) for costs in ([0.0, 1.0], [3.0, 0.0], [0.0, 0.5])]
>>> problem.join(1, 2, np.array([[0.0, 2.0], [2.0, 0.0]]))
>>> merging = Merging([2, 2, 2])
>>> merging.join(0, 1, np.array([1, 0]))  # if node 0 is in state 0, node 1 is in state 1
>>> [costs.tolist() for costs in merging.merged(problem).costs], merging.expanded((0, 1))
([[0.0, 4.0], [0.0, 0.5]], (0, 1, 1))
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .problem import PairwiseProblem


class Merging:
    """Nodes that are one node of a smaller problem; `sizes` has for each node the number of its states.

    State: `_of`, for each node the one that stands for it; `_states`, for each node its state for each state of that;
      `_members`, for each node that stands for some those for which it does.
    """

    def __init__(self, sizes: Sequence[int]):
        self._of = list(range(len(sizes)))
        self._states = [np.arange(size) for size in sizes]
        self._members = {node: [node] for node in self._of}

    def join(self, one: int, other: int, states: np.ndarray) -> None:
        """Makes two nodes one, unless they are; `states` has the state of `other` for each state of `one`."""
        first, second = self._of[one], self._of[other]
        if first == second:
            return
        back = np.argsort(self._states[other])  # a state of `other` -> that of what stands for it
        turned = back[states[self._states[one]]]
        for member in self._members.pop(second):
            self._of[member] = first
            self._states[member] = self._states[member][turned]
            self._members[first].append(member)

    def merged(self, problem: PairwiseProblem) -> PairwiseProblem:
        """Returns the smaller problem of one without limits."""
        found, states, number = PairwiseProblem(), self._states, self._numbers()
        for members in self._members.values():
            found.add(np.sum([problem.costs[each][states[each]] for each in members], axis=0))
        for (one, other), costs in problem.edges.items():
            found.join(number[one], number[other], costs[np.ix_(states[one], states[other])])
        return found

    def expanded(self, states: Sequence[int]) -> tuple[int, ...]:
        """Returns a solution of the smaller problem as one of the whole problem."""
        return tuple(int(own[states[number]]) for number, own in zip(self._numbers(), self._states, strict=True))

    def _numbers(self) -> list[int]:
        """Returns for each node its number in the smaller problem."""
        numbers = {node: number for number, node in enumerate(self._members)}
        return [numbers[node] for node in self._of]
