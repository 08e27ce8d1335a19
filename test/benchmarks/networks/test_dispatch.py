# SPDX-License-Identifier: Apache-2.0
"""The dispatch of tokens on networks: every way moves the right parts, and the report says who decided rightly."""

from dataclasses import replace

import pytest

from benchmarks.networks.dispatch import ACROSS_FIRST, INSIDE_FIRST, is_right, job_of, main, report
from benchmarks.networks.program_runs import FLAT, Measured
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.programs import interpreter


def network(nodes: int, per_node: int, latency_s: float = 1e-3, message_s: float = 0.0) -> Topology:
    outer = Level("node", nodes, "switch", 1.2e7, latency_s, 1.2e7, message_s=message_s)
    return Topology("test", (outer, Level("host", per_node, "switch", 1.2e8, 1e-6)), 1e10)


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)])
def test_every_way_moves_the_right_parts(sizes):
    for tile_bytes in (256, 1 << 20):
        job = job_of(network(*sizes), tile_bytes, 3)
        assert [*job.plans][:3] == [FLAT, INSIDE_FIRST, ACROSS_FIRST] and job.ours in job.plans
        assert [job.plans[name].collectives for name in (FLAT, INSIDE_FIRST, ACROSS_FIRST)] == [1, 2, 2]
        if tile_bytes == 256:
            for plan in job.plans.values():
                interpreter.check(plan.tile_program, plan.shape, plan.source, plan.target)


def test_no_way_runs_twice():
    for sizes in ((2, 4), (4, 2)):
        plans = job_of(network(*sizes), 1 << 20, 3).plans.values()
        assert len({plan.tile_program.operations for plan in plans}) == len(plans)


def test_the_report_counts_right_decisions():
    job = replace(job_of(network(2, 4), 1024, 3), ours=FLAT)
    seconds = dict.fromkeys(job.plans, 1.0)
    good, bad = (Measured(job, {**seconds, INSIDE_FIRST: each}, ()) for each in (0.98, 0.5))
    assert is_right(good) and not is_right(bad)
    text = report([("2x4", good), ("2x4", bad)])
    assert "in 1 of 2" in text and "| 2x4 | 1 KiB | 1,000.0 ms | 500.0 ms |" in text


@pytest.mark.parametrize("sizes", [(2, 4), (4, 2)])
def test_where_messages_cost_a_device_time_small_tiles_go_in_two_hops(sizes):
    """No order of the hops is faster than the one that is taken."""
    for tile_bytes, is_flat in ((1 << 10, False), (1 << 12, False), (1 << 16, True), (1 << 20, True)):
        job = job_of(network(*sizes, latency_s=1e-4, message_s=3e-4), tile_bytes, 3)
        assert (job.ours == FLAT) == is_flat
        assert job.plans[job.ours].time_s <= 1.05 * min(plan.time_s for plan in job.plans.values())


def test_the_model_has_a_crossover_that_grows_with_the_overhead_of_a_message(capsys):
    assert main(["--modelled", "a2mega:4x16", "--sizes", "256,64KiB,4MiB", "--message-us", "0,1,10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| a message | 256 B | 64 KiB | 4 MiB | the pass takes hops |"
    assert [line.split(" | ")[-1] for line in lines[2:]] == ["never |", "up to 256 B |", "up to 64 KiB |"]
    assert lines[2].startswith("| 0 us | 0.83 ") and lines[4].startswith("| 10 us | 3.24 ")


@pytest.mark.parametrize(
    ("text", "said"), [("uniform:8", "write two levels"), ("h100", "write two levels"), ("x", "x")]
)
def test_only_two_levels_with_sizes_are_modelled(text, said, capsys):
    with pytest.raises(SystemExit):
        main(["--modelled", text])
    assert said in capsys.readouterr().err
