# SPDX-License-Identifier: Apache-2.0
"""The orders of jax's mesh_utils on devices that are not there."""

from dataclasses import replace

import pytest

from reshard.planning.jax_orders import is_by_coordinates, jax_order
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


def test_the_last_dimension_of_a_slice_is_z():
    """On v5e:2x4 jax goes around a ring of eight chips, x first: neighbours are one apart in x or y."""
    order = jax_order(Topology.parse("v5e:2x4"), Mesh.parse("x=8"))
    assert order == (0, 4, 1, 5, 7, 3, 6, 2)  # numbered by y + 4 x
    places = [divmod(each, 4) for each in order]
    assert {abs(x - i) + abs(y - j) for (x, y), (i, j) in zip(places, places[1:] + places[:1])} <= {1, 2}


def test_small_slices_of_chips_with_two_cores_have_rings_in_planes_of_x_and_y():
    order = jax_order(Topology.parse("tpu7x:2x2x4"), Mesh.parse("x=4,y=8"))
    assert order is not None
    assert {each // 2 % 4 for each in order[:8]} == {0} and {each // 2 % 4 for each in order[8:16]} == {1}  # z


def test_tpus_are_numbered_by_coordinates_unless_the_network_says_their_ids():
    networks = [Topology.parse(text) for text in ("v5p:2x2x4", "tpu7x:2x2x2*2", "h100:2x8")]
    assert [*map(is_by_coordinates, networks)] == [True, True, False]
    assert not is_by_coordinates(replace(networks[0], device_order=tuple(range(16))))


def test_slices_lie_along_the_first_axes_that_they_divide():
    network = Topology.parse("v5e:2x4*2")
    for axes, is_whole in (("x=2,y=8", True), ("x=4,y=4", True), ("x=1,y=16", True)):
        order = jax_order(network, Mesh.parse(axes))
        assert order is not None
        assert is_whole == ({each // 8 for each in order[:8]} == {0})
