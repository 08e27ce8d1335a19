# SPDX-License-Identifier: Apache-2.0
"""Reductions on networks: the draw, that every program sums, what the report counts, and what a worker checks."""

import functools
import math
from dataclasses import replace

import numpy as np
import p2_witness as p2
import pytest

from benchmarks.harness.journal import Journal
from benchmarks.networks import program_runs
from benchmarks.networks.program_runs import Measured, as_measured, batches, run_all, slowest
from benchmarks.networks.program_worker import is_wrong, tile
from benchmarks.networks.reduction_programs import FLAT, drawn, problems_of, programs_of, programs_over
from benchmarks.networks.reductions import Row, job_of, report
from reshard.dialect_utils.hierarchy.faster_chains import LEAST_GAIN
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.programs import interpreter

SIZES = (1 << 10, 1 << 12, 1 << 15)


def network(nodes: int, per_node: int) -> Topology:
    """Returns 1000 Mbit/s for a process and 100 Mbit/s for a node, as the testbed has them."""
    outer = Level("node", nodes, "switch", 1.2e7, 1e-3, 1.2e7)
    return Topology("test", (outer, Level("host", per_node, "switch", 1.2e8, 1e-3)), 1e10, rings=("all_reduce",))


NETWORKS = {"2x4": network(2, 4), "4x2": network(4, 2)}


@functools.cache
def problems(name: str) -> tuple:
    return tuple(problems_of(drawn(NETWORKS[name], SIZES)))


@pytest.mark.slow
def test_the_draw_is_the_same_each_time_and_has_more_than_100_different_pairs():
    counts = []
    for name, topology in NETWORKS.items():
        pairs = drawn(topology, SIZES)
        found = problems(name)
        assert pairs == drawn(topology, SIZES) and [each.reduction for each in found] == [
            each.reduction for each in problems_of(pairs)
        ]
        assert sum(len(each.reductions) for each in found) == len(pairs) == 60 * len(SIZES)
        counts.append(len(found))
    assert sum(counts) >= 100


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_programs_over_levels_are_those_of_p2(levels):
    most = 4
    mine = [each for each in programs_over(levels) if len(each) <= most]
    assert len(mine) == len({*mine}) == p2.programs((2,) * levels, p2.GATHERS, most)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_program_of_every_problem_sums(name):
    for problem in problems_of(drawn(NETWORKS[name], (1 << 5, 1 << 15))):
        if problem.reduction.elements > 1 << 5:
            continue  # the programs are the same, the arrays larger
        for plan in programs_of(problem).values():
            interpreter.check(plan.tile_program, plan.shape, plan.source, plan.target)


@pytest.mark.slow
def test_ours_is_the_flat_one_unless_the_pass_would_replace_it():
    for problem in problems("2x4"):
        is_faster = problem.planned.time_s <= (1 - LEAST_GAIN) * problem.flat.time_s
        assert problem.is_flat != is_faster
        assert [*programs_of(problem)][0] == FLAT
    groups = {each.reduction.groups for each in problems("2x4") if not each.is_flat}
    assert ((0, 1, 2, 3, 4, 5, 6, 7),) in groups


@pytest.fixture
def jobs():
    problems = problems_of(drawn(NETWORKS["2x4"], (1 << 15,)))
    return problems, [job_of(each, number, 3) for number, each in enumerate(problems)]


def right(job, rank: int) -> np.ndarray:
    return np.sum([tile(seed, job["elements"], job["element"]) for seed in job["from"][rank]], axis=0)


def test_a_worker_knows_right_sums_from_wrong_ones(jobs):
    for job in (each.as_dict() for each in replaced(jobs[1][:4])):
        for rank in range(8):
            assert not is_wrong(right(job, rank), job, rank)
            off = right(job, rank)
            off[0] += 1 if job["element"] == "i32" else np.float32(1e-3)
            assert is_wrong(off, job, rank) and is_wrong(right(job, rank)[:-1], job, rank)


def replaced(jobs):
    """Returns the jobs without their programs, which are not run here."""
    return [replace(each, plans={}, elements=64) for each in jobs]


def test_parts_of_an_all_to_all_stand_in_the_order_of_their_senders():
    job = {"from": [[0, 1], [0, 1]], "members": [0, 1], "elements": 8, "element": "i32", "result": "parts"}
    one, other = tile(0, 8, "i32"), tile(1, 8, "i32")
    assert not is_wrong(np.concatenate([one[4:], other[4:]]), job, 1)
    assert is_wrong(np.concatenate([other[4:], one[4:]]), job, 1)


def measured(job, flat: float, ours: float) -> Measured:
    seconds = {name: 3.0 + number for number, name in enumerate(job.plans)} | {FLAT: flat}
    return Measured(job, seconds | ({job.ours: ours} if job.ours != FLAT else {}), ())


def test_the_report_weighs_problems_by_the_pairs_that_they_stand_for(jobs):
    problems, all_jobs = jobs
    rows = [Row("2x4", problem, measured(job, 2.0, 1.0)) for problem, job in zip(problems, all_jobs)]
    flat = sum(len(each.reductions) for each in problems if each.is_flat)
    text = report(rows)
    mean = 2 ** ((60 - flat) / 60)
    assert f"| all | 60 | {len(rows)} | {flat} | {mean:.2f} | 2.00 | 1.00 |" in text
    assert "rank correlation" in text and "failed" not in text
    rows[0] = replace(rows[0], measured=replace(rows[0].measured, problems=("flat: wrong values",)))
    assert "failed: 2x4" in report(rows) and "| all | 60 |" not in report(rows)


def test_the_best_of_the_top_ten_is_held_against_all(jobs):
    job = max(jobs[1], key=lambda each: len(each.plans))
    order = sorted(job.plans, key=lambda name: job.plans[name].time_s)
    assert len(order) > 10
    as_modelled = {name: float(1 + at) for at, name in enumerate(order)}
    assert Measured(job, as_modelled, ()).best_of_top == 1 and Measured(job, as_modelled, ()).correlation > 0.8
    last_is_fastest = Measured(job, as_modelled | {order[-1]: 0.5}, ())
    assert last_is_fastest.best_of_top == 2 and last_is_fastest.best_of_model == 2


def test_losers_are_measured_again_and_answers_are_kept(jobs, tmp_path, monkeypatch):
    asked = []

    def run(batch, testbed):
        asked.extend(each.turns for each in batch)
        fast = [{name: {"seconds": [1.0], "wrong": False} for name in each.plans} for each in batch]
        for each, answer in zip(batch, fast):
            answer[each.ours]["seconds"] = [2.0 if each.turns < 9 and each.ours != FLAT else 0.5]
        return fast

    monkeypatch.setattr(program_runs, "_run", run)
    some = [replace(each, turns=3) for each in jobs[1][:6]]
    losers = sum(each.ours != FLAT for each in some)
    journal = Journal(tmp_path / "answers.jsonl")
    found = run_all(some, None, "2x4", journal)
    assert asked == [3] * 6 + [9] * losers and all(each.gain >= 1 for each in found)
    assert run_all(some, None, "2x4", Journal(journal.path)) == found and len(asked) == 6 + losers


def test_answers_of_processes_and_batches(jobs):
    wrong, right_ = ({"flat": {"seconds": [1.0, 2.0], "wrong": each}} for each in (True, False))
    job = replace(jobs[1][0], plans={FLAT: jobs[1][0].plans[FLAT]}, ours=FLAT)
    assert as_measured(job, slowest([wrong, right_])).problems == ("flat: wrong values",)
    assert as_measured(job, slowest([right_, {"flat": {"error": "no"}}])).problems == ("flat: no",)
    several = [*batches(jobs[1] * 20)]
    assert [each for batch in several for each in batch] == jobs[1] * 20 and len(several) > 1
    assert math.isclose(sum(each.seconds for batch in several for each in batch), 20 * sum(e.seconds for e in jobs[1]))
