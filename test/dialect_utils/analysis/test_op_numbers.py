# SPDX-License-Identifier: Apache-2.0
"""Numbered ops: each op of a module can be found again by the name that XLA puts into HLO metadata."""

from pathlib import Path

import pytest

from reshard.dialect_utils.analysis.op_numbers import NumberedOps
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
