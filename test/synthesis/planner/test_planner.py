# SPDX-License-Identifier: Apache-2.0
"""The planner: the cheapest of its candidates, with and without limits."""

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.layout import blocked, whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import NoPlanError, refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.planner import (
    _Planner,
    chain_plan,
    exchange_alone,
    exchange_between,
    pareto,
    planned,
    with_rounds,
)
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs.chain import Chain
from reshard.synthesis.programs.steps import AllGather, RuleError, Slice

MESH, SHAPE = Mesh.parse("x=4,y=2"), (16, 16)
ROWS, COLUMNS = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]')


def request(source: Sharding = ROWS, target: Sharding = COLUMNS, shape=SHAPE, **options) -> Request:
    return Request.of(MESH, shape, 32, source, target, **options)


@pytest.mark.parametrize("objective", ["bytes", "time"])
@pytest.mark.parametrize("pair", random_pairs(51, 15, (8, 16)), ids=str)
def test_no_candidate_is_cheaper_than_the_plan(pair, objective):
    options = {"objective": objective, "topology": Topology.parse("h100"), "with_exchange": True}
    asked = Request.of(pair.mesh, pair.shape, 32, pair.source, pair.target, **options)
    found, key = planned(asked), _Planner(asked).context.costing.key
    assert all(key(each) >= key(found) for each in _Planner(asked).candidates(every=True))
    semantics.check(found.tile_program, pair.shape, pair.source, pair.target)


def test_a_tile_limit_never_makes_a_plan_dearer():
    asked = request(objective="time", topology=Topology.parse("cpu"), with_exchange=True)
    for limit in (0, 512, 1 << 20):
        limited = request(objective="time", topology=Topology.parse("cpu"), with_exchange=True, tile_limit=limit)
        assert planned(limited).time_s <= planned(asked).time_s
        assert planned(limited).request == limited


def test_the_fastest_of_a_pareto_list_is_first_and_each_next_has_a_smaller_peak():
    plans = pareto(request(objective="time", shape=(64, 64)))
    assert len(plans) > 1
    assert all(a.time_s <= b.time_s and a.peak_bytes > b.peak_bytes for a, b in zip(plans, plans[1:]))


def test_an_array_without_elements_has_one_plan():
    empty = request(shape=(0, 16))
    assert pareto(empty) == (planned(empty),) and planned(empty).bytes_received == 0


def test_a_chain_that_breaks_a_rule_has_no_plan():
    problem = refine(MESH, SHAPE, ROWS, COLUMNS)
    (factor,) = [factor for factor, _ in problem.source.owners]
    gathered = Chain(problem.source).then(AllGather((factor,)), Slice(tuple(problem.target.owners)))
    with pytest.raises(RuleError, match=r"R2: tiles \[64, 256, 64\]"):
        chain_plan(request(), gathered)
    assert chain_plan(request(tile_limit=1024), gathered).collectives == 1


def test_exchanges_do_the_whole_or_the_middle_of_a_chain():
    asked = request(with_exchange=True)
    chain = Chain(refine(MESH, SHAPE, ROWS, COLUMNS).source)
    alone = list(exchange_alone(asked))
    assert alone and all(any(step.op == "exchange" for step in each.steps) for each in alone)
    for each in (*alone, *with_rounds(asked, chain)):
        semantics.check(each.tile_program, SHAPE, ROWS, COLUMNS)


def test_an_exchange_between_two_layouts_moves_what_the_devices_lack():
    before, after = (blocked(SHAPE, whole_factors(MESH, side), ()) for side in (ROWS, COLUMNS))
    assert exchange_between(request(with_exchange=True), before, after).received_elements == 48


def test_the_reason_for_no_plan_comes_from_the_search():
    with pytest.raises(NoPlanError, match="dimension 0 of size 6 does not divide into the 4 shards"):
        planned(request(shape=(6, 16)))
