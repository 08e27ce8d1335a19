# SPDX-License-Identifier: Apache-2.0
"""Elimination finds what trying all solutions finds, and knows beforehand how large its tables get."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.pairwise.elimination import eliminated, order_of


@st.composite
def problems(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    pairs = [pair for pair in itertools.combinations(range(len(sizes)), 2) if draw(st.booleans())]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    costs = {node: rng.integers(0, 9, size).astype(float) for node, size in enumerate(sizes)}
    return costs, {(a, b): rng.integers(0, 9, (sizes[a], sizes[b])).astype(float) for a, b in pairs}


def cost(costs, edges, states) -> float:
    return sum(each[states[node]] for node, each in costs.items()) + sum(
        matrix[states[a], states[b]] for (a, b), matrix in edges.items()
    )


def around(costs, edges) -> dict[int, set[int]]:
    return {node: {b if a == node else a for a, b in edges if node in (a, b)} for node in costs}


@given(problems())
def test_no_solution_costs_less(problem):
    costs, edges = problem
    order = order_of({node: len(each) for node, each in costs.items()}, around(costs, edges))
    states = eliminated(costs, edges, order)
    least = min(cost(costs, edges, each) for each in itertools.product(*(range(len(c)) for c in costs.values())))
    assert cost(costs, edges, states) == least and list(order.nodes) != []


def test_impossible_pairs_are_avoided_where_any_are_left():
    edges = {(0, 1): np.array([[math.inf, 3.0], [1.0, math.inf]]), (1, 2): np.array([[math.inf, 9.0], [0.0, math.inf]])}
    costs = {node: np.zeros(2) for node in range(3)}
    states = eliminated(costs, edges, order_of({0: 2, 1: 2, 2: 2}, around(costs, edges)))
    assert states == {0: 0, 1: 1, 2: 0}


@pytest.mark.parametrize(("nodes", "is_possible"), [(5, True), (40, False)])
def test_tables_of_nodes_that_are_all_neighbours_grow_too_large(nodes, is_possible):
    everyone = {node: set(range(nodes)) - {node} for node in range(nodes)}
    order = order_of(dict.fromkeys(everyone, 2), everyone, most_entries=1e6)
    assert (order is not None) == is_possible
