# SPDX-License-Identifier: Apache-2.0
"""Nodes that take the same state: the smaller problem has the costs of the whole one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.pairwise.merging import Merging
from reshard.synthesis.pairwise.problem import Limit, PairwiseProblem
from reshard.synthesis.pairwise.solving import InfeasibleError, solve


@st.composite
def merged_problems(draw) -> tuple[PairwiseProblem, Merging]:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = [3] * draw(st.integers(2, 6)) + [2] * draw(st.integers(0, 3))
    problem, merging = PairwiseProblem(), Merging(sizes)
    for size in sizes:
        problem.add(random.integers(0, 9, size))
    for _ in range(draw(st.integers(0, 12))):
        one, other = random.choice(len(sizes), 2, replace=False)
        problem.join(one, other, random.integers(0, 9, (sizes[one], sizes[other])))
    for _ in range(draw(st.integers(0, 5))):
        one, other = random.choice(len(sizes), 2, replace=False)
        if sizes[one] == sizes[other]:
            merging.join(one, other, random.permutation(sizes[one]))
    return problem, merging


@settings(max_examples=100, deadline=None)
@given(merged_problems(), st.integers(0, 2**32 - 1))
def test_a_solution_of_the_smaller_problem_costs_what_it_costs_in_the_whole_one(drawn, seed):
    problem, merging = drawn
    small = merging.merged(problem)
    states = [int(np.random.default_rng(seed).integers(len(costs))) for costs in small.costs]
    assert small.cost(states) == pytest.approx(problem.cost(merging.expanded(states)))


@settings(max_examples=50, deadline=None)
@given(merged_problems())
def test_solving_with_merged_nodes_is_as_good_as_any_solution_in_which_they_agree(drawn):
    problem, merging = drawn
    found = solve(problem, gap=0.0, merging=merging)
    assert found.cost == pytest.approx(problem.cost(found.states))
    small = merging.merged(problem)
    best = min(small.cost(states) for states in np.ndindex(*map(len, small.costs)))
    assert found.cost <= best + 1e-9 and found.bound <= found.cost


def test_a_limit_parts_merged_nodes():
    problem = PairwiseProblem()
    for _ in range(4):
        problem.add([0.0, 1.0])
    limit = Limit({node: np.array([4.0, 1.0]) for node in range(4)}, 11.0)
    problem.limits.append(limit)
    merging = Merging([2] * 4)
    for node in range(1, 4):
        merging.join(0, node, np.arange(2))
    found = solve(problem, merging=merging)
    assert problem.excess(found.states) == 0 and found.cost == pytest.approx(2.0)  # if all agreed, 4


def test_nodes_that_cannot_agree_are_solved_one_by_one():
    problem = PairwiseProblem()
    for costs in ([0.0, np.inf], [np.inf, 0.0]):
        problem.add(costs)
    merging = Merging([2, 2])
    merging.join(0, 1, np.arange(2))
    assert solve(problem, merging=merging).states == (0, 1)
    problem.add([np.inf, np.inf])
    with pytest.raises(InfeasibleError):
        solve(problem, merging=Merging([2, 2, 2]))
