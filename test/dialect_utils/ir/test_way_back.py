# SPDX-License-Identifier: Apache-2.0
"""The way back of a gradient, told by the names of ops and of what calls them."""

import pytest

from reshard.dialect_utils.ir.ops import name_of, ops_in
from reshard.dialect_utils.ir.way_back import WayBack
from reshard.dialect_utils.platform.bindings import ir, make_context

FORWARD, BACKWARD, AGAIN = "jit(f)/jvp()", "jit(f)/transpose(jvp())", "jit(f)/transpose(jvp())/rematted_computation"
MODULE = """
func.func private @body(%a: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = func.call @inner(%a) : (tensor<8xf32>) -> tensor<8xf32> loc("{between}"("f.py":2:0))
  return %0 : tensor<8xf32>
}}
func.func private @inner(%a: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = stablehlo.tanh %a : tensor<8xf32> loc("{own}"("f.py":1:0))
  return %0 : tensor<8xf32>
}}
func.func public @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = func.call @body(%arg0) : (tensor<8xf32>) -> tensor<8xf32> loc("{first}/body"("f.py":3:0))
  %1 = func.call @body(%0) : (tensor<8xf32>) -> tensor<8xf32> loc("{second}/body"("f.py":3:0))
  return %1 : tensor<8xf32>
}}"""


@pytest.mark.parametrize(
    ("first", "second", "between", "own", "expected"),
    [
        (FORWARD, FORWARD, "g", "tanh", False),
        (BACKWARD, BACKWARD, "g", "tanh", True),
        (BACKWARD, FORWARD, "g", "tanh", False),  # the function is the way forward's as well
        (AGAIN, AGAIN, "g", "tanh", False),
        (BACKWARD, BACKWARD, "checkpoint/rematted_computation/g", "tanh", False),
        (BACKWARD, AGAIN, "g", "tanh", False),
        (FORWARD, FORWARD, "g", "transpose(jvp())/mul", True),
    ],
)
def test_what_calls_a_function_says_of_the_ops_in_it_what_their_names_do_not(first, second, between, own, expected):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(MODULE.format(first=first, second=second, between=between, own=own))
        back = WayBack(module.operation)
        (tanh,) = (op for op in ops_in(module.operation) if name_of(op.location) == own)
        assert back.has(tanh) is expected


def test_ops_in_a_loop_are_where_the_loop_is():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse("""
func.func public @main(%arg0: tensor<i1>) -> tensor<i1> {
  %0 = stablehlo.while(%a = %arg0) : tensor<i1> cond {
    stablehlo.return %a : tensor<i1>
  } do {
    %1 = stablehlo.not %a : tensor<i1> loc("not"("f.py":1:0))
    stablehlo.return %1 : tensor<i1>
  } loc("jit(f)/transpose(jvp())/while"("f.py":2:0))
  return %0 : tensor<i1>
}""")
        back = WayBack(module.operation)
        assert [back.has(op) for op in ops_in(module.operation) if op.name == "stablehlo.not"] == [True]


def test_all_names_of_a_location_count():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse("""
func.func public @main(%arg0: tensor<i1>) -> tensor<i1> {
  %0 = stablehlo.not %arg0 : tensor<i1> loc("jit:"("jit(f)/transpose(jvp())/jit"("f.py":1:0)))
  return %0 : tensor<i1>
}""")
        back = WayBack(module.operation)
        assert [back.has(op) for op in ops_in(module.operation) if op.name == "stablehlo.not"] == [True]
