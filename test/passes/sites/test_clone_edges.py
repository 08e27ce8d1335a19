# SPDX-License-Identifier: Apache-2.0
"""Edges of the clone: which uses convert a value, and the reasons why others are left alone."""

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.sites.clone_edges import CloneEdges, Layouts

M = "tensor<16x16xf32>"
MESHES = """sdy.mesh @mesh = <["x"=4, "y"=2]>
    sdy.mesh @other = <["a"=8]>"""
ROWS, COLUMNS, ROWS_OF_OTHER = '[{"x"}, {}]', '[{}, {"x"}]', '[{"a"}, {}]'


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def of(layout: str, mesh: str = "mesh") -> str:
    return f"{{sdy.sharding = #sdy.sharding<@{mesh}, {layout}>}}"


def computed(layout: str, mesh: str = "mesh") -> str:
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@{mesh}, {layout}>]>}}"


def edges(arguments: str, body: str, result: str = "") -> CloneEdges:
    """Returns the edges of a module with one function; `body` has the op %r."""
    module = ir.Module.parse(f"""{MESHES}
      func.func public @main({arguments}) -> ({M} {result}) {{
        {body}
        return %r : {M}
      }}""")
    analysis = analyse(module)
    found = CloneEdges(analysis, Layouts(analysis.explicit))
    found.module = module  # its ops are gone with it
    return found


def found(edges: CloneEdges) -> list[tuple]:
    """Returns (op, number, whether it is a result, source, target) of each edge that was found."""
    return [
        (edges.analysis.prepared_ops[serial].name, number, is_result, *map(edges.layouts.text, ends))
        for (serial, number, is_result), ends in edges.found.items()
    ]


def reasons(edges: CloneEdges) -> list[tuple]:
    return [(edges.analysis.prepared_ops[edge[0]].name, edge[1], why) for edge, why in edges.reasons.items()]


def test_a_constraint_that_changes_nothing_is_no_edge():
    body = f"""%0 = sdy.sharding_constraint %a <@mesh, {COLUMNS}> : {M}
        %r = sdy.sharding_constraint %0 <@mesh, {COLUMNS}> : {M}"""
    assert found(edges(f"%a: {M} {of(ROWS)}", body)) == [("sdy.sharding_constraint", 0, False, ROWS, COLUMNS)]


def test_an_op_that_computes_in_another_layout_than_its_value_has_is_an_edge_of_its_result():
    """Shardy inserts the reshard behind the op, which takes its operand as it is."""
    body = f"%r = stablehlo.tanh %a {computed(COLUMNS)} : {M}"
    assert found(edges(f"%a: {M} {of(ROWS)}", body)) == [("stablehlo.tanh", 0, True, ROWS, COLUMNS)]


def test_a_constant_is_made_where_it_is_needed():
    split = computed('[{"y"}, {}]')
    body = f"""%c = stablehlo.constant {split} dense<1.0> : {M}
        %r = stablehlo.add %a, %c : {M}"""
    read = edges(f"%a: {M} {of(ROWS)}", body, of(COLUMNS))
    assert reasons(read) == [("stablehlo.add", 1, "a constant is made in any layout without traffic")]
    assert [each[:3] for each in found(read)] == [("stablehlo.add", 0, False), ("stablehlo.add", 0, True)]


def test_partial_sums_are_no_edge():
    body = f"%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({M}, {M}) -> {M}"
    read = edges(f"%a: {M} {of(COLUMNS)}, %b: {M} {of(ROWS)}", body, of(ROWS))
    assert not read.found
    assert reasons(read) == [
        ("func.return", 0, "partial sums are reduced here; layouts with partial sums are not supported yet")
    ]


def test_what_a_loop_captures_has_no_operand_to_convert():
    body = f"""%0:2 = stablehlo.while(%i = %n, %v = %a) : tensor<i32>, {M}
          cond {{
            %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %p : tensor<i1>
          }} do {{
            %c = sdy.sharding_constraint %a <@mesh, {COLUMNS}> : {M}
            %s = stablehlo.add %v, %c : {M}
            stablehlo.return %i, %s : tensor<i32>, {M}
          }}
        %r = stablehlo.optimization_barrier %0#1 : {M}"""
    read = edges(f"%a: {M} {of(ROWS)}, %n: tensor<i32>", body)
    ((loop, skipped),) = read.skipped
    assert loop == next(op for op in read.analysis.originals if op.name == "stablehlo.while")
    assert (skipped.where, skipped.reason) == (
        "a value that while captures",
        "the loop has no operand for it; pass it through the loop",
    )
    assert found(read) == [("stablehlo.while", 1, False, ROWS, COLUMNS)]


def test_no_operand_is_converted_between_meshes_of_different_axes():
    body = f"""%r = stablehlo.add %a, %b {computed(ROWS_OF_OTHER, "other")} : {M}"""
    read = edges(f"""%a: {M} {of(ROWS)}, %b: {M} {of(ROWS_OF_OTHER, "other")}""", body)
    ((op, number, why),) = reasons(read)
    assert (op, number) == ("stablehlo.add", 0) and not read.found
    assert why.startswith('it is [{"x"}, {}] on <["x"=4, "y"=2]>, and the op computes [{"a"}, {}] on <["a"=8]>;')


def test_layouts_are_the_same_if_they_place_tiles_alike():
    module = ir.Module.parse(MESHES)
    layouts = Layouts(module.operation)
    rows, whole, halves = (
        ir.Attribute.parse(f"#sdy.sharding<@mesh, {text}>")
        for text in (ROWS, '[{"x":(1)2, "x":(2)2}, {}]', '[{"x":(1)2}, {}]')
    )
    assert layouts.is_same(rows, whole, 2) and not layouts.is_same(rows, halves, 2)
    assert layouts.is_same(None, ir.Attribute.parse("#sdy.sharding<@mesh, [{}, {}]>"), 2)
    assert layouts.is_same(rows, halves, None)  # the value is no ranked tensor
