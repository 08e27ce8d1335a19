# SPDX-License-Identifier: Apache-2.0
"""A candidate becomes a plan exactly if it is cheaper than the plan at hand."""

import itertools

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.plans.costing import Costing
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs.steps import Permute, collectives
from reshard.synthesis.search.arranged import one_permute_chains
from reshard.synthesis.search.leading_axes import leading_axes_chain
from reshard.synthesis.search.waves import chain_of_waves

PAIRS = random_pairs(61, 40, (6, 8, 12, 16))
WAYS = [("bytes", "uniform", 32), ("bytes", "uniform", 4), ("time", "uniform", 32), ("time", "h100:2", 32)]


def of_pair(pair, objective: str, topology: str, bits: int):
    """Returns the costing of a pair, its refined problem, and chains that solve it."""
    on = Topology.parse(topology)
    request = Request(pair.mesh, pair.shape, bits, pair.source, pair.target, objective, on, False, "sum")
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=True)
    chains = [leading_axes_chain(problem), *one_permute_chains(problem), *filter(None, [chain_of_waves(problem)])]
    return Costing(request, Pricing(on, pair.mesh, bits)), problem, chains


@pytest.mark.parametrize("objective, topology, bits", WAYS)
def test_a_chain_has_a_plan_exactly_where_it_is_cheaper(objective, topology, bits):
    cheaper = 0
    for pair in PAIRS if topology == "uniform" else random_pairs(62, 15, (16,)):
        costing, problem, chains = of_pair(pair, objective, topology, bits)
        plans = [costing.of_chain(each) for each in chains]
        for than, (chain, plan) in itertools.product(plans, zip(chains, plans)):
            found = costing.of_cheaper_chain(chain, than)
            assert found == (plan if costing.key(plan) < costing.key(than) else None), pair
            cheaper += found is not None
    assert cheaper > 10


@pytest.mark.parametrize("objective, topology, bits", WAYS)
def test_no_permute_is_given_up_behind_which_a_chain_is_cheaper(objective, topology, bits):
    given_up = 0
    for pair in PAIRS if topology == "uniform" else random_pairs(62, 40, (16,)):
        costing, problem, chains = of_pair(pair, objective, topology, bits)
        plans = [costing.of_chain(each) for each in chains]
        for than, (chain, plan) in itertools.product(plans, zip(chains[1:], plans[1:])):
            at = next((at for at, step in enumerate(chain) if isinstance(step, Permute)), None)
            if at is None or collectives(chain[0]) + 1 < at:
                continue
            if not costing.may_permute(than, chain[:at]):
                assert costing.key(plan) >= costing.key(than), pair
                given_up += 1
    assert given_up > 10
