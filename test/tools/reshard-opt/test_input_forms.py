# SPDX-License-Identifier: Apache-2.0
"""Round trips through every form of output, files of jax.export, damaged files, and work processes that die."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reshard.dialect_utils.ir import module_files
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.module_files import BYTECODE, EXPORTED, HLO, PORTABLE, TEXT, ModuleFile
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.tools.reshard_opt import main

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
PASSES = "import-gspmd,find-mismatches,plan-sites{policy=always},synthesize-collectives,strip-findings"
ISLANDS = f"--pass-pipeline=builtin.module({PASSES})"
NOTHING = "--pass-pipeline=builtin.module()"
MODULES = ["docs/tiny.mlir", "test/tools/reshard-opt/gspmd.mlir", "examples/fft_pencil.mlir"]


def generic(content: bytes) -> str:
    """Returns the text of a module in generic form with locations, as the tool reads it."""
    module = ModuleFile("<memory>", content).chunks(False)[0].parse(make_context())
    return module.operation.get_asm(enable_debug_info=True, print_generic_op_form=True)


@pytest.fixture(scope="module", params=MODULES)
def rewritten(request, tmp_path_factory) -> Path:
    """A rewritten module as text with locations."""
    path = tmp_path_factory.mktemp("modules") / "rewritten.mlir"
    assert main([str(ROOT / request.param), ISLANDS, "--mlir-print-debuginfo", "--no-remarks", "-o", str(path)]) == 0
    assert "sdy.manual_computation" in path.read_text()
    return path


@pytest.mark.parametrize("flag", ["--emit-text", "--emit-bytecode", "--emit-portable-artifact"])
def test_the_output_reloads_as_the_same_module(flag, rewritten, tmp_path):
    out = tmp_path / "out"
    assert main([str(rewritten), NOTHING, flag, "--mlir-print-debuginfo", "-o", str(out)]) == 0
    expected = generic(rewritten.read_bytes())
    if flag == "--emit-portable-artifact":  # VHLO does not hold the type of a channel
        expected = expected.replace(", type = 1>", ", type = 0>")
    assert generic(out.read_bytes()) == expected


def test_its_own_output_is_left_alone(rewritten, tmp_path):
    out = tmp_path / "out.mlir"
    assert main([str(rewritten), "--no-remarks", "--emit=manual", "-o", str(out)]) == 0
    assert out.read_bytes() == rewritten.read_bytes()


@pytest.mark.parametrize("path", ["examples/issue_21562.mlir", "docs/tiny.mlir"])
def test_what_it_writes_by_default_is_left_alone(path, tmp_path):
    first, second = tmp_path / "first.mlir", tmp_path / "second.mlir"
    for source, out in ((ROOT / path, first), (first, second)):
        assert main([str(source), "--no-remarks", "-o", str(out)]) == 0
    assert first.read_bytes() == second.read_bytes() != (ROOT / path).read_bytes()


def test_what_is_not_rewritten_stays_as_it_was_with_its_locations():
    path = ROOT / "docs/tiny.mlir"
    out = io.BytesIO()
    with make_context() as context:
        before = ir.Module.parseFile(str(path), context)
        lines = before.operation.get_asm(enable_debug_info=True, print_generic_op_form=True).splitlines()
    out = subprocess.run(
        [sys.executable, "-m", "reshard.tools.reshard_opt", str(path), ISLANDS, "--no-remarks",
         "--mlir-print-debuginfo"],
        capture_output=True, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    after = generic(out)
    places = [line[line.rindex('":') :] for line in lines if line.startswith("#loc") and '":' in line]
    assert places and all(place in after for place in places)


# ---- files of jax.export


@pytest.fixture(scope="module")
def export_file(tmp_path_factory) -> Path:
    pytest.importorskip("flatbuffers")
    path = tmp_path_factory.mktemp("exports") / "program.bin"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, HERE / "Inputs/make_export.py", path], check=True, env=environment)
    return path


def test_the_calling_convention_of_an_export_file_is_kept(export_file, tmp_path):
    from jax import export

    out = tmp_path / "out.bin"
    assert main([str(export_file), ISLANDS, "--no-remarks", "-o", str(out)]) == 0
    before, after = (export.deserialize(bytearray(path.read_bytes())) for path in (export_file, out))
    assert (
        b"manual_computation" in after.mlir_module_serialized
        and b"manual_computation" not in before.mlir_module_serialized
    )
    for name in ("fun_name", "in_tree", "in_avals", "out_tree", "out_avals", "platforms", "nr_devices",
                 "module_kept_var_idx", "calling_convention_version", "in_shardings_hlo",
                 "out_shardings_hlo"):  # fmt: skip
        assert getattr(after, name) == getattr(before, name), name
    assert after.vjp().mlir_module_serialized == before.vjp().mlir_module_serialized


@pytest.mark.parametrize(
    "flag, form", [("--emit-text", TEXT), ("--emit-bytecode", BYTECODE), ("--emit-portable-artifact", PORTABLE)]
)
def test_the_module_of_an_export_file_alone(flag, form, export_file, tmp_path):
    out = tmp_path / "out"
    assert main([str(export_file), NOTHING, flag, "-o", str(out)]) == 0
    assert ModuleFile("out", out.read_bytes()).form == form


def test_a_damaged_export_file_is_diagnosed(export_file, tmp_path, capfd):
    damaged = tmp_path / "damaged.bin"
    content = export_file.read_bytes()
    damaged.write_bytes(bytes(64) + content[64:])
    assert main([str(damaged), NOTHING, "-o", str(tmp_path / "out")]) == 1
    assert capfd.readouterr().err.startswith(f"{damaged}: error: ")
    assert not (tmp_path / "out").exists()


def test_forms_are_told_apart(export_file):
    hlo = (HERE / "Inputs/dump.hlo").read_bytes()
    assert [ModuleFile("x", content).form for content in (b"module {}", hlo, export_file.read_bytes())] == [
        TEXT,
        HLO,
        EXPORTED,
    ]


def test_a_reader_that_throws_is_diagnosed(monkeypatch, tmp_path):
    def throw(_self, _context):
        raise MemoryError("SmallVector unable to grow")

    monkeypatch.setattr(module_files.Chunk, "_parse", throw)
    chunk = ModuleFile("some.mlirbc", b"ML\xefR\x0dMLIR20\x00").chunks(False)[0]
    with pytest.raises(
        DiagnosedError, match="some.mlirbc: error: cannot read this bytecode: SmallVector unable to grow"
    ):
        chunk.parse(make_context())


# ---- damage and death


def test_a_string_that_is_no_text_is_diagnosed(tmp_path, capfd):
    path = tmp_path / "in.mlir"
    path.write_text(
        'func.func private @"\\FF\\FE"(%a: tensor<8xf32>) -> tensor<8xf32> {\n  return %a : tensor<8xf32>\n}\n'
    )
    assert main([str(path), "--find-mismatches", "-o", str(tmp_path / "out")]) in (0, 1)
    assert "fault of its own" not in capfd.readouterr().err


@pytest.mark.draws
@pytest.mark.parametrize("count", [8, *(pytest.param(count, marks=pytest.mark.slow) for count in (64, 200))])
def test_damaged_files_never_get_the_better_of_the_tool(count, tmp_path):
    command = [sys.executable, HERE / "damaged_inputs.py", "--count", str(count), "--keep", tmp_path / "finds"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def contained(work: str, output: Path) -> subprocess.CompletedProcess:
    program = f"""
import os, signal, sys
from reshard.tools.common import contained
def work():
    contained.enter("reading", cpu_s=1)
    {work}
parent = os.getpid()
status = contained.run(work, "in.mlir", [{str(output)!r}])
sys.exit(status)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("work", ["os.abort()", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_death_by_a_signal_is_an_error(work, tmp_path):
    done = contained(work, tmp_path / "out")
    number = signal.SIGABRT if "abort" in work else signal.SIGSEGV
    assert done.returncode == 1
    assert done.stderr.startswith(f"in.mlir: error: reading ended the process ({number.name}); no output is written\n")
    assert (
        "in.mlir: note: the file is damaged, or shows a fault of the MLIR in jaxlib; versions: reshard " in done.stderr
    )


@pytest.mark.slow
def test_reading_without_end_is_an_error(tmp_path):
    done = contained("while True: pass", tmp_path / "out")
    assert done.returncode == 1 and "in.mlir: error: reading took too long; no output is written" in done.stderr


def test_what_the_dead_had_begun_is_removed(tmp_path):
    work = f"open({str(tmp_path / 'out')!r} + '.' + str(os.getpid()) + '.tmp', 'w').write('half'); os.abort()"
    assert contained(work, tmp_path / "out").returncode == 1
    assert list(tmp_path.iterdir()) == []


def test_the_exit_status_of_contained_work_is_that_of_the_work(tmp_path):
    assert contained("return 3", tmp_path / "out").returncode == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does this on Linux alone")
def test_the_work_ends_with_the_process_that_watches_it(tmp_path):
    command = [sys.executable, "-m", "reshard.tools.reshard_opt", "-", NOTHING]
    watching = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    children = Path(f"/proc/{watching.pid}/task/{watching.pid}/children")
    while not (found := children.read_text().split()):
        assert watching.poll() is None
    watching.kill()
    assert watching.stdout.read() == b""  # the child has closed its end too
    watching.wait()
    deadline = time.monotonic() + 60
    while _is_running(found[0]):
        assert time.monotonic() < deadline


def _is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
