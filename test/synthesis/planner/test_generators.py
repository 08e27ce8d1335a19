# SPDX-License-Identifier: Apache-2.0
"""Generators: a context keeps the cheapest plan that fits, and drops the candidates that are not cheaper."""

import itertools
from dataclasses import replace

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.planner.generators import GENERATORS, Context, Searched, exchanged_parts
from reshard.synthesis.planner.planner import planned
from reshard.synthesis.plans.request import OBJECTIVES, Request
from reshard.synthesis.programs import interpreter
from reshard.synthesis.programs.chain import Chain
from reshard.synthesis.search.find_chain import find_chain


def requests(objective: str, **options):
    for pair in random_pairs(96, 40, (8, 12, 16, 24)):
        yield Request.of(
            pair.mesh, pair.shape, 32, pair.source, pair.target, objective=objective, with_exchange=True, **options
        )


def searched(asked: Request, every: bool = False) -> Searched:
    context = Context(asked)
    return Searched(context, find_chain(asked, context.pricing), every)


def candidates(start: Searched):
    for generate in GENERATORS[start.context.request.objective]:
        yield from generate(start)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_candidate_is_cheaper_than_the_plan(objective):
    tried = 0
    for asked in requests(objective):
        start, plan = searched(asked, every=True), planned(asked)
        for candidate in candidates(start):
            found = start.priced(candidate)
            assert start.costing.key(found) >= start.costing.key(plan), str(asked)
            tried += 1
    assert tried > 40


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_candidate_that_is_no_cheaper_than_the_best_plan_has_no_plan(objective):
    for asked in requests(objective):
        start = searched(asked)
        assert start.priced(start.found.chain) is None


def test_a_plan_above_the_memory_limit_is_never_the_best_one():
    for asked in requests("time", memory_limit=0):
        start = searched(asked)
        assert start.best is None
        start.take(start.plan)
        assert start.best is None and start.priced(Chain(start.found.chain.source, start.found.chain.steps))


@pytest.mark.parametrize(
    "mesh", ['<["d"=2, "m"=4], device_ids=[3, 1, 0, 2, 7, 6, 5, 4]>', '<["d"=3, "m"=2, "z"=1]>', '<["d"=6, "m"=4]>']
)
def test_exchanged_parts_and_their_gather_make_the_target(mesh):
    topology = Topology("no latency", (Level("chip", 0, "switch", 1e9),), 1e9)
    dims = [
        each for each in itertools.product(("", '"d"', '"m"', '"m", "d"'), repeat=2) if "".join(each).count("m") < 2
    ]
    sides = [Sharding.parse(f"[{{{a}}}, {{{b}}}]") for a, b in dims if (a + b).count("d") < 2]
    checked = 0
    for source, target in itertools.permutations(sides, 2):
        asked = Request.of(
            Mesh.parse(mesh), (24, 48), 32, source, target, objective="time", topology=topology, with_exchange=True
        )
        for found in exchanged_parts(searched(asked, every=True)):
            interpreter.check(found.tile_program, (24, 48), source, target)
            checked += 1
    assert checked > 20


def test_a_gather_right_before_an_all_to_all_saves_its_copy_where_that_is_free():
    """Where copies cost alike everywhere, the all_to_all comes first, since its tile is smaller."""
    mesh = Mesh.parse("x=4,y=2")
    ends = Sharding.parse('[{"y"}, {}, {}, {"x"}]'), Sharding.parse('[{}, {"y"}, {}, {}]')

    def steps_on(topology: Topology) -> list[str]:
        found = plan(mesh, (2, 4, 1, 4), 32, *ends, objective="time", topology=topology)
        return [each.op for each in found.steps if each.bytes_received]

    cpu = Topology.parse("cpu")
    assert steps_on(cpu) == ["all_gather", "all_to_all"]
    assert steps_on(replace(cpu, free_before_all_to_all=0.0)) == ["all_to_all", "all_gather"]
