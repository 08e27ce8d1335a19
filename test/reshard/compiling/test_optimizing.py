# SPDX-License-Identifier: Apache-2.0
"""Options of `reshard.optimize` reach the passes that have them."""

import pytest

import reshard

ROWS_TO_COLUMNS = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
  return %a : tensor<8x8xf32>
}
"""


@pytest.mark.parametrize("option", [{"topology": "h100:2x2"}, {"memory_limit": "1GiB"}])
@pytest.mark.parametrize("emit", ["manual", "local", "sdy"])
def test_the_network_and_the_memory_may_be_named_whatever_the_form(emit, option):
    """The form `local` plans no sites, so there they have no effect."""
    assert reshard.optimize(ROWS_TO_COLUMNS, emit=emit, check=False, **option).emit == emit


def test_on_shared_memory_the_final_programs_are_compared():
    """XLA copies before and behind an all_gather along the last dimension; in the partitioned program that is free."""
    gathered = """sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<2048x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
        -> (tensor<2048x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
      return %a : tensor<2048x64xf32>
    }
    """
    assert [reshard.optimize(gathered, topology=each).is_rewritten for each in ("cpu:4", "uniform")] == [True, False]
