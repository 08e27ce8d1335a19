# SPDX-License-Identifier: Apache-2.0
"""Plans with a tile limit are right, keep the limit, and are not slower than the plan without a limit.

They are also not slower than a chain that gathers everything and then slices.
"""

import math

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import NoPlanError, plan
from reshard.synthesis.planner.planner import chain_plan
from reshard.synthesis.plans.plan_json import bound_tile_bytes
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.search.gathered_chains import gathered_chains

SHUFFLED = '<["x"=4, "y"=3, "z"=2], device_ids=[13,14,9,15,6,0,8,12,19,10,20,1,5,23,7,17,18,3,22,16,21,2,11,4]>'


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")


def planned(mesh: str, shape, source: str, target: str, topology: str, tile_limit: int | None):
    ends = Sharding.parse(source), Sharding.parse(target)
    options = {"objective": "time", "topology": Topology.parse(topology), "with_exchange": True}
    return plan(Mesh.parse(mesh), shape, 32, *ends, tile_limit=tile_limit, **options)


@pytest.mark.draws
@pytest.mark.parametrize("topology", ["uniform", "v5e"])
@pytest.mark.parametrize("pair", random_pairs(81, 40, (4, 6, 8, 12, 16, 24)), ids=str)
def test_random_pair(pair, topology):
    size = math.prod(pair.shape)
    network = Topology.parse(topology)
    options = {"objective": "time", "topology": network, "with_exchange": True}
    within_r2 = plan(pair.mesh, pair.shape, 32, pair.source, pair.target, **options)
    for limit in (2 * bound_tile_bytes(within_r2), 4 * size):
        found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target, tile_limit=limit, **options)
        assert found.largest_tile_bytes <= max(limit, bound_tile_bytes(found))
        assert found.time_s <= within_r2.time_s * (1 + 1e-9)
        semantics.check(found.tile_program, pair.shape, pair.source, pair.target)
    request = Request(
        pair.mesh, pair.shape, 32, pair.source, pair.target, "time", network, True, "sum", tile_limit=4 * size
    )
    problem = refine(pair.mesh, pair.shape, pair.source, pair.target, into_primes=True, tile_limit=size)
    for chain in gathered_chains(problem):
        assert found.time_s <= chain_plan(request, chain).time_s * (1 + 1e-9)


def test_a_limit_that_source_and_target_are_above_changes_nothing():
    case = "x=4,y=4", (16, 16, 4), '[{"x"}, {"y"}, {}]', '[{"y"}, {}, {"x"}]', "h100:2x8"
    assert planned(*case, 0).chain_text == planned(*case, None).chain_text


def test_one_collective_where_r2_needs_two():
    case = "x=4,y=4", (1, 16, 4, 2), '[{}, {"x":(2)2, "y"}, {}, {}]', '[{}, {}, {"x"}, {}]', "cpu"
    small, large = planned(*case, None), planned(*case, 512)
    assert (small.collectives, large.collectives) == (2, 1)
    assert large.largest_tile_bytes == 2 * small.largest_tile_bytes and large.time_s < small.time_s


@pytest.mark.slow
def test_groups_of_the_nearest_replicas_gather_all():
    found = planned(SHUFFLED, (512, 8192), '[{"x", "z"}, {}]', '[{}, {"z"}]', "h100", 1 << 24)
    assert found.chain_text == "all_gather x: dim 0, z: dim 0, nearest replicas; slice z: dim 1"
    semantics.check(found.tile_program, found.shape, found.source, found.target)


def test_a_limit_is_no_number_below_zero():
    with pytest.raises(NoPlanError, match="tile limit -1 is negative; it is in bytes per device"):
        planned("x=4", (8,), '[{"x"}]', "[{}]", "uniform", -1)
