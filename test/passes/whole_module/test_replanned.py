# SPDX-License-Identifier: Apache-2.0
"""Results that the caller left open get the layouts that the compiled module has."""

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.whole_module.replanned import Replanned
from reshard.passes.whole_module.taken_over import TIME, take_over_as

STATED = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
# The caller says nothing of the second result; propagation splits it over x. With a constraint there is a site.
TWO_RESULTS = f"""
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<64xf32> {STATED}) -> (tensor<64xf32> {STATED}, tensor<64xf32>) {{
  %0 = stablehlo.sine %a : tensor<64xf32>
  return %0, %0 : tensor<64xf32>, tensor<64xf32>
}}"""
WITH_A_SITE = TWO_RESULTS.replace(
    "%0 = stablehlo.sine %a",
    "%1 = sdy.sharding_constraint %a <@mesh, [{}]> : tensor<64xf32>\n  %0 = stablehlo.sine %1",
)
SPLIT_OVER_X, REPLICATED = "{devices=[2]x4 <=[8]}", "{replicated}"


@pytest.mark.parametrize("are_planned", [False, True])
@pytest.mark.parametrize("text", [TWO_RESULTS, WITH_A_SITE], ids=["without", "with a site"])
def test_forms_return_open_results_as_the_compiled_module_does(text, are_planned):
    for compiled, layout in (("{devices=[4]x2 0,4,1,5,2,6,3,7}", '[{"y"}]'), (SPLIT_OVER_X, None)):
        pipeline = Pipeline.emitting("auto", {"topology": "h100:2x4", "policy": "always"})
        with make_context() as context, ir.Location.unknown(context):
            replanned = Replanned(ir.Module.parse(text), pipeline, Session())
            changed = replanned.settle_results((SPLIT_OVER_X, compiled), are_planned=are_planned)
            assert changed == (layout is not None)
            assert not replanned.settle_results((SPLIT_OVER_X, compiled), are_planned=are_planned)
            source = replanned.planned if are_planned else replanned.bytes_found
            form = take_over_as(TIME, source, pipeline, Session())
            if changed:
                assert form.module is not None
                results = str(form.module).partition("->")[2].partition("{\n")[0]
                assert results.count(f"#sdy.sharding<@mesh, {layout}>") == 1
                assert len(form.rows) >= 1


@pytest.mark.parametrize("compiled", ["{maximal device=0}", "{devices=[8]x1 1,0,2,3,4,5,6,7}", "{manual}"])
def test_a_layout_that_the_mesh_does_not_have_changes_nothing(compiled):
    with make_context() as context, ir.Location.unknown(context):
        replanned = Replanned(ir.Module.parse(WITH_A_SITE), Pipeline.emitting("auto", {}), Session())
        before = replanned.bytes_found
        assert not replanned.settle_results((SPLIT_OVER_X, compiled), are_planned=False)
        assert replanned.bytes_found == before


def test_other_layouts_than_those_that_forms_were_written_with_are_told_once():
    """Sites are planned between the two, and results may have other layouts then."""
    with make_context() as context, ir.Location.unknown(context):
        replanned = Replanned(ir.Module.parse(WITH_A_SITE), Pipeline.emitting("auto", {}), Session())
        assert replanned.settle_results((SPLIT_OVER_X, REPLICATED), are_planned=False)
        assert replanned.settle_results((SPLIT_OVER_X, SPLIT_OVER_X), are_planned=True)
        assert not replanned.settle_results((SPLIT_OVER_X, SPLIT_OVER_X), are_planned=True)
