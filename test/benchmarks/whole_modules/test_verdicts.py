# SPDX-License-Identifier: Apache-2.0
"""When benchmarks of whole programs end with status 1, and where their tables go."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.tables import show
from benchmarks.whole_modules import advice, promised
from benchmarks.whole_modules.advice import Traffic
from benchmarks.whole_modules.promised import Pair

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("predicted", "applied", "is_wrong"),
    [
        (Traffic(1.0, 100), Traffic(1.05, 100), False),
        (Traffic(1.0, 100), Traffic(1.0, 80), True),
        (Traffic(1.9, 100), Traffic(2.05, 100), True),  # slower than it was
        (Traffic(1.0, 0), Traffic(1.0, 0), False),
    ],
)
def test_advice_is_wrong_if_it_is_off_or_makes_a_program_slower(predicted, applied, is_wrong):
    row = advice.Row("a", "v5e:2x4", 1, Traffic(2.0, 200), predicted, applied, (1, 1))
    assert row.is_wrong == is_wrong


@pytest.mark.parametrize(
    ("final", "estimate", "is_slower"),
    [
        (Pair(1.0, 1.1), Pair(1.0, 1.1), True),
        (Pair(1.0, 1.1), Pair(1.0, 0.9), False),
        (Pair(1.0, 1.1), Pair(None, None), True),
        (Pair(None, None), Pair(None, None), False),
    ],
)
def test_a_promise_is_broken_if_no_witness_has_the_program_as_fast(final, estimate, is_slower):
    assert promised.Row("a", final=final, estimate=estimate).is_slower == is_slower


def test_a_table_is_printed_and_written(tmp_path, capsys):
    show(("program", "us"), [["a", "1"]], "lr", tmp_path / "table.md")
    assert (tmp_path / "table.md").read_text() in capsys.readouterr().out


def test_an_unknown_program_is_an_error_of_the_command_line():
    command = [sys.executable, "-m", "benchmarks.whole_modules.promised", "--programs", "no_such_program"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2 and "no program is called 'no_such_program'" in done.stderr
    assert "Traceback" not in done.stderr
