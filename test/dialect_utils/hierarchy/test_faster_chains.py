# SPDX-License-Identifier: Apache-2.0
"""Whether a chain is faster than a collective of the program."""

import pytest

from reshard.dialect_utils.hierarchy.explicit_collectives import explicit_collectives
from reshard.dialect_utils.hierarchy.faster_chains import InPlace, chain_in_place
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.network.topology import Topology

FLAT = str([list(range(32))])


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def all_reduce(groups: str, rows: int, members: int) -> InPlace:
    """Returns the chain for a sum of 4 MiB on 32 devices of four hosts."""
    module = ir.Module.parse(f"""sdy.mesh @mesh = <["x"=32]>
      func.func @main(%a: tensor<32x1048576xf32>) -> tensor<32x1048576xf32> {{
        %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{"x"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{}}]>]
            manual_axes={{"x"}} (%b: tensor<1x1048576xf32>) {{
          %1 = "stablehlo.all_reduce"(%b) <{{replica_groups = dense<{groups}> : tensor<{rows}x{members}xi64>,
              channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}}> ({{
          ^bb0(%l: tensor<f32>, %r: tensor<f32>):
            %2 = stablehlo.add %l, %r : tensor<f32>
            stablehlo.return %2 : tensor<f32>
          }}) : (tensor<1x1048576xf32>) -> tensor<1x1048576xf32>
          sdy.return %1 : tensor<1x1048576xf32>
        }} : (tensor<32x1048576xf32>) -> tensor<32x1048576xf32>
        return %0 : tensor<32x1048576xf32>
      }}""")
    ((_, collective),) = explicit_collectives(module.operation)
    return chain_in_place(collective, Topology.parse("v100:4x8"))


def test_a_sum_over_hosts_is_faster_level_by_level():
    found = all_reduce(FLAT, 1, 32)
    assert found.is_faster and found.chain_s < found.flat_s and not found.is_strict


def test_nothing_is_faster_than_nothing():
    found = all_reduce(str([[device] for device in range(32)]), 32, 1)
    assert found.chain_s == found.flat_s == 0 and not found.is_faster
