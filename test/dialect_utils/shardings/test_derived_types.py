# SPDX-License-Identifier: Apache-2.0
"""Constraints that JAX writes for types in explicit mode, told from those that somebody wrote."""

import pytest

from reshard.dialect_utils.ir.way_back import WayBack
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.annotations import constraints_of
from reshard.dialect_utils.shardings.derived_types import derived_from, is_type, typed

MODULE = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func private @inner(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %0 = stablehlo.tanh %a : tensor<8x8xf32> loc("tanh"("f.py":1:0))
  %b = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{}}]> : tensor<8x8xf32> loc("tanh"("f.py":1:0))
  return {returned} : tensor<8x8xf32>
}}
func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %0 = {op} : {type} loc("jit(f)/{made}"("f.py":1:0))
  %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{}}]> : tensor<8x8xf32> loc("jit(f)/{said}"("f.py":{line}:0))
  return %1 : tensor<8x8xf32>
}}"""
TANH = {"op": "stablehlo.tanh %arg0", "type": "tensor<8x8xf32>", "returned": "%a"}
CALL = {"op": "func.call @inner(%arg0)", "type": "(tensor<8x8xf32>) -> tensor<8x8xf32>", "returned": "%a"}


@pytest.mark.parametrize(
    ("op", "made", "said", "line", "expected"),
    [
        (TANH, "tanh", "tanh", 1, True),
        (TANH, "tanh", "tanh", 2, False),
        (TANH, "tanh", "sharding_constraint", 1, False),
        (TANH, "tanh", "reshard", 2, False),
        (TANH, "tanh", "transpose(jvp())/reshard", 2, True),  # the type that was before the reshard
        (TANH, "tanh", "transpose(jvp())/rematted_computation/reshard", 2, False),  # it is computed again
        (CALL, "pjit", "pjit", 1, False),  # somebody gave out_shardings to a jit inside
        (CALL | {"returned": "%b"}, "jit(g)", "jit", 1, True),  # the type is the one inside
        (CALL | {"returned": "%b"}, "jit(g)", "reshard", 1, False),
    ],
)
def test_a_type_has_the_name_and_line_of_its_op(op, made, said, line, expected):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(MODULE.format(**op, made=made, said=said, line=line))
        _, constraint = constraints_of(module)  # the first one is in the function inside
        assert is_type(constraint, WayBack(module.operation)) is expected


CHAIN = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32> loc("jit(f)/reshard"("f.py":1:0))
  %1 = stablehlo.tanh %0 : tensor<8x8xf32> loc("jit(f)/tanh"("f.py":2:0))
  %2 = sdy.sharding_constraint %1 <@mesh, [{"x"}, {}]> : tensor<8x8xf32> loc("jit(f)/tanh"("f.py":2:0))
  %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"y"}]> : tensor<8x8xf32> loc("jit(f)/reshard"("f.py":3:0))
  %4 = stablehlo.exponential %3 : tensor<8x8xf32> loc("jit(f)/exp"("f.py":4:0))
  %5 = sdy.sharding_constraint %4 <@mesh, [{}, {"y"}]> : tensor<8x8xf32> loc("jit(f)/exp"("f.py":4:0))
  %6 = stablehlo.negate %arg1 : tensor<8x8xf32> loc("jit(f)/transpose(jvp())/neg"("f.py":2:0))
  %7 = sdy.sharding_constraint %6 <@mesh, [{"x"}, {}]> : tensor<8x8xf32> loc("jit(f)/transpose(jvp())/neg"("f.py":2:0))
  %8 = stablehlo.negate %7 : tensor<8x8xf32> loc("jit(f)/transpose(jvp())/neg"("f.py":4:0))
  %9 = sdy.sharding_constraint %8 <@mesh, [{}, {"y"}]> : tensor<8x8xf32> loc("jit(f)/transpose(jvp())/neg"("f.py":4:0))
  return %5, %9 : tensor<8x8xf32>, tensor<8x8xf32>
}"""


def test_types_follow_up_to_the_next_stated_one_and_gradients_have_those_of_their_values():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(CHAIN)
        first, of_tanh, second, _, of_gradient, _ = ops = constraints_of(module)
        kind = typed(first.operands[0], first.attributes["sharding"])
        assert derived_from(module, [first.results[0]], {kind}, {first, second}) == [of_tanh, of_gradient]
        assert derived_from(module, [], set(), set(ops)) == []
