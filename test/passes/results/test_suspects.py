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
    ["clamped-starts", "convolution", "scattered-sums", "select-and-scatter", "shared-windows", "spread-elements"],
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
