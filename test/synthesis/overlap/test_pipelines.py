# SPDX-License-Identifier: Apache-2.0
"""Modelled times of pipelines: between what takes longest and all of it one after the other."""

from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.network.topology import Topology
from reshard.synthesis.overlap.pipelines import Product, gathered_s, scattered_s, swapped_s
from reshard.synthesis.overlap.rings import Hops

times = st.integers(0, 1000).map(float)
members = st.integers(2, 16)
SAME = 1 + 1e-9


@given(members, st.booleans(), times, times)
def test_a_gather_takes_at_least_its_products_and_its_hops_and_at_most_both(n, both_ways, block_s, hop_s):
    hops = Hops.of(n, both_ways=both_ways)
    found = gathered_s(hops, block_s, hop_s)
    assert max(n * block_s, hops.forward * hop_s + block_s) <= found * SAME
    assert found <= (n * block_s + hops.forward * hop_s) * SAME


@given(members, st.booleans(), times, times, times, st.integers(1, 4))
def test_a_scatter_takes_at_least_its_products_and_its_hops_and_at_most_both(n, both, block_s, add_s, hop_s, chains):
    hops = Hops.of(n, both_ways=both)
    found = scattered_s(hops, block_s, add_s, hop_s, chains)
    assert max(n * block_s, hops.forward * hop_s) <= found * SAME
    assert found <= (n * (block_s + add_s) + (hops.forward + hops.backward) * hop_s) * SAME


@given(members, st.booleans(), times, times)
def test_without_additions_parts_are_never_slower(n, both_ways, block_s, hop_s):
    hops = Hops.of(n, both_ways=both_ways)
    assert scattered_s(hops, block_s, 0.0, hop_s, 2) <= scattered_s(hops, block_s, 0.0, hop_s) * SAME


@given(times, st.lists(times, min_size=1, max_size=15), st.booleans())
def test_a_swap_takes_at_least_its_products_and_its_sends_and_at_most_both(block_s, sends_s, is_sent):
    found = swapped_s(block_s, sends_s, is_sent=is_sent)
    blocks_s = (len(sends_s) + 1) * block_s
    assert max(blocks_s, sum(sends_s)) <= found * SAME
    assert found <= (blocks_s + sum(sends_s)) * SAME


def test_two_ways_halve_the_hops_that_are_waited_for():
    one, two = (gathered_s(Hops.of(9, both_ways=both), 1.0, 100.0) for both in (False, True))
    assert (one, two) == (801.0, 402.0)


def test_a_product_takes_as_long_as_its_operations_or_its_bytes():
    topology = Topology.parse("v5e:2x4")
    wide = Product(1, 8192, 8192, 8192, (16, 16, 16))
    assert wide.flops == 2 * 8192**3 and wide.bytes == 3 * 2 * 8192**2
    assert wide.seconds(topology) == wide.flops / 197e12 + topology.launch_latency_s
    thin = Product(4, 1, 8192, 8192, (16, 16, 32))
    assert thin.result_bytes == 4 * 4 * 8192
    assert thin.seconds(topology, 819) == (thin.bytes + 819) / 819e9 + topology.launch_latency_s
