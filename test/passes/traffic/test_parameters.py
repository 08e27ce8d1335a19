# SPDX-License-Identifier: Apache-2.0
"""Which parameter's gradient an op computes."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.traffic.parameters import Parameters, most_alike

BACKWARD = 'loc("dot_general"("jit(f)/transpose(jvp())"))'
DOT = "stablehlo.dot_general {0}, contracting_dims = [0] x [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>"


def found(text: str, names=("stablehlo.dot_general",)) -> list[str]:
    """Returns the parameters of all ops with these names, in order."""
    with make_context() as context:
        module = ir.Module.parse(text, context)
        ops = ops_in(module.operation)
        calls = {ir.FlatSymbolRefAttr(op.attributes["callee"]).value: op for op in ops if op.name == "func.call"}
        main = next(op for op in ops if op.name == "func.func" and "main" in str(op.attributes["sym_name"]))
        parameters, names_found = Parameters(module, main), []
        for op in ops:
            if op.name in names:
                function = op.parent.operation
                call = calls.get(str(function.attributes["sym_name"]).strip('"')) if function != main else None
                names_found.append(parameters.gradient_of([op] if call is None else [op, call]))
        return names_found


HEAD = """func.func public @main(
  %x: tensor<4x8xf32> loc("x"), %up: tensor<8x8xf32> {0} loc("params['up']"), %mu: tensor<8x8xf32> {1} loc("mu['up']"))
  -> (tensor<f32> {{jax.result_info = "result[0]"}}, tensor<8x8xf32> {{jax.result_info = "result[1]['up']"}},
      tensor<8x8xf32> {{jax.result_info = "result[2]['up']"}}) {{
  %y = stablehlo.dot_general %x, %up, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %loss = stablehlo.constant dense<0.0> : tensor<f32>
"""
STEP = """
  %m = stablehlo.add %mu, %g : tensor<8x8xf32>
  %new = stablehlo.subtract %up, %m : tensor<8x8xf32>
  return %loss, %new, %m : tensor<f32>, tensor<8x8xf32>, tensor<8x8xf32>
}
"""
PLAIN = f"  %g = {DOT.format('%x, %x')} {BACKWARD}"


def test_through_an_optimizer_it_is_the_argument_that_the_result_renews():
    donated = HEAD.format("{tf.aliasing_output = 1 : i32}", "{tf.aliasing_output = 2 : i32}")
    assert found(donated + PLAIN + STEP) == ["", "params['up']"]
    swapped = HEAD.format("{tf.aliasing_output = 2 : i32}", "{tf.aliasing_output = 1 : i32}")
    assert found(swapped + PLAIN + STEP.replace("%new, %m :", "%m, %new :")) == ["", "params['up']"]


def test_without_donation_it_is_the_argument_of_the_same_type_with_the_most_similar_name():
    assert found(HEAD.format("", "") + PLAIN + STEP) == ["", "params['up']"]  # mu['up'] is as similar, and a state
    alone = HEAD.format("", "").replace("mu['up']", "mu['down']")
    assert found(alone + PLAIN + STEP) == ["", "params['up']"]


def test_without_a_similar_argument_it_is_the_name_of_the_result():
    text = HEAD.format("", "").replace("params['up']", "p").replace("mu['up']", "q")
    assert found(text + PLAIN + STEP) == ["", "result[1]['up']"]


@pytest.mark.parametrize("name", ["jit(f)/jvp()", "jit(f)"])
def test_an_op_of_the_forward_pass_computes_no_gradient(name):
    assert found(HEAD.format("", "") + PLAIN.replace("jit(f)/transpose(jvp())", name) + STEP) == ["", ""]


def test_what_goes_into_another_product_is_no_gradient_of_a_parameter():
    again = "stablehlo.dot_general %h, %up, contracting_dims = [0] x [0]"
    again = f"{again} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32> {BACKWARD}"
    text = PLAIN.replace("%g", "%h") + f"\n  %g = {again}"
    assert found(HEAD.format("", "") + text + STEP) == ["", "", "params['up']"]


LOOP = """
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %init = stablehlo.constant dense<0.0> : tensor<3x8x8xf32>
  %0:2 = stablehlo.while(%i = %zero, %all = %init) : tensor<i32>, tensor<3x8x8xf32> cond {{
    %n = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.add %i, %one : tensor<i32>
    %2 = func.call @layer(%x) : (tensor<4x8xf32>) -> tensor<8x8xf32> loc("while/body"("jit(f)/transpose(jvp())"))
    %3 = stablehlo.reshape %2 : (tensor<8x8xf32>) -> tensor<1x8x8xf32>
    %4 = stablehlo.dynamic_update_slice %all, %3, %i, %zero, %zero
      : (tensor<3x8x8xf32>, tensor<1x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x8x8xf32>
    stablehlo.return %1, %4 : tensor<i32>, tensor<3x8x8xf32>
  }}
  {0}
}}
func.func private @layer(%x: tensor<4x8xf32>) -> tensor<8x8xf32> {{
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0]
    : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32> loc("dot_general")
  return %0 : tensor<8x8xf32>
}}
"""


def test_a_loop_stacks_the_gradients_of_its_layers_and_the_call_tells_that_it_is_the_backward_pass():
    head = """func.func public @main(%x: tensor<4x8xf32> loc("x"), %w: tensor<3x8x8xf32> loc("blocks['up']"))
      -> (tensor<3x8x8xf32> {jax.result_info = "result['up']"}) {"""
    assert found(head + LOOP.format("return %0#1 : tensor<3x8x8xf32>")) == ["blocks['up']"]


def test_a_function_that_is_called_twice_returns_to_the_call_that_leads_to_the_op():
    text = f"""func.func public @main(%x: tensor<4x8xf32> loc("x"), %p: tensor<8x8xf32> loc("p['a']"),
        %q: tensor<8x8xf32> loc("p['b']"))
        -> (tensor<8x8xf32> {{jax.result_info = "[0]['a']"}}, tensor<8x8xf32> {{jax.result_info = "[0]['b']"}}) {{
      %0 = {DOT.format("%x, %x")} {BACKWARD}
      %1 = {DOT.format("%x, %x")} {BACKWARD}
      %2 = func.call @same(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
      %3 = func.call @same(%1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
      return %2, %3 : tensor<8x8xf32>, tensor<8x8xf32>
    }}
    func.func private @same(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
      %0 = stablehlo.negate %a : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }}"""
    assert found(text) == ["p['a']", "p['b']"]


def test_a_name_is_like_another_only_up_to_a_whole_part_of_its_path():
    assert most_alike("result['wo']", ["p['two']", "p['wo']"]) == ["p['wo']"]
    assert most_alike("result['wo']", ["p['two']", "two"]) == []
    assert most_alike("", ["p"]) == []
