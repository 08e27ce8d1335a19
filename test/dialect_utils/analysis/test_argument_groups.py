# SPDX-License-Identifier: Apache-2.0
"""Groups of arguments: by names of several libraries; which results are new values of arguments, and which are not."""

import pytest

from reshard.dialect_utils.analysis.argument_groups import Name, argument_groups
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.layout_changes import changed
from reshard.synthesis.layouts.sharding import Sharding

ROWS, COLUMNS = '[{"x"}, {}]', '[{}, {"x"}]'


def function(arguments: list[dict], results: list[dict]) -> str:
    """Returns a module that returns its first argument for each result.

    Args:
      arguments, results: `name`, and where it matters `sharding`, `shape`, and for an argument its result, `aliased`.
    """
    taken = []
    for number, each in enumerate(arguments):
        alias = f"tf.aliasing_output = {each['aliased']} : i32" if "aliased" in each else ""
        held = ", ".join(filter(None, [stated(each), alias]))
        name = each["name"].replace('"', '\\"')
        taken.append(f'%arg{number}: tensor<{each.get("shape", "8x8")}xf32> {{{held}}} loc("{name}")')
    given = ", ".join(f'tensor<8x8xf32> {{jax.result_info = "{each["name"]}", {stated(each)}}}' for each in results)
    types = ", ".join(["tensor<8x8xf32>"] * len(results))
    return f"""sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main({", ".join(taken)}) -> ({given.replace(", }", "}")}) {{
  return {", ".join(["%arg0"] * len(results))} : {types}
}}"""


def stated(each: dict) -> str:
    sharding = each.get("sharding", ROWS)
    return f"sdy.sharding = #sdy.sharding<@mesh, {sharding}>" if sharding else ""


def named(*names: str) -> list[dict]:
    return [{"name": name} for name in names]


def donated(*names: str) -> list[dict]:
    return [{"name": name, "aliased": number} for number, name in enumerate(names)]


@pytest.fixture
def groups():
    with make_context() as context, ir.Location.unknown(context):
        yield lambda *text: argument_groups(ir.Module.parse(function(*text)))


@pytest.mark.parametrize(
    ("name", "tree", "path", "text"),
    [
        ("params['layers'][3]['q']", "params", ("layers", "*", "q"), "params['layers'][*]['q']"),
        ("state[0]['blocks']['q'].value", "state[0]", ("blocks", "q"), "state[0]['blocks']['q']"),
        ("opt[0].mu['layers_12']['kernel']", "opt[0]", ("mu", "layers_*", "kernel"), "opt[0].mu['layers_*']['kernel']"),
        ("model.layers[0].weight", "model", ("layers", "*", "weight"), "model.layers[*].weight"),
        ("state.params['a']['kernel']", "state.params", ("a", "kernel"), "state.params['a']['kernel']"),
        ("s[0]['t/block_0/lin_1.w'].data", "s[0]", ("t/block_*/lin_1.w", "data"), "s[0]['t/block_*/lin_1.w'].data"),
        ("params['w_1']", "params", ("w_1",), "params['w_1']"),
        ("params['layers'][1]", "params", ("layers", "[1]"), "params['layers'][1]"),
        ("args[1]", "args[1]", ("args[1]",), "args[1]"),
        ("tokens", "tokens", ("tokens",), "tokens"),
        ('params["it\'s"]', "params", ("it's",), 'params["it\'s"]'),
    ],
)
def test_names_are_trees_with_paths_in_which_layers_have_no_numbers(name, tree, path, text):
    found = Name.parse(name)
    assert (found.tree, found.path, found.text) == (tree, path, text)


def test_layers_and_the_optimizer_go_with_a_parameter(groups):
    names = [
        "params['layers'][0]['up']",
        "params['layers'][1]['up']",
        "opt[0].mu['layers'][0]['up']",
        "params['layers'][0]['down']",
    ]
    found = groups([*donated(*names), {"name": "batch"}], named(*(f"result[{each}]" for each in range(4))))
    assert [(each.names, each.arguments, each.results) for each in found] == [
        (("params['layers'][*]['up']", "opt[0].mu['layers'][*]['up']"), (0, 1, 2), (0, 1, 2)),
        (("params['layers'][*]['down']",), (3,), (3,)),
        (("batch",), (4,), ()),
    ]


def test_parts_of_one_tree_that_only_end_alike_are_apart(groups):
    names = ["p['kernel']", "p['conv']['kernel']", "p['w_1']", "p['w_2']"]
    assert [each.arguments for each in groups(donated(*names), named("a", "b", "c", "d"))] == [(0,), (1,), (2,), (3,)]


def test_another_shape_or_sharding_is_another_group(groups):
    arguments = [
        {"name": "p['a'][0]['w']", "aliased": 0},
        {"name": "p['a'][1]['w']", "sharding": COLUMNS},
        {"name": "p['a'][2]['w']", "shape": "4x8"},
        {"name": "p['a'][3]['w']", "sharding": None},
        {"name": "p['a'][4]['w']", "sharding": '[{}, {}], unreduced={"x"}'},
    ]
    found = groups(arguments, [{"name": "result[0]"}])
    assert [(each.arguments, each.results) for each in found] == [((0,), (0,)), ((1,), ()), ((2,), ())]


def test_what_is_not_returned_is_no_state_though_its_keys_are_those_of_a_parameter(groups):
    """Gradients that another program makes, and a batch with the name of a key."""
    found = groups([*donated("params['w']"), *named("grads['w']", "w", "args[0]", "args[1]")], named("result['w']"))
    assert [(each.names, each.results) for each in found] == [
        (("params['w']",), (0,)),
        (("grads['w']",), ()),
        (("w",), ()),
        (("args[0]",), ()),
        (("args[1]",), ()),
    ]


def test_without_donation_keys_tell_if_there_are_two_or_most_of_a_tree_comes_back(groups):
    assert groups(named("batch['x']"), named("result['x']"))[0].results == ()
    assert groups(named("p['a']['x']"), named("result['a']['x']"))[0].results == (0,)
    whole = groups(named("p['a']", "p['b']"), named("result[0]['a']", "result[0]['b']"))
    assert [each.results for each in whole] == [(0,), (1,)]
    half = groups(named("p['a']", "p['b']", "p['c']"), named("result[0]['a']"))
    assert [each.results for each in half] == [(), (), ()]
    assert groups(named("result"), named("result[0]"))[0].results == ()


def test_a_donated_argument_of_another_sharding_than_the_result_is_no_state(groups):
    assert groups(donated("a"), [{"name": "result", "sharding": COLUMNS}])[0].results == ()
    assert groups(donated("a"), [{"name": "result", "sharding": None}])[0].results == (0,)


def test_names_are_compared_as_people_wrote_them(groups):
    """MLIR escapes letters in locations."""
    found = groups(named("p['é']['a\"b']", "p['it']['w']"), named("result['é']['a\"b']".replace('"', '\\"')))
    assert found[0].names == ("p['é']['a\"b']",) and found[0].results == (0,)


def test_a_module_without_names_has_a_group_for_each_argument():
    text = """sdy.mesh @mesh = <["x"=2]>
func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %arg1: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %arg2: tensor<f32>) -> tensor<8x8xf32> {
  return %arg0 : tensor<8x8xf32>
}"""
    with make_context() as context, ir.Location.unknown(context):
        found = argument_groups(ir.Module.parse(text))
        assert [(each.names, each.arguments) for each in found] == [(("argument 0",), (0,)), (("argument 1",), (1,))]
        assert argument_groups(ir.Module.parse(text + text.split("\n", 1)[1].replace("@main", "@other"))) == []


def test_arguments_and_results_of_a_group_change_together_and_others_stay(groups):
    text = function([*donated("p['a']"), {"name": "x"}], [{"name": "result[0]"}, {"name": "result[1]", "sharding": ""}])
    module = ir.Module.parse(text)
    (state, _) = argument_groups(module)
    head = str(ir.Module.parse(changed(module, {state: Sharding.parse('[{}, {"y"}]')}))).split("\n")[2]
    assert head.count('[{}, {"y"}]') == 2 and head.count(ROWS) == 1
    assert "tf.aliasing_output = 0" in head and 'jax.result_info = "result[1]"}' in head


def test_a_donated_argument_is_state_if_a_result_has_its_keys():
    """Without out_shardings, JAX leaves it to XLA which result takes the place of a donated argument."""
    text = function(named("p['w']"), [{"name": "result['w']", "sharding": ""}])
    donor = text.replace('[{"x"}, {}]>} loc', '[{"x"}, {}]>, jax.buffer_donor = true} loc')
    assert donor != text
    with make_context() as context, ir.Location.unknown(context):
        assert [argument_groups(ir.Module.parse(each))[0].results for each in (text, donor)] == [(), (0,)]
