# SPDX-License-Identifier: Apache-2.0
"""Propagation on a clone: pipelines are verified, if only at their end. What it finds is tested in test/passes."""

import pytest

from reshard.dialect_utils import propagation
from reshard.dialect_utils.bindings import ir, make_context
from reshard.dialect_utils.diagnostics import DiagnosedError

MODULE = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""


def test_a_module_that_is_invalid_behind_a_pipeline_is_an_error():
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse(MODULE)
        tanh = next(op for op in propagation.ops_in(module.operation) if op.name == "stablehlo.tanh")
        propagation.run(module.operation, "builtin.module(symbol-dce)")
        tanh.attributes["sdy.sharding"] = ir.Attribute.parse('#sdy.sharding_per_value<[<@mesh, [{"x"}]>]>')
        with pytest.raises(DiagnosedError, match="rank"):
            propagation.run(module.operation, "builtin.module(symbol-dce)")
