# SPDX-License-Identifier: Apache-2.0
"""Advice on small modules, each compiled by XLA: the changes, what they give, and what is never advised."""

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.annotations import annotations_of
from reshard.dialect_utils.shardings.layout_changes import changed
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.advice import advice_text
from reshard.passes.advice.advising import Adviser
from reshard.passes.results import values_check
from reshard.passes.sites.network import SiteNetwork

pytestmark = pytest.mark.usefixtures("lasting_xla_child")

MESH = 'sdy.mesh @mesh = <["x"=4, "y"=2]>'
# The constraint in the middle moves every element there and back.
THERE_AND_BACK = f"""
{MESH}
func.func public @main(%arg0: tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> (tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
  %0 = stablehlo.tanh %arg0 : tensor<64x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{"x"}}]> : tensor<64x64xf32>
  %2 = stablehlo.exponential %1 : tensor<64x64xf32>
  return %2 : tensor<64x64xf32>
}}
"""
ALIKE = THERE_AND_BACK.replace('[{}, {"x"}]', '[{"x"}, {}]')
FREE_RESULT = f"""
{MESH}
func.func public @main(%arg0: tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> tensor<64x64xf32> {{
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{{}}, {{"x"}}]> : tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}}
"""
NO_CONSTRAINT = THERE_AND_BACK.replace('sdy.sharding_constraint %0 <@mesh, [{}, {"x"}]>', "stablehlo.negate %0")


def advice(text: str, topology: str = "h100", **options):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        before = str(module)
        found = Adviser(module, "m", shared_child(), SiteNetwork(topology), **options).advice()
        assert str(module) == before
        return found, None if found.module is None else str(ir.Module.parse(found.module))


@pytest.mark.slow
def test_a_constraint_that_moves_all_elements_there_and_back_is_taken_out():
    found, module = advice(THERE_AND_BACK)
    (change,) = found.changes
    assert change.sharding is None and str(change.annotation.sharding) == '[{}, {"x"}]'
    assert "sharding_constraint" not in module and found.forms[0].compiled.costs.bytes_received == 0
    assert found.stock.compiled.costs.bytes_received > 0


@pytest.mark.slow
def test_the_text_has_the_forms_and_each_change():
    text = advice_text.as_text(advice(THERE_AND_BACK)[0])
    assert text.startswith("m: 8 devices, times modelled on h100, 1 node x 8 gpu\n")
    assert "as it came" in text and "with 1 change " in text
    assert "P(None, 'x') -> no constraint" in text and "(1 constraint, f32[64,64])" in text
    assert "without it" not in text  # there is no other change


@pytest.mark.parametrize(
    ("text", "how", "problem"),
    [
        (ALIKE, {}, ""),
        (NO_CONSTRAINT, {}, ""),
        (
            NO_CONSTRAINT,
            {"may_change": ("constraints", "state", "mesh")},
            "the module has no sharding that could change",
        ),
    ],
)
def test_where_nothing_is_to_be_gained(text, how, problem):
    found, module = advice(text, **how)
    assert (found.changes, module, found.problem) == ((), None, problem)
    assert (problem or advice_text.NOTHING) in advice_text.as_text(found)


def test_the_program_is_called_in_the_same_way():
    """Without the constraint less would move, but the result would come out in another layout."""
    found, _ = advice(FREE_RESULT)
    assert found.changes == () and found.trials > 2 and found.stock.compiled.costs.bytes_received > 0
    assert found.refused.title == "the output shardings differ from stock XLA's"
    assert "faster, but not advised: " in advice_text.as_text(found)


def test_what_xla_computes_wrongly_is_not_advised(monkeypatch):
    asked = []

    def problem(module, *_):
        asked.append(str(module))
        return "" if "sharding_constraint" in str(module) else "output 0 is off"

    monkeypatch.setattr(values_check, "problem_of_stock", problem)
    found, module = advice(THERE_AND_BACK)
    assert "sharding_constraint" not in asked[0]  # that would be the fastest form
    assert "sharding_constraint" in module and found.changes[0].sharding is not None


def test_the_number_of_programs_is_limited():
    found, _ = advice(THERE_AND_BACK, budget=3)
    assert found.trials <= 3


def test_constraints_of_one_line_are_one_annotation_and_change_together():
    line = 'loc(callsite("wsc"("model.py":8:1) at callsite("layer"("model.py":4{}:8) at "step"("train.py":7:4))))'
    ops = "\n".join(
        f'  %{i + 1} = sdy.sharding_constraint %{i} <@mesh, [{{"x"}}, {{}}]> : tensor<8x8xf32> {line.format(i // 2)}'
        for i in range(6)
    )
    text = f"""{MESH}
func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %0 = stablehlo.tanh %arg0 : tensor<8x8xf32>
{ops}
  return %6 : tensor<8x8xf32>
}}"""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        found = annotations_of(module)
        places = [("model.py:40:8", (0, 1)), ("model.py:41:8", (2, 3)), ("model.py:42:8", (4, 5))]
        assert [(str(each.place), each.ops) for each in found] == places
        left = annotations_of(ir.Module.parse(changed(module, {found[0]: None})))
        assert [(each.place, each.ops) for each in left] == [(found[1].place, (0, 1)), (found[2].place, (2, 3))]


PRODUCT = f"""
{MESH}
func.func public @main(%arg0: tensor<64x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}},
    %arg1: tensor<512x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
    -> (tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) {{
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
      : (tensor<64x512xf32>, tensor<512x64xf32>) -> tensor<64x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{"y"}}]> : tensor<64x64xf32>
  return %1 : tensor<64x64xf32>
}}
"""


def test_on_an_unknown_network_no_device_computes_more():
    """Without the constraint nothing would be sent, and each device would compute the whole product."""
    found, _ = advice(PRODUCT, topology="")
    assert [each.sharding for each in found.changes] != [None]
    assert found.refused.title.startswith("operations of matrix products per device 524,288 -> ")


MANUAL = f"""
{MESH}
func.func public @main(%arg0: tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> (tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
  %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{{"x"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{}}]>]
      manual_axes={{"x"}} (%arg1: tensor<16x64xf32>) {{
    %1 = stablehlo.tanh %arg1 : tensor<16x64xf32>
    %2 = sdy.sharding_constraint %1 <@mesh, [{{}}, {{"y"}}]> : tensor<16x64xf32>
    sdy.return %2 : tensor<16x64xf32>
  }} : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}}
"""


def test_axes_that_a_manual_computation_has_taken_are_not_tried():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(MANUAL)
        (annotation,) = annotations_of(module)
        assert annotation.bound == ("x",)
        tried = Adviser(module, "m", shared_child(), SiteNetwork("h100"))._candidates()[0]
    assert None in tried and len(tried) > 1 and not any('"x"' in str(each) for each in tried)


def test_constraints_that_nobody_wrote_are_no_annotations():
    """JAX names what writes a constraint; a maximal sharding, and one of partial sums, cannot change either."""
    text = """
sdy.mesh @mesh = <["x"=4, "y"=2]>
sdy.mesh @one = <[], device_ids=[0]>
func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32> loc("jit(f)/exp"("f.py":1:0))
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<8x8xf32> loc("jit(f)/sharding_constraint"("f.py":2:0))
  %2 = sdy.sharding_constraint %1 <@one, []> : tensor<8x8xf32> loc("f.py":3:0)
  %3 = sdy.sharding_constraint %2 <@mesh, [{}, {"y"}]> : tensor<8x8xf32> loc("f.py":4:0)
  return %3 : tensor<8x8xf32>
}"""
    with make_context() as context, ir.Location.unknown(context):
        assert [each.place.line for each in annotations_of(ir.Module.parse(text))] == [2, 4]


def test_a_program_that_takes_no_time_has_a_text():
    text = f"""{MESH}
func.func public @main(%arg0: tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> (tensor<64x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{{"x"}}, {{}}]> : tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}}"""
    assert "100 %" in advice_text.as_text(advice(text)[0])


def step(first: str, second: str, *, batch: int = 64, sizes: str = '"x"=4, "y"=2') -> str:
    """Returns a program that returns its weights, held in one sharding and used in another, and takes a batch."""
    return f"""sdy.mesh @mesh = <[{sizes}]>
func.func public @main(
    %arg0: tensor<512x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, {first}>, tf.aliasing_output = 0 : i32}}
      loc("params['w']"),
    %arg1: tensor<{batch}x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}} loc("batch"))
    -> (tensor<512x512xf32> {{jax.result_info = "result[0]['w']", sdy.sharding = #sdy.sharding<@mesh, {first}>}},
        tensor<{batch}x512xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
  %0 = sdy.sharding_constraint %arg0 <@mesh, {second}> : tensor<512x512xf32>
  %1 = stablehlo.tanh %0 : tensor<512x512xf32>
  %2 = stablehlo.exponential %arg1 : tensor<{batch}x512xf32>
  return %1, %2 : tensor<512x512xf32>, tensor<{batch}x512xf32>
}}"""


ROWS, COLUMNS = '[{"x"}, {}]', '[{}, {"x"}]'


def test_state_gets_the_sharding_in_which_it_is_used():
    found, module = advice(step(ROWS, COLUMNS), may_change=["state"])
    (change,) = found.changes
    assert change.annotation.names == ("params['w']",) and str(change.sharding) == COLUMNS
    assert found.forms[0].compiled.costs.bytes_received == 0 < found.stock.compiled.costs.bytes_received
    assert module.count('[{}, {"x"}]') == 3 and module.count('[{"x"}, {}]') == 2  # the batch stays
    text = advice_text.as_text(found)
    assert "1. params['w'] (1 argument and 1 result, f32[512,512])\n     P('x', None) -> P(None, 'x')" in text
    assert "1 group of arguments" in text
    (row,) = advice_text.as_dict(found)["changes"]
    assert (row["kind"], row["names"], row["arguments"], row["results"]) == ("arguments", ["params['w']"], [0], [0])


@pytest.mark.slow
def test_what_others_make_keeps_its_sharding_unless_all_arguments_may_change():
    text = step(ROWS, ROWS).replace('[{"x"}, {}]> : tensor<512', '[{"x"}, {}]> : tensor<512')
    moved = text.replace("stablehlo.exponential %arg1", 'sdy.sharding_constraint %arg1 <@mesh, [{}, {"x"}]>')
    assert moved != text
    assert advice(moved, may_change=["state"])[0].changes == ()
    found, _ = advice(moved, may_change=["arguments"])
    assert [each.annotation.names for each in found.changes] in ([], [("batch",)])


def test_more_memory_for_state_is_refused_unless_the_limit_allows_it():
    """Replicated weights need no gather, and eight times the memory."""
    text = step('[{"x", "y"}, {}]', "[{}, {}]")
    found, _ = advice(text, may_change=["state"])
    assert found.changes == () and found.refused.title.startswith("memory in bytes ")
    allows = f"; --memory-limit {found.refused_limit} allows it"
    assert found.refused_limit > found.stock.compiled.peak_bytes and allows in advice_text.as_text(found)
    with make_context() as context, ir.Location.unknown(context):
        network = SiteNetwork("h100", memory_limit=found.refused_limit)
        adviser = Adviser(ir.Module.parse(text), "m", shared_child(), network, may_change=["state"])
        changed_within = adviser.advice()
    assert changed_within.changes and changed_within.forms[0].time.seconds <= found.refused.time.seconds


def test_another_shape_of_the_mesh_is_advised_and_all_shapes_are_shown():
    """On a mesh whose axis y has one device, what y splits is whole."""
    text = step('[{"x"}, {"y"}]', ROWS)
    found, module = advice(text, may_change=["mesh"])
    (change,) = found.changes
    assert str(change.annotation.mesh) == '<["x"=4, "y"=2]>' and change.sharding.axis_size("y") == 1
    assert '<["x"=8, "y"=1]>' in module and found.forms[0].compiled.costs.bytes_received == 0
    assert [each.mesh.axes for each in found.meshes if not each.problem][0] == change.sharding.axes
    report = advice_text.as_text(found)
    assert "1. the mesh, 8 devices\n     x=4, y=2 -> x=8, y=1" in report and "on another mesh alone" in report
    data = advice_text.as_dict(found)
    assert (data["changes"][0]["kind"], data["changes"][0]["advised"]) == ("mesh", {"x": 8, "y": 1})
    assert len(data["meshes"]) == len(found.meshes) and all(each["peak_bytes"] for each in data["meshes"])


@pytest.mark.slow
def test_the_mesh_keeps_its_shape_if_it_would_not_divide_an_array_or_others_make_the_arguments():
    found, _ = advice(step('[{"x"}, {"y"}]', ROWS, batch=4), may_change=["mesh"])
    assert found.changes == () and found.trials == 4  # x=8 does not divide 4 rows, which is not compiled
    found, _ = advice(step('[{"x"}, {"y"}]', ROWS, batch=1024), may_change=["mesh"])
    assert found.problem == "the module has no sharding that could change"  # most elements are the batch's
    assert advice(step('[{"x"}, {"y"}]', ROWS, batch=1024), may_change=["mesh", "arguments"])[0].changes


@pytest.mark.slow
def test_a_change_and_another_mesh_together():
    text = step('[{"y"}, {"x"}]', '[{"x", "y"}, {}]')
    found, module = advice(text)
    assert found.changes and found.forms[0].compiled.costs.bytes_received == 0
    with make_context() as context, ir.Location.unknown(context):
        assert ir.Module.parse(module, context).operation.verify()
