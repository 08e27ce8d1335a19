# SPDX-License-Identifier: Apache-2.0
"""Functions that are called with different layouts are cloned while sites are searched.

The clones become one function again if nothing in them was rewritten.
"""

from pathlib import Path

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.ir.functions import symbol
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.find_mismatches import Finder
from reshard.passes.sites.findings import strip_findings
from reshard.passes.sites.specialization import merge_clones, specialise

CALLS = (Path(__file__).parents[1] / "structure" / "calls.mlir").read_text().split("// -----")
T = "tensor<16x16xf32>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield context


def run(text: str, pipeline: str) -> ir.Module:
    module = ir.Module.parse(text)
    Pipeline.parse(pipeline).run(module, Session())
    assert module.operation.verify()
    return module


def functions(module: ir.Module) -> list[str]:
    return [symbol(op) for op in module.body.operations if op.operation.name == "func.func"]


def called(module: ir.Module) -> list[str]:
    return [str(op.attributes["callee"]) for op in ops_in(module.operation) if op.name == "func.call"]


@pytest.mark.parametrize("text", CALLS)
def test_the_analysis_is_that_of_the_module_with_clones(text):
    module = ir.Module.parse(text)
    before = analyse(module)
    after = specialise(before, Finder(before).disagreements())
    fresh = analyse(module)
    assert after.originals == fresh.originals and after.origin == fresh.origin
    assert Finder(after).mismatches() == Finder(fresh).mismatches() != []
    assert not Finder(after).disagreements()


@pytest.mark.parametrize("text", CALLS)
def test_what_nobody_rewrites_is_one_function_again(text):
    assert str(run(text, "find-mismatches,strip-findings")) == str(ir.Module.parse(text))
    assert str(run(text, "find-mismatches,plan-sites{layout-check=off},strip-findings")) == str(ir.Module.parse(text))


def test_clones_alike_are_one_with_each_other():
    """Two clones that are equal to each other become one function, as after a rewrite in another call's clone alone."""
    module = run(CALLS[0], "find-mismatches")
    strip_findings(module, keeps=("reshard.clone_of",))
    assert functions(module) == ["main", "f", "f_1"]
    f = module.body.operations[2].operation
    clone = f.clone(ip=ir.InsertionPoint.after(f)).operation
    clone.attributes["sym_name"] = ir.StringAttr.get("f_2")
    clone.attributes["reshard.clone_of"] = ir.StringAttr.get("f")
    merge_clones(module)
    assert functions(module) == ["main", "f"]


def test_a_name_that_is_taken_is_not_taken_again():
    text = CALLS[0] + f"func.func private @f_1(%arg0: {T}) -> {T} {{ return %arg0 : {T} }}"
    module = run(text, "find-mismatches")
    assert functions(module) == ["main", "f", "f_2", "f_1"]
    assert called(module) == ["@f", "@f_2"]


def test_calls_inside_and_outside_of_a_manual_computation_convert_differently():
    """The layouts are the same, but they have to be planned over different axes."""
    tile = "tensor<16x16xf32>"
    text = f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func public @main(%arg0: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}, %arg1: tensor<32x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"y", "x"}}, {{}}]>}}) -> ({T}, tensor<32x16xf32>) {{
        %0 = call @f(%arg0) : ({T}) -> {T}
        %1 = sdy.manual_computation(%arg1) in_shardings=[<@mesh, [{{"y", "x"}}, {{}}]>] out_shardings=[<@mesh, [{{"y"}}, {{"x"}}]>] manual_axes={{"y"}} (%arg2: {tile}) {{
          %2 = func.call @f(%arg2) : ({tile}) -> {tile}
          sdy.return %2 : {tile}
        }} : (tensor<32x16xf32>) -> tensor<32x16xf32>
        return %0, %1 : {T}, tensor<32x16xf32>
      }}
      func.func private @f(%arg0: {T}) -> {T} {{
        %0 = sdy.sharding_constraint %arg0 <@mesh, [{{"x"}}, {{}}]> : {T}
        %1 = stablehlo.optimization_barrier %0 : {T}
        %2 = sdy.sharding_constraint %1 <@mesh, [{{}}, {{"x"}}]> : {T}
        return %2 : {T}
      }}"""  # noqa: E501
    module = run(
        text, "find-mismatches,plan-sites{policy=always layout-check=off},synthesize-collectives,strip-findings"
    )
    assert called(module) == ["@f", "@f_1"]
    assert [str(function).count('manual_axes={"x", "y"}') for function in list(module.body.operations)[2:]] == [1, 0]
    assert [str(function).count('manual_axes={"x"}') for function in list(module.body.operations)[2:]] == [0, 1]
