# SPDX-License-Identifier: Apache-2.0
"""Ops: their producers, the ops in and around them, and numbers as attributes and values."""

import numpy as np
import pytest

from reshard.dialect_utils.ir.ops import (
    blocks_of,
    dense_elements,
    int32_constant,
    int64_attr,
    location_inside,
    manual_axes,
    name_of,
    ops_around,
    ops_in,
    producer_of,
    shape_of,
    short_name,
    terminator_of,
)
from reshard.dialect_utils.platform.bindings import ir, make_context

CASE = """
  func.func @f(%i: tensor<i32>, %a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.tanh %a : tensor<4xf32>
    %1 = "stablehlo.case"(%i) ({
      %2 = stablehlo.sine %0 : tensor<4xf32>
      stablehlo.return %2 : tensor<4xf32>
    }, {
      stablehlo.return %0 : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }"""


@pytest.fixture
def module():
    with make_context() as context, ir.Location.unknown(context):
        yield ir.Module.parse(CASE)


def test_parents_come_first_or_last(module):
    parents_first = [short_name(op) for op in ops_in(module.operation)]
    assert parents_first == ["builtin.module", "func", "tanh", "case", "sine", "return", "return", "return"]
    parents_last = [op.name for op in ops_in(module.operation, ir.WalkOrder.POST_ORDER)]
    assert parents_last[-1] == "builtin.module" and parents_last.index("stablehlo.sine") == 1


def test_the_ops_around_an_op_begin_with_the_innermost(module):
    sine = next(op for op in ops_in(module.operation) if op.name == "stablehlo.sine")
    assert [op.name for op in ops_around(sine)] == ["stablehlo.case", "func.func", "builtin.module"]


def test_an_argument_has_no_producer(module):
    tanh, sine = (next(op for op in ops_in(module.operation) if short_name(op) == name) for name in ("tanh", "sine"))
    assert producer_of(tanh.operands[0]) is None and producer_of(sine.operands[0]) == tanh


def test_blocks_of_all_regions_and_their_ends(module):
    case = next(op for op in ops_in(module.operation) if op.name == "stablehlo.case")
    ends = [terminator_of(block) for block in blocks_of(case)]
    assert [(op.name, short_name(producer_of(op.operands[0]))) for op in ends] == [
        ("stablehlo.return", "sine"),
        ("stablehlo.return", "tanh"),
    ]


@pytest.mark.parametrize(
    ("kind", "shape"), [("tensor<4x8xf32>", [4, 8]), ("tensor<f32>", []), ("tensor<*xf32>", None), ("f32", None)]
)
def test_only_ranked_tensors_have_a_shape(kind, shape):
    with make_context():
        assert shape_of(ir.Type.parse(kind)) == shape


def test_numbers_are_attributes_and_values(module):
    assert str(int64_attr(-3)) == "-3 : i64"
    with ir.InsertionPoint.at_block_begin(module.body):
        assert str(producer_of(int32_constant(7)).attributes["value"]) == "dense<7> : tensor<i32>"
    flags = np.array([True, False])
    assert str(dense_elements(flags, ir.Type.parse("tensor<2xi1>"))) == "dense<[true, false]> : tensor<2xi1>"
    assert manual_axes(ir.Attribute.parse('#sdy<manual_axes{"b", "a"}>')) == ["b", "a"]


def test_only_a_named_location_has_a_name():
    with make_context():
        place = ir.Location.file("model.py", 5, 1)
        named = ir.Location.name("jit(f)/add", place)
        assert name_of(named) == "jit(f)/add" and location_inside(named) == place
        assert name_of(place) is None and name_of(ir.Location.unknown()) is None
