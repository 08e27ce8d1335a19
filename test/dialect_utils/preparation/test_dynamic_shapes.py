# SPDX-License-Identifier: Apache-2.0
"""Dynamic dimensions become size 1; ops with such values become custom calls whose rule connects no dimensions."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.dynamic_shapes import (
    SHARDING_RULE,
    dynamic_dimension,
    stand_in_for_dynamic_shapes,
)


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


@pytest.mark.parametrize("text, dim", [("tensor<4x?x?xf32>", 1), ("tensor<4xf32>", None), ("tensor<*xf32>", None)])
def test_the_first_dynamic_dimension(text, dim):
    assert dynamic_dimension(ir.Type.parse(text)) == dim


def test_an_op_of_dynamic_shape_is_opaque():
    module = ir.Module.parse("""func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {
      %0 = stablehlo.tanh %a : tensor<?x4xf32>
      return %0 : tensor<?x4xf32>
    }""")
    stand_in_for_dynamic_shapes(module.operation)
    assert module.operation.verify() and "?" not in str(module)
    (call,) = [op for op in ops_in(module.operation) if op.name == "stablehlo.custom_call"]
    assert (
        str(call.attributes[SHARDING_RULE]) == "#sdy.op_sharding_rule<([i, j])->([k, l]) {i=1, j=4, k=1, l=4}, custom>"
    )
