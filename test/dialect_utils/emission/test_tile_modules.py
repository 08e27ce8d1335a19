# SPDX-License-Identifier: Apache-2.0
"""A tile module takes and gives stacks, with leading dimensions for partial sums and replicas."""

import pytest

from reshard.dialect_utils.emission.tile_modules import leading_sizes, stacked, tile_module
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import plan

MESH = Mesh.parse("x=2,y=3")


@pytest.mark.parametrize(
    "side, sharding, sizes",
    [
        ('[{"x"}, {"y"}]', '[{}, {"x"}, {"y"}]', (1,)),
        ('[{"x"}, {}]', '[{"y"}, {"x"}, {}]', (3,)),
        ('[{}, {}], unreduced={"y"}', '[{"y"}, {"x"}, {}, {}]', (3, 2)),
    ],
)
def test_a_stack_holds_the_tile_of_every_device(side, sharding, sizes):
    assert str(stacked(MESH, Sharding.parse(side))) == sharding
    assert leading_sizes(MESH, Sharding.parse(side)) == sizes


def test_the_module_is_valid_and_sums_partial_sums():
    source, target = Sharding.parse('[{"x"}, {}], unreduced={"y"}'), Sharding.parse('[{"x"}, {"y"}]')
    text = tile_module("tensor<4x6xf32>", plan(MESH, (4, 6), 32, source, target))
    with make_context() as context:
        module = ir.Module.parse(text, context)
        assert module.operation.verify()
    assert "tensor<3x1x4x6xf32>" in text and "tensor<1x4x6xf32>" in text
    assert "stablehlo.reduce_scatter" in text
