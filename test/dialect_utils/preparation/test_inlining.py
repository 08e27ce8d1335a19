# SPDX-License-Identifier: Apache-2.0
"""Calls are inlined as XLA does it; recursion is refused at the call."""

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.inlining import inline_calls, remove_call_barriers


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


TWO_RESULTS = """
  func.func private @pair(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.tanh %a : tensor<4xf32>
    %1 = stablehlo.negate %a : tensor<4xf32>
    return %0, %1 : tensor<4xf32>, tensor<4xf32>
  }
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0:2 = call @pair(%a) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %1:2 = call @pair(%0#0) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    return %1#1 : tensor<4xf32>
  }"""


def names(module: ir.Module) -> list[str]:
    return [op.name.removeprefix("stablehlo.") for op in ops_in(module.operation) if op.name.startswith("stablehlo.")]


def test_a_call_with_several_results_is_behind_a_barrier_until_the_ops_are_in_order():
    module = ir.Module.parse(TWO_RESULTS)
    barriers = inline_calls(module.operation)
    assert names(module) == ["tanh", "negate", "optimization_barrier"] * 2
    remove_call_barriers(barriers)
    assert names(module) == ["tanh", "negate"] * 2
    assert module.operation.verify() and "call" not in str(module)


def test_functions_that_nobody_calls_any_more_are_removed():
    module = ir.Module.parse(TWO_RESULTS)
    inline_calls(module.operation)
    assert "@pair" not in str(module)


def test_a_function_that_calls_itself_is_an_error_at_the_call():
    module = ir.Module.parse("""
      func.func private @again(%a: tensor<4xf32>) -> tensor<4xf32> {
        %0 = call @again(%a) : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>
      }
      func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
        %0 = call @again(%a) : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>
      }""")
    with pytest.raises(DiagnosedError, match="@again calls itself by way of this call"):
        inline_calls(module.operation)
