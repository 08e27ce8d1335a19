# SPDX-License-Identifier: Apache-2.0
"""Requests: one value holds a planning problem, checked and in normal form; a plan holds the request it answers."""

import pytest

from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.refinement import NoPlanError
from reshard.synthesis.layouts.sharding import Sharding, ShardingError
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan, planned
from reshard.synthesis.plans.request import Request

MESH = Mesh.parse("x=4,y=2")
ENDS = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"y"}]')


def request(**options) -> Request:
    return Request.of(MESH, (8, 8), 32, *ENDS, **options)


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"memory_limit": -1}, NoPlanError, "memory limit -1 is negative"),
        ({"tile_limit": -2}, NoPlanError, "tile limit -2 is negative"),
        ({"objective": "beauty"}, ValueError, 'unknown objective "beauty"; choose from bytes, time'),
        ({"reduction": "mean"}, ValueError, 'unknown reduction "mean"'),
        ({"effort": 0}, ValueError, "effort is 0; the least is 1"),
        ({"target_mesh": Mesh.parse("z=8")}, (ShardingError, MeshError), "y"),
    ],
)
def test_values_that_no_plan_can_be_made_for_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        request(**options)


def test_a_negative_size_is_refused():
    with pytest.raises(NoPlanError, match="negative size"):
        Request.of(MESH, (8, -8), 32, *ENDS)


def test_left_out_values_are_in_normal_form():
    found = request(target_mesh=MESH)
    assert found == request() and found.target_mesh is None and found.goal_mesh == MESH
    assert (found.objective, found.topology) == ("bytes", Topology.parse("uniform"))
    assert found.tile_limit_elements == 0 and request(tile_limit=64).tile_limit_elements == 16


def test_no_dimensions_on_one_device_serve_every_rank():
    found = Request.of(Mesh.parse("x=4"), (8, 8), 32, Sharding.parse('[{"x"}, {}]'), Sharding(()), target_mesh=Mesh(()))
    assert found.target == Sharding(((), ()))


def test_a_plan_holds_the_request_that_it_answers():
    asked = request(objective="time", topology=Topology.parse("h100"), memory_limit=1 << 20)
    found = planned(asked)
    assert found.request == asked
    assert (found.mesh, found.shape, found.bits) == (MESH, (8, 8), 32)
    assert (found.source, found.target, found.objective, found.topology) == (*ENDS, "time", "h100")
    assert found == plan(
        MESH, (8, 8), 32, *ENDS, objective="time", topology=Topology.parse("h100"), memory_limit=1 << 20
    )
