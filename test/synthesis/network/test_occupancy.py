# SPDX-License-Identifier: Apache-2.0
"""The levels that collectives occupy: small cases by hand, and that the times are those of the cost model."""

import random

import pytest
from random_networks import random_topology, switch, topology

from reshard.synthesis.network.cost import DIRECT, PHASES, RING, TREES, collective_time_s
from reshard.synthesis.network.occupancy import occupancy
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.programs.traffic import GROUPED_KINDS, Collective

ACROSS = tuple((at, at + 4) for at in range(4))  # on 2 nodes of 4 GPUs


def one_card(**more) -> Topology:
    """Returns 2 nodes with one card of 1 GB/s each, and 4 GPUs with ports of 10 GB/s."""
    return topology(switch("node", 2, 1, us=5, shared_bandwidth_bytes_per_s=1e9), switch("gpu", 4, 10, us=1), **more)


def at_levels(network, kind, groups=(), pairs=(), size=1000):
    found = occupancy(network, network.size, Collective(kind, size, size, groups=groups, pairs=pairs))
    return {each.level: each for each in found.levels}


@pytest.mark.parametrize("seed", range(60))
def test_the_times_are_those_of_the_cost_model_and_no_level_is_busy_longer(seed):
    rng = random.Random(seed)
    network = random_topology(rng, 12)
    size = rng.choice([2, 3, 4, 6, 12])
    ids = rng.sample(range(12), 12) if rng.random() < 0.5 else list(range(12))
    groups = tuple(tuple(ids[at :: 12 // size]) for at in range(12 // size))
    pairs = tuple(zip(ids, rng.sample(range(12), 12)))
    moved = [Collective(kind, 1000, 1000, groups=groups) for kind in GROUPED_KINDS]
    for each in (*moved, Collective("collective_permute", 1000, 1000, pairs=pairs)):
        found = occupancy(network, 12, each)
        assert found.seconds == collective_time_s(network, 12, each)
        ends = [at.starts_s + at.seconds for at in found.levels]
        assert max(ends, default=0.0) <= found.seconds * (1 + 1e-12)
        longest = max((at.transfer_s for at in found.levels), default=0.0)
        assert found.seconds >= longest and all(at.port_bytes > 0 for at in found.levels)
        assert all(at.sharing is None or 1 <= at.sharing <= len(pairs) for at in found.levels)


def test_groups_that_cross_nodes_share_the_card_of_each_node():
    found = at_levels(one_card(launch_us=10), "all_gather", ACROSS)
    assert list(found) == ["node"]
    node = found["node"]
    assert (node.port, node.sharing, node.port_bytes) == ("shared port of a node", 4, 4000)
    assert (node.starts_s, node.latency_s) == (pytest.approx(10e-6), pytest.approx(5e-6))
    assert node.transfer_s == pytest.approx(4e-6)


def test_one_group_of_all_uses_the_ports_of_both_levels_one_after_the_other_and_then_at_once():
    found = at_levels(one_card(launch_us=10), "all_gather", (tuple(range(8)),))
    assert list(found) == ["node", "gpu"]
    assert (found["node"].port, found["node"].sharing) == ("shared port of a node", 1)
    assert found["node"].port_bytes == 4000  # the tiles of the other node, once
    assert (found["gpu"].port, found["gpu"].port_bytes) == ("port of a device", 6000)
    assert found["gpu"].starts_s == pytest.approx(15e-6)  # behind the launch and the step between the nodes


def test_a_ring_that_crosses_the_card_twice_is_one_group_there():
    ring = Topology("ring", one_card().levels, 1e12, rings=("all_gather",))
    back_and_forth = ((0, 4, 1, 5, 2, 6, 3, 7),)
    found = occupancy(ring, 8, Collective("all_gather", 1000, 8000, groups=back_and_forth))
    (node,) = found.levels
    assert (found.algorithm, node.port, node.sharing) == (RING, "shared port of a node", 1)
    assert node.port_bytes == 7 * 4 * 1000  # in each of 7 steps, 4 tiles enter the node


@pytest.mark.parametrize(
    ("kind", "algorithm"), [("all_reduce", TREES), ("all_gather", RING), ("all_to_all", DIRECT), ("broadcast", PHASES)]
)
def test_the_algorithm_is_that_of_the_price(kind, algorithm):
    rings = {"rings": ("all_gather", "all_reduce"), "trees": True} if algorithm != PHASES else {}
    network = Topology("n", one_card().levels, 1e12, **rings)
    kind = "reduce_scatter" if kind == "broadcast" else kind
    each = Collective(kind, 1000, 1000, groups=((0, 4, 1, 5, 2, 6, 3, 7),))
    assert occupancy(network, 8, each).algorithm == algorithm


def test_interleaved_groups_share_the_links_of_a_ring_and_neighbours_do_not():
    ring = topology(Level("chip", 8, "ring", 1e9))
    assert at_levels(ring, "all_gather", ((0, 2, 4, 6), (1, 3, 5, 7)))["chip"].sharing == 2
    assert at_levels(ring, "all_gather", ((0, 1, 2, 3), (4, 5, 6, 7)))["chip"].sharing == 1
    assert at_levels(ring, "all_gather", ((0, 1, 2, 3), (4, 5, 6, 7)))["chip"].port == "link"


def test_all_groups_share_a_bus_and_a_permute_counts_pairs():
    bus = topology(Level("device", 4, "bus", 1e9))
    found = at_levels(bus, "all_gather", ((0, 1), (2, 3)))["device"]
    assert (found.port, found.sharing, found.port_bytes) == ("bus", 2, 4000)
    assert at_levels(one_card(), "collective_permute", pairs=ACROSS)["node"].sharing == 4


def test_nothing_is_occupied_by_what_stays_on_its_device():
    assert at_levels(one_card(), "all_gather", tuple((each,) for each in range(8))) == {}
    assert at_levels(one_card(), "collective_permute", pairs=((1, 1),)) == {}
