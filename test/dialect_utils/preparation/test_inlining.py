# SPDX-License-Identifier: Apache-2.0
"""Calls are inlined as XLA does it; recursion is refused at the call."""

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.inlining import inline_calls, inline_in_loops, remove_call_barriers


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


def a_loop(call: str, *functions: str) -> str:
    """Returns a module with a loop around a call of something with `%r`."""
    return f"""
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c, %r = %a) : tensor<i32>, tensor<4xf32>
    cond {{
      %m = stablehlo.compare LT, %i, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %m : tensor<i1>
    }} do {{
      %1 = func.call {call} : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %i, %1 : tensor<i32>, tensor<4xf32>
    }}
    return %0#1 : tensor<4xf32>
  }}
  {" ".join(functions)}"""


def function(name: str, body: str, attributes: str = "") -> str:
    kind = "(%a: tensor<4xf32>) -> tensor<4xf32>"
    return f"func.func private @{name}{kind} {attributes} {{ {body} return %0 : tensor<4xf32> }}"


TANH = "%0 = stablehlo.tanh %a : tensor<4xf32>"


@pytest.mark.parametrize(
    ("call", "functions", "kinds"),
    [
        ('@f(%r) {mhlo.frontend_attributes = {a = "host"}}', [function("f", TANH)], ["stablehlo.tanh"]),
        ("@f(%r)", [function("f", TANH, "attributes {no_inline}")], ["stablehlo.tanh"]),
        ("@f(%r)", [function("f", TANH)], ["stablehlo.all_gather"]),
    ],
    ids=("a call that says where it runs", "a function that stays", "a loop without these ops"),
)
def test_calls_in_loops_that_stay(call, functions, kinds):
    module = ir.Module.parse(a_loop(call, *functions))
    inline_in_loops(module.operation, kinds)
    assert "call @f" in str(module)


def test_calls_in_loops_are_inlined_through_functions_but_for_loops_that_would_be_too_long():
    twice = [
        function(f"f{i + 1}", f"%1 = call @f{i}(%a) : (tensor<4xf32>) -> tensor<4xf32>"
                 f" %0 = call @f{i}(%1) : (tensor<4xf32>) -> tensor<4xf32>")
        for i in range(20)
    ]  # fmt: skip
    for name, copies in (("f2", 4), ("f20", None)):
        module = ir.Module.parse(a_loop(f"@{name}(%r)", function("f0", TANH), *twice))
        inline_in_loops(module.operation, ["stablehlo.tanh"])
        assert names(module).count("tanh") == (1 if copies is None else copies)
        assert ("call @" in str(module)) == (copies is None)
