# SPDX-License-Identifier: Apache-2.0
"""Plans as JSON."""

import json

import pytest

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import Plan, plan
from reshard.synthesis.plans.plan_json import as_dict, bound_bytes_sent, bound_tile_bytes, tile_bytes

MESH = Mesh.parse("x=4,y=2")


def planned(source: str, target: str, bits: int = 32, shape=(64, 64), **options) -> Plan:
    return plan(MESH, shape, bits, Sharding.parse(source), Sharding.parse(target), **options)


def test_shardings_and_meshes_are_texts_that_are_read_back():
    found = json.loads(json.dumps(as_dict(planned('[{"y", "x":(1)2}, {}]', '[{}, {"x"}]'))))
    assert Mesh.parse(found["mesh"]) == Mesh.parse(found["target_mesh"]) == MESH
    assert Sharding.parse(found["source"]) == Sharding.parse('[{"y", "x":(1)2}, {}]')
    assert (found["schema"], found["dtype"], found["global_shape"]) == ("reshard.plan/1", "32 bits", [64, 64])


def test_totals_are_the_sums_over_the_steps():
    found = as_dict(planned('[{"x"}, {}]', '[{}, {"y", "x"}]'))
    assert found["totals"]["bytes_received"] <= sum(step["bytes_received"] for step in found["steps"])
    assert found["totals"]["time_us"] == pytest.approx(sum(step["time_us"] for step in found["steps"]))
    assert found["totals"]["largest_tile_bytes"] == max(step["tile_bytes_before"] for step in found["steps"])
    assert found["steps"][-1]["tile_bytes_after"] == 64 * 64 * 4 // 8


def test_a_loop_has_its_steps_on_one_chunk():
    whole = planned('[{"x"}, {}]', '[{}, {"x"}]')
    found = as_dict(planned('[{"x"}, {}]', '[{}, {"x"}]', memory_limit=whole.peak_bytes - 1))
    (loop,) = [step for step in found["steps"] if step["op"] == "chunks"]
    inside = loop["chunks"]["steps"]
    assert loop["chunks"]["count"] * sum(step["bytes_received"] for step in inside) == loop["bytes_received"]
    assert "chunks" not in inside[0]


@pytest.mark.parametrize("found", [planned('[{"x"}, {}]', '[{}, {"y"}]'), planned("[{}, {}]", '[{"x"}, {}]')], ids=str)
def test_no_bound_is_above_what_the_plan_does(found):
    written = as_dict(found)
    assert all(written["bounds"][name] <= written["totals"][name] for name in written["bounds"])
    assert bound_bytes_sent(found) <= found.bytes_sent


def test_packed_bits_are_rounded_up_to_bytes():
    found = planned('[{"x"}, {}]', '[{"x", "y"}, {}]', bits=4, shape=(8, 3))
    assert tile_bytes(found) == (3, 2) and bound_tile_bytes(found) == 3  # of 6 and 3 elements
