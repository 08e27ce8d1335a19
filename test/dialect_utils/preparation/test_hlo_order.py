# SPDX-License-Identifier: Apache-2.0
"""The ops of a block come in HLO's post-order."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.hlo_order import order_like_hlo


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def ordered(body: str) -> list[str]:
    module = ir.Module.parse(f"func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{ {body} }}")
    order_like_hlo(op for op in ops_in(module.operation) if len(op.regions))
    assert module.operation.verify()
    return [op.name.removeprefix("stablehlo.") for op in ops_in(module.operation) if op.name.startswith("stablehlo.")]


def test_ops_come_depth_first_with_operands_in_order():
    assert ordered("""
      %0 = stablehlo.tanh %a : tensor<4xf32>
      %1 = stablehlo.negate %a : tensor<4xf32>
      %2 = stablehlo.add %1, %0 : tensor<4xf32>
      return %2 : tensor<4xf32>""") == ["negate", "tanh", "add"]


def test_ops_that_nothing_uses_come_first():
    assert ordered("""
      %0 = stablehlo.tanh %a : tensor<4xf32>
      %1 = stablehlo.negate %a : tensor<4xf32>
      return %0 : tensor<4xf32>""") == ["negate", "tanh"]
