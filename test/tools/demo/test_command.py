# SPDX-License-Identifier: Apache-2.0
"""The demo: when values are equal, when it fails, and its output; the smallest example really runs."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reshard.dialect_utils.xla.child import Compiled, KindCount, XlaChild
from reshard.tools.demo import command as demo
from reshard.tools.demo import outputs as demo_outputs
from reshard.tools.demo import table as demo_table
from reshard.tools.demo.outputs import Comparison
from reshard.tools.demo.run import Measured, Way, Worker, WorkerFailed, measure

ROOT = Path(__file__).resolve().parents[3]

COSTS = Compiled(
    "ok",
    bytes_received=58_720_256,
    bytes_sent=58_720_256,
    largest_collective_tile_bytes=67_108_864,
    collectives=(KindCount("all_gather", 2, 2),),
    argument_bytes=10,
    output_bytes=10,
    temp_bytes=100_663_300,
    alias_bytes=0,
)
LESS = replace(COSTS, bytes_received=7_340_032, temp_bytes=15_728_704, collectives=(KindCount("all_to_all", 1, 1),))
SITE = {
    "site": 0,
    "group": 0,
    "location": f"{ROOT}/examples/programs.py:88:12",
    "kind": "result",
    "op": "stablehlo.add",
    "type": "tensor<256x256x256xf32>",
    "source": '[{"y"}, {}, {"x"}]',
    "target": '[{}, {"x", "y"}, {}]',
    "why": "add computes result 0 in another layout",
    "chain": "all_to_all x: dim 2 -> 1, y: dim 0 -> 1",
    "reason": "better than stock XLA in received bytes 58720256 -> 7340032",
    "is_rewritten": True,
}
REPORT = {
    "sites": [SITE, {**SITE, "site": 1, "group": 1, "is_rewritten": False, "reason": "stock XLA does as well"}],
    "totals": {"sites": 2, "rewritten": 1},
    "checks": [{"dropped": [{"sites": [1], "problem": "temporaries in bytes 100000 -> 200000"}]}],
    "remarks": ["a.py:1:1: remark: operand 0 of transpose is left alone: partial sums are reduced here"],
}
MEASURED = Measured(
    name="issue_21562",
    summary="one addition, of arrays in two layouts that share no sharded dimension",
    mesh={"x": 4, "y": 2},
    stock=Way(COSTS, (0.26, 0.27, 0.28)),
    ours=Way(LESS, (0.025, 0.026, 0.027)),
    report=REPORT,
    is_rewritten=True,
    optimize_seconds=0.1,
    comparison=Comparison(True, "equal, bit for bit (1 array)"),
)
ABORTED = replace(
    MEASURED,
    stock=Way(Compiled("abort", "SIGFPE: at some place"), problem="XLA: abort: SIGFPE: at some place"),
    comparison=None,
)


# ---- equal


def is_equal(stock, ours) -> bool:
    return demo_outputs.compare(["a"], [np.asarray(stock)], [np.asarray(ours)]).is_equal


@pytest.mark.parametrize("dtype", ("float32", "float64", "complex64"))
def test_floats_are_equal_within_a_limit_scaled_to_the_dtype_and_the_largest_magnitude(dtype):
    values = np.array([1e-9, 1, 1000], dtype)
    unit = 1000 * np.finfo(dtype).eps
    assert is_equal(values, values + np.array([30 * unit, 0, 0], dtype))
    assert not is_equal(values, values + np.array([100 * unit, 0, 0], dtype))


@pytest.mark.parametrize("dtype", ("int32", "uint8", "bool"))
def test_integers_are_equal_only_bit_for_bit(dtype):
    values = np.array([0, 1, 1], dtype)
    assert is_equal(values, values.copy())
    assert not is_equal(values, np.array([0, 1, 0], dtype))


@pytest.mark.parametrize(
    "ours",
    (
        np.float32([1, 2, np.nan]),
        np.float32([1, 2]),
        np.float64([1, 2, 3]),
        np.float32([[1, 2, 3]]),
        np.float32([1, 2, np.inf]),
    ),
    ids=("nan", "shape", "dtype", "rank", "inf"),
)
def test_these_are_not_equal(ours):
    assert not is_equal(np.float32([1, 2, 3]), ours)


def test_infinities_and_nans_in_the_same_places_are_equal():
    values = np.float32([np.inf, np.nan, 1])
    assert is_equal(values, values + np.float32([0, 0, 1e-6]))
    assert not is_equal(values, -values)


def test_a_missing_output_is_not_equal():
    assert not demo_outputs.compare(["a", "b"], [np.zeros(1)] * 2, [np.zeros(1)]).is_equal


def test_an_array_of_zeros_must_stay_so():
    assert not is_equal(np.zeros(3, np.float32), np.float32([0, 0, 1e-30]))


def test_narrow_floats_survive_the_file(tmp_path):
    import ml_dtypes

    values = np.arange(4).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "outputs.npz", **{"0": values})
    (loaded,) = demo_outputs.load(str(tmp_path / "outputs.npz"), ["bfloat16"])
    assert loaded.dtype == values.dtype
    assert is_equal(values, loaded)


# ---- failures of the demo


def test_better_and_equal_is_fine():
    assert demo.complaints([MEASURED], "better") == []


@pytest.mark.parametrize(
    ("cost", "name", "policies"),
    [("bytes_received", "received bytes", ["strict"]), ("temp_bytes", "temporaries", ["better", "strict"])],
)
def test_a_worse_cost_fails_under_the_policies_that_refuse_it(cost, name, policies):
    worse = replace(MEASURED, ours=replace(MEASURED.ours, compiled=replace(COSTS, **{cost: 10**9})))
    complaint = f"issue_21562: ours is worse than stock XLA in {name}"
    for policy in ("better", "strict", "always"):
        assert demo.complaints([worse], policy) == ([complaint] if policy in policies else [])


@pytest.mark.parametrize("policy", ("better", "always"))
def test_unequal_outputs_fail(policy):
    unequal = replace(MEASURED, comparison=Comparison(False, "NOT EQUAL: a is off by 0.5"))
    assert demo.complaints([unequal], policy) == ["issue_21562: the outputs are not equal"]


def test_an_abort_of_stock_xla_is_a_result_and_one_of_ours_a_failure():
    assert demo.complaints([ABORTED], "better") == []
    assert demo.complaints([replace(MEASURED, ours=ABORTED.stock, comparison=None)], "always")


# ---- the output of the demo


def test_block_shows_both_ways_the_ratio_and_the_reasons():
    text = demo_table.block(MEASURED, demo_table.paint_with(False))
    assert "  stock        58.72 MB   100.7 MB   100.7 MB   270.0 ms  2 all-gather\n" in text
    assert "  ours         7.340 MB   15.73 MB   15.73 MB    26.0 ms  1 all-to-all\n" in text
    assert "  ours/stock      0.125      0.156      0.156      0.096\n" in text
    assert "sites: 2 found, 1 rewritten\n" in text
    assert 'examples/programs.py:88:12 (result) 256x256x256xf32 [{"y"}, {}, {"x"}] -> [{}, {"x", "y"}, {}]' in text
    assert "received bytes 58,720,256 -> 7,340,032" in text
    assert "taken back, site 1: temporaries in bytes 100,000 -> 200,000" in text
    assert "1 left alone: partial sums are reduced here" in text


@pytest.mark.parametrize("found", (MEASURED, ABORTED), ids=("measured", "aborted"))
def test_no_line_is_wider_than_the_table(found):
    assert max(map(len, demo_table.block(found, demo_table.paint_with(False)).splitlines())) <= demo_table.WIDTH


def test_overlapping_run_times_are_marked_as_noise():
    noisy = replace(MEASURED, ours=Way(LESS, (0.25, 0.265, 0.30)))
    assert noisy.is_time_within_noise and not MEASURED.is_time_within_noise
    assert "~0.981" in demo_table.block(noisy, demo_table.paint_with(False))


def test_colors_come_only_when_asked_for():
    assert "\x1b[" in demo_table.block(MEASURED, demo_table.paint_with(True))
    assert "\x1b[" not in demo_table.block(MEASURED, demo_table.paint_with(False))


def test_page_and_block_show_an_abort_of_stock_xla():
    text = demo_table.block(ABORTED, demo_table.paint_with(False))
    assert "stock     XLA abort: SIGFPE: at some place" in text
    assert "outputs not compared: stock does not run: XLA: abort" in text
    page = demo_table.page([ABORTED], "versions")
    assert "| received bytes | XLA abort | 7,340,032 |" in page
    assert str(ROOT) not in page


# ---- real runs


def run_demo(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "reshard.tools.demo", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
def test_smallest_example_is_run_both_ways(tmp_path):
    report = tmp_path / "report.md"
    done = run_demo("issue_21562", "--size=small", "--runs=1", f"--report={report}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 all-gather" in done.stdout and "1 all-to-all" in done.stdout
    assert "outputs equal, bit for bit (1 array)" in done.stdout
    assert "sites: 1 found, 1 rewritten" in done.stdout
    assert "| received bytes | 14,336 | 1,792 |" in report.read_text()


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("policy", ("better", "always"))
def test_all_examples_have_equal_outputs(policy, tmp_path):
    done = run_demo("--size=small", "--runs=1", f"--policy={policy}", f"--report={tmp_path / 'report.md'}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 of 5 examples ran both ways, with equal outputs" in done.stdout


def test_unknown_example_is_a_usage_error():
    done = run_demo("fft")
    assert done.returncode == 2
    assert "no example 'fft'; there are issue_21562, " in done.stderr


def test_missing_packages_are_named_with_what_to_do(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flax" else find(name))
    with pytest.raises(SystemExit) as ended:
        demo.main([])
    assert ended.value.code == 2
    assert (
        "llama_train_step needs flax: pip install flax optax; or name others: issue_21562 " in capsys.readouterr().err
    )


def test_missing_examples_are_said_to_be_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(demo, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as ended:
        demo.main([])
    assert ended.value.code == 2
    assert "the examples are not installed with the package" in capsys.readouterr().err


class AbortsOnStock(XlaChild):
    """A child in which XLA seems to abort on the original module."""

    def compile(self, module, num_devices, **_):
        if "stablehlo.all_to_all" not in module:
            return Compiled("abort", "SIGFPE: at some place")
        return super().compile(module, num_devices)


@pytest.mark.slow
def test_when_stock_xla_aborts_ours_is_measured_all_the_same():
    with AbortsOnStock(num_devices=8) as child:
        found = measure("issue_21562", size="small", policy="always", runs=2, child=child, say=lambda text: None)
    assert found.stock.problem == "XLA: abort: SIGFPE: at some place"
    assert found.comparison is None
    assert len(found.ours.seconds) == 2 and found.ours.compiled.bytes_received == 1792
    assert demo.complaints([found], "better") == []


def test_error_in_a_worker_is_reported(tmp_path):
    with Worker("no_such_example", "stock", "small", "better", tmp_path) as worker:
        with pytest.raises(WorkerFailed, match="ValueError: no example program 'no_such_example'"):
            worker.ask("lower")


def test_death_of_a_worker_is_reported(tmp_path):
    with Worker("issue_21562", "stock", "small", "better", tmp_path) as worker:
        worker._process.kill()
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            worker.ask("lower")
