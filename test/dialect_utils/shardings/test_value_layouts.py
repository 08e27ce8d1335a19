# SPDX-License-Identifier: Apache-2.0
"""The layout of a value is read from the op that defines it or from the op around its block."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.value_layouts import layout, nth_sharding, stated_arguments, stated_results


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


MODULE = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %b: tensor<4x4xf32>)
    -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %0 = stablehlo.tanh %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {}]>]>} : tensor<4x4xf32>
  %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{"x"}, {"y"}]>]
      manual_axes={"x"} (%t: tensor<2x4xf32>) {
    %2 = stablehlo.negate %t : tensor<2x4xf32>
    sdy.return %2 : tensor<2x4xf32>
  } : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return %1 : tensor<4x4xf32>
}"""


def text(attr: ir.Attribute | None) -> str:
    return str(attr).removeprefix("#sdy.sharding")


def test_layouts_of_arguments_results_and_values_inside_a_manual_computation():
    module = ir.Module.parse(MODULE)
    ops = {op.name: op for op in ops_in(module.operation)}
    function = ops["func.func"]
    first, second = function.regions[0].blocks[0].arguments
    assert text(layout(first)) == '<@mesh, [{"x"}, {}]>' and layout(second) is None
    assert [text(each) for each in stated_arguments(function)] == ['<@mesh, [{"x"}, {}]>', "None"]
    assert [text(each) for each in stated_results(function)] == ['<@mesh, [{}, {"y"}]>']
    assert text(layout(ops["stablehlo.tanh"].results[0])) == '<@mesh, [{"y"}, {}]>'
    island = ops["sdy.manual_computation"]
    assert text(layout(island.results[0])) == '<@mesh, [{"x"}, {"y"}]>'
    assert text(layout(island.regions[0].blocks[0].arguments[0])) == '<@mesh, [{}, {"y"}]>'


def test_an_entry_that_is_not_there_is_no_sharding():
    per_value = ir.Attribute.parse("#sdy.sharding_per_value<[<@mesh, [{}]>]>")
    assert text(nth_sharding(per_value, 0)) == "<@mesh, [{}]>" and nth_sharding(per_value, 1) is None
