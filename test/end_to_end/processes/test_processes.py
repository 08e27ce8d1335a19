# SPDX-License-Identifier: Apache-2.0
"""Programs that several processes share: all have the same plan and executable, or all use stock XLA and say why.

The jobs have 2 or 4 processes on this machine, with CPU devices and gloo. Each test starts its own job.
"""

import json
import re
from pathlib import Path

import launching
import numpy as np
import pytest

from reshard.synthesis.common import store
from reshard.tools.docs import renew as docs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

LIMIT_S = 240  # of a whole job; each takes a few seconds on an idle machine


@pytest.fixture
def job(tmp_path):
    """Returns a function that runs a scenario and returns the JSON that each process printed."""

    def run(scenario, processes, devices=None, variables=None, own_variables=(), limit_s=LIMIT_S):
        # The network between CPU devices of several processes is unknown; here one host has them all.
        known = {"RESHARD_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path), "RESHARD_TOPOLOGY": "cpu"}
        variables = {**known, **(variables or {})}
        outcomes = launching.launch(
            HERE / "scenarios.py",
            processes,
            devices or 8 // processes,
            scenario,
            str(tmp_path),
            variables=variables,
            own_variables=own_variables,
            timeout_s=limit_s,
        )
        return [each.told for each in outcomes]

    return run


def assert_same_in_all(told):
    for what in ("is_rewritten", "module", "executable", "report"):
        assert len({each[what] for each in told}) == 1, [each[what] for each in told]


def assert_stock_in_all(told, reason):
    """Asserts that all processes left the program to XLA, warned once with the reason, and computed right values."""
    assert_same_in_all(told)
    assert not told[0]["is_rewritten"] and all(each["is_right"] for each in told)
    for each in told:
        (warning,) = each["warnings"]
        assert reason in warning
        assert reason in each["report"]


def shards(tmp_path, tag, processes):
    return {
        name: part for i in range(processes) for name, part in np.load(tmp_path / f"{tag}-{processes}-{i}.npz").items()
    }


@pytest.mark.slow
def test_two_processes_share_a_program(job):
    """The variables that control jax in a process do not reach the child that compiles XLA's baseline."""
    told = job("cube", 2, variables={"RESHARD_CACHE": "off", "SLURM_JOB_ID": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert_same_in_all(told)
    assert told[0]["is_rewritten"] and all(each["is_right"] and not each["warnings"] for each in told)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_one_process_asks_the_compiler_of_the_devices_for_all(job, processes):
    told = job("at_hand", processes, variables={"RESHARD_TOPOLOGY": "v5e:2x4"})
    assert_same_in_all(told)
    assert told[0]["is_rewritten"] and all(each["is_right"] and not each["warnings"] for each in told)
    assert "compiled for tpu:v5e:2x4, modelled on v5e:2x4" in told[0]["report"]
    assert set(told[0]["asked"]) == {"ok"} and not any(each["asked"] for each in told[1:])


def test_processes_that_do_not_agree_do_not_ask_it(job):
    told = job("at_hand", 2, variables={"RESHARD_AGREEMENT": "off", "RESHARD_TOPOLOGY": "v5e:2x4"})
    assert not any(each["asked"] for each in told) and "compiled for tpu" not in told[0]["report"]


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes", "tolerance"),
    [("issue_21562", 2, 0), ("issue_21562", 4, 0), ("llama_train_step", 2, 2e-5)],
)
def test_equals_the_program_in_one_process(job, tmp_path, name, processes, tolerance):
    """If nothing is summed, the program is the same and the values are bit-equal.

    Gloo adds in another order than the devices of one process, and plans do not use its reduce_scatter.
    """
    (single,) = job(name, 1)
    told = job(name, processes, variables={"RESHARD_CACHE_DIR": str(tmp_path / "other_cache")})
    assert_same_in_all(told)
    assert told[0]["is_rewritten"]
    if not tolerance:
        assert told[0]["module"] == single["module"] and told[0]["report"] == single["report"]
    expected, found = shards(tmp_path, name, 1), shards(tmp_path, name, processes)
    assert expected.keys() == found.keys()
    for part, values in expected.items():
        np.testing.assert_allclose(found[part], values, rtol=tolerance, atol=tolerance)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_jit_and_enabled(job, processes):
    told = job("jitted", processes)
    assert_same_in_all(told)
    assert told[0]["is_rewritten"] and all(each["is_right"] and not each["warnings"] for each in told)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_redistribute_equals_that_in_one_process(job, tmp_path, processes):
    (single,) = job("redistributed", 1)
    told = job("redistributed", processes)
    assert all(each["schedule"] == single["schedule"] and not each["warnings"] for each in told)
    expected, found = shards(tmp_path, "redistributed", 1), shards(tmp_path, "redistributed", processes)
    assert expected.keys() == found.keys()
    for part, values in expected.items():
        np.testing.assert_array_equal(found[part], values)


class TestDisagreement:
    pytestmark = pytest.mark.slow

    def test_another_option(self, job):
        assert_stock_in_all(job("another_option", 2), "policy=always in process 1, policy=better in process 0")

    def test_another_version(self, job):
        told = job("another_version", 2)
        assert_stock_in_all(told, "jaxlib=0.9.9 in process 1, jaxlib=")

    def test_another_module(self, job):
        told = job("another_module", 2)
        assert not any(each["is_rewritten"] for each in told)
        assert all("process 1 has another module" in each["warnings"][0] for each in told)
        assert "dense<3.0" in told[1]["warnings"][0] and "in process 0:" in told[1]["warnings"][0]

    @pytest.mark.draws
    @pytest.mark.parametrize("processes", [2, 4])
    def test_a_process_that_compiles_without_reshard(self, job, processes):
        told = job("missing", processes, variables={"RESHARD_AGREEMENT_TIMEOUT_S": "2"})
        assert all(each["is_right"] for each in told)
        others = told[:1] + told[2:]
        assert_stock_in_all(others, "process 1 did not answer at jit_cube")

    @pytest.mark.draws
    @pytest.mark.parametrize("processes", [2, 4])
    def test_a_process_that_is_late(self, job, processes):
        told = job("late", processes, variables={"RESHARD_AGREEMENT_TIMEOUT_S": "2"})
        assert_stock_in_all(told, f"process {processes - 1} did not answer at jit_cube")

    def test_a_late_process_that_plans_for_all(self, job):
        told = job("late_lead", 4, variables={"RESHARD_AGREEMENT_TIMEOUT_S": "2"})
        assert_stock_in_all(told, "process 0 did not answer at jit_cube")

    def test_another_schedule(self, job):
        told = job("redistributed_otherwise", 2)
        for each in told:
            assert each["error"].startswith("redistribute: process 1 has another schedule")
        assert 'in process 0: "memory_limit": 2097152' in told[1]["error"]

    def test_planning_that_fails(self, job):
        first, *others = job("failing", 4)
        assert first["error"] == "OSError: no space left"
        assert {each["error"] for each in others} == {
            "PeerError: process 0 could not plan jit_cube: OSError: no space left"
        }


class TestAnswersOfStockXla:
    """Process 1 has a cache in which stock XLA costs zero bytes, so that it finds no better rewrite."""

    pytestmark = pytest.mark.slow

    @pytest.fixture
    def caches(self, job, tmp_path):
        """Returns the variables of two processes: one has a right cache, the other one a cache with wrong answers."""
        job("cube", 1)
        poisoned = tmp_path / "poisoned"
        for path in (tmp_path / "cache").glob("xla-*/*.entry"):
            entry = json.loads(store.opened(path.stem, path.read_bytes()))
            entry["compiled"] |= {
                "bytes_received": 0,
                "temp_bytes": 0,
                "largest_collective_tile_bytes": 0,
                "collectives": [],
                "moved": [],
                "work": [],
                "final_moved": [],
                "final_work": [],
                "final_schedule": [],
            }
            copy = poisoned / path.relative_to(tmp_path / "cache")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(store.sealed(path.stem, json.dumps(entry).encode()))
        assert poisoned.exists()
        return [{"RESHARD_CACHE_DIR": str(tmp_path / "cache")}, {"RESHARD_CACHE_DIR": str(poisoned)}]

    def test_of_a_process_that_does_not_plan_play_no_part(self, job, caches):
        told = job("cube", 2, own_variables=caches)
        assert_same_in_all(told)
        assert told[0]["is_rewritten"] and all(each["is_right"] and not each["warnings"] for each in told)

    def test_are_told_where_all_plan_to_compare(self, job, caches):
        told = job("cube", 2, variables={"RESHARD_AGREEMENT": "verify"}, own_variables=caches)
        assert_same_in_all(told)
        assert told[0]["is_rewritten"] and all(each["is_right"] for each in told)
        for each in told:
            assert any(
                "jit_cube, site 0: left to XLA: stock XLA" in text and "in process 1" in text
                for text in each["warnings"]
            )

    def test_of_the_process_that_plans_count_in_all(self, job, caches):
        told = job("cube", 2, own_variables=caches[::-1])
        assert_same_in_all(told)
        assert not told[0]["is_rewritten"] and all(each["is_right"] for each in told)


@pytest.mark.slow
def test_a_program_of_one_process_concerns_no_other(job):
    other, told = job("alone", 2, devices=8)
    assert told["is_rewritten"] and told["is_right"] and not told["warnings"]


@pytest.mark.slow
def test_a_program_of_some_processes_concerns_these(job):
    told = job("some", 4, devices=4)
    assert_same_in_all([told[1], told[3]])
    assert told[1]["is_rewritten"] and told[1]["is_right"] and told[3]["is_right"]


PAGE = "docs/many-processes.md"
COMMANDS = [
    command for block in re.findall(docs._BLOCK, (ROOT / PAGE).read_text()) for command in docs.commands_in(block)
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_example_prints_what_the_page_shows(command):
    assert f"$ {command}\n{docs.run(command)}" in (ROOT / PAGE).read_text()
