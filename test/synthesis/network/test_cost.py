# SPDX-License-Identifier: Apache-2.0
"""The cost model: small cases by hand, laws, and rule R3's bound per level."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import GB, US, random_topology, switch, topology

from reshard.synthesis.layouts.layout import Factor, groups, whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network import cost
from reshard.synthesis.network.cost import (
    coefficients,
    collective_time_s,
    messages_time_s,
    relayout_time_s,
    slice_time_s,
)
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import MAY_BE_RINGS, Level, Topology, TopologyError
from reshard.synthesis.network.topology_text import preset_names
from reshard.synthesis.programs.traffic import GROUPED_KINDS, Collective


def torus(*dims, gbs=1.0, us=1.0, wrap=True) -> Level:
    return Level("chip", int(np.prod(dims)), "torus", gbs * GB, us * US, dims=dims, wrap=(wrap,) * len(dims))


def ns_per_byte(*args, **kwargs) -> float:
    """Returns nanoseconds per byte: the bytes per tile byte over a bandwidth of 1 GB/s."""
    return round(coefficients(*args, **kwargs)[1] * 1e9, 9)


def us(*args, **kwargs) -> float:
    return round(coefficients(*args, **kwargs)[0] * 1e6, 9)


def strided(num_groups: int, size: int) -> np.ndarray:
    return np.arange(num_groups * size).reshape(size, num_groups).T


# One level


@pytest.mark.parametrize(
    ("kind", "per_byte", "steps"),
    [
        ("all_gather", 7, 3),
        ("all_to_all", 7 / 8, 3),
        ("reduce_scatter", 7 / 8, 3),
        ("all_reduce", 14 / 8, 6),
        ("collective_broadcast", 1, 3),
        ("ragged_all_to_all", 7 / 8, 3),
    ],
)
def test_switch_of_eight(kind, per_byte, steps):
    one = topology(switch("gpu", 8, 1, us=2), launch_us=10)
    assert ns_per_byte(one, 8, kind) == round(per_byte, 9)
    assert us(one, 8, kind) == 10 + 2 * steps


def test_switch_permute_takes_one_step_and_one_tile():
    one = topology(switch("gpu", 4, 2, us=3), launch_us=10)
    assert coefficients(one, 4, "collective_permute", pairs=[(0, 1), (1, 0), (2, 2)]) == (
        pytest.approx(13 * US),
        0.5e-9,
    )


def test_nothing_moves_for_nothing():
    one = topology(switch("gpu", 4, 2, us=3), launch_us=10)
    assert coefficients(one, 4, "collective_permute", pairs=[(i, i) for i in range(4)]) == (0, 0)
    assert coefficients(one, 4, "all_gather", [[i] for i in range(4)]) == (0, 0)
    assert coefficients(one, 4, "collective_permute") == (0, 0)


def test_sender_of_two_pairs_takes_twice_as_long():
    one = topology(switch("gpu", 4, 1))
    assert ns_per_byte(one, 4, "collective_permute", pairs=[(0, 1), (0, 2)]) == 2


def test_bus_carries_everything():
    bus = topology(Level("device", 4, "bus", GB))
    assert ns_per_byte(bus, 4, "all_gather") == 4 * 3
    assert ns_per_byte(bus, 4, "all_to_all", [[0, 1], [2, 3]]) == 4 * 0.5
    assert ns_per_byte(bus, 4, "collective_permute", pairs=[(0, 1), (2, 3)]) == 2


# Two levels


def test_groups_of_one_per_node_share_nothing_but_their_own_cards():
    nodes = topology(switch("node", 4, 1), switch("gpu", 8, 100))
    assert ns_per_byte(nodes, 32, "all_gather", strided(8, 4)) == 3


def test_shared_network_cards_divide_among_groups():
    nodes = topology(switch("node", 4, 1, shared_bandwidth_bytes_per_s=GB), switch("gpu", 8, 100))
    assert ns_per_byte(nodes, 32, "all_gather", strided(8, 4)) == 8 * 3
    assert ns_per_byte(nodes, 32, "collective_permute", pairs=[(i, i + 8) for i in range(8)]) == 8


def test_group_across_nodes_sends_each_byte_once_into_each_node():
    nodes = topology(switch("node", 4, 1), switch("gpu", 8, 100))
    assert ns_per_byte(nodes, 32, "all_gather") == 3  # each card brings the tiles of its column; NVLink 28 / 100
    assert ns_per_byte(nodes, 32, "all_reduce") == round(2 * (1 / 8 - 1 / 32), 9)
    assert ns_per_byte(nodes, 32, "all_to_all") == 24 / 32


def test_ring_passes_everything_over_each_of_its_hops():
    nodes = topology(switch("node", 4, 1, us=10), switch("gpu", 8, 100, us=1), launch_us=100)
    rings = replace(nodes, rings=("all_gather", "all_reduce"))
    assert ns_per_byte(rings, 32, "all_gather") == 31  # one hop goes into each node, and all tiles except one pass it
    assert ns_per_byte(rings, 32, "all_reduce") == round(2 * 31 / 32, 9)
    assert ns_per_byte(rings, 32, "all_gather", [range(8), range(8, 16)]) == 0.07  # inside nodes: as level by level
    assert ns_per_byte(rings, 32, "reduce_scatter") == ns_per_byte(nodes, 32, "reduce_scatter")
    assert us(rings, 32, "all_gather") == 100 + 31 * 10 and us(rings, 32, "all_reduce") == 100 + 62 * 10


def test_ring_by_place_crosses_each_link_once_whatever_the_order_of_the_group():
    nodes = topology(switch("node", 2, 1, shared_bandwidth_bytes_per_s=GB), switch("gpu", 4, 100))
    rings = replace(nodes, rings=("all_gather",))
    in_turn = [(0, 4, 1, 5, 2, 6, 3, 7)]
    assert ns_per_byte(rings, 8, "all_gather", in_turn) == 4 * 7
    assert ns_per_byte(replace(rings, rings_by_place=True), 8, "all_gather", in_turn) == 7


def test_trees_carry_half_of_a_ring_between_two_nodes_and_the_ring_less_between_more():
    for count, wanted in ((2, 1.0), (4, round(2 * 15 / 16, 9))):
        nodes = topology(switch("node", count, 1, us=10), switch("gpu", 16 // count, 100, us=1), launch_us=100)
        library = replace(nodes, rings=("all_reduce",), rings_by_place=True, trees=True)
        assert ns_per_byte(library, 16, "all_reduce") == wanted
    two = replace(topology(switch("node", 2, 1, us=10), switch("gpu", 8, 100, us=1)), rings=("all_reduce",), trees=True)
    assert us(two, 16, "all_reduce") == 2 * (10 + 7)
    assert ns_per_byte(two, 16, "all_reduce", [range(8), range(8, 16)]) == round(2 * 7 / 8 / 100, 9)


def test_ring_goes_in_the_order_of_the_group_and_crosses_a_shared_link_as_often_as_that_does():
    nodes = topology(switch("node", 2, 1, shared_bandwidth_bytes_per_s=GB), switch("gpu", 4, 100))
    rings = replace(nodes, rings=("all_gather",))
    assert ns_per_byte(rings, 8, "all_gather") == 7
    assert ns_per_byte(rings, 8, "all_gather", [[0, 4, 1, 5, 2, 6, 3, 7]]) == 4 * 7  # every hop leaves its node
    assert ns_per_byte(rings, 8, "all_gather", [[3, 2, 1, 0, 7, 6, 5, 4]]) == 7


def test_ring_through_a_port_for_each_device_takes_as_long_in_any_order():
    nodes = replace(topology(switch("node", 2, 1), switch("gpu", 4, 100)), rings=("all_gather",))
    assert ns_per_byte(nodes, 8, "all_gather", [[0, 4, 1, 5, 2, 6, 3, 7]]) == ns_per_byte(nodes, 8, "all_gather") == 7
    groups = [[4, 0], [5, 1], [2, 6], [3, 7]]
    assert (
        ns_per_byte(
            replace(nodes, levels=(switch("node", 2, 1, shared_bandwidth_bytes_per_s=GB), nodes.levels[1])),
            8,
            "all_gather",
            groups,
        )
        == 4
    )


def test_swaps_take_longer_where_a_connection_works_one_way_at_a_time():
    slow = topology(switch("host", 8, 1, slowdown=(("swap", 2.0),)))
    around, swaps = [(i, (i + 1) % 8) for i in range(8)], [(i, i ^ 1) for i in range(8)]
    assert ns_per_byte(slow, 8, "collective_permute", pairs=around) == 1
    assert ns_per_byte(slow, 8, "collective_permute", pairs=swaps) == 2
    assert ns_per_byte(slow, 8, "collective_permute", pairs=swaps[:1]) == 1
    twos, fours = strided(4, 2), strided(2, 4)
    assert [ns_per_byte(slow, 8, kind, twos) for kind in ("all_gather", "all_to_all", "all_reduce")] == [2, 1, 2]
    assert [ns_per_byte(slow, 8, kind, fours) for kind in ("all_gather", "all_to_all", "all_reduce")] == [3, 0.75, 1.5]


def test_within_one_memory_a_devices_own_part_takes_as_long_as_the_others():
    memory, bus = (topology(Level("core", 8, kind, GB, copies_own=True)) for kind in ("switch", "bus"))
    kinds = "all_gather", "all_to_all", "reduce_scatter", "all_reduce"
    for grouping, size in ((None, 8), (strided(4, 2), 2), (strided(2, 4), 4)):
        assert [ns_per_byte(memory, 8, kind, grouping) for kind in kinds] == [size, 1, 1, 2]
        assert [ns_per_byte(bus, 8, kind, grouping) for kind in kinds] == [8 * size, 8, 8, 16]
    assert ns_per_byte(memory, 8, "collective_permute", pairs=[(0, 1), (1, 2)]) == 1
    nodes = topology(switch("node", 2, 1), switch("core", 4, 1, copies_own=True))
    assert [ns_per_byte(nodes, 8, kind) for kind in kinds] == [8, 0.5, 1, 2]


def test_between_processes_of_cpu_devices_a_reduce_scatter_costs_what_an_all_to_all_does():
    levels = switch("host", 2, 1, slowdown=(("all_to_all", 3.0),)), switch("core", 4, 1, copies_own=True)
    nodes = topology(*levels)
    jobs = replace(nodes, platform="cpu")
    assert ns_per_byte(nodes, 8, "reduce_scatter") != ns_per_byte(nodes, 8, "all_to_all")
    assert ns_per_byte(jobs, 8, "reduce_scatter") == ns_per_byte(jobs, 8, "all_to_all") > 0
    alone = replace(topology(replace(levels[0], size=1), levels[1]), platform="cpu")
    assert ns_per_byte(alone, 4, "reduce_scatter") == ns_per_byte(replace(alone, platform=""), 4, "reduce_scatter")


def test_cpu_devices_move_the_arrays_of_a_collective_one_after_the_other():
    nodes = replace(topology(switch("host", 8, 1)), launch_latency_s=1e-3)
    one = Collective("all_reduce", 1000, 1000, groups=(tuple(range(8)),))
    three = replace(one, bytes_before=3000, bytes_after=3000, arrays=3)
    on_cpu = [collective_time_s(replace(nodes, platform="cpu"), 8, each) for each in (one, three)]
    elsewhere = [collective_time_s(replace(nodes, platform="gpu"), 8, each) for each in (one, three)]
    assert on_cpu[1] == pytest.approx(3 * on_cpu[0])
    assert elsewhere[0] == on_cpu[0] and elsewhere[1] < 2 * elsewhere[0]


def test_slices_are_free_unless_the_topology_says_what_they_take():
    assert slice_time_s(topology(switch("gpu", 8, 1)), 1 << 30) == 0
    assert slice_time_s(replace(topology(switch("gpu", 8, 1)), slice_bandwidth_bytes_per_s=2e9), 3_000_000_000) == 3


def test_fast_level_can_be_the_slow_one():
    nodes = topology(switch("node", 4, 1), switch("gpu", 8, 2))
    assert ns_per_byte(nodes, 32, "all_gather") == (32 - 4) / 2


def test_latency_adds_up_over_levels_crossed():
    nodes = topology(switch("node", 4, 1, us=10), switch("gpu", 8, 1, us=1), launch_us=100)
    assert us(nodes, 32, "all_gather", [range(8)]) == 103
    assert us(nodes, 32, "all_gather", strided(8, 4)) == 120
    assert us(nodes, 32, "all_gather") == 123
    assert us(nodes, 32, "collective_permute", pairs=[(0, 1), (0, 9)]) == 110


def messages_us(*args) -> float:
    return round(messages_time_s(*args) * 1e6, 9)


def test_an_all_to_all_takes_a_message_to_each_partner_at_the_level_where_they_meet():
    levels = switch("node", 4, 1, us=10, message_s=30 * US), switch("gpu", 8, 1, us=1, message_s=5 * US)
    nodes = topology(*levels, launch_us=100)
    for kind in ("all_to_all", "ragged_all_to_all"):
        assert messages_us(nodes, 32, kind, [range(8)]) == 100 + 7 * 5
        assert messages_us(nodes, 32, kind, strided(8, 4)) == 100 + 3 * 30
        assert messages_us(nodes, 32, kind) == 100 + 24 * 30 + 7 * 5
    assert messages_us(nodes, 32, "all_gather") == messages_us(nodes, 32, "collective_permute") == 0
    assert messages_us(nodes, 32, "all_to_all", [[each] for each in range(32)]) == 0
    without = topology(*(replace(level, message_s=0.0) for level in levels), launch_us=100)
    (direct_s, direct_bytes_s), (steps_s, bytes_s) = (coefficients(each, 32, "all_to_all") for each in (nodes, without))
    assert direct_bytes_s == bytes_s
    assert round(steps_s / US) == 100 + 2 * 10 + 3 * 1
    assert round(direct_s / US) == 100 + 10  # all messages leave at once


def test_bytes_are_on_their_way_while_messages_are_sent():
    nodes = topology(switch("node", 4, 1, us=10, message_s=30 * US), launch_us=100)
    pairs = (tuple(range(4)),)
    times = [collective_time_s(nodes, 4, Collective("all_to_all", n, n, groups=pairs)) for n in (4, 40_000, 400_000)]
    assert [round(each * 1e6, 3) for each in times] == [190, 190, 100 + 10 + 300]


def test_partners_count_along_a_torus_and_in_groups_that_are_no_sub_grid():
    chips = topology(replace(torus(4, 4), message_s=2 * US))
    assert messages_us(chips, 16, "all_to_all") == 15 * 2
    nodes = topology(switch("node", 2, 1, message_s=3 * US), switch("gpu", 4, 1, message_s=1 * US))
    assert messages_us(nodes, 8, "all_to_all", [[0, 1, 2, 4], [3, 5, 6, 7]]) == 3 * 3 + 2 * 1  # busiest of each level


def test_a_reduce_scatter_that_an_all_to_all_stands_for_pays_for_its_messages():
    levels = switch("host", 2, 1, message_s=3 * US), switch("core", 4, 1, message_s=1 * US)
    jobs = replace(topology(*levels), platform="cpu")
    assert messages_us(jobs, 8, "reduce_scatter") == messages_us(jobs, 8, "all_to_all") == 4 * 3 + 3
    assert messages_us(replace(jobs, platform=""), 8, "reduce_scatter") == 0


def test_slowdown_of_groups_of_two():
    """The slowdown for groups of two applies to them alone, except for all_to_alls; both ways to price agree.

    An all_to_all in larger groups has a slowdown between that of two and that of the whole level.
    """
    in_pairs = ("all_gather", 1.5), ("all_to_all", 2.6)
    slow = topology(switch("host", 8, 1, slowdown=(("all_to_all", 1.3), ("swap", 2.0)), slowdown_in_pairs=in_pairs))
    even = topology(switch("host", 8, 1))
    for kind, expected in (
        ("all_gather", (1.5, 1, 1)),
        ("all_to_all", (2.6, (2.6 * 1.3) ** 0.5, 1.3)),
        ("reduce_scatter", (2, 1, 1)),
    ):
        for size, factor in zip((2, 4, 8), expected):
            groups = np.arange(8).reshape(-1, size)
            mine, other = (coefficients(each, 8, kind, groups)[1] for each in (slow, even))
            assert mine == pytest.approx(factor * other)
            assert mine == pytest.approx(cost.regular_coefficients(cost.network_of(slow, 8), kind, (size,))[1])


def test_slowdown_of_a_library():
    slow = topology(switch("gpu", 4, 1, slowdown=(("all_to_all", 1.5),)))
    assert ns_per_byte(slow, 4, "all_to_all") == 1.5 * 0.75
    assert ns_per_byte(slow, 4, "all_gather") == 3


# Rings and tori


def test_ring_gathers_in_both_directions():
    ring = topology(Level("chip", 8, "ring", GB, US))
    assert ns_per_byte(ring, 8, "all_gather") == 3.5
    assert us(ring, 8, "all_gather") == 4


def test_line_gathers_everything_through_its_ends():
    line = topology(Level("chip", 8, "ring", GB, US, wrap=(False,)))
    assert ns_per_byte(line, 8, "all_gather") == 7
    assert us(line, 8, "all_gather") == 7


def test_ring_all_to_all_is_an_eighth_of_n():
    assert ns_per_byte(topology(Level("chip", 8, "ring", GB)), 8, "all_to_all") == 1
    assert ns_per_byte(topology(Level("chip", 8, "ring", GB, wrap=(False,))), 8, "all_to_all") == 2


def test_interleaved_groups_share_the_links_of_a_ring():
    ring = topology(Level("chip", 8, "ring", GB, US))
    assert ns_per_byte(ring, 8, "all_gather", strided(2, 4)) == 2 * 1.5
    assert ns_per_byte(ring, 8, "all_gather", strided(4, 2)) == 4 * 0.5
    assert us(ring, 8, "all_gather", strided(4, 2)) == 4


def test_neighbouring_groups_on_a_ring_do_not_meet():
    ring = topology(Level("chip", 8, "ring", GB, US))
    assert ns_per_byte(ring, 8, "all_gather", np.arange(8).reshape(2, 4)) == 3
    assert us(ring, 8, "all_gather", np.arange(8).reshape(2, 4)) == 3


def test_group_around_the_end_of_a_ring_takes_the_short_way():
    ring = topology(Level("chip", 8, "ring", GB, US))
    assert ns_per_byte(ring, 8, "all_gather", [[6, 7, 0]]) == ns_per_byte(ring, 8, "all_gather", [[2, 3, 4]]) == 2
    assert us(ring, 8, "all_gather", [[6, 7, 0]]) == 2


def test_torus_uses_all_its_dimensions():
    assert ns_per_byte(topology(torus(4, 4)), 16, "all_gather") == 15 / 4
    assert ns_per_byte(topology(torus(4, 4, 4)), 64, "all_gather") == 63 / 6
    assert ns_per_byte(topology(torus(4, 4)), 16, "all_gather", np.arange(16).reshape(4, 4)) == 1.5


@pytest.mark.parametrize(
    ("name", "groups", "is_whole"),
    [
        ("v5e:4x4", [range(16)], True),
        ("v5e:4x4", [range(at, at + 4) for at in range(0, 16, 4)], False),  # along one ring
        ("v5e:2x4", [range(8)], False),  # one ring visits all chips
        ("v5p:2x2x2", [range(8)], True),
        ("v5p:2x2x2", [range(4), range(4, 8)], False),
        ("v5e:4x4*2", [range(32)], True),  # inside the slices
        ("v5e:4x4*2", [[chip, chip + 16] for chip in range(16)], False),
    ],
)
def test_compilers_for_tpus_sum_whole_over_all_chips_of_a_torus_in_phases(name, groups, is_whole):
    devices = max(map(max, groups)) + 1
    found = {
        platform: coefficients(replace(Topology.parse(name), platform=platform), devices, "reduce_scatter", groups)
        for platform in ("tpu", "")
    }
    twice = coefficients(Topology.parse(name), devices, "all_reduce", groups)
    assert (found["tpu"] == found[""]) == (not is_whole)
    if is_whole and "*" not in name:
        assert found["tpu"] == twice == pytest.approx((2 * found[""][0], 2 * found[""][1]), rel=0.2)


def test_torus_all_to_all_is_limited_by_its_longest_dimension():
    assert ns_per_byte(topology(torus(4, 16)), 64, "all_to_all") == 2


def test_torus_permute_loads_the_busiest_link():
    ring = topology(torus(8))
    assert ns_per_byte(ring, 8, "collective_permute", pairs=[(i, (i + 1) % 8) for i in range(8)]) == 1
    assert ns_per_byte(ring, 8, "collective_permute", pairs=[(i, (i + 3) % 8) for i in range(8)]) == 3
    assert ns_per_byte(ring, 8, "collective_permute", pairs=[(i, (i + 4) % 8) for i in range(8)]) == 2  # ties split
    assert us(ring, 8, "collective_permute", pairs=[(i, (i + 3) % 8) for i in range(8)]) == 3
    assert us(topology(torus(4, 4)), 16, "collective_permute", pairs=[(0, 15)]) == 2  # both dimensions wrap


def test_slices_meet_on_the_data_centre_network():
    two = Topology.parse("v5e:4x4*2")
    assert coefficients(two, 32, "all_gather", strided(16, 2))[1] == pytest.approx(1 / 3.125e9)
    assert coefficients(two, 32, "all_gather", np.arange(32).reshape(2, 16))[1] < 1 / 3.125e9


def routed_by_hand(level: Level, pairs) -> float:
    """Returns the tiles on the busiest link, walking each pair's path hop by hop."""
    load: dict = {}
    for source, target, weight in pairs:
        at, to = (list(map(int, np.unravel_index(i, level.dims))) for i in (source, target))
        for dim, size in enumerate(level.dims):
            up, down = (to[dim] - at[dim]) % size, (at[dim] - to[dim]) % size
            if not level.wraps[dim]:
                up, down = (up, size) if to[dim] >= at[dim] else (size, down)
            ways = [(+1, up)] if up < down else [(-1, down)] if down < up else [(+1, up), (-1, down)]
            for step, hops in ways:
                here = at.copy()
                for _ in range(hops):
                    load[*here, dim, step] = load.get((*here, dim, step), 0) + weight / len(ways)
                    here[dim] = (here[dim] + step) % size
            at[dim] = to[dim]
    return max(load.values(), default=0.0)


dims_and_wrap = st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans())
grids = dims_and_wrap.filter(lambda grid: 1 < np.prod(grid[0]) <= 40)


@given(grids, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_permute_on_a_torus_is_what_a_walk_finds(grid, rng):
    level = torus(*grid[0], wrap=grid[1])
    target = rng.sample(range(level.size), level.size)
    pairs = list(enumerate(target))
    expected = routed_by_hand(level, [(s, t, 1) for s, t in pairs])
    assert ns_per_byte(topology(level), level.size, "collective_permute", pairs=pairs) == pytest.approx(expected)


@given(grids, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_all_to_all_on_a_torus_is_what_a_walk_finds(grid, rng):
    level = torus(*grid[0], wrap=grid[1])
    chosen = [rng.random() < 0.5 for _ in level.dims]  # groups along these dimensions
    if not any(size > 1 for size, along in zip(level.dims, chosen) if along):
        chosen = [True] * len(chosen)
    ids = np.arange(level.size).reshape(level.dims)
    order = [d for d, along in enumerate(chosen) if not along] + [d for d, along in enumerate(chosen) if along]
    n = int(np.prod([size for size, along in zip(level.dims, chosen) if along]))
    members = ids.transpose(order).reshape(-1, n)
    pairs = [(int(a), int(b), 1 / n) for group in members for a, b in itertools.permutations(group, 2)]
    assert ns_per_byte(topology(level), level.size, "all_to_all", members) == pytest.approx(
        routed_by_hand(level, pairs)
    )


def test_groups_that_are_no_sub_grid_are_routed():
    grid = topology(torus(4, 4))
    scattered = [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]]
    pairs = [(a, b, 1 / 4) for group in scattered for a, b in itertools.permutations(group, 2)]
    assert ns_per_byte(grid, 16, "all_to_all", scattered) == routed_by_hand(grid.levels[0], pairs)
    ring = [(a, b, 1.5) for g in scattered for x, y in zip(g, g[1:] + g[:1]) for a, b in ((x, y), (y, x))]
    assert ns_per_byte(grid, 16, "all_gather", scattered) == routed_by_hand(grid.levels[0], ring)


def test_many_scattered_pairs_go_along_a_ring(monkeypatch):
    grid = topology(torus(4, 4))
    scattered = [[0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]]
    exact = ns_per_byte(grid, 16, "all_to_all", scattered)
    monkeypatch.setattr(cost, "MOST_ROUTED_PAIRS", 0)
    assert ns_per_byte(grid, 16, "all_to_all", scattered) >= exact


# Interfaces


def test_device_order_moves_devices():
    nodes = topology(switch("node", 2, 1), switch("gpu", 2, 10))
    swapped = replace(nodes, device_order=(0, 2, 1, 3))
    assert ns_per_byte(nodes, 4, "all_gather", [[0, 1], [2, 3]]) == 0.1
    assert ns_per_byte(swapped, 4, "all_gather", [[0, 1], [2, 3]]) == 1
    assert ns_per_byte(swapped, 4, "collective_permute", pairs=[(0, 2)]) == 0.1


def test_groups_of_mesh_factors_are_device_ids():
    mesh = Mesh.parse('<["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>')
    nodes = topology(switch("node", 2, 1), switch("gpu", 2, 10))
    (y,) = whole_factors(mesh, Sharding.parse('[{"y"}]'))[0]
    assert ns_per_byte(nodes, mesh, "all_gather", groups(mesh, (y,))) == 1


def test_groups_may_differ_in_size():
    one = topology(switch("gpu", 5, 1))
    assert ns_per_byte(one, 5, "all_gather", [[0, 1], [2, 3, 4]]) == 2


def test_time_of_a_collective_counts_its_runs():
    one = topology(switch("gpu", 4, 1), launch_us=1)
    gather = Collective("all_gather", 1000, 4000, groups=((0, 1, 2, 3),), trip_count=5)
    assert collective_time_s(one, 4, gather) == pytest.approx(5 * (1 * US + 3 * US))
    permute = Collective("collective_permute", 1000, 1000, pairs=((0, 1),))
    assert collective_time_s(one, 4, permute) == pytest.approx(2 * US)
    ragged = Collective("ragged_all_to_all", 100, 1000, groups=((0, 1, 2, 3),))
    assert collective_time_s(one, 4, ragged) == pytest.approx(1.75 * US)


def test_relayout_reads_and_writes():
    assert relayout_time_s(topology(switch("gpu", 1, 1)), 500 * 10**9) == 1


def test_errors_name_the_value():
    one = topology(switch("gpu", 4, 1))
    with pytest.raises(ValueError, match="unknown kind of collective 'gossip'"):
        coefficients(one, 4, "gossip")
    with pytest.raises(TopologyError, match="device 4 is not in 0..3"):
        coefficients(one, 4, "all_gather", [[0, 4]])
    with pytest.raises(TopologyError, match="has 4 gpu = 4 devices; the mesh has 8"):
        coefficients(one, 8, "all_gather")


# Laws


@given(st.randoms(use_true_random=False), st.sampled_from(GROUPED_KINDS))
@settings(max_examples=150, deadline=None)
def test_more_bytes_are_never_cheaper(rng, kind):
    n = rng.choice([2, 4, 6, 8, 12, 16])
    size = rng.choice([d for d in range(2, n + 1) if n % d == 0])
    latency_s, seconds_per_byte = coefficients(random_topology(rng, n), n, kind, strided(n // size, size))
    assert latency_s > 0 and seconds_per_byte > 0


@pytest.mark.parametrize("name", sorted(set(preset_names()) - {"uniform", "cpu"}))
@pytest.mark.parametrize("kind", [*GROUPED_KINDS])
def test_a_group_inside_a_level_is_cheaper_than_one_across(name, kind):
    text = {"gb200": "gb200:8x8", "a2mega": "a2mega:8x8"}.get(
        name, f"{name}:8" if name in ("a100", "h100", "h200", "ethernet", "v100") else f"{name}*8"
    )
    inside, across = np.arange(64).reshape(8, 8), strided(8, 8)
    fast, slow = (coefficients(Topology.parse(text), 64, kind, ids) for ids in (inside, across))
    assert fast[0] < slow[0] and fast[1] < slow[1]


@pytest.mark.parametrize("k", [2, 4, 8])
def test_striping_a_slow_link_divides(k):
    """A slow move of 1/k of the data and a gather on the fast links take less time than a slow move of all data."""
    nodes = Topology.parse("h100:4")
    _, slow = coefficients(nodes, 32, "all_gather", strided(8, 4))
    _, fast = coefficients(nodes, 32, "all_gather", np.arange(32).reshape(-1, k))
    tile_bytes = 1 << 30
    striped = slow * tile_bytes / k + fast * 4 * tile_bytes / k
    assert striped < slow * tile_bytes
    assert slow * tile_bytes / k == pytest.approx(3 * tile_bytes / k / 50e9)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_all_reduce_costs_as_much_as_its_two_halves(rng):
    n = rng.choice([4, 8, 12, 16])
    network = replace(random_topology(rng, n), rings=rng.choice([(), MAY_BE_RINGS]), trees=False)
    halves = [coefficients(network, n, kind)[1] for kind in ("reduce_scatter", "all_gather")]
    assert coefficients(network, n, "all_reduce")[1] == pytest.approx(halves[0] + halves[1] / n)


@given(st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_trees_never_carry_more_than_a_ring(rng):
    n = rng.choice([4, 8, 12, 16])
    ring = replace(random_topology(rng, n), rings=MAY_BE_RINGS, trees=False)
    with_trees = coefficients(replace(ring, trees=True), n, "all_reduce")[1]
    assert with_trees <= coefficients(ring, n, "all_reduce")[1]


def test_a_kind_that_starts_late_pays_once_whatever_its_steps():
    """Around a ring and level by level, in the formulas for regular groups and in those for any."""
    levels = switch("node", 2, 1), switch("host", 4, 10)
    for rings in ((), ("reduce_scatter",)):
        usual = Topology("t", levels, 1e12, 1e-6, rings=rings)
        late = replace(usual, further_launch_s=(("reduce_scatter", 1e-3),))
        for factors in ((Factor("x", 1, 8),), (Factor("x", 1, 2),), (Factor("x", 2, 4),)):
            for kind, more in (("reduce_scatter", 1e-3), ("all_gather", 0.0)):
                pricings = [Pricing(each, Mesh.parse("x=8"), 32) for each in (usual, late)]
                before, after = (each.coefficients(kind, factors) for each in pricings)
                assert after == pytest.approx((before[0] + more, before[1]))
                listed = groups(Mesh.parse("x=8"), factors)
                assert coefficients(late, 8, kind, listed) == pytest.approx(after)
