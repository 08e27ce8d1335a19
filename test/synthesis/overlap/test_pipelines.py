# SPDX-License-Identifier: Apache-2.0
"""Modelled times of pipelines: between what takes longest and all of it one after the other."""

from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.network.topology import Topology
from reshard.synthesis.overlap.pipelines import Ahead, Product, Span, end_s, gathered, scattered, swapped
from reshard.synthesis.overlap.rings import Hops

times = st.integers(0, 1000).map(float)
members = st.integers(2, 16)
SAME = 1 + 1e-9


@given(members, st.booleans(), times, times)
def test_a_gather_takes_at_least_its_products_and_its_hops_and_at_most_both(n, both_ways, block_s, hop_s):
    hops = Hops.of(n, both_ways=both_ways)
    found = end_s(gathered(hops, block_s, hop_s))
    assert max(n * block_s, hops.forward * hop_s + block_s) <= found * SAME
    assert found <= (n * block_s + hops.forward * hop_s) * SAME


@given(members, st.booleans(), times, times, times, st.integers(1, 4))
def test_a_scatter_takes_at_least_its_products_and_its_hops_and_at_most_both(n, both, block_s, add_s, hop_s, chains):
    hops = Hops.of(n, both_ways=both)
    found = end_s(scattered(hops, block_s, add_s, hop_s, chains))
    assert max(n * block_s, hops.forward * hop_s) <= found * SAME
    assert found <= (n * (block_s + add_s) + (hops.forward + hops.backward) * hop_s) * SAME


@given(members, st.booleans(), times, times)
def test_without_additions_parts_are_never_slower(n, both_ways, block_s, hop_s):
    hops = Hops.of(n, both_ways=both_ways)
    assert end_s(scattered(hops, block_s, 0.0, hop_s, 2)) <= end_s(scattered(hops, block_s, 0.0, hop_s)) * SAME


@given(times, st.lists(times, min_size=1, max_size=15), st.booleans())
def test_a_swap_takes_at_least_its_products_and_its_sends_and_at_most_both(block_s, sends_s, is_sent):
    found = end_s(swapped(block_s, sends_s, is_sent=is_sent))
    blocks_s = (len(sends_s) + 1) * block_s
    assert max(blocks_s, sum(sends_s)) <= found * SAME
    assert found <= (blocks_s + sum(sends_s)) * SAME


def are_apart(spans: list[Span]) -> bool:
    """Returns whether nothing runs beside something else of its lane."""
    lanes: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda each: (each.start_s, each.end_s)):
        lanes.setdefault(span.lane, []).append(span)
    return all(one.end_s <= other.start_s * SAME for lane in lanes.values() for one, other in zip(lane, lane[1:]))


@given(members, st.booleans(), times, times, times, st.integers(1, 4), st.lists(times, min_size=1, max_size=9))
def test_a_device_computes_one_thing_at_a_time_and_so_does_each_link(n, both, block_s, add_s, hop_s, chains, sends_s):
    hops = Hops.of(n, both_ways=both)
    assert are_apart(gathered(hops, block_s, hop_s)) and are_apart(scattered(hops, block_s, add_s, hop_s, chains))
    assert all(are_apart(swapped(block_s, sends_s, is_sent=is_sent)) for is_sent in (False, True))


@given(times, times, times, times, st.integers(2, 9))
def test_two_trips_are_drawn_as_long_as_they_are(brought_s, before_s, between_s, after_s, trips):
    ahead = Ahead(brought_s, before_s + between_s + after_s, before_s, after_s, trips)
    two = Ahead(brought_s, ahead.products_s, before_s, after_s, 2)
    for spans, seconds in ((ahead.spans(is_ahead=False), two.as_it_is_s), (ahead.spans(is_ahead=True), two.ahead_s)):
        assert are_apart(spans) and abs(end_s(spans) - seconds) <= 1e-6 * (1 + seconds)


def test_two_ways_halve_the_hops_that_are_waited_for():
    one, two = (end_s(gathered(Hops.of(9, both_ways=both), 1.0, 100.0)) for both in (False, True))
    assert (one, two) == (801.0, 402.0)


def test_a_product_takes_as_long_as_its_operations_or_its_bytes():
    topology = Topology.parse("v5e:2x4")
    wide = Product(1, 8192, 8192, 8192, (16, 16, 16))
    assert wide.flops == 2 * 8192**3 and wide.bytes == 3 * 2 * 8192**2
    assert wide.seconds(topology) == wide.flops / 197e12 + topology.launch_latency_s
    thin = Product(4, 1, 8192, 8192, (16, 16, 32))
    assert thin.result_bytes == 4 * 4 * 8192
    assert thin.seconds(topology, 819) == (thin.bytes + 819) / 819e9 + topology.launch_latency_s
