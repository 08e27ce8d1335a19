# SPDX-License-Identifier: Apache-2.0
"""The searches of a request in order: what each of them proves, and what there is where they find nothing."""

import dataclasses
import random

import pytest

from benchmarks.conversions.pairs import random_pairs, random_reductions
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
from reshard.synthesis.search.find_chain import find_chain
from reshard.synthesis.search.found import priced
from test.synthesis.network.random_networks import random_topology, switch, topology

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


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", range(3))
def test_no_chain_is_dearer_step_by_step_than_its_search_says_whatever_the_network(seed):
    rng = random.Random(seed)
    for pair in (*random_pairs(48 + seed, 20, (8, 12)), *random_reductions(48 + seed, 20, (8, 12))):
        network = random_topology(rng, pair.mesh.size)
        pricing = Pricing(network, pair.mesh, 32)
        ends = pair.source, pair.target
        request = Request.of(pair.mesh, pair.shape, 32, *ends, objective="time", topology=network)
        chain = find_chain(request, pricing)
        assert priced(chain.problem, chain.chain, pricing).cost[0] <= chain.cost[0], f"{pair} on {network}"


def test_of_gathers_in_a_row_the_one_across_the_slow_level_is_first():
    network = dataclasses.replace(topology(switch("host", 2, 1), switch("node", 4, 100)), rings=("all_gather",))
    ends = '[{"across"}, {"inside"}]', "[{}, {}]"
    chain = found("across=2,inside=4", (512, 512), *ends, objective="time", topology=network)
    assert [[factor.axis for factor in step.factors] for step in chain.chain] == [["across"], ["inside"]]


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
