# SPDX-License-Identifier: Apache-2.0
"""Other shapes of a module's mesh: where it may change, what it changes, what it no longer divides."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.annotations import Annotation
from reshard.dialect_utils.shardings.layout_changes import changed, mesh_shape_of, stated_positions, uneven_in
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

MODULE = """sdy.mesh @mesh = <["x"=2, "y"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 2 : i64}]}}
func.func public @main(%arg0: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}, %arg1: tensor<f32>)
    -> (tensor<4x8xf32>, tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"y"}, {}]> : tensor<4x8xf32>
  return %0, %arg0 : tensor<4x8xf32>, tensor<4x8xf32>
}"""


@pytest.fixture
def module():
    with make_context() as context, ir.Location.unknown(context):
        yield ir.Module.parse(MODULE)


def test_only_the_sizes_of_the_axes_change(module):
    shape = mesh_shape_of(module, 7)
    assert shape is not None and (shape.number, shape.symbol, shape.mesh) == (7, "mesh", Mesh.parse("x=2,y=4"))
    before = str(module)
    after = str(ir.Module.parse(changed(module, {shape: Mesh.parse("x=4,y=2")})))
    assert '<["x"=4, "y"=2]>\n' in after and str(module) == before  # the copy for readers of StableHLO would be wrong
    assert after.split("\n")[2:] == before.split("\n")[2:]


def test_a_line_without_a_constraint_gets_one_on_another_mesh_too(module):
    shape, sharding = mesh_shape_of(module, 0), Sharding.parse('[{}, {"y"}]')
    assert shape is not None
    number = [op.name for op in ops_in(module.operation)].index("sdy.sharding_constraint")
    line = Annotation(1, None, True, sharding, shape.mesh, (), (), (), values=((number, 0),))
    after = str(ir.Module.parse(changed(module, {shape: Mesh.parse("x=4,y=2"), line: sharding})))
    assert '<["x"=4, "y"=2]>' in after
    assert '%1 = sdy.sharding_constraint %0 <@mesh, [{}, {"y"}]>' in after and "return %1, %arg0" in after


def test_arrays_that_a_mesh_does_not_divide_are_named(module):
    shape = mesh_shape_of(module, 0)
    assert uneven_in(module) == []
    found = uneven_in(ir.Module.parse(changed(module, {shape: Mesh.parse("x=8,y=1")})))
    assert [(str(sharding), sizes) for sharding, sizes in found] == [('[{"x"}, {"y"}]', (4, 8))]


def test_the_positions_that_state_a_sharding(module):
    assert stated_positions(module) == ([0], [1])


@pytest.mark.parametrize(
    "text",
    [
        MODULE.replace("sdy.mesh", 'sdy.mesh @other = <["x"=8]>\nsdy.mesh', 1),
        MODULE + MODULE.split("\n", 1)[1].replace("@main", "@second"),
        MODULE.replace('[{"y"}, {}]', '[{"y":(1)2}, {}]'),
        MODULE.replace("sdy.sharding<@mesh, [{}", 'sdy.sharding<mesh<["x"=2, "y"=4]>, [{}'),
        """sdy.mesh @mesh = <["x"=8]>
func.func public @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"}
      (%arg1: tensor<1xf32>) {
    sdy.return %arg1 : tensor<1xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}""",
    ],
    ids=["several meshes", "several functions", "parts of axes", "meshes of shardings", "local shapes"],
)
def test_a_mesh_on_which_more_depends_keeps_its_shape(text):
    with make_context() as context, ir.Location.unknown(context):
        assert mesh_shape_of(ir.Module.parse(text), 0) is None


def test_meshes_of_single_devices_do_not_count():
    with make_context() as context, ir.Location.unknown(context):
        shape = mesh_shape_of(ir.Module.parse("sdy.mesh @one = <[], device_ids=[0]>\n" + MODULE), 0)
        assert shape is not None and shape.symbol == "mesh"
