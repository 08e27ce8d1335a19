# SPDX-License-Identifier: Apache-2.0
"""The rings around which blocks travel: from neighbour to neighbour, wherever devices are, and both ways if links allow
it."""

from dataclasses import replace

import pytest

from reshard.dialect_utils.overlap.candidates import candidates, pipeline_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.network.link_sharing import shared_by_permutes
from reshard.synthesis.network.topology import Topology

GATHERED = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%rows: tensor<8192x8192xbf16>, %weights: tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16> {
  %0 = sdy.manual_computation(%rows, %weights) in_shardings=[<@mesh, [{"x"}, {}]>, <@mesh, [{}, {"x"}]>]
      out_shardings=[<@mesh, [{}, {"x"}]>] manual_axes={"x"}
      (%tile: tensor<1024x8192xbf16>, %columns: tensor<8192x1024xbf16>) {
    %1 = "stablehlo.all_gather"(%tile) <{all_gather_dim = 0 : i64,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}>
        : (tensor<1024x8192xbf16>) -> tensor<8192x8192xbf16>
    %2 = stablehlo.dot_general %1, %columns, contracting_dims = [1] x [0]
        : (tensor<8192x8192xbf16>, tensor<8192x1024xbf16>) -> tensor<8192x1024xbf16>
    sdy.return %2 : tensor<8192x1024xbf16>
  } : (tensor<8192x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16>
  return %0 : tensor<8192x8192xbf16>
}"""


def pipeline_on(topology: Topology):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(GATHERED)
        ((_, candidate),) = candidates(module.operation)
        return pipeline_of(candidate, topology)


@pytest.mark.parametrize("order", [None, (0, 2, 7, 5, 1, 3, 6, 4), (0, 1, 2, 3, 6, 7, 5, 4)])
def test_on_a_slice_blocks_go_both_ways_around_neighbours_in_any_order_of_devices(order):
    topology = replace(Topology.parse("v5e:2x4"), device_order=order)
    pipeline = pipeline_on(topology)
    there, back = pipeline.rings.pairs(1), pipeline.rings.pairs(-1)
    assert pipeline.hops is not None and pipeline.hops.backward == 3
    assert shared_by_permutes(topology, 8, there, back) == 0


def test_on_a_line_without_a_wrap_blocks_go_one_way():
    """Both ways share the links on which the last block comes back."""
    pipeline = pipeline_on(Topology.parse("v5e:1x8"))
    assert pipeline.hops is not None and pipeline.hops.backward == 0
    assert shared_by_permutes(Topology.parse("v5e:1x8"), 8, pipeline.rings.pairs(1), pipeline.rings.pairs(-1)) == 1
