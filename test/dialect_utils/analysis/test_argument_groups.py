# SPDX-License-Identifier: Apache-2.0
"""Groups of arguments: by names of several libraries, with the results that are their new values."""

import pytest

from reshard.dialect_utils.analysis.argument_groups import argument_groups, path_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.layout_changes import changed
from reshard.synthesis.layouts.sharding import Sharding

ROWS, COLUMNS = '[{"x"}, {}]', '[{}, {"x"}]'


def argument(number: int, name: str, sharding: str | None = ROWS, shape: str = "8x8", more: str = "") -> str:
    attributes = [f"sdy.sharding = #sdy.sharding<@mesh, {sharding}>" if sharding else "", more]
    held = ", ".join(filter(None, attributes))
    return f'%arg{number}: tensor<{shape}xf32> {{{held}}} loc("{name}")'


def result(info: str, sharding: str | None = ROWS, shape: str = "8x8") -> str:
    stated = f", sdy.sharding = #sdy.sharding<@mesh, {sharding}>" if sharding else ""
    return f'tensor<{shape}xf32> {{jax.result_info = "{info}"{stated}}}'


def function(arguments: list[str], results: list[str], returned: list[int]) -> str:
    types = ", ".join(each.split(" ")[0] for each in results)
    values = ", ".join(f"%arg{number}" for number in returned)
    return f"""sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main({", ".join(arguments)}) -> ({", ".join(results)}) {{
  return {values} : {types}
}}"""


@pytest.fixture
def groups():
    with make_context() as context, ir.Location.unknown(context):

        def found(text: str):
            return argument_groups(ir.Module.parse(text))

        yield found


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("params['layers'][3]['attention']['q']", ("layers", "*", "attention", "q")),
        ("state[0]['blocks']['q'].value", ("blocks", "q")),
        ("opt_state[0].mu['params']['layers_12']['kernel']", ("mu", "params", "layers_*", "kernel")),
        ("model.layers[0].weight", ("layers", "*", "weight")),
        (
            "state[1]['transformer/block_0/mlp/out_linear.weights'].data",
            ("transformer/block_*/mlp/out_linear.weights", "data"),
        ),  # noqa: E501
        ("w1", ("w1",)),
        ("x[0]", ("x",)),
    ],
)
def test_paths_have_no_numbers_and_no_roots(name, path):
    assert path_of(name) == path


def test_layers_the_optimizer_and_the_results_go_with_a_parameter(groups):
    arguments = [
        argument(0, "params['layers'][0]['up']"),
        argument(1, "params['layers'][1]['up']"),
        argument(2, "opt[0].mu['layers'][0]['up']"),
        argument(3, "params['layers'][0]['down']"),
        argument(4, "batch"),
    ]
    results = [result("result[0]['layers'][0]['up']"), result("result[1]['layers'][0]['down']"), result("result[2]")]
    found = groups(function(arguments, results, [0, 3, 4]))
    assert [(each.name, each.arguments, each.results) for each in found] == [
        ("params['layers'][*]['up']", (0, 1, 2), (0,)),
        ("params['layers'][*]['down']", (3,), (1,)),
        ("batch", (4,), ()),
    ]


def test_another_shape_or_sharding_is_another_group(groups):
    arguments = [
        argument(0, "p['a'][0]"),
        argument(1, "p['a'][1]", COLUMNS),
        argument(2, "p['a'][2]", shape="4x8"),
        argument(3, "p['a'][3]", sharding=None),
        argument(4, "p['a'][4]", '[{}, {}], unreduced={"x"}'),
    ]
    found = groups(function(arguments, [result("result['a'][1]", COLUMNS)], [1]))
    assert [(each.arguments, each.results) for each in found] == [((0,), ()), ((1,), (0,)), ((2,), ())]


def test_a_result_in_the_place_of_an_argument_is_its_new_value_whatever_its_name(groups):
    arguments = [argument(0, "a", more="tf.aliasing_output = 1 : i32"), argument(1, "b")]
    found = groups(function(arguments, [result("result[0]"), result("result[1]", None)], [1, 0]))
    assert [(each.name, each.results) for each in found] == [("a", (1,)), ("b", ())]


def test_a_module_without_names_has_a_group_for_each_argument(groups):
    text = """sdy.mesh @mesh = <["x"=2]>
func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<f32>) -> tensor<8x8xf32> {
  return %arg0 : tensor<8x8xf32>
}"""
    assert [(each.name, each.arguments) for each in groups(text)] == [("argument 0", (0,)), ("argument 1", (1,))]
    assert groups(text + text.split("\n", 1)[1].replace("@main", "@other")) == []


def test_arguments_and_results_of_a_group_change_together_and_others_stay(groups):
    arguments = [argument(0, "p['a']", more="tf.aliasing_output = 0 : i32"), argument(1, "x")]
    text = function(arguments, [result("result[0]['a']"), result("result[1]", None)], [0, 1])
    found = groups(text)
    module = ir.Module.parse(changed(ir.Module.parse(text), {found[0]: Sharding.parse('[{}, {"y"}]')}))
    head = str(module).split("\n")[2]
    assert head.count('[{}, {"y"}]') == 2 and head.count(ROWS) == 1
    assert "tf.aliasing_output = 0" in head and 'jax.result_info = "result[1]"}' in head
