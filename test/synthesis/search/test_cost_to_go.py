# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on the cost of a chain; that they never exceed the cost is tested with the search."""

import random

import pytest

from benchmarks.conversions.pairs import random_pairs, random_reductions
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.search.cost_to_go import CostToGo
from reshard.synthesis.search.digits import REPLICATED, UNREDUCED, Digits


@pytest.mark.parametrize("pair", random_pairs(14, 30, (8, 12, 16)), ids=str)
@pytest.mark.parametrize("is_priced", [False, True])
def test_bounds_that_are_remembered_by_kinds_of_places_are_those_of_the_layout(pair, is_priced):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target, with_detours=True)
    digits = Digits(problem)
    to_go = CostToGo(digits, Pricing(Topology.parse("uniform"), pair.mesh, 32) if is_priced else None)
    rng = random.Random(str(pair))
    for _ in range(200):
        state = tuple(rng.choice([REPLICATED, *slots]) for slots in digits.candidates)
        assert to_go(state) == to_go._of_layout(state)


@pytest.mark.parametrize("pair", random_reductions(14, 40, (8, 12, 16)), ids=str)
def test_bounds_of_partial_sums_that_are_remembered_by_kinds_are_those_of_the_state(pair):
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target, with_detours=True)
    digits = Digits(problem)
    to_go = CostToGo(digits, Pricing(Topology.parse("uniform"), pair.mesh, 32))
    rng = random.Random(str(pair))
    for _ in range(200 if digits.has_sums else 0):
        state = tuple(rng.choice([REPLICATED, UNREDUCED, *slots]) for slots in digits.candidates)
        assert to_go(state) == to_go._with_sums(state)
