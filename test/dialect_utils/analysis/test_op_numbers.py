# SPDX-License-Identifier: Apache-2.0
"""Numbered ops: each op of a module can be found again by the name that XLA puts into HLO metadata."""

import tracemalloc
from pathlib import Path

import pytest

from reshard.dialect_utils.analysis.op_numbers import NumberedOps, _numbered
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
STRINGS = r"""
module @m attributes {test.a = "loc(unknown)", test.b = "say \"loc(unknown)\" \\"} {
  func.func @main(%a: tensor<8xf32> loc("a")) -> tensor<8xf32> {
    %0 = stablehlo.tanh %a : tensor<8xf32> loc("tanh"("f.py":3:4))
    %1 = stablehlo.constant dense<0.0> : tensor<f32>
    %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [0]
      : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<8xf32>
  }
}
"""
LOOP_OF_TWO_TYPES = """
func.func @main(%a: tensor<?x8xf32>, %n: tensor<i32>) -> tensor<?x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = "stablehlo.while"(%zero, %a) ({
  ^bb0(%i: tensor<i32>, %w: tensor<4x8xf32>):
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %w: tensor<4x8xf32>):
    %1 = stablehlo.add %i, %i : tensor<i32>
    stablehlo.return %1, %w : tensor<i32>, tensor<4x8xf32>
  }) : (tensor<i32>, tensor<?x8xf32>) -> (tensor<i32>, tensor<?x8xf32>)
  return %0#1 : tensor<?x8xf32>
}
"""


@pytest.mark.parametrize("text", [STRINGS, (EXAMPLES / "moe_layer.mlir").read_text()], ids=["strings", "moe_layer"])
def test_every_op_that_is_printed_has_a_number_of_its_own(text):
    with make_context() as context:
        module = ir.Module.parse(text)
        numbered = NumberedOps(module)
        copy = ir.Module.parse(numbered.text, context)
        for op, original in zip(ops_in(copy.operation), ops_in(module.operation), strict=True):
            found = numbered.of_name(str(op.location))
            assert found is not None
            if found != original:  # inside a region that is printed as one word, such as `applies stablehlo.add`
                assert found.name == "stablehlo.reduce" and original.parent.name == "stablehlo.reduce"


def test_the_module_stays_as_it_is_and_strings_keep_their_text():
    with make_context():
        module = ir.Module.parse(STRINGS)
        before = module.operation.get_asm(enable_debug_info=True)
        text = NumberedOps(module).text
        assert module.operation.get_asm(enable_debug_info=True) == before
        assert r'{test.a = "loc(unknown)", test.b = "say \22loc(unknown)\22 \\"}' in text


def test_names_without_a_number_stand_for_no_op():
    with make_context():
        numbered = NumberedOps(ir.Module.parse(STRINGS))
        assert numbered.of_name("jit(f)/tanh") is None and numbered.of_name("") is None
        assert numbered.of_name("reshard.op/100000") is None


def test_a_constant_of_megabytes_takes_little_more_memory_than_its_text():
    text = f'dense<"0x{"0" * (8 << 20)}"> loc(unknown)'
    tracemalloc.start()
    try:
        assert _numbered(text).endswith('loc("reshard.op/1")')
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text)
    finally:
        tracemalloc.stop()


def test_a_loop_that_takes_values_of_other_types_than_it_carries_is_numbered():
    with make_context():
        module = ir.Module.parse(LOOP_OF_TWO_TYPES)
        numbered = NumberedOps(module)
        assert {op.name for op in map(numbered.of_name, numbered.text.split("loc(")[1:]) if op} >= {"stablehlo.while"}
