# SPDX-License-Identifier: Apache-2.0
"""Meshes: their text, sizes and device order; texts that are no mesh are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.layouts.mesh import Mesh, MeshError


@st.composite
def meshes(draw) -> Mesh:
    sizes = draw(st.lists(st.integers(1, 4), max_size=4))
    mesh = Mesh(tuple((f"axis_{i}", size) for i, size in enumerate(sizes)))
    if not draw(st.booleans()):
        return mesh
    return Mesh(mesh.axes, tuple(draw(st.permutations(range(mesh.size)))))


@given(meshes())
def test_text_round_trips(mesh):
    assert Mesh.parse(str(mesh)) == mesh


@pytest.mark.parametrize(
    "text", ["x=4,y=2", " x = 4 , y = 2 ", '<["x"=4, "y"=2]>', '#sdy.mesh<["x"=4,"y"=2]>', 'mesh<["x"=4, "y"=2]>']
)
def test_notations_of_one_mesh(text):
    assert Mesh.parse(text) == Mesh((("x", 4), ("y", 2))) == Mesh.of({"x": 4, "y": 2})


def test_row_major_device_ids_are_no_order():
    assert Mesh.parse('<["x"=2, "y"=2], device_ids=[0, 1, 2, 3]>').device_ids is None


def test_device_order():
    mesh = Mesh.parse('<["x"=2, "y"=2], device_ids=[3, 1, 0, 2]>')
    assert [mesh.device_at(position) for position in range(4)] == [3, 1, 0, 2]


def test_mesh_without_axes_has_one_device():
    assert Mesh.parse("").size == 1


def test_a_mesh_without_axes_may_be_any_device():
    mesh = Mesh.parse("<[], device_ids=[3]>")
    assert (mesh.size, mesh.devices, mesh.device_at(0), str(mesh)) == (1, 4, 3, "<[], device_ids=[3]>")
    assert Mesh.parse("x=4,y=2").devices == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=2,x=2", 'mesh axis "x" is declared twice'),
        ("x=0", 'mesh axis "x" has size 0; sizes are at least 1'),
        ("x=1000000000", "mesh has 1000000000 devices; at most 1048576 are supported"),
        ("x=2048,y=2048", "mesh has 4194304 devices"),
        ("x", 'cannot read "x" as a mesh axis; write x=4,y=2'),
        ("x=-1", 'cannot read "x=-1" as a mesh axis'),
        ("x=4 y=2", 'cannot read "x=4 y=2" as a mesh axis'),
        ('<["x"=2], device_ids=[0, 0]>', r"device_ids is no permutation of 0\.\.1"),
        ("<[], device_ids=[0, 1]>", "a mesh without axes is one device"),
        ("<[], device_ids=[1048576]>", "device 1048576 is none of the 1048576"),
        ('<["x"=2], device_ids=[0, 1, 2]>', r"device_ids is no permutation of 0\.\.1"),
    ],
)
def test_nonsense_is_named(text, message):
    with pytest.raises(MeshError, match=message):
        Mesh.parse(text)


def test_unknown_axis_is_named_with_those_there_are():
    with pytest.raises(MeshError, match='unknown axis "z"; .* has x, y'):
        Mesh.parse("x=4,y=2").axis_size("z")
