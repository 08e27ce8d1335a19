# SPDX-License-Identifier: Apache-2.0
"""The groups of a collective, listed or along the axes of a mesh."""

import pytest

from reshard.dialect_utils.hierarchy.collective_groups import groups_of
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context, stablehlo
from reshard.dialect_utils.shardings.sdy_shardings import module_meshes

names_axes = pytest.mark.skipif(
    not hasattr(stablehlo, "ReplicaGroupMeshAxesAttr"), reason="collectives list their groups in this jaxlib"
)
MESH = '#stablehlo.mesh<axes = [<name = "x", size = 2>, <name = "y", size = 4>]{ids}>'
MIXED = ", device_ids = dense<[7, 6, 5, 4, 3, 2, 1, 0]> : tensor<8xi64>"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, "


def found(groups: str, *, channel: str = CHANNEL, are_global: bool = True):
    """Returns the groups of an all_reduce whose `replica_groups` are the text."""
    module = f"""
      sdy.mesh @mesh = <["x"=2, "y"=4]>
      sdy.mesh @mixed = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
      func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {{
        %0 = "stablehlo.all_reduce"(%a) <{{{channel}replica_groups = {groups}
          {", use_global_device_ids" if are_global else ""}}}> ({{
        ^bb0(%b: tensor<f32>, %c: tensor<f32>):
          %1 = stablehlo.add %b, %c : tensor<f32>
          stablehlo.return %1 : tensor<f32>
        }}) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }}"""
    with make_context():
        root = ir.Module.parse(module).operation
        (op,) = (each for each in ops_in(root) if each.name == "stablehlo.all_reduce")
        return groups_of(op, module_meshes(root))


def along(axes: str, mesh: str = "@mesh") -> str:
    return f"#stablehlo.replica_group_mesh_axes<mesh = {mesh}, axes = [{axes}]>"


def axis(name: str, part: str = "") -> str:
    return f'#stablehlo.axis_ref<name = "{name}"{part and f", sub_axis_info = {part}"}>'


def test_listed_groups():
    assert found("dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>") == ((0, 2), (1, 3))


@pytest.mark.parametrize(
    "how",
    [
        {"channel": "", "are_global": False},
        {"are_global": False},
        {"groups": "dense<[[0, 2, 3], [1, -1, -1]]> : tensor<2x3xi64>"},
    ],
    ids=("no channel", "not global", "uneven"),
)
def test_groups_that_are_no_lists_of_devices_alike(how):
    assert found(**{"groups": "dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>", **how}) is None


@names_axes
@pytest.mark.parametrize(
    ("axes", "groups"),
    [
        ("y", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("x", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("x y", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("y x", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("", tuple((device,) for device in range(8))),
    ],
)
@pytest.mark.parametrize("mesh", ["@mesh", MESH.format(ids="")], ids=("symbol", "inline"))
def test_groups_along_axes_have_the_first_axis_as_the_major_one(axes, groups, mesh):
    assert found(along(", ".join(map(axis, axes.split())), mesh)) == groups


@names_axes
def test_groups_along_a_part_of_an_axis():
    assert found(along(axis("y", "(1)2"))) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert found(along(axis("y", "(2)2"))) == ((0, 1), (2, 3), (4, 5), (6, 7))


@names_axes
@pytest.mark.parametrize("mesh", ["@mixed", MESH.format(ids=MIXED)], ids=("symbol", "inline"))
def test_groups_are_of_the_device_ids_of_the_mesh(mesh):
    assert found(along(axis("x"), mesh)) == ((7, 3), (6, 2), (5, 1), (4, 0))
