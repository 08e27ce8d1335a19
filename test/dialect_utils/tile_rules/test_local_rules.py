# SPDX-License-Identifier: Apache-2.0
"""Rules for ops on tiles: which dimensions may stay split, and what the results are parts of."""

import pytest

from reshard.dialect_utils.ir.ops import bits_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.tile_rules.local_rules import (
    NotLocal,
    Rule,
    Site,
    bits_held,
    elementwise,
    joined,
    rule_of,
    shards,
)
from reshard.synthesis.layouts.layout import Factor, whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

MESH = Mesh.parse("x=4,y=2")
X, Y = Factor("x", 1, 4), Factor("y", 1, 2)


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def dims(text: str):
    return whole_factors(MESH, Sharding.parse(text))


def asked(ops: str, operands: list[str], results: list[str], of=rule_of) -> Rule:
    """Returns the rule of the op %r in `ops`; the arguments %a, %b and %i are matrices and a number."""
    module = ir.Module.parse(f"""
      func.func @f(%a: tensor<8x16xf32>, %b: tensor<16x8xf32>, %i: tensor<i32>, %z: tensor<f32>) {{
        {ops}
        return
      }}""")
    function = module.body.operations[0].regions[0].blocks[0]
    op = function.operations[len(function.operations) - 2].operation
    return of(Site(op, tuple(map(dims, operands)), tuple(map(dims, results))))


DOT = """%r = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<8x16xf32>, tensor<16x8xf32>) -> tensor<8x8xf32>"""


def test_operands_of_an_elementwise_op_have_the_layout_of_its_result():
    rule = asked("%r = stablehlo.add %a, %a : tensor<8x16xf32>", ['[{"x"}, {}]', "[{}, {}]"], ['[{}, {"y"}]'])
    assert rule == Rule((dims('[{}, {"y"}]'),) * 2, (dims('[{}, {"y"}]'),))


def test_a_contraction_that_is_split_alike_leaves_partial_sums():
    rule = asked(DOT, ['[{"y"}, {"x"}]', '[{"x"}, {}]'], ["[{}, {}]"])
    assert rule.operands == (dims('[{"y"}, {"x"}]'), dims('[{"x"}, {}]'))
    assert rule.results == (dims('[{"y"}, {}]'),) and rule.partial == (X,) and rule.reduction == "sum"


def test_a_contraction_that_is_split_on_one_side_only_is_done_whole():
    rule = asked(DOT, ['[{}, {"x"}]', '[{"y"}, {}]'], ["[{}, {}]"])
    assert rule.operands == (dims("[{}, {}]"),) * 2 and rule.partial == ()


def test_an_axis_splits_one_dimension_of_a_product():
    rule = asked(DOT, ['[{"x"}, {}]', '[{}, {"x"}]'], ["[{}, {}]"])
    assert rule.operands == (dims('[{"x"}, {}]'), dims("[{}, {}]")) and rule.results == (dims('[{"x"}, {}]'),)


@pytest.mark.parametrize(("body", "reduction", "partial"), [("add", "sum", (X,)), ("maximum", "max", (X,))])
def test_a_reduction_leaves_partial_results_along_its_axes(body, reduction, partial):
    ops = f"""%r = stablehlo.reduce(%a init: %z) applies stablehlo.{body} across dimensions = [0]
        : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>"""
    rule = asked(ops, ['[{"x"}, {"y"}]', "[]"], ["[{}]"])
    assert (rule.reduction, rule.partial, rule.results) == (reduction, partial, (dims('[{"y"}]'),)) and not rule.whole


def test_a_reduction_without_a_counterpart_between_devices_is_done_whole():
    ops = """%r = "stablehlo.reduce"(%a, %z) <{dimensions = array<i64: 0>}> ({
      ^bb0(%one: tensor<f32>, %other: tensor<f32>):
        %d = stablehlo.subtract %one, %other : tensor<f32>
        stablehlo.return %d : tensor<f32>
      }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>"""
    rule = asked(ops, ['[{"x"}, {"y"}]', "[]"], ["[{}]"])
    assert rule.operands[0] == dims('[{}, {"y"}]') and rule.partial == () and "no counterpart" in rule.whole


def test_of_a_slice_the_dimensions_that_it_takes_whole_stay_split_with_limits_of_the_tile():
    rule = asked(
        "%r = stablehlo.slice %a [0:8, 2:10] : (tensor<8x16xf32>) -> tensor<8x8xf32>",
        ['[{"x"}, {"y"}]'],
        ['[{"x"}, {"y"}]'],
    )
    assert rule.operands == rule.results == (dims('[{"x"}, {}]'),)
    assert rule.sizes == {"limit_indices": [2, 10]} and rule.whole == "it takes a part of dimension 1"


def test_of_a_dynamic_slice_the_sizes_are_those_of_the_tile():
    rule = asked(
        "%r = stablehlo.dynamic_slice %a, %i, %i, sizes = [8, 4]"
        " : (tensor<8x16xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>",
        ["[{}, {}]", "[]", "[]"],
        ['[{"x"}, {"y"}]'],
    )
    assert rule.operands == (dims('[{"x"}, {}]'), (), ()) and rule.sizes == {"slice_sizes": [2, 4]}


@pytest.mark.parametrize(
    ("ops", "operands", "result", "elements"),
    [
        ("%r = stablehlo.dynamic_slice %a, %i, %i, sizes = [2, 4] : (tensor<8x16xf32>, tensor<i32>, tensor<i32>)"
         " -> tensor<2x4xf32>", ["[{}, {}]", "[]", "[]"], "[{}, {}]", 8 + 2 + 8),
        ("%r = stablehlo.slice %a [0:8, 0:8] : (tensor<8x16xf32>) -> tensor<8x8xf32>",
         ['[{"x"}, {}]'], '[{"x"}, {}]', 16 + 16),
        ("%r = stablehlo.dynamic_update_slice %a, %u, %i, %i : (tensor<8x16xf32>, tensor<2x4xf32>, tensor<i32>,"
         " tensor<i32>) -> tensor<8x16xf32>", ["[{}, {}]", "[{}, {}]", "[]", "[]"], "[{}, {}]", 8 + 8 + 2 + 8),
        ("%r = stablehlo.add %a, %a : tensor<8x16xf32>", ['[{"x"}, {}]'] * 2, '[{"x"}, {}]', 3 * 32),
    ],
)  # fmt: skip
def test_an_op_reads_and_writes_the_parts_that_it_takes(ops, operands, result, elements):
    held = []

    def noted(site: Site) -> Rule:
        rule = rule_of(site)
        held.append(bits_held(site, rule, bits_of))
        return rule

    asked("%u = stablehlo.constant dense<0.0> : tensor<2x4xf32>\n" + ops, operands, [result], noted)
    assert held == [32 * elements]


def test_a_broadcast_splits_no_dimension_of_size_1():
    ops = """%o = stablehlo.slice %a [0:8, 0:1] : (tensor<8x16xf32>) -> tensor<8x1xf32>
        %r = stablehlo.broadcast_in_dim %o, dims = [1, 0] : (tensor<8x1xf32>) -> tensor<4x8xf32>"""
    assert asked(ops, ["[{}, {}]"], ['[{"x"}, {"y"}]']).operands == (dims('[{"y"}, {}]'),)


@pytest.mark.parametrize(
    ("result", "given", "wanted", "operand"),
    [
        ("128", '[{"x"}, {}]', '[{"x"}]', '[{"x"}, {}]'),
        ("128", '[{"x"}, {}]', '[{"x", "y"}]', '[{"x", "y"}, {}]'),
        ("4x2x16", '[{"x", "y"}, {}]', "[{}, {}, {}]", "[{}, {}]"),
        ("16x8", '[{}, {"x"}]', '[{"x"}, {}]', '[{"x"}, {}]'),
    ],
)
def test_the_operand_of_a_reshape_has_the_digits_of_its_result(result, given, wanted, operand):
    rule = asked(f"%r = stablehlo.reshape %a : (tensor<8x16xf32>) -> tensor<{result}xf32>", [given], [wanted])
    assert rule == Rule((dims(operand),), (dims(wanted),))


def test_a_result_of_a_reshape_has_the_digits_of_the_operand_if_that_cannot_have_its():
    ops = "%r = stablehlo.reshape %a : (tensor<8x16xf32>) -> tensor<4x2x16xf32>"
    rule = asked(ops, ['[{"x"}, {"y"}]'], ['[{}, {"x":(1)2}, {"y"}]'])
    assert rule == Rule((dims('[{"x"}, {"y"}]'),), (dims('[{"x"}, {}, {"y"}]'),))


def test_a_reshape_whose_sides_have_no_digits_in_common_is_done_whole():
    ops = "%r = stablehlo.reshape %a : (tensor<8x16xf32>) -> tensor<16x8xf32>"
    rule = asked(ops, ['[{}, {"x"}]'], ['[{}, {"x"}]'])
    whole = dims("[{}, {}]")
    assert rule == Rule((whole,), (whole,), whole="the layouts have no digits in common")


def test_an_op_without_a_rule_is_refused():
    with pytest.raises(NotLocal, match="it has no rule for tiles"):
        asked(
            "%r = stablehlo.custom_call @mine(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>", ["[{}, {}]"], ["[{}, {}]"]
        )


def test_what_is_not_elementwise_by_its_shapes_is_refused():
    ops = "%r = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>"
    with pytest.raises(NotLocal, match="it has no rule for tiles"):
        asked(ops, ["[{}, {}]"], ["[{}, {}]"], elementwise)


def test_neighbouring_pieces_of_an_axis_are_one():
    halves = Factor("x", 1, 2), Factor("x", 2, 2)
    assert joined(halves) == (X,) and joined((*halves, Y)) == (X, Y)
    assert joined((halves[0], Y, halves[1])) == (halves[0], Y, halves[1])
    assert shards((X, Y)) == 8 and shards(()) == 1
