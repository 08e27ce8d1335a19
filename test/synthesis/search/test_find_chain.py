# SPDX-License-Identifier: Apache-2.0
"""The searches of a request in order: what each of them proves, and what there is where they find nothing."""

import dataclasses

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import NoPlanError, refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.bounds import received_elements_bound
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs.steps import name
from reshard.synthesis.search import find_chain as searches
from reshard.synthesis.search.best_first import cheapest_chain
from reshard.synthesis.search.find_chain import find_chain, priced

FLAT = Topology.parse("uniform")


def found(mesh: str, shape, source: str, target: str, **options):
    request = Request.of(Mesh.parse(mesh), shape, 32, Sharding.parse(source), Sharding.parse(target), **options)
    return find_chain(request, Pricing(request.topology, request.mesh, 32))


def test_a_chain_that_meets_the_bound_is_unbeatable():
    chain = found("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')
    assert chain.is_unbeatable and chain.cost == chain.least_cost == (448, 1) and chain.bound == 448


def test_a_chain_of_more_collectives_than_the_bound_has_may_be_beaten():
    chain = found("x=2,y=2", (8,), '[{"x","y"}]', '[{"y"}]')
    assert chain.cost == (4, 2) and not chain.is_unbeatable


@pytest.mark.parametrize("objective", ["bytes", "time"])
@pytest.mark.parametrize("pair", random_pairs(46, 20, (8, 12)), ids=str)
def test_bounds_are_below_the_cost(pair, objective):
    request = Request.of(pair.mesh, pair.shape, 32, pair.source, pair.target, objective=objective)
    chain = find_chain(request, Pricing(FLAT, pair.mesh, 32))
    assert chain.least_cost <= chain.cost
    assert chain.bound == received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target)
    assert chain.cost[-2] >= chain.bound
    coarse = cheapest_chain(refine(pair.mesh, pair.shape, pair.source, pair.target), pricing=None)
    assert objective == "time" or chain.cost <= coarse.cost


@pytest.mark.parametrize("pair", random_pairs(47, 20, (8, 12)), ids=str)
def test_a_chain_is_priced_as_the_search_prices_it(pair):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target)
    pricing = Pricing(FLAT, pair.mesh, 32)
    for given in (None, pricing):
        chain = cheapest_chain(problem, pricing=given)
        assert priced(problem, chain.chain, given).cost == chain.cost


def test_a_budget_of_nothing_leaves_the_chain_on_leading_axes_and_proves_less(monkeypatch):
    case = "x=2,y=2,z=2", (8, 8, 8), '[{"x"}, {"y"}, {"z"}]', '[{"y"}, {"z"}, {"x"}]'
    enough = found(*case)
    monkeypatch.setattr(searches, "BUDGET", dataclasses.replace(searches.BUDGET, first=0, greedy=0, in_need=0))
    short = found(*case)
    assert short.chain.target == enough.chain.target and short.cost >= enough.cost
    assert short.least_cost <= enough.cost


def test_partial_sums_that_become_others_are_summed_up():
    chain = found("x=2,y=2", (8, 8), '[{}, {}], unreduced={"x"}', '[{"y"}, {}]')
    assert [name(step) for step in chain.chain] == ["slice", "all_reduce"]


def test_a_dimension_that_does_not_divide_has_no_chain():
    with pytest.raises(NoPlanError, match="dimension 0 of size 6 does not divide into the 4 shards"):
        found("x=4", (6,), '[{"x"}]', "[{}]")
