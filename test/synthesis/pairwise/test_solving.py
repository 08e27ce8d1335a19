# SPDX-License-Identifier: Apache-2.0
"""Pairwise problems: reductions and the linear program find what trying all solutions finds."""

import itertools
import math

import numpy as np
import pytest

from reshard.synthesis.pairwise import solving
from reshard.synthesis.pairwise.problem import Limit, PairwiseProblem, Reduction
from reshard.synthesis.pairwise.solving import InfeasibleError, solve


def random_problem(seed: int, most_nodes: int = 6) -> PairwiseProblem:
    rng = np.random.default_rng(seed)
    problem = PairwiseProblem()
    for _ in range(rng.integers(2, most_nodes + 1)):
        problem.add(rng.integers(0, 10, rng.integers(1, 5)).astype(float))
    for one, other in itertools.combinations(range(len(problem.costs)), 2):
        if rng.random() < 0.6:
            costs = rng.integers(0, 10, (len(problem.costs[one]), len(problem.costs[other]))).astype(float)
            costs[rng.random(costs.shape) < 0.1] = math.inf
            problem.join(one, other, costs)
    return problem


def every_solution(problem: PairwiseProblem):
    return itertools.product(*(range(len(costs)) for costs in problem.costs))


def least(problem: PairwiseProblem) -> float:
    return min((problem.cost(s) for s in every_solution(problem) if not problem.excess(s)), default=math.inf)


@pytest.mark.parametrize("few", [0, solving._FEW])
def test_the_solution_is_the_one_that_trying_all_finds(few, monkeypatch):
    monkeypatch.setattr(solving, "_FEW", few)  # 0: always the linear program
    for seed in range(150):
        problem = random_problem(seed)
        best = least(problem)
        if math.isinf(best):
            with pytest.raises(InfeasibleError):
                solve(problem, gap=0)
            continue
        found = solve(problem, gap=0)
        assert found.cost == pytest.approx(best) == problem.cost(found.states)
        assert found.bound <= best + 1e-6 and found.gap == pytest.approx(0, abs=1e-6)


def test_a_limit_binds_and_an_impossible_one_is_refused():
    tight = 0
    for seed in range(120):
        problem = random_problem(seed, most_nodes=5)
        rng = np.random.default_rng(seed + 1000)
        weights = {node: rng.integers(0, 6, len(costs)).astype(float) for node, costs in enumerate(problem.costs)}
        unlimited = least(problem)
        problem.limits.append(Limit(weights, float(rng.integers(0, 3 * len(weights)))))
        best = least(problem)
        tight += unlimited < best < math.inf
        if math.isinf(best):
            with pytest.raises(InfeasibleError):
                solve(problem, gap=0)
        else:
            found = solve(problem, gap=0)
            assert found.cost == pytest.approx(best) and problem.excess(found.states) == 0
    assert tight > 10  # the limit changed the solution


@pytest.mark.mostly_slow
@pytest.mark.parametrize("few", [0, solving._FEW])
def test_a_limit_on_pairs_binds_too(few, monkeypatch):
    monkeypatch.setattr(solving, "_FEW", few)
    tight = refused = 0
    for seed in range(120):
        problem = random_problem(seed, most_nodes=5)
        rng = np.random.default_rng(seed + 2000)
        for _ in range(2):
            weights = {node: rng.integers(0, 4, len(costs)).astype(float) for node, costs in enumerate(problem.costs)}
            pairs = {pair: rng.integers(0, 6, matrix.shape).astype(float) for pair, matrix in problem.edges.items()}
            kept = {pair: matrix for pair, matrix in pairs.items() if rng.random() < 0.7}
            problem.limits.append(Limit(weights, float(rng.integers(0, 5 * len(weights))), kept))
        best, unlimited = least(problem), least(PairwiseProblem(problem.costs, problem.edges))
        tight += unlimited < best < math.inf
        if math.isinf(best):
            refused += 1
            with pytest.raises(InfeasibleError):
                solve(problem, gap=0)
        else:
            found = solve(problem, gap=0)
            assert found.cost == pytest.approx(best) and problem.excess(found.states) == 0
            assert found.bound <= best + 1e-6
    assert tight > 10 and refused > 10


def test_a_refusal_has_the_solution_that_is_closest():
    problem = PairwiseProblem()
    one, other = problem.add([1.0, 2.0]), problem.add([1.0, 2.0])
    problem.join(one, other, np.zeros((2, 2)))
    problem.limits.append(Limit({one: np.array([8.0, 2.0])}, 2.0, {(one, other): np.array([[0.0, 9.0], [9.0, 1.0]])}))
    with pytest.raises(InfeasibleError) as refused:
        solve(problem)
    assert refused.value.closest == (1, 1)


def test_trees_and_dominated_states_are_reduced_away():
    chain = PairwiseProblem()
    nodes = [chain.add([0.0, 1.0, 5.0]) for _ in range(50)]
    for one, other in itertools.pairwise(nodes):
        chain.join(one, other, np.array([[0.0, 2.0, 2.0], [2.0, 0.0, 2.0], [2.0, 2.0, 2.0]]))
    reduction = Reduction(chain)
    reduction.run()
    assert reduction.core == [] and reduction.constant == 0
    assert solve(chain).states == (0,) * 50


def test_parallel_edges_add_up_and_an_edge_to_itself_is_a_cost():
    problem = PairwiseProblem()
    one, other = problem.add([0.0, 0.0]), problem.add([0.0, 0.0])
    problem.join(one, other, np.array([[0.0, 1.0], [1.0, 3.0]]))
    problem.join(other, one, np.array([[0.0, 5.0], [0.0, 0.0]]))
    problem.join(one, one, np.array([[7.0, 9.0], [9.0, 0.0]]))
    assert problem.cost((1, 0)) == 1 + 5 and problem.cost((0, 1)) == 7 + 1
    assert solve(problem).cost == least(problem)


def test_the_same_problem_has_the_same_solution():
    assert len({solve(random_problem(3)).states for _ in range(5)}) == 1


def test_a_limit_binds_where_the_best_solution_without_it_costs_nothing():
    problem = PairwiseProblem()
    problem.add([0.0, 1.0])
    problem.add([0.0, 1.0])
    problem.limits.append(Limit({node: np.array([8.0, 1.0]) for node in (0, 1)}, 10.0))
    assert solve(problem).cost == 1.0


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4], ids=["half", "all"])
def test_two_prices_are_enough_for_a_solution_that_keeps_the_limit(count, monkeypatch):
    """Of a program so large that few can be solved, what costs least and what weighs least are mixed."""
    monkeypatch.setattr(solving, "_FEW", 0)
    monkeypatch.setattr(solving, "_MOST_PRICED", 600)  # 264 variables have the first ones
    monkeypatch.setattr(solving, "_MOST_AT_ONCE", 0)
    rng, found = np.random.default_rng(5), 0
    for _ in range(count):
        problem = PairwiseProblem()
        for _ in range(6):
            problem.add(rng.integers(0, 9, 4).astype(float))
        for one, other in itertools.combinations(range(6), 2):
            problem.join(one, other, rng.integers(0, 9, (4, 4)).astype(float))
        weights = {node: rng.integers(1, 9, 4).astype(float) for node in range(6)}
        problem.limits.append(Limit(weights, 1.2 * sum(float(each.min()) for each in weights.values())))
        with monkeypatch.context() as patches:
            patches.setattr(solving, "_MOST_PRICED", 100_000)
            patches.setattr(solving, "_MOST_AT_ONCE", 100_000)
            best = solve(problem, gap=0.0)
        solution = solve(problem)
        assert problem.excess(solution.states) == 0 and solution.bound <= best.cost <= solution.cost
        found += solution.cost <= 1.3 * best.cost
    assert found >= 0.75 * count
