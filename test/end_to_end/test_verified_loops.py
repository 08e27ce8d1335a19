# SPDX-License-Identifier: Apache-2.0
"""`verify` on loops, whose ops are not watched: what rounding does there is told from what is wrong."""

import pytest

from reshard.dialect_utils.compare.instrumented import number_ops
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results.module_verification import ROUNDED, ROUNDED_TEXT, UNSTABLE_TEXT, WRONG, verify

LAYERS = """
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %w: tensor<10x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}) -> tensor<16x64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<16x64xf32> cond {
    %end = stablehlo.constant dense<10> : tensor<i32>
    %more = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %slice = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 64, 64]
      : (tensor<10x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
    %layer = stablehlo.reshape %slice : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
    %split = sdy.sharding_constraint %v <@mesh, [{}, {COLUMNS}]> : tensor<16x64xf32>
    %y = stablehlo.dot_general %split, %layer, contracting_dims = [1] x [0]
      : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<16x64xf32>
    %gain = stablehlo.constant dense<GAIN> : tensor<16x64xf32>
    %z = stablehlo.multiply %y, %gain : tensor<16x64xf32>
    %next = stablehlo.tanh %z : tensor<16x64xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %next : tensor<i32>, tensor<16x64xf32>
  }
  return %0#1 : tensor<16x64xf32>
}"""


def layers(columns: str = "", gain: str = "1.0") -> str:
    return LAYERS.replace("COLUMNS", columns).replace("GAIN", gain)


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "status"), [("1.0", ROUNDED), ("1.01", WRONG)])
def test_a_loop_that_enlarges_rounding_is_wrong_only_if_small_inputs_say_so(gain, status):
    with make_context() as context, ir.Location.unknown(context):
        modules = [ir.Module.parse(text) for text in (layers(), layers('"x"', gain))]
        for each in modules:
            number_ops(each)
        found = verify(*modules, 4, shared_child())
    assert found.stock.is_right
    assert found.ours.status == status, found
    assert found.ours.difference.fraction > 10 * found.ours.difference.limit


def whole_and_split(text: str, gain: str) -> list[ir.Module]:
    """Returns a program with whole rows, and with rows that are split and a gain, which should be 1."""
    texts = [text.replace("COLUMNS", columns).replace("GAIN", by) for columns, by in (("", "1.0"), ('"x"', gain))]
    modules = [ir.Module.parse(each) for each in texts]
    for each in modules:
        number_ops(each)
    return modules


# The sum of what is left of rows behind their mean: nothing but rounding, as the gradient of a bias of keys.
CANCELLING = """sdy.mesh @mesh = <["x"=4]>
func.func public @main(%x: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {COLUMNS}]>})
    -> (tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %size = stablehlo.constant dense<4096.0> : tensor<64xf32>
  %gain = stablehlo.constant dense<GAIN> : tensor<64xf32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<64x4096xf32>, tensor<f32>) -> tensor<64xf32>
  %1 = stablehlo.divide %0, %size : tensor<64xf32>
  %2 = stablehlo.multiply %1, %gain : tensor<64xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<64xf32>) -> tensor<64x4096xf32>
  %4 = stablehlo.subtract %x, %3 : tensor<64x4096xf32>
  %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<64x4096xf32>, tensor<f32>) -> tensor<64xf32>
  return %5 : tensor<64xf32>
}"""


@pytest.mark.parametrize(("gain", "is_right"), [("1.0", True), ("1.01", False)])
def test_a_sum_whose_terms_cancel_is_wrong_only_by_more_than_its_terms_round(gain, is_right):
    with make_context() as context, ir.Location.unknown(context):
        modules = whole_and_split(CANCELLING, gain)
        found = verify(*modules, 4, shared_child())
    assert found.stock.is_right and found.ours.is_right == is_right, found
    assert found.ours.difference.fraction > 0.01  # in units of the output, which is rounding alone


# The signs of what is nothing but rounding: with floats of 64 bits they are as arbitrary.
SIGNS = """sdy.mesh @mesh = <["x"=4]>
func.func public @main(%x: tensor<64x4096xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {COLUMNS}]>})
    -> (tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>},
        tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %gain = stablehlo.constant dense<GAIN> : tensor<64xf32>
  %square = stablehlo.multiply %x, %x : tensor<64x4096xf32>
  %cube = stablehlo.multiply %square, %x : tensor<64x4096xf32>
  %0 = stablehlo.reduce(%cube init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<64x4096xf32>, tensor<f32>) -> tensor<64xf32>
  %1 = stablehlo.reverse %cube, dims = [1] : tensor<64x4096xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<64x4096xf32>, tensor<f32>) -> tensor<64xf32>
  %3 = stablehlo.subtract %0, %2 : tensor<64xf32>
  %4 = stablehlo.sign %3 : tensor<64xf32>
  %5 = stablehlo.multiply %0, %gain : tensor<64xf32>
  return %4, %5 : tensor<64xf32>, tensor<64xf32>
}"""


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "status"), [("1.0", ROUNDED), ("1.01", WRONG)])
def test_outputs_that_rounding_alone_changes_as_much_are_right_unless_another_one_is_wrong(gain, status):
    with make_context() as context, ir.Location.unknown(context):
        whole, written = whole_and_split(SIGNS, gain)
        Pipeline.parse("convert-to-local").run(written, Session())  # ops are not watched inside of it
        found = verify(whole, written, 4, shared_child())
    assert found.ours.status == status, found
    if status == ROUNDED:  # some jaxlibs add up in orders that agree with floats of 64 bits
        assert found.ours.message in (UNSTABLE_TEXT, ROUNDED_TEXT)
