# SPDX-License-Identifier: Apache-2.0
"""The rows of the benchmark of targets; the answers of the compilers are not tested."""

from argparse import Namespace
from dataclasses import replace

import pytest

from benchmarks import ahead_of_time
from benchmarks.ahead_of_time import Row
from benchmarks.programs.program import Program
from reshard.dialect_utils.xla import compile_targets
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target

TARGET = Target.parse("tpu:v5e:4x4")
STOCK = Compiled(
    "ok",
    bytes_received=1 << 20,
    argument_bytes=0,
    output_bytes=0,
    temp_bytes=0,
    alias_bytes=0,
    final_bytes_received=1 << 19,
    peak_memory_bytes=1 << 21,
    estimated_seconds=1e-3,
)


def row_of(stock: Compiled, ours: Compiled) -> Row:
    sides = ahead_of_time.sides_of(stock, ours, TARGET)
    return Row("fft", str(TARGET), "x=4", 3, 1, *sides, ("sites 0, 2: worse",))


def test_a_row_has_stock_beside_ours_and_what_was_given_back():
    table, given_back = ahead_of_time._markdown([row_of(STOCK, replace(STOCK, estimated_seconds=5e-4))], [TARGET])
    first = "| fft | x=4 | 1 of 3 | 0 | 0.50 | 0.50 | 2.00 | 2.00 | 1,000 | 500 | 0.500 | 0 | 0 |  |"
    assert table.splitlines()[-1] == f"{first} 0.0 | 0.0 | 0.0 | 0 |"
    assert given_back.splitlines()[-1] == "- fft, sites 0, 2: worse"


def test_a_program_that_does_not_compile_has_the_reason_in_its_row():
    (table,) = ahead_of_time._markdown([replace(row_of(Compiled("error", "too large"), STOCK), left=())], [TARGET])
    assert table.splitlines()[-1].startswith("| fft | x=4 | error: too large |")


def test_between_slices_the_final_traffic_has_no_size():
    (table, _) = ahead_of_time._markdown([row_of(replace(STOCK, final_unpriced=("send",)), STOCK)], [TARGET])
    assert "| crosses slices | 0.50 |" in table


@pytest.mark.parametrize(
    ("ours", "is_worse"),
    [
        (STOCK, False),
        (replace(STOCK, estimated_seconds=1.019e-3), False),
        (replace(STOCK, estimated_seconds=1.021e-3), True),
        (replace(STOCK, estimated_seconds=None), False),
        (replace(STOCK, peak_memory_bytes=3 << 20), True),
        (Compiled("abort", "SIGABRT"), True),
    ],
)
def test_the_exit_status_tells_of_longer_programs_more_memory_and_failures(ours, is_worse):
    assert ahead_of_time.is_worse(row_of(STOCK, ours)) == is_worse


def test_more_memory_is_no_fault_up_to_a_limit():
    row = row_of(STOCK, replace(STOCK, peak_memory_bytes=3 << 20))
    assert [ahead_of_time.is_worse(row, limit=limit) for limit in (0, (3 << 20) - 1, 3 << 20)] == [True, True, False]


def test_what_stock_does_not_compile_either_is_not_worse():
    refused = Compiled("error", "JaxRuntimeError: RESOURCE_EXHAUSTED: ran out of memory")
    row = row_of(refused, refused)
    assert row.stock is not None and row.stock.problem == "too large for the target's memory"
    assert not ahead_of_time.is_worse(row)


def test_a_journal_gives_rows_back(tmp_path, monkeypatch):
    row = row_of(STOCK, STOCK)
    monkeypatch.setattr(ahead_of_time, "_measured", lambda *_: row)
    options = Namespace(
        journal=tmp_path / "rows.jsonl", targets=[TARGET], size="large", policy="better", emit="manual", timeout=1.0,
        memory_limit=None, programs=[Program("fft", "", (("x", 4),), lambda *_: None)],
    )  # fmt: skip
    assert list(ahead_of_time._rows(options)) == [row]
    monkeypatch.setattr(ahead_of_time, "_measured", None)
    assert list(ahead_of_time._rows(options)) == [row]


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("tpu:v9:4x4", "names no TPU"),
        ("tpu:v5p:8x8x8", "has 512 devices; the programs want 8, 16, ... or 256"),
        ("cpu:24", "has 24"),
    ],
)
def test_targets_that_do_not_do_are_refused(targets, said, monkeypatch, capsys):
    monkeypatch.setattr(compile_targets, "_is_installed", lambda _: True)
    with pytest.raises(SystemExit):
        ahead_of_time._parse(["--targets", targets])
    assert said in capsys.readouterr().err


def test_targets_without_a_compiler_are_refused_or_left_out_as_asked(monkeypatch, capsys):
    monkeypatch.setattr(ahead_of_time, "missing_compiler", lambda target: f"compiling for {target} needs a compiler")
    assert ahead_of_time.main(["--targets", "tpu:v5e:4x4", "--if-installed"]) == 0
    assert capsys.readouterr().out == "skipped: compiling for tpu:v5e:4x4 needs a compiler\n"
    with pytest.raises(SystemExit, match="2"):
        ahead_of_time.main(["--targets", "tpu:v5e:4x4"])
    assert "argument --targets: compiling for tpu:v5e:4x4 needs a compiler" in capsys.readouterr().err
