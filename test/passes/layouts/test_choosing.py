# SPDX-License-Identifier: Apache-2.0
"""The meshes that are tried for a number of devices."""

import math

import pytest

from reshard.passes.layouts.choosing import MOST_MESHES, meshes_for


@pytest.mark.parametrize("devices", [1, 2, 6, 7, 8, 16, 64, 512])
def test_each_mesh_has_all_devices_and_the_fewest_axes_come_first(devices):
    meshes = meshes_for(devices)
    assert all(mesh.size == devices for mesh in meshes) and len({*meshes}) == len(meshes) <= MOST_MESHES
    axes = [len(mesh.axes) for mesh in meshes]
    assert axes == sorted(axes) and axes[0] == 1
    assert all(size > 1 for mesh in meshes[1:] for _, size in mesh.axes)


def test_square_meshes_come_before_long_ones():
    ratios = [max(s) / min(s) for mesh in meshes_for(64)[1:] if len(s := [size for _, size in mesh.axes]) == 2]
    assert ratios == sorted(ratios) and math.isclose(ratios[0], 1)
