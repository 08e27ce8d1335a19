# SPDX-License-Identifier: Apache-2.0
"""Calibration finds a known topology again from the times that it predicts.

The times come with noise, with outliers, or with the time that a program needs to start.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.network.calibration import KINDS, CalibrationError, fit, nonnegative, probes
from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.topology import Level, Topology

SIZES = (1 << 14, 1 << 18, 1 << 22, 1 << 26)
SMALL = (1 << 10, 1 << 12, 1 << 14, 1 << 17, 1 << 19, 1 << 21)
MEMORY = 1e12


def times(topology: Topology, mesh: Mesh, noise: float = 0.0, start_s: float = 0.0, seed: int = 0, sizes=SIZES):
    """Returns the measurements of a machine that behaves exactly as the topology predicts, with optional noise."""
    rng = np.random.default_rng(seed)
    asked = probes(mesh, sizes)
    exact = [start_s + collective_time_s(topology, mesh.size, probe.collective) for probe in asked]
    return [(probe, seconds * math.exp(noise * rng.standard_normal())) for probe, seconds in zip(asked, exact)]


def near(number: float, wanted: float, tolerance: float = 0.1) -> bool:
    return abs(number / wanted - 1) < tolerance


# ---- probes


def test_each_axis_has_every_kind_at_every_size_and_all_axes_together_are_for_the_check():
    found = probes(Mesh.parse("node=2,one=1,gpu=4"), SIZES)
    for axis, swaps in (("node", 0), ("gpu", 4)):
        mine = [probe for probe in found if probe.axes == (axis,)]
        assert len(mine) == 4 * (len(KINDS) + 1) + swaps + 2 * swaps and {
            probe.collective.kind for probe in mine
        } == set(KINDS)
        assert sum(probe.is_swapped for probe in mine) == swaps
        assert sum(probe.is_paired for probe in mine) == 2 * swaps and not any(
            probe.is_fitted for probe in mine if probe.is_paired
        )
        assert sum(probe.is_alone for probe in mine) == 4 and not any(
            probe.is_fitted for probe in mine if probe.is_alone
        )
    rest = [probe for probe in found if len(probe.axes) > 1]
    assert {probe.axes for probe in rest} == {("node", "gpu")} and not any(probe.is_fitted for probe in rest)


def test_groups_are_device_ids_and_sizes_are_those_of_the_larger_tile():
    mesh = Mesh.parse('<["a"=2, "b"=2], device_ids=[3,2,1,0]>')
    gather, *_, shift, alone = [p for p in probes(mesh, (1000,)) if p.axes == ("b",)][:4]
    assert gather.collective.groups == ((3, 2), (1, 0))
    assert (gather.collective.bytes_before, gather.collective.bytes_after) == (496, 992)
    assert set(shift.collective.pairs) == {(3, 2), (2, 3), (1, 0), (0, 1)} and len(alone.collective.pairs) == 1


# ---- topologies that are found again


@st.composite
def networks(draw):
    """Two levels that differ by a factor of two or more in bandwidth, and a mesh with an axis for each.

    An inner bus never gives each of its devices just what an outer switch gives: while all devices work, the two levels
    are then like one bus of all devices, and `fit` takes that. Single pairs, which are faster, are not fitted.
    """
    outer_size, inner_size = draw(st.sampled_from((2, 3, 4))), draw(st.sampled_from((2, 4, 8)))
    slow = 10 ** draw(st.floats(8, 10.5))
    latencies = [10 ** draw(st.floats(-6, -5)) for _ in range(2)]
    kinds = [draw(st.sampled_from(("switch", "bus"))) for _ in range(2)]
    slowdown = draw(st.sampled_from(((), (("all_to_all", 2.0),), (("all_reduce", 1.5),))))
    outer = Level("node", outer_size, kinds[0], slow, latencies[0])
    faster = draw(st.floats(3, 20))
    assume(kinds != ["switch", "bus"] or abs(faster / inner_size - 1) > 0.2)
    inner = Level("gpu", inner_size, kinds[1], slow * faster, latencies[1], slowdown=slowdown)
    launch = 10 ** draw(st.floats(-6, -5))
    return Topology("made up", (outer, inner), MEMORY, launch), Mesh.parse(f"node={outer_size},gpu={inner_size}")


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(networks(), st.integers(0, 1000))
def test_predictions_of_the_fitted_topology_are_those_of_the_true_one(network, seed):
    topology, mesh = network
    found = fit(mesh, times(topology, mesh, noise=0.03, seed=seed), MEMORY).topology
    mine, true = ([seconds for _, seconds in times(each, mesh)] for each in (found, topology))
    errors = np.abs(np.divide(mine, true) - 1)
    assert np.median(errors) < 0.04 and np.quantile(errors, 0.9) < 0.2
    assert Topology.parse(found.to_toml()) == found


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(networks(), st.integers(0, 1000))
def test_times_without_noise_give_the_very_topology(network, seed):
    topology, mesh = network
    found = fit(mesh, times(topology, mesh, start_s=1e-4), MEMORY, start_s=1e-4).topology
    if found.shape_text == topology.shape_text:
        for mine, true in zip(found.levels, topology.levels):
            assert mine.kind == true.kind and near(mine.bandwidth_bytes_per_s, true.bandwidth_bytes_per_s, 0.02)
            assert dict(mine.slowdown) == pytest.approx(dict(true.slowdown), rel=0.02)
    mine, true = ([seconds for _, seconds in times(each, mesh)] for each in (found, topology))
    assert np.abs(np.divide(mine, true) - 1).max() < 0.15


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", range(8))
def test_a_level_whose_times_are_nearly_all_bytes_has_at_least_the_latency_of_the_level_inside_it(seed):
    mesh, levels = (
        Mesh.parse("node=2,host=4"),
        (Level("node", 2, "bus", 2e7, 2e-3), Level("host", 4, "switch", 1e8, 1e-3)),
    )
    network = Topology("made up", levels, MEMORY, 1e-5)
    found = fit(mesh, times(network, mesh, noise=0.2, seed=seed), MEMORY)
    between, inside = (level.latency_s for level in found.topology.levels)
    assert between >= inside > 0.0


def test_a_level_with_clearly_more_latency_than_the_one_around_it_is_found():
    mesh = Mesh.parse("node=2,host=4")
    levels = Level("node", 2, "switch", 1e9, 1e-5), Level("host", 4, "switch", 1e10, 1e-3)
    found = fit(mesh, times(Topology("made up", levels, MEMORY, 1e-5), mesh), MEMORY)
    assert all(near(mine.latency_s, true.latency_s) for mine, true in zip(found.topology.levels, levels))


@pytest.mark.parametrize("preset", ["uniform", "cpu"])
def test_axes_that_behave_alike_become_one_level(preset):
    mesh, topology = Mesh.parse("a=2,b=2,c=2"), Topology.parse(preset).fitted(8)
    found = fit(mesh, times(topology, mesh, noise=0.03), MEMORY)
    (level,) = found.topology.levels
    assert (found.axes_of_levels, level.name, level.kind) == ((("a", "b", "c"),), "device", topology.levels[0].kind)
    assert near(level.bandwidth_bytes_per_s, topology.levels[0].bandwidth_bytes_per_s)


@pytest.mark.parametrize("rings", [(), ("all_gather",), ("all_gather", "all_reduce")])
def test_rings_across_levels_are_found(rings):
    mesh = Mesh.parse("node=2,gpu=4")
    levels = Level("node", 2, "switch", 1e8, 1e-5, 2e8), Level("gpu", 4, "switch", 1e9, 1e-6)
    network = Topology("made up", levels, MEMORY, 1e-5, rings=rings)
    found = fit(mesh, times(network, mesh, noise=0.03), MEMORY)
    assert found.topology.rings == rings and np.median(found.errors(is_fitted=False)) < 0.05


def test_the_latency_of_a_step_around_a_ring_is_found():
    """An all_reduce of 4 takes 6 steps around a ring, where it would take 4 otherwise."""
    mesh, rings = Mesh.parse("node=2,host=4"), ("all_gather", "all_reduce")
    levels = Level("node", 2, "switch", 1.2e7, 1e-3, 1.2e7), Level("host", 4, "switch", 1.2e8, 1e-3)
    network = Topology("made up", levels, MEMORY, 2e-3, rings=rings)
    found = fit(mesh, times(network, mesh, noise=0.01), MEMORY).topology
    assert found.rings == rings
    assert near(found.launch_latency_s, 2e-3, 0.2) and near(found.levels[1].latency_s, 1e-3, 0.2)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("further", [(), (("reduce_scatter", 2e-2),), (("all_to_all", 5e-3), ("reduce_scatter", 2e-2))])
def test_kinds_that_start_later_than_the_others_are_found(further):
    mesh = Mesh.parse("node=2,host=4")
    levels = Level("node", 2, "switch", 1.2e7, 1e-3, 1.2e7), Level("host", 4, "switch", 1.2e8, 1e-3)
    network = Topology("made up", levels, MEMORY, further_launch_s=further)
    for seed in range(3):
        found = fit(mesh, times(network, mesh, noise=0.05, seed=seed), MEMORY)
        assert dict(found.topology.further_launch_s) == pytest.approx(dict(further), rel=0.15)
        assert np.median(found.errors()) < 0.06 and not found.topology.levels[0].slowdown
    assert Topology.parse(found.topology.to_toml()) == found.topology


@pytest.mark.draws
@pytest.mark.mostly_slow
@pytest.mark.parametrize("text", ["node=2,host=4", "node=4,host=2"])
@pytest.mark.parametrize("messages", [(0.0, 0.0), (1e-3, 3e-4), (1e-3, 1e-3), (3e-3, 1e-3)])
def test_the_overhead_of_each_message_of_an_all_to_all_is_found(text, messages):
    """Small tiles tell it; without it there is none in the topology, whatever the noise."""
    mesh = Mesh.parse(text)
    ports = (1.2e7, 3e-4, 1.2e7), (1.2e8, 2e-4)
    levels = (
        Level(name, size, "switch", *port, message_s=each)
        for (name, size), port, each in zip(mesh.axes, ports, messages, strict=True)
    )
    network = Topology("made up", tuple(levels), MEMORY, 3e-4, rings=("all_gather", "all_reduce"))
    for seed in range(3):
        found = fit(mesh, times(network, mesh, 0.05, seed=seed, sizes=SMALL), MEMORY)
        mine = [level.message_s for level in found.topology.levels]
        assert mine == pytest.approx(messages, rel=0.2)
        assert not found.topology.further_launch_s and np.median(found.errors()) < 0.06
        assert ("message_s" in found.topology.to_toml()) == any(messages)
    assert Topology.parse(found.topology.to_toml()) == found.topology


@pytest.mark.mostly_slow
@pytest.mark.parametrize("messages", [(5e-4, 0.0), (5e-4, 1e-4)])
def test_overheads_that_latencies_hide_along_one_axis_are_found_over_all_axes_together(messages):
    mesh, (across_s, inside_s) = Mesh.parse("node=2,host=4"), messages
    across = Level("node", 2, "switch", 1.2e7, 3e-4, 1.2e7, message_s=across_s)
    inside = Level("host", 4, "switch", 1.2e8, 2e-4, message_s=inside_s)
    network = Topology("made up", (across, inside), MEMORY, 3e-4)
    for seed in range(3):
        found = fit(mesh, times(network, mesh, 0.03, seed=seed, sizes=SMALL), MEMORY).topology
        for probe in probes(mesh, SMALL):
            if probe.collective.kind == "all_to_all":
                mine, true = (collective_time_s(each, mesh.size, probe.collective) for each in (found, network))
                assert near(mine, true, 0.2), probe


def test_the_overhead_of_messages_is_found_along_one_axis_from_groups_of_two():
    mesh, level = Mesh.parse("host=8"), Level("host", 8, "switch", 1e8, 2e-4, message_s=3e-4)
    network = Topology("made up", (level,), MEMORY, 3e-4)
    for seed in range(3):
        found = fit(mesh, times(network, mesh, 0.05, seed=seed, sizes=SMALL), MEMORY).topology
        assert near(found.levels[0].message_s, 3e-4, 0.2) and not found.further_launch_s


@pytest.mark.slow
def test_an_all_to_all_that_starts_late_is_not_taken_for_one_of_slow_messages():
    mesh = Mesh.parse("node=2,host=4")
    levels = Level("node", 2, "switch", 1.2e7, 3e-4, 1.2e7), Level("host", 4, "switch", 1.2e8, 2e-4)
    network = Topology("made up", levels, MEMORY, 3e-4, further_launch_s=(("all_to_all", 2e-3),))
    for seed in range(3):
        found = fit(mesh, times(network, mesh, 0.05, seed=seed, sizes=SMALL), MEMORY).topology
        assert dict(found.further_launch_s) == pytest.approx({"all_to_all": 2e-3}, rel=0.15)
        assert not any(level.message_s for level in found.levels)


@pytest.mark.parametrize("in_pairs", [(("all_gather", 1.5),), (("all_gather", 1.5), ("all_to_all", 1.8))])
def test_groups_of_two_that_are_not_as_slow_as_swaps_are_found(in_pairs):
    mesh = Mesh.parse("node=2,host=8")
    slow = ("all_to_all", 1.3), ("swap", 1.9)
    levels = (
        Level("node", 2, "switch", 1e7, 1e-5),
        Level("host", 8, "switch", 1e9, 1e-5, slowdown=slow, slowdown_in_pairs=in_pairs),
    )
    network = Topology("made up", levels, MEMORY, 1e-5)
    found = fit(mesh, times(network, mesh, noise=0.01), MEMORY).topology
    assert (
        dict(found.levels[1].slowdown_in_pairs) == pytest.approx(dict(in_pairs), rel=0.05)
        and not found.levels[0].slowdown_in_pairs
    )
    assert Topology.parse(found.to_toml()) == found


@pytest.mark.parametrize(("text", "swap"), [("host=8", 2.0), ("host=8", 1.0), ("node=2,host=4", 1.8), ("host=3", 1.5)])
def test_connections_that_work_one_way_at_a_time_are_found(text, swap):
    mesh = Mesh.parse(text)
    slow = (("swap", swap),) if swap > 1 else ()
    levels = [
        Level(name, size, "switch", 1e8 * 10**at, 1e-5, slowdown=slow) for at, (name, size) in enumerate(mesh.axes)
    ]
    network = Topology("made up", tuple(levels), MEMORY, 1e-5)
    found = fit(mesh, times(network, mesh, noise=0.02), MEMORY)
    assert near(found.topology.levels[-1].slowdown_of("swap"), swap, 0.05)
    mine, true = ([seconds for _, seconds in times(each, mesh)] for each in (found.topology, network))
    assert np.median(np.abs(np.divide(mine, true) - 1)) < 0.05
    assert Topology.parse(found.topology.to_toml()) == found.topology


@pytest.mark.parametrize("kind", ["switch", "bus"])
def test_devices_of_one_memory_are_one_level_that_copies_own_parts(kind):
    mesh = Mesh.parse("a=2,b=4")
    level = Level("device", 8, kind, 2e9, slowdown=(("all_to_all", 4.9), ("collective_permute", 1.7)), copies_own=True)
    network = Topology("made up", (level,), MEMORY, 4e-5)
    found = fit(mesh, times(network, mesh, noise=0.02), MEMORY, slice_bandwidth_bytes_per_s=1e9)
    assert [(level.size, level.kind, level.copies_own) for level in found.topology.levels] == [(8, kind, True)]
    assert (
        found.topology.slice_bandwidth_bytes_per_s == 1e9 and Topology.parse(found.topology.to_toml()) == found.topology
    )
    mine, true = ([seconds for _, seconds in times(each, mesh)] for each in (found.topology, network))
    assert np.median(np.abs(np.divide(mine, true) - 1)) < 0.05


def test_only_axes_inside_a_node_are_merged():
    mesh, topology = Mesh.parse("node=4,x=2,y=4"), Topology.parse("h100:4")
    found = fit(mesh, times(topology, mesh, noise=0.03), MEMORY)
    assert found.axes_of_levels == (("node",), ("x", "y"))
    assert found.topology.shape_text == "4 node x 8 x_y"


@pytest.mark.parametrize("shared", [12.5e9, 30e9, 60e9])
def test_network_cards_that_devices_share_are_found(shared):
    mesh, topology = Mesh.parse("node=4,gpu=8"), Topology.parse("ethernet:4x8")
    levels = (replace(topology.levels[0], shared_bandwidth_bytes_per_s=shared), topology.levels[1])
    outer = fit(mesh, times(replace(topology, levels=levels), mesh, noise=0.03), MEMORY).topology.levels[0]
    assert near(outer.shared_bandwidth_bytes_per_s, shared) and near(outer.bandwidth_bytes_per_s, 12.5e9, 0.2)
    assert outer.kind == "switch"


def test_an_axis_whose_kind_is_given_stays_a_level():
    mesh = Mesh.parse("a=2,b=4")
    measured = times(Topology.parse("uniform").fitted(8), mesh)
    found = fit(mesh, measured, MEMORY, kinds={"b": "bus"})
    assert [(level.name, level.kind) for level in found.topology.levels] == [("a", "switch"), ("b", "bus")]
    with pytest.raises(MeshError, match='unknown axis "c"'):
        fit(mesh, measured, MEMORY, kinds={"c": "bus"})


def test_a_few_wild_times_change_little():
    mesh, topology = Mesh.parse("node=2,gpu=4"), Topology.parse("h100:2x4")
    measured = times(topology, mesh, noise=0.03)
    wild = [(probe, seconds * (8 if number % 11 == 5 else 1)) for number, (probe, seconds) in enumerate(measured)]
    found = fit(mesh, wild, MEMORY).topology
    for mine, true in zip(found.levels, topology.levels, strict=True):
        assert near(mine.bandwidth_bytes_per_s, true.bandwidth_bytes_per_s, 0.15)


def test_the_order_of_devices_is_part_of_the_topology():
    mesh = Mesh.parse('<["node"=2, "gpu"=2], device_ids=[0,2,1,3]>')
    topology = replace(Topology.parse("h100:2x2"), device_order=(0, 2, 1, 3))
    found = fit(mesh, times(topology, mesh), MEMORY).topology
    assert found.device_order == (0, 2, 1, 3) and near(found.levels[0].bandwidth_bytes_per_s, 50e9)


def test_rows_hold_what_was_measured_and_what_is_predicted():
    mesh, topology = (
        Mesh.parse("gpu=4"),
        replace(Topology.parse("h100:1x4"), levels=Topology.parse("h100:1x4").levels[1:]),
    )
    found = fit(mesh, times(topology, mesh), MEMORY)
    row = next(row for row in found.rows if row.text == "all_reduce")
    assert (
        row.measured
        == pytest.approx(row.predicted, rel=0.02)
        == (pytest.approx(8.4e-6 + 4 * 3.4e-6, rel=0.02), 1.5 / 450e9)
    )
    assert found.errors().max() < 0.02 and len(found.errors()) == (len(KINDS) + 1) * len(
        SIZES
    )  # two kinds of permutes: around a ring, and swaps
    assert len(found.errors(is_fitted=False)) == 3 * len(SIZES)  # one pair alone, two kinds in pairs


# ---- measurements that cannot be fitted


def test_times_that_do_not_grow_are_refused():
    mesh = Mesh.parse("a=2")
    with pytest.raises(CalibrationError, match='times along "a" do not grow with the size; measure larger --sizes'):
        fit(mesh, [(probe, 1e-5) for probe in probes(mesh, SIZES)], MEMORY)


@pytest.mark.parametrize("mesh, text", [("a=1", "one device"), ("a=2,b=2,c=2,d=2,e=2,f=2,g=2", "7 axes; at most 6")])
def test_meshes_without_levels_to_tell_apart_are_refused(mesh, text):
    with pytest.raises(CalibrationError, match=text):
        fit(Mesh.parse(mesh), [], MEMORY)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5))
def test_no_small_change_of_a_nonnegative_solution_is_better(seed, rows, columns):
    rng = np.random.default_rng(seed)
    matrix, wanted = rng.standard_normal((rows, columns)), rng.standard_normal(rows)
    found = nonnegative(matrix, wanted)
    slope = matrix.T @ (matrix @ found - wanted)
    assert (found >= 0).all() and (slope >= -1e-6).all() and np.abs(slope[found > 0]).max(initial=0) < 1e-6
