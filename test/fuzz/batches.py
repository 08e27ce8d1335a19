# SPDX-License-Identifier: Apache-2.0
"""Batches of seeds in a worker process that may hang or abort; the worker prints one JSON object for each seed."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 600


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


def assert_right(outcomes: Sequence[dict]) -> None:
    assert not [(row["seed"], *failure) for row in outcomes for failure in row["failures"]]
    assert sum(bool(row["invalid"]) for row in outcomes) <= len(outcomes) // 5, "jax refuses too many programs"
