# SPDX-License-Identifier: Apache-2.0
"""The programs on which policies are compared lower for any mesh, have sites, and compute the same on every mesh."""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.programs import __main__ as command
from benchmarks.programs.__main__ import main, use_devices
from benchmarks.programs.catalogue import LIBRARIES, PROGRAMS, every_program
from benchmarks.programs.manual.partly_manual import PARTLY_MANUAL
from benchmarks.programs.manual.shard_maps import SHARD_MAPS
from benchmarks.programs.program import DISTRIBUTIONS, Program, Setup, meshes_over

ROOT = Path(__file__).resolve().parents[3]
CONVERSIONS = ("zero_gradient", "batch_from_rows", "layer_stack", "layer_stack_gradient")
TIERED = [pytest.param(("zero_gradient", "layer_stack"), id="conversions")]
TIERED += [pytest.param((p.name,), id=p.name, marks=pytest.mark.slow) for p in PROGRAMS[1:]]

# Prints whether the outputs on eight devices are finite and how far they are from those on one, of each program.
RUN = """
import json, sys
from benchmarks.programs.__main__ import use_devices
use_devices(8)
import jax, numpy as np
from benchmarks.programs.catalogue import PROGRAMS

def outputs(entry, mesh):
    function, _ = entry.build(mesh, "small")
    found = function(*entry.arguments(mesh, "small"))
    return [np.asarray(leaf).astype(np.float64) for leaf in jax.tree.leaves(found)]

def run(entry):
    ours = outputs(entry, entry.mesh())
    alone = outputs(entry, entry.mesh([(name, 1) for name, _ in entry.mesh_axes]))
    distances = [np.max(np.abs(a - b)) / (1e-3 + np.max(np.abs(b))) for a, b in zip(ours, alone, strict=True)]
    return {"finite": all(np.isfinite(leaf).all().item() for leaf in ours), "distance": float(max(distances)),
            "largest": float(max(np.max(np.abs(leaf)) for leaf in ours))}

print(json.dumps({entry.name: run(entry) for entry in PROGRAMS if entry.name in sys.argv[1:]}))
"""


@pytest.mark.parametrize("devices", [8, 16, 64, 128, 256])
def test_meshes_grow_with_their_smallest_axis_first(devices):
    for each in every_program():
        meshes = list(meshes_over(each.mesh_axes, devices))
        assert len(meshes) == len(set(meshes))
        for axes in meshes:
            assert [name for name, _ in axes] == [name for name, _ in each.mesh_axes]
            assert math.prod(size for _, size in axes) == devices
    first, *_ = meshes_over((("data", 2), ("fsdp", 2), ("tensor", 2)), 32)
    assert first == (("data", 4), ("fsdp", 4), ("tensor", 2))


@pytest.mark.parametrize(("rows", "columns", "found"), [(16, 16, (8, 8)), (16, 4, (16, 4)), (16, 2, None)])
def test_a_program_is_lowered_for_the_most_even_mesh_that_divides_its_arrays(rows, columns, found, monkeypatch):
    def lower(program, size, axes):
        sizes = tuple(each for _, each in axes)
        if rows % sizes[0] or columns % sizes[1]:
            raise ValueError(f"{rows}x{columns} does not divide over {sizes}")
        return sizes

    monkeypatch.setattr(Program, "lower", lower)
    program = Program("plain", "", (("x", 4), ("y", 2)), lambda mesh, size: Setup(len, tuple, ()))
    if found:
        assert program.lower_over(64, "small")[1] == found
    else:
        with pytest.raises(ValueError, match="over \\(8, 8\\)"):
            program.lower_over(64, "small")


def run_python(*arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def skip_without_libraries(name: str) -> None:
    (entry,) = (each for each in PROGRAMS if each.name == name)
    if entry.missing:
        # The libraries are no dependencies; `pip install -e '.[benchmarks]'` has them, and then nothing is skipped.
        pytest.skip(f"{', '.join(entry.missing)}: not installed")


@pytest.fixture
def in_this_process(monkeypatch):
    """Makes the command leave jax as it is, which is imported here."""
    monkeypatch.setattr(command, "use_devices", lambda count: None)
    monkeypatch.setattr(command, "use_portable_locations", lambda: None)


def sites(*names: str) -> dict[str, int]:
    """Returns the number of sites of each program, from the table that `list` prints."""
    child = run_python("-m", "benchmarks.programs", "list", *names)
    assert child.returncode == 0, child.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in child.stdout.splitlines()[2:]]
    return {row[0]: int(row[2]) for row in rows}


def test_names_are_distinct_and_each_mesh_has_eight_devices():
    entries = every_program()
    assert len({each.name for each in entries}) == len(entries)
    for each in entries:
        devices = 1
        for _, size in each.mesh_axes:
            devices *= size
        assert devices == 8, each.name


def test_the_extra_names_every_library():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all("==" in text for text in extras["benchmarks"])
    listed = {text.partition("==")[0] for text in extras["benchmarks"]}
    assert {DISTRIBUTIONS.get(name, name) for each in LIBRARIES for name in each.libraries} == listed


def test_the_readme_describes_every_program():
    text = (ROOT / "benchmarks" / "programs" / "README.md").read_text()
    assert [each.name for each in PROGRAMS if f"| `{each.name}` |" not in text] == []


@pytest.mark.slow
def test_conversions_have_sites_and_the_gpt_is_badly_annotated():
    found = sites(*CONVERSIONS, "mixed_gpt")
    assert found == {
        "zero_gradient": 2,
        "batch_from_rows": 1,
        "layer_stack": 2,
        "layer_stack_gradient": found["layer_stack_gradient"],
        "mixed_gpt": found["mixed_gpt"],
    }
    assert found["layer_stack_gradient"] in (2, 4)  # jax 0.10.0 lowers the loop otherwise
    assert 80 <= found["mixed_gpt"] <= 100


def test_a_module_is_written_for_devices_that_are_not_there(tmp_path):
    path = tmp_path / "stack.mlir"
    child = run_python(
        "-m", "benchmarks.programs", "lower", "layer_stack", "--mesh", "data=32", "--size", "large", "-o", str(path)
    )
    assert child.returncode == 0, child.stderr
    text = path.read_text()
    assert "mhlo.num_partitions = 32" in text and "tensor<32x2048x2048xf32>" in text
    assert '"benchmarks/programs/conversions.py"' in text and str(ROOT) not in text


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("lower", "no_such", "-o", "x.mlir"), 1, "no program is called 'no_such'; there are zero_gradient, "),
        (("lower", "layer_stack", "--mesh", "x=8", "-o", "x.mlir"), 1, "the mesh of layer_stack has the axes data=8"),
        (("lower", "layer_stack", "--mesh", "data", "-o", "x.mlir"), 2, "'data' is no mesh; write e.g."),
        (("lower", "layer_stack", "--size", "pod", "-o", "x.mlir"), 1, "layer_stack has no size pod; it has small, "),
    ],
)
def test_wrong_usage_is_a_line_that_names_what_there_is(arguments, status, message, in_this_process, capsys):
    try:
        found = main(list(arguments))
    except SystemExit as end:  # argparse's
        found = end.code
    assert found == status
    assert message in capsys.readouterr().err


def test_a_program_without_its_library_is_skipped_with_a_line_that_says_what_to_install(
    in_this_process, monkeypatch, capsys
):
    has = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jax_cfd" else has(name))
    assert main(["list", "cfd_turbulence"]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "cfd_turbulence is skipped: it needs jax-cfd; pip install -e '.[benchmarks]'"
    assert main(["lower", "cfd_turbulence", "-o", "x.mlir"]) == 1
    assert capsys.readouterr().err == f"error: {line}\n"


def test_devices_cannot_be_added_once_jax_is_imported():
    with pytest.raises(RuntimeError, match="jax is imported"):
        use_devices(8)


@pytest.mark.slow
@pytest.mark.draws  # what a program computes changes with the program alone
@pytest.mark.parametrize("names", TIERED)
def test_eight_devices_compute_what_one_does(names):
    for name in names:
        skip_without_libraries(name)
    child = run_python("-c", RUN, *names)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    assert set(found) == set(names)
    for each in found.values():
        assert each["finite"] and each["largest"] > 0
        assert each["distance"] < 1e-4, found


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in PROGRAMS])
def test_a_program_has_sites_and_lowers_at_real_sizes_for_more_devices(name, tmp_path):
    skip_without_libraries(name)
    is_by_hand = name in {each.name for each in (*SHARD_MAPS, *PARTLY_MANUAL)}
    assert (sites(name)[name] == 0) == is_by_hand
    (entry,) = (each for each in PROGRAMS if each.name == name)
    (first, size), *others = entry.mesh_axes
    for factor in (1, 2, 4):
        axes = ",".join(f"{axis}={count}" for axis, count in ((first, size * factor), *others))
        path = tmp_path / f"{factor}.mlir"
        child = run_python(
            "-m", "benchmarks.programs", "lower", name, "--mesh", axes, "--size", "large", "-o", str(path)
        )
        assert child.returncode == 0, child.stderr
        assert f"mhlo.num_partitions = {8 * factor}" in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["issue_21562", "llama_train_step", "vision_transformer"])
def test_an_example_lowers_at_real_sizes(name, tmp_path):
    path = tmp_path / "module.mlir"
    child = run_python("-m", "benchmarks.programs", "lower", name, "--size", "large", "-o", str(path))
    assert child.returncode == 0, child.stderr
    assert "mhlo.num_partitions = 8" in path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "received"), [("zero_gradient", 1_835_008), ("layer_stack", 14_680_064)])
def test_stock_receives_far_more_than_the_conversion_needs(name, received, tmp_path):
    path = tmp_path / "module.mlir"
    assert run_python("-m", "benchmarks.programs", "lower", name, "-o", str(path)).returncode == 0
    child = run_python("-m", "reshard.tools.reshard", "traffic", str(path), "--stock-only", "--json")
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout)["stock"]["bytes_received"] == received
