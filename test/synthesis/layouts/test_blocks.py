# SPDX-License-Identifier: Apache-2.0
"""Blocks: the boxes that devices hold are compared with a count of coordinates; their methods answer correctly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.layouts.blocks import Blocks, both_ends, cut
from reshard.synthesis.layouts.layout import Factor, Layout, LayoutError, Slot, layout_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding, ShardingError

MESHES = ("x=4,y=2", "x=2,y=3", "x=2,y=2,z=2", '<["x"=2, "y"=2], device_ids=[3, 1, 0, 2]>')


def blocks(mesh: str, shape: tuple[int, ...], sharding: str) -> Blocks:
    return Blocks.of_sharding(Mesh.parse(mesh), shape, Sharding.parse(sharding))


@st.composite
def placements(draw) -> tuple[Mesh, tuple[int, ...], Sharding]:
    mesh = Mesh.parse(draw(st.sampled_from(MESHES)))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    dims: list[list[AxisRef]] = [[] for _ in shape]
    for axis in draw(st.permutations(mesh.axis_names)):
        if (dim := draw(st.integers(-1, len(shape) - 1))) >= 0:
            dims[dim].append(AxisRef(axis))
    return mesh, shape, Sharding(tuple(map(tuple, dims)))


def box_by_hand(mesh: Mesh, shape: tuple[int, ...], sharding: Sharding, position: tuple[int, ...]) -> list[range]:
    place, found = dict(zip(mesh.axis_names, position)), []
    for size, axes in zip(shape, sharding.dims):
        shards, block = 1, 0
        for axis in axes:
            shards, block = shards * mesh.axis_size(axis.name), block * mesh.axis_size(axis.name) + place[axis.name]
        tile = math.ceil(size / shards)
        found.append(range(min(block * tile, size), min((block + 1) * tile, size)))
    return found


@settings(max_examples=200, deadline=None)
@given(placements())
def test_boxes_follow_from_the_coordinates(placement):
    mesh, shape, sharding = placement
    found = Blocks.of_sharding(mesh, shape, sharding)
    assert found.tile_shape == sharding.tile_shape(mesh, shape) and found.devices == mesh.size
    for linear, position in enumerate(np.ndindex(*(size for _, size in mesh.axes))):
        device = mesh.device_at(linear)
        expected = box_by_hand(mesh, shape, sharding, position)
        assert [range(a, b) for a, b in zip(found.starts[device], found.stops[device])] == expected
        assert found.elements[device] == math.prod(map(len, expected))


@settings(max_examples=200, deadline=None)
@given(placements())
def test_a_sharding_and_its_layout_place_alike(placement):
    mesh, shape, sharding = placement
    try:
        layout = layout_of(mesh, shape, sharding)
    except LayoutError:
        return  # a dimension that does not divide has no digits
    assert Blocks.of_layout(mesh, layout).places_like(Blocks.of_sharding(mesh, shape, sharding))


@settings(max_examples=100, deadline=None)
@given(placements())
def test_tiles_are_cut_from_the_front_and_filled_up(placement):
    mesh, shape, sharding = placement
    array = np.arange(1, 1 + math.prod(shape)).reshape(shape)
    found = Blocks.of_sharding(mesh, shape, sharding)
    for device, tile in cut(array, found, padding=-1).items():
        assert tile.shape == found.tile_shape and (tile > 0).sum() == found.elements[device]
        held = array[tuple(slice(a, b) for a, b in zip(found.starts[device], found.stops[device]))]
        assert np.array_equal(tile[tuple(map(slice, held.shape))], held)


def test_a_digit_that_is_not_leading_makes_no_block():
    mesh, x = Mesh.parse("x=2"), Factor("x", 1, 2)
    with pytest.raises(LayoutError, match="dimension 0 of .* is not blocked"):
        Blocks.of_layout(mesh, Layout((4,), ((x, Slot(0, 2, 4)),)))


def test_partial_sums_are_no_blocks_but_count_as_theirs_at_the_ends():
    mesh, sums = Mesh.parse("x=2,y=2"), Sharding.parse('[{"x"}], unreduced={"y"}')
    with pytest.raises(ShardingError, match="partial sums, not blocks"):
        Blocks.of_sharding(mesh, (4,), sums)
    held, wanted = both_ends(mesh, (4,), sums, Sharding.parse('[{"x"}]'))
    assert held.places_like(wanted)


def test_both_ends_are_over_the_devices_of_both_meshes():
    one, other = Mesh.parse("x=2"), Mesh.parse("y=4")
    held, wanted = both_ends(one, (8,), Sharding.parse('[{"x"}]'), Sharding.parse('[{"y"}]'), other)
    assert held.elements.tolist() == [4, 4, 0, 0] and wanted.elements.tolist() == [2, 2, 2, 2]


def test_a_scalar_that_some_devices_lack_is_an_array_of_one():
    held, wanted = both_ends(Mesh.parse("x=2"), (), Sharding(()), Sharding(()), Mesh.parse("y=4"))
    assert held.shape == (1,) and held.elements.tolist() == [1, 1, 0, 0] and wanted.elements.tolist() == [1] * 4


def test_devices_that_are_added_hold_nothing():
    found = blocks("x=2", (4,), '[{"x"}]')
    assert found.over(2) is found
    assert found.over(3).elements.tolist() == [2, 2, 0] and found.over(3).tile_shape == (2,)
    with pytest.raises(ValueError, match="a scalar has no box"):
        blocks("x=2", (), "[]").over(3)


def test_a_cropped_array_keeps_its_tiles():
    found = blocks("x=4", (8,), '[{"x"}]').cropped((5,))
    assert found.elements.tolist() == [2, 2, 1, 0] and found.tile_shape == (2,)


def test_one_device_holds_all():
    found = Blocks.of_sharding(Mesh((), (1,)), (2, 3), Sharding.parse("[{}, {}]")).over(3)
    assert found.elements.tolist() == [0, 6, 0] and found.tile_elements == 6


def test_equal_boxes_in_other_tiles_are_another_placement():
    one = Blocks((4,), (2,), np.array([[0], [2]]), np.array([[2], [4]]))
    other = Blocks((4,), (3,), one.starts, one.stops)
    assert one.places_like(one) and not one.places_like(other)


@pytest.mark.parametrize(
    ("starts", "stops", "message"),
    [
        ([[1]], [[0]], "a block stops before it starts"),
        ([[-1]], [[1]], "a block stops before it starts"),
        ([[0]], [[3]], r"a block is larger than tile \[2\] of array \[4\]"),
        ([[3]], [[5]], r"a block is larger than tile \[2\] of array \[4\]"),
    ],
)
def test_boxes_that_cannot_be_are_refused(starts, stops, message):
    with pytest.raises(ValueError, match=message):
        Blocks((4,), (2,), np.array(starts), np.array(stops))
