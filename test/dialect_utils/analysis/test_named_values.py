# SPDX-License-Identifier: Apache-2.0
"""Values are found by the names that JAX gives them."""

from reshard.dialect_utils.analysis.named_values import named_values
from reshard.dialect_utils.platform.bindings import ir, make_context


def test_arguments_and_results_have_name_place_and_constraint():
    with make_context():
        module = ir.Module.parse("""
          sdy.mesh @mesh = <["x"=2]>
          func.func @main(%a: tensor<4xf32> loc("state")) -> tensor<4xf32> {
            %0 = stablehlo.tanh %a : tensor<4xf32> loc("jit(step)/tanh"("model.py":7:3))
            %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}]> : tensor<4xf32> loc("jit(step)/constraint")
            %2 = stablehlo.negate %1 : tensor<4xf32> loc("model.py":8:3)
            return %2 : tensor<4xf32>
          }""")
        argument, tanh, constraint = sorted(named_values(module), key=lambda each: each.name != "state")
    assert (argument.name, argument.place, argument.type) == ("state", "", "tensor<4xf32>")
    assert (tanh.name, tanh.place, tanh.constraint) == ("jit(step)/tanh", "model.py:7", None)
    assert (constraint.name, str(constraint.constraint)) == ("jit(step)/constraint", '[{"x"}]')
