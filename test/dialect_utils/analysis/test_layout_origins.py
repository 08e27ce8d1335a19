# SPDX-License-Identifier: Apache-2.0
"""The origins of layouts, on programs that are small enough to check by hand."""

import pytest

from reshard.dialect_utils.analysis.layout_origins import Origins
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

MESH = 'sdy.mesh @mesh = <["x"=4, "y"=2]>\n'
PAIR = (
    MESH
    + """
func.func public @main(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>} loc("state['w']"), %b: tensor<16x16xf32>)
    -> (tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %negate = stablehlo.negate %a : tensor<16x16xf32>
  %c = sdy.sharding_constraint %a <@mesh, [{}, {"x"}]> : tensor<16x16xf32> loc("model.py":5:1)
  %tanh = stablehlo.tanh %c : tensor<16x16xf32>
  %sine = stablehlo.sine %b : tensor<16x16xf32>
  %d = sdy.sharding_constraint %sine <@mesh, [{}, {"x"}]> : tensor<16x16xf32> loc("model.py":7:1)
  %cosine = stablehlo.cosine %d : tensor<16x16xf32>
  %add = stablehlo.add %tanh, %cosine : tensor<16x16xf32>
  %sqrt = stablehlo.sqrt %b : tensor<16x16xf32>
  return %negate, %add, %sqrt : tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>
}
"""  # noqa: E501
)


def origins(text: str, name: str) -> dict[str, str]:
    """Returns axis -> origin of the first result of the one op with a name, or of the first argument for "argument"."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        found = Origins(module)
        ops = ops_in(module.operation)
        function = next(op for op in ops if op.name == "func.func")
        value = (
            function.regions[0].blocks[0].arguments[0]
            if name == "argument"
            else next(op for op in ops if op.name == f"stablehlo.{name}").results[0]
        )
        return {
            axis: f"{each.words} at {each.place}" if each.place else each.words
            for axis, each in found.of_value(value).items()
        }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("argument", {"x": "argument 0 of @main, state['w'] at -:3:1"}),
        (
            "negate",
            {"x": "argument 0 of @main, state['w'] at -:3:1"},
        ),  # Shardy itself names the constraint, which asks for x on another value
        ("tanh", {"x": "a constraint at model.py:5:1"}),
        ("sine", {"x": "a constraint at model.py:7:1"}),
        ("cosine", {"x": "a constraint at model.py:7:1"}),
    ],
)
def test_the_annotation_behind_each_layout(name, expected):
    assert origins(PAIR, name) == expected


def test_results_of_the_program_ask_too():
    assert {axis: words.partition(" at ")[0] for axis, words in origins(PAIR, "sqrt").items()} == {
        "y": "result 2 of @main"
    }


def test_what_cannot_be_told_is_left_out():
    reduced = (
        MESH
        + """
func.func public @main(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<16x16xf32>, tensor<16x16x2xf32>) {
  %b = stablehlo.broadcast_in_dim %a, dims = [0, 1] : (tensor<16x16xf32>) -> tensor<16x16x2xf32>
  %c = sdy.sharding_constraint %a <@mesh, [{}, {"x"}]> : tensor<16x16xf32>
  return %c, %b : tensor<16x16xf32>, tensor<16x16x2xf32>
}
"""  # noqa: E501
    )
    assert origins(reduced, "broadcast_in_dim") == {}


def test_several_programs_in_a_module_are_not_told_apart():
    two = (
        MESH + "func.func public @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n %0 = stablehlo.tanh %a : tensor<4xf32>\n "
        "return %0 : tensor<4xf32>\n}\n"
    )
    assert origins(two + two.removeprefix(MESH).replace("@f", "@g"), "tanh") == {}


def test_an_argument_of_a_loop_is_none_of_the_program():
    loop = (
        MESH
        + """
func.func public @main(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}) -> tensor<16x16xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %b = %a) : tensor<i32>, tensor<16x16xf32>
  cond {
    %less = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  } do {
    %c = sdy.sharding_constraint %b <@mesh, [{}, {"x"}]> : tensor<16x16xf32> loc("model.py":5:1)
    %tanh = stablehlo.tanh %c : tensor<16x16xf32>
    stablehlo.return %i, %tanh : tensor<i32>, tensor<16x16xf32>
  }
  return %0#1 : tensor<16x16xf32>
}
"""
    )
    assert origins(loop, "tanh") == {"x": "a constraint at model.py:5:1", "y": "argument 0 of @main at -:3:1"}


def own(layout: str) -> str:
    return (
        'sdy.mesh @mesh = <["x"=4, "y"=2, "z"=2]>'
        f"""
func.func public @main(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {{
  %tanh = stablehlo.tanh %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {layout}>]>}} : tensor<16x16xf32>
  %sine = stablehlo.sine %tanh : tensor<16x16xf32>
  %c = sdy.sharding_constraint %sine <@mesh, [{{}}, {{"x"}}]> : tensor<16x16xf32>
  return %c : tensor<16x16xf32>
}}
"""
    )


@pytest.mark.parametrize("layout", ['[{"x"}, {"y"}]', '[{"z"}, {"y"}]', '[{"x"}, {}]'])
def test_of_modules_in_which_an_op_has_a_layout_itself_nothing_is_known(layout):
    """Shardy would read random memory for such a module, or end the process with SIGSEGV."""
    assert origins(own(layout), "sine") == {}


def test_the_end_of_shardy_is_not_ours():
    sub_axes = """
sdy.mesh @mesh = <["x"=4, "y"=2, "z"=2]>
func.func public @main(%a: tensor<16x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x":(1)2}]>}, %b: tensor<16x16xf32>)
    -> tensor<16x16xf32> {
  %tanh = stablehlo.tanh %a : tensor<16x16xf32>
  %add = stablehlo.add %tanh, %a : tensor<16x16xf32>
  %c = sdy.sharding_constraint %b <@mesh, [{"z"}, {"x"}]> : tensor<16x16xf32>
  return %c : tensor<16x16xf32>
}
"""  # noqa: E501
    assert set(origins(sub_axes, "add").values()) <= {"argument 0 of @main at -:3:1"}
