# SPDX-License-Identifier: Apache-2.0
"""The benchmark of schedules: its patterns are what the pass looks for, and its rows say what is right."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.overlap import lookups
from benchmarks.overlap.on_network import Row as RunRow
from benchmarks.overlap.on_network import report as report_of_runs
from benchmarks.overlap.schedules import Row, report
from reshard.synthesis.network.program_time import ProgramTime

ROOT = Path(__file__).resolve().parents[3]
CHECK = """
from benchmarks.overlap.patterns import NAMES, pattern
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
for name in NAMES:
    for has_marker in (False, True):
        module = pattern(name, 8, 16, 4).lowered(has_marker=has_marker).compiler_ir("stablehlo")
        session = Session()
        Pipeline.parse("overlap-collectives{policy=always}").run(module, session)
        print(name, session.results.statistics["overlap-collectives", "overlapped"])
"""


ON_GLOBAL_ARRAYS = """
from benchmarks.overlap.patterns import pattern
from benchmarks.overlap.vendor import _partitioned
for name in ("gather_rows", "gather_inner", "scatter", "layer"):
    text = _partitioned(pattern(name, 8, 16, 4))
    print(name, text.count("stablehlo.dot_general"), text.count("all_gather") + text.count("reduce_scatter"))
"""


def test_patterns_on_global_arrays_leave_their_collectives_to_xla():
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", ON_GLOBAL_ARRAYS]
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, **flags}, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:4] == ["gather_rows 1 0", "gather_inner 1 0", "scatter 1 0", "layer 2 0"]


@pytest.mark.slow
def test_every_pattern_is_one_that_the_pass_finds():
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    ran = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=ROOT, env={**os.environ, **flags}, capture_output=True, text=True, check=True
    )
    found = dict(line.split() for line in ran.stdout.splitlines())
    assert found == {
        **dict.fromkeys(("gather_rows", "gather_inner", "scatter", "combine", "dispatch"), "1"),
        **dict.fromkeys(("embedding", "embedding_rows"), "1"),
        "layer": "2",
    }


@pytest.mark.parametrize(
    ("stock", "pipeline", "takes", "is_right"),
    [(100, 50, True, True), (100, 50, False, False), (100, 120, True, False), (100, 102, True, True)],
)
def test_what_is_faster_is_right_and_within_three_percent_both_are(stock, pipeline, takes, is_right):
    ours = pipeline if takes else stock
    row = Row("tpu:v5e:2x4", "scatter", 8192, 768, stock, 40, pipeline, ours, takes, 0, 0)
    assert row.is_right == is_right
    assert (row.product_us, row.bound_us) == (60, 60)
    assert row.is_right_as_generated is row.ours_as_generated is None and "| none | none |  |" in report([row])
    generated = replace(row, stock_us=1, pipeline_us=1, ours_us=1, generated_us=(stock, pipeline, ours))
    assert generated.is_right and generated.is_right_as_generated == is_right
    share = pipeline / stock if takes else 1.0
    assert generated.ours_as_generated == share
    assert f"By the code generator's times: {int(is_right)} of 1, and {share:.2f}. In 0 of" in report([row, generated])
    larger = replace(generated, pipeline_temp=1 << 20)
    assert f"In {int(not is_right)} of the others all pipelines need more memory." in report([row, larger])


def test_of_two_pipelines_the_pass_may_take_the_one_that_pays():
    row = Row("tpu:v5e:2x4", "layer", 8192, 768, 100, 40, 90, 70, True, 0, 0, (200, 220, 180))
    assert row.is_right and row.is_right_as_generated and row.ours_as_generated == 0.9
    assert "| 1.11 | 1.43 |" in report([row])


def test_the_report_has_the_longest_program_that_is_left():
    rows = [Row("tpu:v5e:2x4", "scatter", 8192, 768, 100, 40, each, each, True, 0, 0) for each in (50, 110)]
    assert "in 1 of 2; the longest program that it leaves is 1.10 times as long" in report(rows)
    assert "What the pass leaves" in report(rows) and "What the check leaves" in report(rows, "check")


def test_runs_with_other_values_are_marked():
    rows = [RunRow("uniform", "scatter", 1024, 256, 0.2, 0.1, True), RunRow("2x4", "scatter", 1024, 256, 1, 1, False)]
    told = report_of_runs(rows)
    assert "| 2.00 |" in told and "1.00, values differ" in told and "uniform: 2.00 times as fast" in told


@pytest.mark.parametrize(
    ("pipeline_s", "takes", "is_right"), [(50e-6, True, True), (60e-6, False, False), (200e-6, True, False)]
)
def test_rows_of_lookups_compare_modelled_times(pipeline_s, takes, is_right):
    stock, pipeline = (
        lookups.Form(ProgramTime(seconds / 2, seconds / 2, 0.0), 3_000_000, 1e-6) for seconds in (1e-4, pipeline_s)
    )
    row = lookups.Row("tpu:v5e:2x4", "embedding", 4096, 8, takes, stock, pipeline)
    assert row.is_right == is_right
    assert row.cells()[4:7] == ["100", f"{1e6 * pipeline_s:.0f}", f"{1e-4 / pipeline_s:.2f}"]
    assert f"in {int(is_right)} of 1" in lookups.report([row])
