# SPDX-License-Identifier: Apache-2.0
"""Sentences about sites."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.sites import findings as kinds
from reshard.passes.sites.wording import layout_text, why
from reshard.synthesis.layouts.sharding import Sharding

M = "tensor<16x16x16xf32>"
MODULE = f"""
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  func.func @f(%a: {M}, %p: tensor<i1>) -> {M} {{
    %0 = sdy.sharding_constraint %a <@mesh, [{{}}, {{}}, {{}}]> : {M}
    %1 = stablehlo.tanh %0 : {M}
    %2 = stablehlo.dot_general %1, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1] : ({M}, {M}) -> {M}
    %3 = stablehlo.while(%v = %2) : {M}
      cond {{ stablehlo.return %p : tensor<i1> }} do {{ stablehlo.return %v : {M} }}
    return %3 : {M}
  }}"""


@pytest.fixture
def ops():
    """Returns the ops by name, the last of each."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(MODULE)
        yield {op.name: op for op in ops_in(module.operation)}


@pytest.mark.parametrize(
    ("name", "number", "kind", "sentence"),
    [
        ("sdy.sharding_constraint", 0, kinds.CONSTRAINT, "the constraint asks for WANTED; its operand is SOURCE"),
        ("stablehlo.tanh", 0, kinds.RESULT, "tanh computes result 0 as SOURCE; the value is WANTED"),
        ("func.return", 0, kinds.FUNCTION_RESULT, "result 0 of @f is WANTED; the returned value is SOURCE"),
        ("stablehlo.while", 0, kinds.LOOP, "the loop has value 0 as WANTED; it starts as SOURCE"),
        ("stablehlo.return", 0, kinds.LOOP, "while has value 0 as WANTED; its body ends with SOURCE"),
        ("stablehlo.tanh", 0, kinds.OPERAND, "tanh wants operand 0 as WANTED; operand 0 is SOURCE"),
        (
            "stablehlo.tanh",
            0,
            kinds.ARGUMENT,
            "tanh wants operand 0 as WANTED; operand 0, an argument of the function, is SOURCE",
        ),
        ("stablehlo.tanh", 0, kinds.CALL, "tanh wants operand 0 as WANTED; operand 0, from across a call, is SOURCE"),
        ("stablehlo.tanh", 0, kinds.LOOP, "tanh wants operand 0 as WANTED; operand 0, of the loop, is SOURCE"),
    ],
)
def test_why_a_value_is_converted(ops, name, number, kind, sentence):
    assert why(ops[name], number, kind, "SOURCE", "WANTED", Sharding.parse("[{}, {}, {}]")) == sentence


@pytest.mark.parametrize(
    ("number", "target", "begin"),
    [
        (0, '[{}, {}, {"x", "y"}]', "dot_general contracts dim 2 over x, y; operand 0 is SOURCE"),
        (1, '[{}, {"x":(2)2}, {}]', "dot_general contracts dim 1 over x:(2)2; operand 1 is SOURCE"),
        (1, '[{}, {}, {"x"}]', "dot_general wants operand 1 as WANTED; operand 1 is SOURCE"),
    ],
)
def test_a_contraction_is_named_by_the_dimension_of_the_operand_that_it_splits(ops, number, target, begin):
    op = ops["stablehlo.dot_general"]
    assert why(op, number, kinds.OPERAND, "SOURCE", "WANTED", Sharding.parse(target)).replace('"', "") == begin


def test_layouts_are_shown_closed():
    with make_context():
        assert layout_text(ir.Attribute.parse('#sdy.sharding<@mesh, [{"x", ?}, {?}]>')) == '[{"x"}, {}]'
    assert layout_text(None) == "replicated"
