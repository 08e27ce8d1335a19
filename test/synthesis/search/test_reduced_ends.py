# SPDX-License-Identifier: Apache-2.0
"""Simpler problems in place of those with partial sums; their chains are completed at both ends."""

import pytest

from benchmarks.conversions.pairs import random_reductions
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import Problem, refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.programs.steps import name
from reshard.synthesis.search.best_first import cheapest_chain
from reshard.synthesis.search.reduced_ends import completed, frozen, has_sums, reduced_first

FLAT = Topology.parse("uniform")


def problem(source: str, target: str) -> Problem:
    return refine(Mesh.parse("x=2,y=2,z=2"), (8, 8), Sharding.parse(source), Sharding.parse(target))


def axes(factors) -> list[str]:
    return [factor.axis for factor in factors]


@pytest.mark.parametrize(
    ("source", "target", "sums"),
    [("[{}, {}]", '[{"x"}, {}]', False), ('[{}, {}], unreduced={"x"}', "[{}, {}]", True)]
    + [('[{"x"}, {}]', '[{}, {}], unreduced={"x"}', True)],
)
def test_sums_at_either_end_count(source, target, sums):
    assert has_sums(problem(source, target)) == sums


def test_common_sums_stay_and_the_target_has_no_others():
    asked = problem('[{}, {}], unreduced={"x", "y"}', '[{}, {}], unreduced={"y", "z"}')
    simpler = frozen(asked)
    assert axes(simpler.source.unreduced) == ["x", "y"] and axes(simpler.target.unreduced) == ["y"]
    assert axes(simpler.movable) == ["x", "z"] and len(simpler.slots) == 2
    first = reduced_first(asked)
    assert axes(first.source.unreduced) == axes(first.target.unreduced) == ["y"]


def test_a_chain_is_completed_with_a_sum_before_it_and_new_sums_behind_it():
    asked = problem('[{"y"}, {}], unreduced={"x"}', '[{}, {"y"}], unreduced={"z"}')
    simpler = reduced_first(asked)
    whole = completed(asked, cheapest_chain(simpler), None)
    assert [name(step) for step in whole.chain] == ["all_reduce", "all_to_all", "to_unreduced"]
    assert (whole.chain.source, whole.chain.target) == (asked.source, asked.target)
    assert whole.cost == (32 + 16, 2)  # a tile of 32 elements is summed up in two halves


@pytest.mark.parametrize("pair", random_reductions(45, 30, (4, 8)), ids=str)
@pytest.mark.parametrize("is_priced", [False, True])
def test_a_completed_chain_costs_at_least_the_cheapest(pair, is_priced):
    asked = refine(pair.mesh, pair.shape, pair.source, pair.target)
    pricing = Pricing(FLAT, pair.mesh, 32) if is_priced else None
    least = cheapest_chain(asked, pricing=pricing).cost
    for simpler in (frozen(asked), reduced_first(asked)):
        whole = completed(asked, cheapest_chain(simpler, pricing=pricing), pricing)
        assert whole.chain.target == asked.target and whole.cost >= least
        assert whole.cost[-2] == whole.chain.received_elements and whole.cost[-1] == whole.chain.collectives
