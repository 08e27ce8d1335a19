# SPDX-License-Identifier: Apache-2.0
"""Axes that do not divide their dimension are removed from arguments and results."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.value_layouts import result_layout, stated_arguments, stated_results
from reshard.dialect_utils.tiles.even_dimensions import divide_signatures, evenly_divided
from reshard.synthesis.layouts.mesh import Mesh

MESHES = {"mesh": Mesh.parse("x=4,y=2")}


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("tensor<8x8xf32>", '[{"x"}, {"y"}]', '[{"x"}, {"y"}]'),
        ("tensor<6x8xf32>", '[{"x"}, {"y"}]', '[{}, {"y"}]'),
        ("tensor<6x8xf32>", '[{"y", "x"}, {}]', '[{"y"}, {}]'),  # the leading axes that divide stay
        ("tensor<6x8xf32>", '[{"x":(1)2, "y"}, {}]', '[{"x":(1)2}, {}]'),
        ("tensor<6x8xf32>", '[{"x"}, {}], unreduced={"y"}', '[{}, {}], unreduced={"y"}'),
        ("tensor<6x?xf32>", '[{"x"}, {}]', '[{"x"}, {}]'),  # its sizes are unknown
    ],
)
def test_the_longest_list_of_leading_axes_that_divides_stays(kind, before, after):
    attr = ir.Attribute.parse(f"#sdy.sharding<@mesh, {before}>")
    found = evenly_divided(attr, ir.Type.parse(kind), MESHES)
    assert str(found) == f"#sdy.sharding<@mesh, {after}>"


def test_layouts_of_arguments_and_results_are_divided_and_those_of_ops_stay():
    of = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
    module = ir.Module.parse(f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<6xf32> {of}, %b: tensor<8xf32> {of}) -> (tensor<6xf32> {of}) {{
        %0 = stablehlo.tanh %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x"}}]>]>}} : tensor<6xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}]> : tensor<6xf32>
        return %1 : tensor<6xf32>
      }}""").operation
    divide_signatures(module)
    assert module.verify()
    by_name = {op.name: op for op in ops_in(module)}
    whole, split = "#sdy.sharding<@mesh, [{}]>", '#sdy.sharding<@mesh, [{"x"}]>'
    assert list(map(str, stated_arguments(by_name["func.func"]))) == [whole, split]
    assert list(map(str, stated_results(by_name["func.func"]))) == [whole]
    assert str(result_layout(by_name["stablehlo.tanh"], 0)) == split
    assert str(by_name["sdy.sharding_constraint"].attributes["sharding"]) == split
