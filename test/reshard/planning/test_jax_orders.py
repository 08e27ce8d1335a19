# SPDX-License-Identifier: Apache-2.0
"""The orders of jax's mesh_utils on devices that are not there."""

import pytest

from reshard.planning.jax_orders import jax_order
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.placement.recognition import placement_of


@pytest.mark.parametrize(
    "topology", ["v5p:2x2x4", "v4:2x2x4", "v5e:4x4", "v6e:4x4", "h100:2x8", "v5e:2x4*2", "tpu7x:2x2x2"]
)
@pytest.mark.parametrize("axes", ["x=16", "x=4,y=4", "x=2,y=8", "x=2,y=2,z=4"])
def test_an_order_has_each_device_once(topology, axes):
    mesh, network = Mesh.parse(axes), Topology.parse(topology)
    order = jax_order(network.fitted(mesh.size), mesh)
    assert order is None or sorted(order) == [*range(16)]


def test_on_a_torus_jax_keeps_each_axis_on_dimensions_of_its_own():
    network, mesh = Topology.parse("v5p:4x4x4"), Mesh.parse("x=4,y=16")
    order = jax_order(network, mesh)
    placement = placement_of(network, Mesh(mesh.axes, order))
    assert placement is not None and sorted(map(sorted, placement.matrix.tolist())) == [[1, 1, 4], [1, 4, 4]]


def test_slices_lie_along_the_first_axes_that_they_divide():
    network = Topology.parse("v5e:2x4*2")
    for axes, is_whole in (("x=2,y=8", True), ("x=4,y=4", True), ("x=1,y=16", True)):
        order = jax_order(network, Mesh.parse(axes))
        assert order is not None
        assert is_whole == ({each // 8 for each in order[:8]} == {0})
