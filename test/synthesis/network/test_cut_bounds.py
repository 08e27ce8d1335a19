# SPDX-License-Identifier: Apache-2.0
"""Bounds by cuts: the bytes into a unit equal a count of elements, and every chain and collective keeps the bound."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_networks import US, random_topology, switch, topology

from benchmarks.conversions.pairs import random_pair
from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network import cut_bounds
from reshard.synthesis.network.cost import coefficients, collective_time_s
from reshard.synthesis.network.cut_bounds import cut_bytes_bound
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import NoPlanError, plan
from reshard.synthesis.programs.tile_program import collectives


def boxes(mesh: Mesh, shape: tuple[int, ...], sharding: Sharding) -> tuple[np.ndarray, np.ndarray]:
    held = Blocks.of_sharding(mesh, shape, sharding)
    return held.starts, held.stops


def entering_by_elements(network: Topology, depth: int, source, target, shape) -> list[int]:
    """Returns for each unit the number of elements that it needs and lacks, counted with sets of indices."""
    unit = int(np.prod([level.size for level in network.levels[depth + 1 :]]))
    elements = np.arange(int(np.prod(shape))).reshape(shape)
    positions = network.positions()
    held: dict[int, set] = {}
    wanted: dict[int, set] = {}
    for device in range(network.size):
        for start, stop, found in ((*source, held), (*target, wanted)):
            box = tuple(slice(a, b) for a, b in zip(start[device], stop[device]))
            found.setdefault(int(positions[device]) // unit, set()).update(elements[box].flat)
    return [len(wanted[u] - held[u]) for u in sorted(held)]


@pytest.mark.parametrize("seed", range(40))
def test_bytes_into_units_are_counted_elements(seed):
    rng = random.Random(seed)
    pair = random_pair(rng, rng.choice((2, 4, 6, 8, 12)), max_rank=3)
    network = random_topology(rng, pair.mesh.size)
    source, target = (boxes(pair.mesh, pair.shape, side) for side in (pair.source, pair.target))
    bound = cut_bytes_bound(network, source, target, 32)
    expected = [
        (level.name, 4 * max(entering_by_elements(network, depth, source, target, pair.shape)))
        for depth, level in enumerate(network.levels)
        if level.size > 1
    ]
    assert [(level.name, level.bytes_into_unit) for level in bound.levels] == expected


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_to_count_agree(seed):
    rng = random.Random(seed)
    pair = random_pair(rng, rng.choice((4, 8, 12, 16)), max_rank=3)
    unit_of = np.arange(pair.mesh.size) // rng.choice((1, 2, 4))
    units = int(unit_of.max()) + 1
    held, wanted = (cut_bounds._Blocks(*boxes(pair.mesh, pair.shape, side)) for side in (pair.source, pair.target))
    there, devices = held.distinct(unit_of)
    here, goals = wanted.distinct(unit_of)
    by_pairs = cut_bounds._present_by_pairs(np.bincount(there, minlength=units), held, devices, wanted, here, goals)
    assert by_pairs.tolist() == cut_bounds._present_on_grid(units, held, there, devices, wanted, here, goals).tolist()


@pytest.mark.draws
@pytest.mark.parametrize("seed", range(150))
def test_r3_no_chain_beats_the_bound(seed):
    rng = random.Random(seed)
    pair = random_pair(rng, rng.choice((2, 4, 6, 8, 12, 16)), max_rank=3)
    network = random_topology(rng, pair.mesh.size)
    try:
        program = plan(pair.mesh, pair.shape, 32, pair.source, pair.target).tile_program
    except NoPlanError:
        return
    runs = collectives(program, 32)
    modelled_s = sum(collective_time_s(network, pair.mesh.size, run) for run in runs)
    bound = cut_bytes_bound(
        network, boxes(pair.mesh, pair.shape, pair.source), boxes(pair.mesh, pair.shape, pair.target), 32
    )
    assert bound.time_s <= modelled_s * (1 + 1e-9)


@given(st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_r3_no_collective_beats_the_bound(rng):
    """Runs all_gathers, all_to_alls and permutes in random groups, with the placements before and after each."""
    n, width = rng.choice([2, 4, 6, 8, 12, 16]), 48
    network = random_topology(rng, n)
    ids = np.array(rng.sample(range(n), n)) if rng.random() < 0.5 else np.arange(n)
    size = rng.choice([d for d in range(2, n + 1) if n % d == 0])
    members = ids.reshape(-1, size) if rng.random() < 0.5 else ids.reshape(size, -1).T
    rank = np.empty(n, np.int64)  # in the group
    rank[members] = np.arange(size)
    block = np.empty(n, np.int64)  # of the group
    block[members] = np.arange(n // size)[:, None]
    tile = width // size if width % size == 0 else 1
    kind = rng.choice(["all_gather", "all_to_all", "collective_permute"])
    nothing = np.zeros(n, np.int64)
    lane = np.stack([block * size * tile, nothing], axis=1)
    start = lane + np.stack([rank * tile, nothing], axis=1)
    stop, pairs = start + [tile, size], None
    if kind == "all_gather":
        goal, extent = lane, [size * tile, size]
    elif kind == "all_to_all":
        goal, extent = lane + np.stack([nothing, rank], axis=1), [size * tile, 1]
    else:
        moved = np.array(rng.sample(range(n), n))
        goal, extent = np.empty_like(start), [tile, size]
        goal[moved] = start
        pairs = np.stack([np.arange(n), moved], axis=1)
    latency_s, seconds_per_byte = coefficients(network, n, kind, members, pairs)
    bound = cut_bytes_bound(network, (start, stop), (goal, goal + extent), 8)
    assert bound.seconds <= seconds_per_byte * tile * size * (1 + 1e-9)
    assert bound.latency_s <= latency_s * (1 + 1e-9)


def test_bound_of_a_striped_gather_is_met():
    """The bound equals the time of the best known program: 1/8 of the tile over the network, the rest over NVLink."""
    nodes = Topology.parse("h100:2")
    start = np.repeat(np.arange(2), 8)[:, None] * 1024  # one half per node, on all its GPUs
    bound = cut_bytes_bound(nodes, (start, start + 1024), (np.zeros((16, 1), int), np.full((16, 1), 2048)), 8)
    assert [(level.name, level.bytes_into_unit) for level in bound.levels] == [("node", 1024), ("gpu", 1024)]
    assert [level.seconds for level in bound.levels] == pytest.approx([1024 / 400e9, 1024 / 500e9])  # NVLink and card


def test_bound_takes_the_quickest_step_on_the_way():
    nodes = topology(switch("node", 2, 1, us=1), switch("gpu", 2, 1, us=5), launch_us=10)
    start = np.array([[0], [0], [8], [8]])  # a node lacks the other's half; GPUs of a node need not talk
    bound = cut_bytes_bound(nodes, (start, start + 8), (np.zeros((4, 1), int), np.full((4, 1), 16)), 8)
    assert bound.latency_s == pytest.approx(11 * US)


def test_bound_from_a_single_device():
    nodes = Topology.parse("h100:2x2")
    start, stop = np.zeros((4, 1), int), np.array([[16], [0], [0], [0]])
    bound = cut_bytes_bound(nodes, (start, stop), (start, np.full((4, 1), 16)), 8)
    assert [level.bytes_into_unit for level in bound.levels] == [16, 16]


def test_bound_of_nothing_is_nothing():
    box = np.zeros((4, 0), int), np.zeros((4, 0), int)
    assert cut_bytes_bound(topology(switch("gpu", 4, 1)), box, box, 32).time_s == 0


def test_boxes_that_overlap_are_refused():
    start = np.array([[0], [1]])
    with pytest.raises(ValueError, match="boxes overlap along dimension 0"):
        cut_bytes_bound(topology(switch("gpu", 2, 1)), (start, start + 2), (start, start + 2), 8)
