# SPDX-License-Identifier: Apache-2.0
"""The layouts around an op, as propagation leaves them."""

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.sites.op_layouts import OpLayouts
from reshard.synthesis.layouts.mesh import Mesh

M = "tensor<16x16xf32>"
MESH = Mesh.parse("x=4,y=2")
ROWS, COLUMNS = '[{"x"}, {}]', '[{}, {"x"}]'


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def of(layout: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {layout}>}}"


def layouts_in(name: str, arguments: str, body: str, result: str = "") -> tuple[OpLayouts, ir.Operation]:
    """Returns the layouts of a module with one function, and its first op of a name; `body` has the op %r."""
    module = ir.Module.parse(f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func public @main({arguments}) -> ({M} {result}) {{
        {body}
        return %r : {M}
      }}""")
    op = next(op for op in ops_in(module.operation) if op.name == name)
    layouts = OpLayouts(analyse(module), [op])
    layouts.module = module  # its ops are gone with it
    return layouts, op


def test_an_operand_has_its_layout_before_conversions():
    """The op computes in another layout, so a reshard of its first operand stands before it in the clone."""
    body = f"""%0 = sdy.sharding_constraint %b <@mesh, {COLUMNS}> : {M}
        %r = stablehlo.add %a, %0 : {M}"""
    layouts, add = layouts_in("stablehlo.add", f"%a: {M} {of(ROWS)}, %b: {M} {of(ROWS)}", body, of(COLUMNS))
    found = layouts.of(add, MESH)
    assert [str(each) for each in (*found.operands, *found.results)] == [ROWS, COLUMNS, COLUMNS]
    assert [str(each) for each in found.attributes] == [
        f"#sdy.sharding<@mesh, {each}>" for each in (ROWS, COLUMNS, COLUMNS)
    ]
    assert found.constrained == frozenset()


def test_a_value_without_a_layout_is_replicated_and_a_scalar_has_no_dimensions():
    body = f"%r = stablehlo.select %p, %a, %b : tensor<i1>, {M}"
    layouts, select = layouts_in("stablehlo.select", f"%p: tensor<i1>, %a: {M}, %b: {M}", body)
    assert list(map(str, layouts.of(select, MESH).operands)) == ["[]", "[{}, {}]", "[{}, {}]"]


def test_a_constraint_behind_an_op_that_changes_nothing_is_known():
    body = f"""%0 = stablehlo.tanh %a : {M}
        %r = sdy.sharding_constraint %0 <@mesh, {ROWS}> : {M}"""
    layouts, tanh = layouts_in("stablehlo.tanh", f"%a: {M} {of(ROWS)}", body)
    assert layouts.of(tanh, MESH).constrained == frozenset({0})


def test_there_are_no_layouts_on_another_mesh_or_of_an_op_that_was_not_asked_about():
    layouts, tanh = layouts_in("stablehlo.tanh", f"%a: {M} {of(ROWS)}", f"%r = stablehlo.tanh %a : {M}")
    assert layouts.of(tanh, Mesh.parse("x=8")) is None
    assert layouts.of(tanh.parent.operation, MESH) is None


@pytest.mark.parametrize(
    ("result", "scatters"), [(of(ROWS), True), (of(COLUMNS), True), (of('[{"y"}, {}]'), False), ("", False)]
)
def test_sums_are_scattered_if_their_axis_splits_the_result(result, scatters):
    body = f"%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({M}, {M}) -> {M}"
    ends = f"%a: {M} {of(COLUMNS)}, %b: {M} {of(ROWS)}"
    layouts, dot = layouts_in("stablehlo.dot_general", ends, body, result)
    assert layouts.scatters_sums(dot) == scatters
