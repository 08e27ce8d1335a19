# SPDX-License-Identifier: Apache-2.0
"""Random programs in a `jax.shard_map` over some axes, written per device, in a process that may hang or abort."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("partly_manual.py")
TIMEOUT_S = 600
FOUND = {  # seeds of programs that once failed, and what was wrong
    20: "groups along a part of an axis",
    28: "a conversion in a branch that some devices do not take had a permute, for which it waited",
}


def checked(first: int, count: int = 1) -> list[dict]:
    """Returns the outcomes of some seeds. The assertion names the seed whose program aborts or hangs."""
    command = [sys.executable, str(WORKER), str(first), str(count)]
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
    assert sum(bool(row["refused"]) for row in outcomes) <= len(outcomes) // 20


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", FOUND, ids=str)
def test_programs_that_once_failed(seed):
    assert_right(checked(seed))


def test_random_programs_give_the_same():
    outcomes = checked(20_000, 20)
    assert_right(outcomes)
    assert sum(row["conversions"] for row in outcomes) >= 10


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(30_000, 31_000, 100))
def test_many_random_programs_give_the_same(start):
    outcomes = checked(start, 100)
    assert_right(outcomes)
    assert sum(row["conversions"] for row in outcomes) >= 50
