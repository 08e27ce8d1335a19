# SPDX-License-Identifier: Apache-2.0
"""Objectives: their keys order the plans, and the bound on a chain is at most the key of its plan."""

import itertools

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.plans.costing import Costing
from reshard.synthesis.plans.objective import ByBytes, ByTime, objective
from reshard.synthesis.plans.request import OBJECTIVES, Request
from reshard.synthesis.search.arranged import one_permute_chains
from reshard.synthesis.search.leading_axes import leading_axes_chain


def chains(topology: str, name: str):
    network = Topology.parse(topology)
    for pair in random_pairs(95, 30, (8, 12, 16) if topology == "uniform" else (16,)):
        asked = Request.of(pair.mesh, pair.shape, 32, pair.source, pair.target, objective=name, topology=network)
        costing = Costing(asked, Pricing(network, pair.mesh, 32))
        problem = refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=True)
        for chain in (leading_axes_chain(problem), *one_permute_chains(problem)):
            yield costing, chain


def whole(numbers: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the numbers without what sums of times are off by, which differs between versions of Python."""
    return tuple(round(number, 15) for number in numbers)


@pytest.mark.parametrize("name, topology", list(itertools.product(OBJECTIVES, ("uniform", "h100:2"))))
def test_no_bound_on_a_chain_is_above_the_key_of_its_plan(name, topology):
    for costing, chain in chains(topology, name):
        key = whole(costing.key(costing.of_chain(chain)))
        bounds = [whole(bound) for bound in objective(name).bounds(costing, chain)]
        assert all(bound <= key for bound in bounds), (bounds, key)
        assert bounds == sorted(bounds)


def test_by_bytes_collectives_break_ties_and_by_time_bytes_do():
    for costing, chain in chains("uniform", "bytes"):
        plan = costing.of_chain(chain)
        assert ByBytes().key(plan) == (plan.bytes_received, plan.collectives)
        assert ByTime().key(plan)[1:] == ByBytes().key(plan)
        assert ByTime().key(plan)[0] == pytest.approx(plan.time_s, abs=1e-10)


def test_only_bytes_are_proved_by_the_bound():
    assert ByBytes().proves(8, 8) and not ByBytes().proves(9, 8) and not ByTime().proves(8, 8)


def test_objectives_have_the_names_that_requests_have():
    assert [objective(name).name for name in OBJECTIVES] == list(OBJECTIVES)
