# SPDX-License-Identifier: Apache-2.0
"""Chains that are found without a search: the search finds the same chains, and no other chain is cheaper."""

import pytest

from benchmarks.conversions.pairs import random_pairs, random_reductions
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.bounds import received_elements_bound
from reshard.synthesis.network.pricing import PER_SECOND, Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import steps
from reshard.synthesis.search.arranged import one_permute_chains
from reshard.synthesis.search.best_first import Search, cheapest_chain
from reshard.synthesis.search.direct import chain_at_once, have_one_prime
from reshard.synthesis.search.find_chain import find_chain
from reshard.synthesis.search.found import priced
from reshard.synthesis.search.leading_axes import leading_axes_chain

FLAT = Topology.parse("uniform")
ENOUGH = 200_000  # steps to consider


def _problem(mesh, shape, ends, **options):
    return refine(Mesh.parse(mesh), shape, *map(Sharding.parse, ends.split(" -> ")), **options)


def _refined(pair, **options):
    return refine(pair.mesh, pair.shape, pair.source, pair.target, **options)


@pytest.mark.parametrize(
    ("mesh", "shape", "ends", "ops", "cost"),
    [
        ("x=2,y=2", (8,), '[{}] -> [{"x","y"}]', ["slice"], (0, 0)),
        ("x=4", (8, 8), '[{"x"}, {}] -> [{}, {"x"}]', ["all_to_all"], (12, 1)),
        ("x=4,y=2", (8, 8), '[{"x"}, {}] -> [{}, {}]', ["all_gather"], (48, 1)),
        ("x=2,y=2", (8,), '[{"x","y"}] -> [{"y","x"}]', ["permute"], (2, 1)),
        ("x=2,y=2", (8,), '[{"x"}] -> [{"y"}]', ["permute"], (4, 1)),
        ("x=2,y=2", (8,), '[{"x"}] -> [{"y","x"}]', ["slice", "permute"], (2, 1)),
        ("x=2,y=2", (8,), '[{"x","y"}] -> [{"y"}]', ["permute", "all_gather"], (4, 2)),
        ("x=2,y=4", (16, 16), '[{"y","x"}, {}] -> [{}, {"x"}]', ["all_to_all", "all_gather"], (112, 2)),
    ],
)
def test_chains_that_are_told_at_once(mesh, shape, ends, ops, cost):
    found = chain_at_once(_problem(mesh, shape, ends), None)
    assert [steps.name(step) for step in found.chain] == ops
    assert found.cost == cost


@pytest.mark.parametrize("topology", [None, "uniform"])
def test_r4_what_is_told_at_once_is_what_the_search_finds(topology):
    told = 0
    for pair in random_pairs(5, 300, (8, 16, 64, 27)):
        problem = _refined(pair)
        pricing = topology and Pricing(FLAT, pair.mesh, 32)
        found = chain_at_once(problem, pricing)
        if found is None:
            continue
        told += 1
        searched = cheapest_chain(problem, pricing=pricing, max_edges=ENOUGH)
        assert (found.chain, found.cost) == (searched.chain, searched.cost), str(pair)
    assert told > 100


def test_r4_by_bytes_with_two_primes_too():
    told = 0
    for pair in random_pairs(6, 150, (6, 12, 24)):
        problem = _refined(pair)
        found = chain_at_once(problem, None)
        if found is not None:
            told += 1
            assert found.cost == cheapest_chain(problem, max_edges=ENOUGH).cost, str(pair)
    assert told > 40


def test_what_is_received_at_once_is_the_bound():
    for pair in random_pairs(7, 300, (8, 12, 64)):
        found = chain_at_once(_refined(pair), None)
        if found is not None:
            assert found.cost[0] == received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target), str(pair)


def test_rivals_take_no_less_than_they_are_said_to():
    looked_at = 0
    for pair in random_pairs(8, 200, (8, 16, 64), least_elements=1 << 16):
        pricing, primes = Pricing(FLAT, pair.mesh, 32), _refined(pair, into_primes=True)
        found = chain_at_once(_refined(pair), pricing)
        if found is None or not found.rivals_s:
            continue
        for typed in (leading_axes_chain(primes), *one_permute_chains(primes)):
            time = priced(primes, typed, pricing).cost[0]
            assert time == found.cost[0] or time >= found.rivals_s * PER_SECOND - 1, (str(pair), typed)
            looked_at += 1
    assert looked_at > 100


@pytest.mark.parametrize("topology", [None, "uniform"])
def test_bounds_say_the_same_of_coarse_and_of_prime_digits(topology):
    for pair in random_pairs(9, 200, (8, 16, 64, 27)):
        pricing = topology and Pricing(FLAT, pair.mesh, 32)
        coarse = _refined(pair)
        if have_one_prime(coarse.movable):
            primes = _refined(pair, into_primes=True, with_detours=True)
            assert Search(coarse, pricing).least_cost() == Search(primes, pricing).least_cost(), str(pair)


def test_times_on_digits_of_two_primes_are_left_to_the_search():
    problem = _problem("x=2,y=3", (6, 6), '[{"x"}, {"y"}] -> [{"y"}, {"x"}]')
    assert chain_at_once(problem, Pricing(FLAT, problem.mesh, 32)) is None


def test_networks_with_levels_are_left_to_the_search():
    problem = _problem("x=16", (16, 16), '[{"x"}, {}] -> [{}, {"x"}]')
    assert chain_at_once(problem, Pricing(Topology.parse("h100:2"), problem.mesh, 32)) is None


def test_partial_sums_are_left_to_the_search():
    for pair in random_reductions(10, 20, (8,)):
        assert chain_at_once(_refined(pair), None) is None


def test_who_might_slice_first_is_left_to_the_search_if_only_bytes_count():
    problem = _problem("x=2,y=2,z=2", (8,), '[{"x","y"}] -> [{"y"}]')
    assert chain_at_once(problem, None) is None
    assert chain_at_once(problem, Pricing(FLAT, problem.mesh, 32)) is not None


def test_r4_a_chain_at_the_bound_but_for_rounding_is_proved():
    mesh = Mesh.parse("x=16")
    ends = Sharding.parse('[{}, {}, {}, {"x"}]'), Sharding.parse('[{"x"}, {}, {}, {}]')
    request = Request(mesh, (64, 3, 2, 64), 32, *ends, "time", FLAT, False, "sum")
    found = find_chain(request, Pricing(FLAT, mesh, 32))
    assert found.is_optimal
    assert found.least_cost == found.cost
