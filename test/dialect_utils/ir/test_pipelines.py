# SPDX-License-Identifier: Apache-2.0
"""Pipelines of MLIR's passes: what they leave behind is verified."""

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.ir.pipelines import run_pipeline
from reshard.dialect_utils.platform.bindings import ir, make_context


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


MODULE = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""


def test_a_module_that_is_invalid_behind_a_pipeline_is_an_error():
    module = ir.Module.parse(MODULE)
    tanh = next(op for op in ops_in(module.operation) if op.name == "stablehlo.tanh")
    run_pipeline(module.operation, "builtin.module(symbol-dce)")
    tanh.attributes["sdy.sharding"] = ir.Attribute.parse('#sdy.sharding_per_value<[<@mesh, [{"x"}]>]>')
    with pytest.raises(DiagnosedError, match="rank"):
        run_pipeline(module.operation, "builtin.module(symbol-dce)")
