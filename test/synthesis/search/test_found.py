# SPDX-License-Identifier: Apache-2.0
"""Answers of searches: layouts and kinds of steps become typed steps, and a proof is a bound on the cost."""

import pytest

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs.steps import AllGather, AllToAll, Slice, name
from reshard.synthesis.search.found import Found, chain_through, with_fewest_copies

PROBLEM = refine(
    Mesh.parse("x=2,y=2,z=2"), (16, 4), Sharding.parse('[{}, {"x"}]'), Sharding.parse('[{"x","y","z"}, {}]')
)


def moves(*axes: str):
    return tuple((factor, slot) for factor, slot in PROBLEM.target.owners if factor.axis in axes)


def test_slices_in_a_row_are_one_step():
    once = PROBLEM.source.with_moved(dict(moves("y")))
    both = once.with_moved(dict(moves("z")))
    found = chain_through([PROBLEM.source, once, both, PROBLEM.target], ["slice", "slice", "all_to_all"])
    assert found.steps == (Slice(moves("y", "z")), AllToAll(moves("x")))
    assert found.target == PROBLEM.target


def test_of_gathers_in_a_row_the_one_along_dimension_0_is_last():
    problem = refine(Mesh.parse("x=2,y=2"), (4, 4), Sharding.parse('[{"x"}, {"y"}]'), Sharding.parse("[{}, {}]"))
    (x, _), (y, _) = problem.source.owners
    between = problem.source.with_moved({x: None})
    through = chain_through([problem.source, between, problem.target], ["all_gather", "all_gather"])
    found = with_fewest_copies(through, None)
    assert found.steps == (AllGather((y,)), AllGather((x,))) and [name(step) for step in found] == ["all_gather"] * 2


@pytest.mark.parametrize(
    "cost, least_cost, is_optimal, gap",
    [
        ((8, 1), (8, 1), True, 1.0),
        ((8, 2), (8, 1), False, 1.0),
        ((12, 2), (8, 1), False, 1.5),
        ((12, 2), (0, 0), False, None),
        ((12, 2), (), False, None),
    ],
)
def test_the_proved_gap_is_the_cost_over_the_least_cost(cost, least_cost, is_optimal, gap):
    found = Found(PROBLEM, chain_through([PROBLEM.source], []), cost, least_cost)
    assert (found.is_optimal, found.proved_gap) == (is_optimal, gap)
