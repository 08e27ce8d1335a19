# SPDX-License-Identifier: Apache-2.0
"""The rows of the benchmark of targets; the answers of the compilers are not tested."""

from math import prod

import pytest

from benchmarks import ahead_of_time
from benchmarks.ahead_of_time import Row, scaled_axes
from examples.programs import PROGRAMS
from reshard.dialect_utils.xla import compile_targets
from reshard.dialect_utils.xla.child import Compiled
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.results.whole_module_check import Check

TARGET = Target.parse("tpu:v5e:4x4")


@pytest.mark.parametrize("devices", [8, 16, 64, 128, 256])
def test_meshes_grow_with_their_smallest_axis_first(devices):
    for each in PROGRAMS:
        axes = scaled_axes(each.mesh_axes, devices)
        assert [name for name, _ in axes] == [name for name, _ in each.mesh_axes]
        assert prod(size for _, size in axes) == devices
    assert scaled_axes((("data", 2), ("fsdp", 2), ("tensor", 2)), 32) == (("data", 4), ("fsdp", 4), ("tensor", 2))


def test_a_row_has_stock_beside_ours_and_what_was_given_back():
    stock = Compiled(
        "ok",
        bytes_received=1 << 20,
        temp_bytes=0,
        final_bytes_received=1 << 19,
        peak_memory_bytes=1 << 21,
        estimated_seconds=1e-3,
    )
    ours = Compiled("abort", "SIGABRT")
    row = Row("fft", TARGET, "x=4", 3, 1, Check(stock, ours, (((0, 2), "worse"),), True, TARGET), 1.0)
    table, given_back = ahead_of_time._markdown([row], [TARGET])
    cells = "| fft | x=4 | 1 of 3 | 1.00 | abort | 0.50 |  | 0.00 |  | 2.00 |  | 0.0 |  | 1,000 |  |"
    assert table.splitlines()[-1] == cells
    assert given_back.splitlines()[-1] == "- fft, sites 0, 2: worse"


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
