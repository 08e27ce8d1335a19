# SPDX-License-Identifier: Apache-2.0
"""Message passing: its bound is one, its solution is what it says, and where there are no cycles it is the best."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.pairwise.messages import Messages


def _problem(seed: int, nodes: int, edges: list[tuple[int, int]], states: int = 3, forbidden: float = 0.0):
    rng = np.random.default_rng(seed)
    costs = {node: rng.integers(0, 20, rng.integers(1, states + 1)).astype(float) for node in range(nodes)}
    between = {
        (one, other): rng.integers(0, 20, (len(costs[one]), len(costs[other]))).astype(float) for one, other in edges
    }
    for matrix in between.values():
        matrix[rng.random(matrix.shape) < forbidden] = np.inf
    return costs, between


def _cost(costs, edges, states) -> float:
    nodes = sum(each[states[node]] for node, each in costs.items())
    return float(nodes + sum(each[states[one], states[other]] for (one, other), each in edges.items()))


def _least(costs, edges) -> float:
    every = itertools.product(*(range(len(costs[node])) for node in sorted(costs)))
    return min(_cost(costs, edges, states) for states in every)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([0.0, 0.1, 0.3]), st.data())
def test_the_bound_is_below_the_least_cost_and_the_solution_not(seed, nodes, forbidden, data):
    pairs = list(itertools.combinations(range(nodes), 2))
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True, max_size=len(pairs)))
    costs, between = _problem(seed, nodes, edges, forbidden=forbidden)
    messages = Messages(costs, between)
    messages.run(gap=0.0, most_entries=100_000)
    least = _least(costs, between)
    if np.isfinite(least):
        assert messages.bound <= least + 1e-9
    if np.isfinite(messages.best_cost):
        assert messages.best_cost == pytest.approx(_cost(costs, between, messages.best))
        assert messages.best_cost >= least - 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_without_cycles_the_solution_is_the_best_one(seed):
    rng = np.random.default_rng(1000 + seed)
    costs, between = _problem(seed, 7, [(int(rng.integers(0, node)), node) for node in range(1, 7)])
    messages = Messages(costs, between)
    messages.run(gap=1e-12, most_entries=100_000)
    assert messages.best_cost == pytest.approx(_least(costs, between))
    assert messages.bound == pytest.approx(messages.best_cost)


@pytest.mark.slow
def test_the_bound_never_falls_and_more_passes_bring_it_up():
    side = 12
    at = {(row, column): row * side + column for row in range(side) for column in range(side)}
    edges = [(at[r, c], at[r + dr, c + dc]) for r, c in at for dr, dc in ((0, 1), (1, 0)) if (r + dr, c + dc) in at]
    costs, between = _problem(5, side * side, edges, states=6)
    bounds = []
    for most in (1, 10**5, 10**6, 10**7):
        messages = Messages(costs, between)
        messages.run(gap=0.0, most_entries=most)
        bounds.append(messages.bound)
    assert bounds == sorted(bounds) and bounds[0] < bounds[-1]
    assert messages.best_cost <= 1.05 * messages.bound


def test_it_stops_once_the_gap_is_small():
    costs, between = _problem(3, 40, [(node, node + 1) for node in range(39)])
    near, far = Messages(costs, between), Messages(costs, between)
    near.run(gap=0.5)
    far.run(gap=-1.0, most_entries=10**6)  # is never small enough
    assert near.entries < far.entries and near.best_cost <= 1.5 * near.bound


def test_states_near_the_bound_hold_the_best_solution():
    costs, between = _problem(7, 6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
    messages = Messages(costs, between)
    messages.run(gap=1e-12, most_entries=10**5)
    near = messages.near(1e-9)
    assert all(messages.best[node] in states for node, states in near.items())
    assert {node: list(states) for node, states in messages.near(1e9).items()} == {
        node: list(range(len(each))) for node, each in costs.items()
    }


def test_a_worse_solution_is_not_kept():
    costs, between = _problem(7, 3, [(0, 1), (1, 2)])
    messages = Messages(costs, between)
    messages.run(gap=1e-12, most_entries=10**5)
    best = dict(messages.best)
    messages.keep({node: len(each) - 1 for node, each in costs.items()})
    assert messages.best == best
