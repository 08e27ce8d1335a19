# SPDX-License-Identifier: Apache-2.0
"""Solving pairwise problems by messages: sequential tree-reweighted message passing.

A problem is the sum of a cost of each node and of each edge:

    E(x) = sum_s c_s(x_s) + sum_st w_st(x_s, x_t).

A message m_st from node s to its neighbour t is a number for each state of t. Messages change where costs are counted,
not their sum: with c'_s = c_s + sum_t m_ts and w'_st = w_st - m_st - m_ts, E stays the same for all messages.

**B1 (bound of a pass).** Nodes are visited in an order. At node s take d_s = min c'_s off c'_s, and for each neighbour
t behind it replace m_st by

    m_st(x_t) = min over x_s of [ g_s c'_s(x_s) - m_ts(x_s) + w_st(x_s, x_t) ] - d_st,   d_st so that its least is 0,

where g_s is at most 1 / (the number of neighbours behind s). Then no state of all nodes costs less than the sum of all
d_s and d_st of the pass.

Proof. By the choice of m_st, w'_st(x_s, x_t) >= d_st - g_s c'_s(x_s). Summed over the neighbours behind s that is
>= sum_t d_st - c'_s(x_s), since c'_s >= 0 once d_s is taken off. Messages into s do not change after its visit, but for
those from nodes before it, which came before. So at the end of the pass E(x) is the sum over s of d_s + c'_s(x_s) and
of the w'_st with t behind s, which is at least the sum over s of d_s and its d_st. []

Passes go there and back. With g_s = 1 / max(neighbours before, neighbours behind) the bound never falls, and it ends
near that of the linear program over pairs of states, for which HiGHS needs orders of magnitude longer. A solution is
read off on the way: each node takes its best state, given those before it and the messages from behind. Where many
states are equally good it is far from the bound; then the few that are `near` it are a small problem of their own.

Source: Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization" (PAMI 2006).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

MOST_ENTRIES = 300_000_000  # of matrices that are looked through; more gains little
_STALLED = 1e-5  # relative gain of the bound in `_PATIENCE` passes below which there is no use in more
_PATIENCE, _LEAST = 20, 4
_FORBIDDEN = 1e3  # times all costs together: what stands for infinity


@dataclass
class Messages:
    """A problem under message passing.

    Args:
      costs: of the states of each node. edges: (one, other) -> costs of pairs of states, `one` before `other`.

    State: `bound`, which no solution is below; `best`, the best solution so far, with its cost; `entries` of matrices
    that were looked through; messages.
    """

    costs: Mapping[int, np.ndarray]
    edges: Mapping[tuple[int, int], np.ndarray]
    bound: float = -np.inf
    best: dict[int, int] = field(default_factory=dict)
    best_cost: float = np.inf
    entries: int = 0

    def __post_init__(self):
        parts = [*self.costs.values(), *self.edges.values()]
        most = sum(float(np.abs(each[np.isfinite(each)]).max(initial=0.0)) for each in parts)
        self._forbidden = _FORBIDDEN * (most or 1.0)
        finite = {pair: np.where(np.isfinite(each), each, self._forbidden) for pair, each in self.edges.items()}
        self._costs = {s: np.where(np.isfinite(each), each, self._forbidden) for s, each in self.costs.items()}
        self._order = sorted(self.costs)
        self._before: dict[int, list[int]] = {s: [] for s in self._order}
        self._behind: dict[int, list[int]] = {s: [] for s in self._order}
        self._pairs: dict[tuple[int, int], np.ndarray] = {}  # rows: the states of the first
        for (one, other), matrix in finite.items():
            self._behind[one].append(other)
            self._before[other].append(one)
            self._pairs[one, other], self._pairs[other, one] = matrix, np.ascontiguousarray(matrix.T)
        self._sent = {(s, t): np.zeros(matrix.shape[1]) for (s, t), matrix in self._pairs.items()}
        self._shares = {s: 1 / max(len(self._before[s]), len(self._behind[s]), 1) for s in self._order}

    def run(self, gap: float, most_entries: int = MOST_ENTRIES) -> None:
        """Passes messages until a solution is within `gap` of the bound, or more passes gain little."""
        entries, bounds = 2 * sum(matrix.size for matrix in self.edges.values()), [self.bound]
        while self.entries + entries <= most_entries or len(bounds) < _LEAST:
            self._improve()
            self._raise(self._order, self._behind, self._before)
            self._raise(self._order[::-1], self._before, self._behind)
            self.entries += entries
            bounds.append(self.bound)
            if self.best_cost <= self.bound + gap * abs(self.bound):
                return
            if len(bounds) > _PATIENCE and self.bound - bounds[-_PATIENCE] <= _STALLED * abs(self.bound):
                return

    def near(self, slack: float) -> dict[int, np.ndarray]:
        """Returns the states of each node that are within `slack` of its best one, all messages considered.

        Where the bound is that of the linear program, its solutions have no other states than those without slack.
        """
        found = {}
        for s in self._order:
            held = self._costs[s] + sum(self._sent[t, s] for t in (*self._before[s], *self._behind[s]))
            found[s] = np.flatnonzero(held <= held.min() + slack)
        return found

    def keep(self, states: Mapping[int, int]) -> None:
        """Keeps a solution if it is better than the best one so far."""
        cost = self._cost(states)
        if cost < self.best_cost:
            self.best, self.best_cost = dict(states), cost

    def _raise(self, order: Sequence[int], behind: Mapping[int, list[int]], before: Mapping[int, list[int]]) -> None:
        """Makes one pass, and raises the bound to what it gives."""
        bound = 0.0
        for s in order:
            held = self._costs[s].copy()
            for t in (*before[s], *behind[s]):
                held += self._sent[t, s]
            least = held.min()
            bound += least
            held -= least
            held *= self._shares[s]
            for t in behind[s]:
                message = (self._pairs[s, t] + (held - self._sent[t, s])[:, None]).min(axis=0)
                least = message.min()
                bound += least
                self._sent[s, t] = message - least
        self.bound = max(self.bound, float(bound))

    def _improve(self) -> None:
        """Reads a solution off the messages, and keeps it if it is the best."""
        found: dict[int, int] = {}
        for s in self._order:
            total = self._costs[s].copy()
            for t in self._before[s]:
                total += self._pairs[t, s][found[t]]
            for t in self._behind[s]:
                total += self._sent[t, s]
            found[s] = int(total.argmin())
        self.keep(found)

    def _cost(self, states: Mapping[int, int]) -> float:
        """Returns what states cost; infinity if they are forbidden."""
        nodes = sum(float(each[states[s]]) for s, each in self.costs.items())
        return nodes + sum(float(each[states[one], states[other]]) for (one, other), each in self.edges.items())
