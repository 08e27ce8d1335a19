# SPDX-License-Identifier: Apache-2.0
"""Two meshes over the same devices: an expressed sharding places tiles alike, and pairs send each tile to its place."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.layout import layout_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.programs.two_meshes import expressed, ids_of, in_another_order, reorder_pairs

SIZES = {8: [(8,), (2, 4), (4, 2), (2, 2, 2)], 12: [(12,), (3, 4), (4, 3), (2, 6), (6, 2), (2, 3, 2)]}


@st.composite
def meshes(draw, devices: int, names: str, has_order: bool = False) -> Mesh:
    sizes = draw(st.sampled_from(SIZES[devices]))
    ids = tuple(draw(st.permutations(range(devices)))) if has_order else None
    return Mesh(tuple(zip(names, sizes)), ids)


@st.composite
def shardings(draw, mesh: Mesh, rank: int = 2) -> Sharding:
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    for axis in draw(st.permutations(mesh.axis_names)):
        if (dim := draw(st.integers(-1, rank - 1))) >= 0:
            dims[dim].append(AxisRef(axis))
    return Sharding(tuple(map(tuple, dims)))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(SIZES)), st.booleans())
def test_what_is_expressed_places_alike(data, devices, has_order):
    mesh, on = data.draw(meshes(devices, "xyz")), data.draw(meshes(devices, "abc", has_order))
    sharding = data.draw(shardings(mesh))
    found = expressed(sharding, mesh, on)
    if found is not None:
        shape = (devices, devices)
        assert Blocks.of_sharding(on, shape, found).places_like(Blocks.of_sharding(mesh, shape, sharding))


@pytest.mark.parametrize(("sizes", "others"), [*itertools.product(SIZES[8], repeat=2)])
def test_row_major_meshes_of_powers_of_two_say_the_same(sizes, others):
    mesh, on = Mesh(tuple(zip("xyz", sizes))), Mesh(tuple(zip("abc", others)))
    for axes in itertools.permutations(mesh.axis_names):
        assert expressed(Sharding((tuple(map(AxisRef, axes)),)), mesh, on) is not None


def test_digits_of_other_radices_are_not_expressed():
    three, four = Mesh.parse("x=3,y=4"), Mesh.parse("a=4,b=3")
    assert expressed(Sharding.parse('[{"x"}]'), three, four) is None
    assert str(expressed(Sharding.parse('[{"x","y"}]'), three, four)) == '[{"a", "b"}]'


def test_partial_sums_keep_their_devices():
    mesh, on = Mesh.parse("x=4,y=2"), Mesh.parse("a=2,b=4")
    assert (
        str(expressed(Sharding.parse('[{"y"}], unreduced={"x"}'), mesh, on))
        == '[{"b":(2)2}], unreduced={"a", "b":(1)2}'
    )


def test_meshes_of_other_sizes_share_nothing():
    assert expressed(Sharding.parse('[{"x"}]'), Mesh.parse("x=4"), Mesh.parse("a=8")) is None


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_pairs_take_every_tile_to_its_place(data, keeps):
    before = data.draw(meshes(8, "xyz", has_order=True))
    after = in_another_order(before, data.draw(meshes(8, "xyz", has_order=True)))
    sharding, shape = data.draw(shardings(before)), (8, 8)
    pairs = reorder_pairs(before, after, layout_of(before, shape, sharding), keeps=keeps)
    held, wanted = (Blocks.of_sharding(mesh, shape, sharding) for mesh in (before, after))
    assert sorted(a for a, _ in pairs) == [b for _, b in sorted(pairs, key=lambda pair: pair[1])] == list(range(8))
    for a, b in pairs:
        assert np.array_equal(held.starts[a], wanted.starts[b]) and np.array_equal(held.stops[a], wanted.stops[b])
    has_its_own = (held.starts == wanted.starts).all(axis=1)
    if keeps:
        assert {(device, device) for device in np.flatnonzero(has_its_own).tolist()} <= set(pairs)


def test_another_order_keeps_the_axes():
    mesh = in_another_order(Mesh.parse("x=2,y=2"), Mesh.parse('<["a"=4], device_ids=[2, 0, 3, 1]>'))
    assert mesh.axis_names == ("x", "y") and ids_of(mesh).tolist() == [2, 0, 3, 1]
    assert ids_of(Mesh.parse("x=3")).tolist() == [0, 1, 2]
