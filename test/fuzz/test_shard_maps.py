# SPDX-License-Identifier: Apache-2.0
"""Random programs in `jax.shard_map` whose collectives are decomposed, in a process that may hang or abort."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("shard_maps.py")
TIMEOUT_S = 600
FOUND = {  # seeds of programs that once failed, and what was wrong
    94: "a part of a sum went through devices that do not take the branch, and all waited",
    344: "a gather over a ring was replaced by itself, since the price was that of another order of its members",
    5340: "the body of a loop over chunks was brought into the form for GPUs twice, with other values",
    5394: "the body of a loop over chunks was brought into the form for GPUs twice, and was no program",
}


def checked(worker: Path, first: int, count: int = 1) -> list[dict]:
    """Returns the outcomes of some seeds. The assertion names the seed whose program aborts or hangs."""
    command = [sys.executable, str(worker), str(first), str(count)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
        said, is_done, why = ran.stdout, ran.returncode == 0, ran.stderr[-2000:]
    except subprocess.TimeoutExpired as late:
        said, is_done, why = (late.stdout or b"").decode(), False, f"it runs for more than {TIMEOUT_S} s"
    rows = [json.loads(line) for line in said.splitlines() if line.endswith("}")]
    assert is_done and rows, f"{rows[-1:]}: {why}"
    return [row for row in rows if "failures" in row]


def assert_right(outcomes: list[dict]) -> None:
    assert not [(row["seed"], *failure) for row in outcomes for failure in row["failures"]]
    assert sum(bool(row["invalid"]) for row in outcomes) <= len(outcomes) // 5, "jax refuses too many programs"


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", FOUND, ids=str)
def test_programs_that_once_failed(seed):
    outcomes = checked(WORKER, seed)
    assert_right(outcomes)
    assert outcomes[0]["again"] == 0


@pytest.mark.slow
def test_random_programs_give_the_same():
    outcomes = checked(WORKER, 20_000, 10)
    assert_right(outcomes)
    assert sum(row["decomposed"] for row in outcomes) >= 4
    assert sum(row["joined"] for row in outcomes) >= 6


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(30_000, 31_000, 25))
def test_many_random_programs_give_the_same(start):
    outcomes = checked(WORKER, start, 25)
    assert_right(outcomes)
    assert sum(row["decomposed"] for row in outcomes) >= 5
    assert sum(row["joined"] for row in outcomes) >= 50
    assert sum(row["again"] for row in outcomes) <= 1, "the second run finds much that the first has missed"
