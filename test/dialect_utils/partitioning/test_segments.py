# SPDX-License-Identifier: Apache-2.0
"""Segments of a function between ops that stay with XLA."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.partitioning.segments import is_free, segments, top_level
from reshard.dialect_utils.platform.bindings import ir, make_context

M = "tensor<8xf32>"
TEXT = f"""
func.func @main(%a: {M}, %b: {M}) -> ({M}, {M}, {M}) {{
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> {M}
  %0 = stablehlo.add %a, %ones : {M}
  %1 = stablehlo.custom_call @left(%0) : ({M}) -> {M}
  %2 = stablehlo.add %1, %ones : {M}
  %i = stablehlo.constant dense<0> : tensor<i32>
  %3 = "stablehlo.case"(%i) ({{
    %4 = stablehlo.add %2, %b : {M}
    stablehlo.return %4 : {M}
  }}) : (tensor<i32>) -> {M}
  return %3, %0, %ones : {M}, {M}, {M}
}}"""


@pytest.fixture
def block():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(TEXT)
        yield module.body.operations[0].operation.regions[0].blocks[0]


def _names(values) -> list[str]:
    return [value.get_name() for value in values]


def test_a_value_that_is_used_behind_its_segment_leaves_it_and_constants_are_made_again(block):
    ops = [each.operation for each in block.operations]
    left = next(each for each in ops if each.name == "stablehlo.custom_call")
    first, last = segments(block, [left], {left: [ops[2].results[0]]})
    assert first.left == left and last.left is None
    assert _names(first.taken) == ["%arg0"] and _names(first.given) == [ops[2].results[0].get_name()]
    assert [each.name for each in first.ops] == ["stablehlo.constant", "stablehlo.broadcast_in_dim", "stablehlo.add"]
    assert {*_names(last.taken)} == {left.results[0].get_name(), "%arg1", ops[2].results[0].get_name()}
    names = [each.name.removeprefix("stablehlo.") for each in last.ops]
    assert names == ["constant", "broadcast_in_dim", "add", "constant", "case"]


def test_without_an_op_that_is_left_there_is_one_segment(block):
    (only,) = segments(block, [], {})
    assert len(only.ops) == len(block.operations) - 1 and {*_names(only.taken)} == {"%arg0", "%arg1"}
    assert list(only.given) == list(only.ops[-1].block.operations[len(block.operations) - 1].operands)


def test_an_op_in_a_region_belongs_to_the_op_around_it(block):
    function = block.owner.operation
    inner = [each for each in ops_in(function) if each.name == "stablehlo.add"][-1]
    assert top_level(inner).name == "stablehlo.case"


def test_repeated_constants_are_free(block):
    ops = [each.operation for each in block.operations]
    assert [is_free(each.results[0]) for each in ops[:3]] == [True, True, False]
    assert not is_free(block.arguments[0])
