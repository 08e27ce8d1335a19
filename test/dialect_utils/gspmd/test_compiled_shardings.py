# SPDX-License-Identifier: Apache-2.0
"""The shardings of compiled programs are those that place the same tiles on the same devices."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.dialect_utils.gspmd.compiled_shardings import sharding_on
from reshard.synthesis.layouts.mesh import Mesh

MESH = Mesh((("x", 2), ("y", 4)))


def told(mesh: Mesh, dims: list[list[str]]) -> str:
    """Returns the sharding of a compiled program, by enumeration, in which axes split dimensions."""
    sizes = dict(mesh.axes)
    used = [name for axes in dims for name in axes]
    if math.prod(sizes[name] for name in used) == 1:
        return "{replicated}"
    devices = np.array([mesh.device_at(place) for place in range(mesh.size)]).reshape([size for _, size in mesh.axes])
    rest = [name for name in sizes if name not in used]
    tiles = [math.prod(sizes[name] for name in axes) for axes in dims]
    placed = devices.transpose([mesh.axis_names.index(name) for name in (*used, *rest)]).reshape(math.prod(tiles), -1)
    placed = np.sort(placed, axis=1)
    order = placed.ravel().tolist()
    listed = f"<=[{mesh.size}]" if order == list(range(mesh.size)) else ",".join(map(str, order))
    return f"{{devices=[{','.join(map(str, tiles))}]x{placed.shape[1]} {listed}}}"


@st.composite
def layouts(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    ids = draw(st.none() | st.permutations(range(math.prod(sizes))))
    is_in_order = ids is None or ids == list(range(math.prod(sizes)))
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)), None if is_in_order else tuple(ids))
    rank = draw(st.integers(1, 3))
    dims: list[list[str]] = [[] for _ in range(rank)]
    for name in draw(st.permutations(mesh.axis_names)):
        at = draw(st.integers(0, rank))
        if at < rank:
            dims[at].append(name)
    return mesh, dims


@given(layouts())
def test_the_sharding_on_the_mesh_is_told_in_the_same_words(drawn):
    mesh, dims = drawn
    text = told(mesh, dims)
    found = sharding_on(mesh, text, len(dims))
    assert found is not None and not found.open_dims
    assert all(axis.pre_size is None for axes in found.dims for axis in axes)
    assert told(mesh, [[axis.name for axis in axes] for axes in found.dims]) == text


@pytest.mark.parametrize(
    "text, rank",
    [
        ("{devices=[8]x1 1,0,2,3,4,5,6,7}", 1),
        ("{devices=[2]x2 <=[4]}", 1),
        ("{devices=[2]x4 <=[8]}", 2),
        ("{maximal device=3}", 1),
        ("{manual}", 1),
    ],
)
def test_what_no_sharding_on_the_mesh_places_has_none(text, rank):
    assert sharding_on(MESH, text, rank) is None


def test_a_part_of_an_axis_is_a_sub_axis():
    assert str(sharding_on(MESH, "{devices=[1,4]x2 <=[8]}", 2)) == '[{}, {"x", "y":(1)2}]'
