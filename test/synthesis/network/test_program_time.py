# SPDX-License-Identifier: Apache-2.0
"""The modelled time of a program: what makes it longer, and what must not change it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.network import cost
from reshard.synthesis.network.program_time import LocalWork, ProgramTime, program_time
from reshard.synthesis.network.topology import Topology, TopologyError
from reshard.synthesis.programs.traffic import Collective, merged

UNIFORM, TWO_NODES = Topology.parse("uniform"), Topology.parse("h100:2x2")
GROUPS = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2, 3),)]


def gather(tile: int, groups=GROUPS[0], runs: int = 1) -> Collective:
    return Collective("all_gather", tile, tile * len(groups[0]), groups=groups, trip_count=runs)


gathers = st.builds(gather, st.integers(1, 10**8), st.sampled_from(GROUPS), st.integers(1, 100))
works = st.builds(LocalWork, st.integers(0, 10**12), st.integers(0, 10**9), st.integers(1, 50))


def test_a_program_without_work_takes_no_time():
    assert program_time(UNIFORM, 4, []) == ProgramTime(0.0, 0.0)


@pytest.mark.parametrize("topology", [UNIFORM, TWO_NODES], ids=lambda each: each.name)
def test_a_collective_costs_what_the_planner_says(topology):
    each = gather(10**6, runs=3)
    assert program_time(topology, 4, [each]).seconds == cost.collective_time_s(topology, 4, each)


@given(st.lists(gathers, max_size=5), st.lists(works, max_size=5))
def test_times_add_up_in_any_order_and_merged_or_not(collectives, work):
    whole = program_time(TWO_NODES, 4, collectives, work)
    parts = [program_time(TWO_NODES, 4, [each]).seconds for each in collectives]
    parts += [program_time(TWO_NODES, 4, [], [each]).seconds for each in work]
    assert whole.seconds == pytest.approx(sum(parts))
    assert program_time(TWO_NODES, 4, merged(collectives[::-1]), work[::-1]).seconds == pytest.approx(whole.seconds)


@given(gathers)
def test_runs_multiply(each):
    once = program_time(TWO_NODES, 4, [replace(each, trip_count=1)]).seconds
    assert program_time(TWO_NODES, 4, [each]).seconds == pytest.approx(each.trip_count * once)


def test_latency_counts_each_collective():
    """One collective of all the bytes is faster than ten of a tenth, but not ten times as fast."""
    one, ten = (program_time(UNIFORM, 4, [gather(10**6 // n, runs=n)]).seconds for n in (1, 10))
    assert one < ten < 10 * one


def test_the_slow_level_is_slower():
    inside, across = (program_time(TWO_NODES, 4, [gather(10**7, groups)]).seconds for groups in GROUPS[:2])
    assert across > 2 * inside


def test_work_takes_as_long_as_its_operations_or_its_bytes():
    topology = Topology.parse("h100:4x1")
    flops_s, bytes_s = (
        program_time(topology, 4, [], [each]).local_s for each in (LocalWork(10**12, 0), LocalWork(0, 10**9))
    )
    assert flops_s == pytest.approx(10**12 / topology.flops_per_s)
    assert bytes_s == pytest.approx(10**9 / topology.memory_bandwidth_bytes_per_s)
    both = program_time(topology, 4, [], [LocalWork(10**12, 10**9, runs=2)])
    assert both.local_s == pytest.approx(2 * max(flops_s, bytes_s)) and both.collectives_s == 0


def test_a_kernel_takes_no_less_than_any():
    topology = Topology.parse("v5e:2x2")
    assert topology.kernel_s > 0

    def local_s(*work: LocalWork) -> float:
        return program_time(topology, 4, [], work).local_s

    assert local_s(LocalWork(0, 100, runs=32)) == pytest.approx(32 * topology.kernel_s)
    assert local_s(LocalWork(0, 0, kernels=3)) == pytest.approx(3 * topology.kernel_s)
    assert local_s(LocalWork(0, 100, kernels=0)) == pytest.approx(100 / topology.memory_bandwidth_bytes_per_s)
    assert local_s(LocalWork(0, 10**9)) == pytest.approx(10**9 / topology.memory_bandwidth_bytes_per_s)
    with pytest.raises(TopologyError, match="kernel_s = -1.0"):
        replace(topology, kernel_s=-1.0)


def test_a_topology_for_other_devices_is_an_error():
    with pytest.raises(TopologyError):
        program_time(TWO_NODES, 8, [gather(10)])
