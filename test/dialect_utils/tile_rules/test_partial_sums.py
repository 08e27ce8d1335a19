# SPDX-License-Identifier: Apache-2.0
"""Which ops are linear, and what a loop accumulates."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.tile_rules.partial_sums import (
    accumulation,
    begins_with_nothing,
    linear_operand,
    scaled_operands,
    widens,
)

M = "tensor<8x4xf32>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


kept: list[ir.Module] = []  # a module lives as long as its ops are read


def _parsed(body: str, arguments: str = f"%a: {M}, %b: {M}") -> ir.Operation:
    """Returns the last op of a function with a body."""
    kept.append(ir.Module.parse(f"func.func @main({arguments}) {{\n{body}\nreturn }}"))
    return ops_in(kept[-1].operation)[-2]


@pytest.mark.parametrize(("body", "operand"), [
    (f"%0 = stablehlo.negate %a : {M}", 0),
    (f"%0 = stablehlo.transpose %a, dims = [1, 0] : ({M}) -> tensor<4x8xf32>", 0),
    (f"%0 = stablehlo.reshape %a : ({M}) -> tensor<32xf32>", 0),
    (f"%0 = stablehlo.broadcast_in_dim %a, dims = [1, 2] : ({M}) -> tensor<1x8x4xf32>", 0),
    (f"%0 = stablehlo.broadcast_in_dim %a, dims = [1, 2] : ({M}) -> tensor<2x8x4xf32>", None),
    (f"%0 = stablehlo.tanh %a : {M}", None),
])  # fmt: skip
def test_ops_that_are_linear_and_keep_the_bytes(body, operand):
    assert linear_operand(_parsed(body)) == operand


@pytest.mark.parametrize(("value", "operand"), [("0.0", 0), ("1.0", None)])
def test_a_pad_with_zeros_is_linear(value, operand):
    body = f"""%c = stablehlo.constant dense<{value}> : tensor<f32>
    %0 = stablehlo.pad %a, %c, low = [1, 0], high = [0, -1], interior = [0, 1]
      : ({M}, tensor<f32>) -> tensor<9x6xf32>"""
    assert linear_operand(_parsed(body)) == operand


@pytest.mark.parametrize(("body", "operands"), [
    (f"%0 = stablehlo.multiply %a, %c : {M}", (0,)),
    (f"%0 = stablehlo.multiply %c, %a : {M}", (1,)),
    (f"%0 = stablehlo.divide %a, %c : {M}", ()),
    (f"%0 = stablehlo.divide %a, %large : {M}", (0,)),
    (f"%0 = stablehlo.divide %large, %a : {M}", ()),
    (f"%0 = stablehlo.multiply %a, %large : {M}", ()),
    (f"%0 = stablehlo.divide %a, %zeros : {M}", ()),
    (f"%0 = stablehlo.multiply %a, %infinite : {M}", ()),
    (f"%0 = stablehlo.multiply %a, %b : {M}", ()),
    (f"%0 = stablehlo.add %a, %c : {M}", ()),
])  # fmt: skip
def test_products_and_quotients_are_linear_by_constants_that_make_nothing_larger(body, operands):
    constants = f"""%c = stablehlo.constant dense<-0.25> : {M}
    %large = stablehlo.constant dense<4.0> : {M}
    %zeros = stablehlo.constant dense<0.0> : {M}
    %infinite = stablehlo.constant dense<0x7F800000> : {M}"""
    assert scaled_operands(_parsed(f"{constants}\n{body}")) == operands


def test_a_quotient_of_whole_numbers_is_not_linear():
    kind = "tensor<8xi32>"
    assert scaled_operands(_parsed(f"%0 = stablehlo.divide %a, %b : {kind}", f"%a: {kind}, %b: {kind}")) == ()


@pytest.mark.parametrize(("before", "after", "is_linear"), [
    ("bf16", "f32", True), ("f32", "f64", True), ("f32", "bf16", False), ("f16", "bf16", False), ("i32", "f32", False),
])  # fmt: skip
def test_a_conversion_is_linear_if_it_loses_nothing(before, after, is_linear):
    body = f"%0 = stablehlo.convert %a : (tensor<8x{before}>) -> tensor<8x{after}>"
    assert widens(_parsed(body, f"%a: tensor<8x{before}>")) is is_linear


def _loop(body: str, condition: str = "") -> ir.Operation:
    text = f"""
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %w:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {M} cond {{
      {condition}
      %n = stablehlo.constant dense<3> : tensor<i32>
      %less = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      {body}
      stablehlo.return %next, %y : tensor<i32>, {M}
    }}"""
    kept.append(ir.Module.parse(f"func.func @main(%a: {M}, %b: {M}) {{\n{text}\nreturn }}"))
    return next(op for op in ops_in(kept[-1].operation) if op.name == "stablehlo.while")


@pytest.mark.parametrize(("body", "is_accumulated"), [
    (f"%y = stablehlo.add %x, %b : {M}", True),
    (f"%y = stablehlo.add %b, %x : {M}", True),
    (f"%y = stablehlo.subtract %x, %b : {M}", True),
    (f"%y = stablehlo.subtract %b, %x : {M}", False),
    (f"%y = stablehlo.multiply %b, %x : {M}", False),
    (f"%y = stablehlo.add %x, %x : {M}", False),
    (f"%t = stablehlo.tanh %x : {M}\n%y = stablehlo.add %x, %t : {M}", False),
    (f"%s = stablehlo.add %x, %b : {M}\n%y = stablehlo.tanh %s : {M}", False),
])  # fmt: skip
def test_what_a_loop_accumulates(body, is_accumulated):
    assert (accumulation(_loop(body), 1, ()) is not None) is is_accumulated


def test_a_value_that_decides_the_end_of_its_loop_is_not_accumulated():
    loop = _loop(f"%y = stablehlo.add %x, %b : {M}", f"%t = stablehlo.tanh %x : {M}")
    assert accumulation(loop, 1, ()) is None


@pytest.mark.parametrize(("text", "is_nothing"), [("0.0", True), ("1.0", False)])
def test_a_repeated_zero_is_nothing(text, is_nothing):
    body = f"""%z = stablehlo.constant dense<{text}> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> {M}"""
    assert begins_with_nothing(_parsed(body).results[0]) is is_nothing
