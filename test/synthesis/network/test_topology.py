# SPDX-License-Identifier: Apache-2.0
"""Topologies: levels, sizes and positions; a topology that does not fit a mesh gives one clear line."""

import math
from dataclasses import replace

import pytest

from reshard.synthesis.network.topology import Level, Topology, TopologyError
from reshard.synthesis.network.topology_text import preset_names


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("num_devices", [1, 2, 8, 64, 512])
def test_preset_takes_the_size_of_the_mesh(name, num_devices):
    if name == "gb200" and num_devices > 72:
        num_devices = num_devices // 64 * 72
    fitted = Topology.parse(name).fitted(num_devices)
    assert fitted.size == math.prod(level.size for level in fitted.levels) == num_devices
    assert fitted.coordinates().shape == (num_devices, len(fitted.levels))


@pytest.mark.parametrize(
    ("text", "num_devices", "shape"),
    [
        ("h100", 4, "1 node x 4 gpu"),
        ("h100", 32, "4 node x 8 gpu"),
        ("v5e", 8, "1 slice x 2x4 chip"),
        ("v5e", 512, "2 slice x 16x16 chip"),
        ("v5e*2", 32, "2 slice x 4x4 chip"),
        ("uniform", 7, "7 device"),
    ],
)
def test_open_levels_fit_the_mesh(text, num_devices, shape):
    assert Topology.parse(text).fitted(num_devices).shape_text == shape


@pytest.mark.parametrize(
    ("text", "wraps"),
    [
        ("v5e:8x16", (False, True)),
        ("v5e:16x16", (True, True)),
        ("v5p:2x4x4", (False, False, False)),
        ("v5p:4x4x8", (True, True, True)),
    ],
)
def test_pods_wrap_where_the_vendor_wires_them(text, wraps):
    assert Topology.parse(text).levels[-1].wraps == wraps


def test_coordinates_follow_the_device_order():
    ring = Topology("r", (Level("node", 2, "switch", 1e9), Level("gpu", 2, "switch", 1e9)), 1e12)
    shuffled = replace(ring, device_order=(3, 0, 1, 2))
    assert ring.coordinates().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert shuffled.coordinates().tolist() == [[0, 1], [1, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("text", "num_devices", "message"),
    [
        ("h100:4", 64, 'topology "h100:4" has 4 node x 8 gpu = 32 devices; the mesh has 64'),
        ("h100", 12, 'topology "h100" has any node x 8 gpu devices; the mesh has 12'),
        ("v5p:4x4x4", 8, 'topology "v5p:4x4x4" has 1 slice x 4x4x4 chip = 64 devices; the mesh has 8'),
        ("uniform", 0, "topology for 0 devices; at least 1 is needed"),
    ],
)
def test_sizes_that_do_not_multiply_to_the_mesh(text, num_devices, message):
    with pytest.raises(TopologyError) as raised:
        Topology.parse(text).fitted(num_devices)
    assert str(raised.value) == message
