# SPDX-License-Identifier: Apache-2.0
"""Loops and branches around the ops that are being written."""

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.partitioning.surroundings import Surroundings
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.layouts.mesh import Mesh

LOOP = """func.func @main(%i: tensor<i32>) -> tensor<i32> {
  %0 = stablehlo.while(%j = %i) : tensor<i32>
  cond {
    %1 = stablehlo.compare LT, %j, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    stablehlo.return %j : tensor<i32>
  }
  return %0 : tensor<i32>
}"""


def test_what_is_written_before_a_loop_in_a_branch_counts_for_each_turn():
    with make_context() as context:
        module = ir.Module.parse(LOOP, context)
        (loop,) = [op for op in ops_in(module.operation) if op.name == "stablehlo.while"]
        body, around = loop.regions[1].blocks[0], Surroundings(Mesh.parse("x=8"), {})
        with around.inside_region(None, body, 1), around.inside_region(loop, body, 4):
            assert around.share_before(loop) == 1 / 4
            assert around.share_before(None) == 1
