# SPDX-License-Identifier: Apache-2.0
"""The dispatch of tokens on networks: every way moves the right parts, and the report says who decided rightly."""

from dataclasses import replace

import pytest

from benchmarks.networks.dispatch import ACROSS_FIRST, INSIDE_FIRST, is_right, job_of, report
from benchmarks.networks.program_runs import FLAT, Measured
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.programs import interpreter


def network(nodes: int, per_node: int, latency_s: float = 1e-3) -> Topology:
    outer = Level("node", nodes, "switch", 1.2e7, latency_s, 1.2e7)
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
