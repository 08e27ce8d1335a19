# SPDX-License-Identifier: Apache-2.0
"""Ops that XLA may compute wrongly in their layouts."""

import re
from pathlib import Path

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.results.suspects import may_be_wrong

REPORTS = Path(__file__).parents[3] / "docs" / "upstream"


def is_suspect(text: str) -> bool:
    with make_context() as context, ir.Location.unknown(context):
        return may_be_wrong(ir.Module.parse(text))


@pytest.mark.parametrize(
    "name",
    [
        "clamped-starts",
        "convolution",
        "lost-updates",
        "scattered-sums",
        "select-and-scatter",
        "shared-windows",
        "spread-elements",
    ],
)
def test_the_programs_that_were_reported_are_suspect(name):
    report = (REPORTS / f"{name}.md").read_text()
    assert is_suspect(re.search(r'SHARDED = """\n(.*?)"""', report, re.DOTALL)[1])


PAD = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%a: tensor<16x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{split}]>}}) -> tensor<31x8xf32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.pad %a, %zero, low = [0, 0], high = [0, 0], interior = [1, 0]
    : (tensor<16x8xf32>, tensor<f32>) -> tensor<31x8xf32>
  return %0 : tensor<31x8xf32>
}}"""


@pytest.mark.parametrize(("split", "suspect"), [('{"x"}, {}', True), ('{}, {"x"}', False), ("{}, {}", False)])
def test_the_layout_decides(split, suspect):
    assert is_suspect(PAD.format(split=split)) == suspect


def test_an_update_in_place_is_no_fault_of_the_partitioner():
    assert not is_suspect("""
sdy.mesh @mesh = <["x"=8]>
func.func @main(%a: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}, %i: tensor<i32>) -> tensor<16xf32> {
  %0 = stablehlo.slice %a [0:4] : (tensor<16xf32>) -> tensor<4xf32>
  %1 = stablehlo.dynamic_update_slice %a, %0, %i : (tensor<16xf32>, tensor<4xf32>, tensor<i32>) -> tensor<16xf32>
  return %1 : tensor<16xf32>
}""")


SLICE = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<64x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}, %i: tensor<i32>)
    -> tensor<32x16xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %a, {start}, %zero, sizes = [32, 16]
    : (tensor<64x16xf32>, tensor<i32>, tensor<i32>) -> tensor<32x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{}}]> : tensor<32x16xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{split}]> : tensor<32x16xf32>
  %3 = stablehlo.tanh %2 : tensor<32x16xf32>
  return %3 : tensor<32x16xf32>
}}"""


@pytest.mark.parametrize(
    ("start", "split", "suspect"),
    [("%i", '{"x"}, {}', True), ("%i", '{}, {"x"}', False), ("%zero", '{"x"}, {}', False), ("%i", "{}, {}", False)],
)
def test_a_slice_whose_result_is_split_behind_it_is_clamped_like_a_split_one(start, split, suspect):
    assert is_suspect(SLICE.format(start=start, split=split)) == suspect


PARTS = """
sdy.mesh @mesh = <["x"=4]>
func.func private @part(%a: tensor<64x16xf32>, %i: tensor<i32>) -> tensor<16x16xf32> {
  %size = stablehlo.constant dense<16> : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %start = stablehlo.multiply %i, %size : tensor<i32>
  %0 = stablehlo.dynamic_slice %a, %start, %zero, sizes = [16, 16]
    : (tensor<64x16xf32>, tensor<i32>, tensor<i32>) -> tensor<16x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<16x16xf32>
  return %1 : tensor<16x16xf32>
}
func.func @main(%a: tensor<64x16xf32>) -> tensor<16x16xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %sum = stablehlo.constant dense<0.0> : tensor<16x16xf32>
  %0:2 = stablehlo.while(%i = %zero, %s = %sum) : tensor<i32>, tensor<16x16xf32> cond {
    %end = stablehlo.constant dense<TURNS> : tensor<i32>
    %more = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %part = func.call @part(%a, %i) : (tensor<64x16xf32>, tensor<i32>) -> tensor<16x16xf32>
    %t = stablehlo.add %s, %part : tensor<16x16xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<16x16xf32>
  }
  return %0#1 : tensor<16x16xf32>
}"""


@pytest.mark.parametrize(("turns", "suspect"), [(4, False), (5, True)])
def test_a_slice_that_starts_at_a_loops_counter_is_clamped_where_the_loop_runs_too_far(turns, suspect):
    assert is_suspect(PARTS.replace("TURNS", str(turns))) == suspect


UPDATE = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%a: tensor<64x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}, %u: tensor<1x16xf32>,
                %i: tensor<i32>) -> tensor<64x16xf32> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %a, %u, {start}, %zero
    : (tensor<64x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<i32>) -> tensor<64x16xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{}}]> : tensor<64x16xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{split}]> : tensor<64x16xf32>
  %3 = stablehlo.tanh %2 : tensor<64x16xf32>
  return %3 : tensor<64x16xf32>
}}"""


@pytest.mark.parametrize(
    ("start", "split", "suspect"),
    [("%i", '{"x"}, {}', True), ("%i", '{}, {"x"}', False), ("%zero", '{"x"}, {}', False), ("%i", "{}, {}", False)],
)
def test_an_update_whose_result_is_split_behind_it_is_lost_like_one_of_a_split_array(start, split, suspect):
    assert is_suspect(UPDATE.format(start=start, split=split)) == suspect


CALLED = """
sdy.mesh @mesh = <["x"=8]>
func.func private @up(%v: tensor<64xf32>) -> tensor<64xf32> {{
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%v, %none) <{{padding = dense<[[63, 0]]> : tensor<1x2xi64>,
      window_dimensions = array<i64: 64>}}> ({{
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) : (tensor<64xf32>, tensor<f32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}}
func.func private @most(%v: tensor<64xf32>) -> tensor<64xf32> {{
  %none = stablehlo.constant dense<{filling}> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%v, %none) <{{padding = dense<[[63, 0]]> : tensor<1x2xi64>,
      window_dimensions = array<i64: 64>}}> ({{
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = stablehlo.maximum %p, %q : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) : (tensor<64xf32>, tensor<f32>) -> tensor<64xf32>
  return %0 : tensor<64xf32>
}}
func.func @main(%a: tensor<64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}})
    -> (tensor<64xf32>, tensor<64xf32>) {{
  %0 = call @up(%a) : (tensor<64xf32>) -> tensor<64xf32>
  %1 = call @most({taken}) : (tensor<64xf32>) -> tensor<64xf32>
  return %0, %1 : tensor<64xf32>, tensor<64xf32>
}}
"""


@pytest.mark.parametrize(
    ("filling", "taken", "suspect"), [("0xFF800000", "%a", True), ("0.0", "%a", False), ("0xFF800000", "%0", False)]
)
def test_functions_with_windows_on_one_value_are_confused(filling, taken, suspect):
    """JAX calls a function for each `cumsum`, `cummax` and `pad`."""
    assert is_suspect(CALLED.format(filling=filling, taken=taken)) == suspect
