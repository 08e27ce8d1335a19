# SPDX-License-Identifier: Apache-2.0
"""Passes that another distribution adds by entry points, and the reproducers of passes that fail."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULE = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n"
PASSES = '''\
import dataclasses, os
from reshard.passes.driver.base import Pass, option

@dataclasses.dataclass(frozen=True)
class GreetPass(Pass):
    """Says hello at each function."""
    name, summary = "tiny-greet", "say hello"
    loud: bool = option(False, "louder")

    def run(self, module, session):
        for op in module.body.operations:
            session.remark(op, "HELLO" if self.loud else "hello")

@dataclasses.dataclass(frozen=True)
class RaisePass(Pass):
    name, summary = "tiny-raise", "fail"

    def run(self, module, session):
        raise KeyError("bad luck")

@dataclasses.dataclass(frozen=True)
class AbortPass(Pass):
    name, summary = "tiny-abort", "die"

    def run(self, module, session):
        os.abort()

@dataclasses.dataclass(frozen=True)
class RefusePass(Pass):
    name, summary = "tiny-refuse", "report an error"

    def run(self, module, session):
        session.error(module.body.operations[0], "no such luck")

@dataclasses.dataclass(frozen=True)
class MisnamedPass(Pass):
    name, summary = "another-name", "is called otherwise"

NO_PASS = 3
'''
ENTRY_POINTS = """\
[reshard.passes]
tiny-greet = tiny_passes:GreetPass
tiny-raise = tiny_passes:RaisePass
tiny-abort = tiny_passes:AbortPass
tiny-refuse = tiny_passes:RefusePass
tiny-missing = tiny_passes:NoSuchPass
tiny-broken = tiny_broken:AnyPass
tiny-exit = tiny_exit:AnyPass
tiny-misnamed = tiny_passes:MisnamedPass
tiny-number = tiny_passes:NO_PASS
plan-sites = tiny_passes:GreetPass
"""
FAULTS = {
    "tiny-missing": "AttributeError: module 'tiny_passes' has no attribute 'NoSuchPass'",
    "tiny-broken": "ZeroDivisionError: division by zero",
    "tiny-exit": "SystemExit: 7",
    "tiny-misnamed": "tiny_passes:MisnamedPass has to declare name = 'tiny-misnamed', and a summary",
    "tiny-number": "tiny_passes:NO_PASS is no reshard.passes.driver.base.Pass",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Returns a folder in which a tiny distribution is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "tiny_passes.py").write_text(PASSES)
    (folder / "tiny_broken.py").write_text("1 / 0\n")
    (folder / "tiny_exit.py").write_text("raise SystemExit(7)\n")
    metadata = folder / "tiny_passes-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-passes\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def run(installed: Path, *arguments, **options) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])} | options.pop("env", {})
    command = [sys.executable, "-m", "reshard.tools.reshard_opt", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


@pytest.fixture
def module(tmp_path) -> Path:
    path = tmp_path / "in.mlir"
    path.write_text(MODULE)
    return path


# ---- passes of another distribution


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--tiny-greet"], "hello"),
        (["--tiny-greet=loud=true"], "HELLO"),
        (["--pass-pipeline=builtin.module(func.func(cse),tiny-greet{loud=true},canonicalize)"], "HELLO"),
    ],
)
def test_a_plugin_pass_runs_like_any_other(flags, said, installed, module):
    done = run(installed, module, *flags)
    assert done.returncode == 0 and f"{module}:1:1: remark: {said}\n" in done.stderr and "warning" not in done.stderr


def test_plugin_passes_are_listed_and_faulty_ones_are_named(installed):
    done = run(installed, "--list-passes")
    assert done.returncode == 0 and "  tiny-greet\n      say hello\n      loud=false  louder\n" in done.stdout
    for name, fault in FAULTS.items():
        said = f"reshard-opt: warning: plugin pass '{name}' of tiny-passes 1.2 cannot be loaded: {fault}\n"
        assert said in done.stderr and name not in done.stdout
    taken = "plugin pass 'plan-sites' of tiny-passes 1.2 is left out: reshard has a pass or pipeline of this name"
    assert taken in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_plugin_that_is_asked_for_is_a_wrong_command_line(name, installed, module):
    done = run(installed, module, f"--pass-pipeline=builtin.module(cse,{name})")
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert f"plugin pass '{name}' of tiny-passes 1.2 cannot be loaded: {FAULTS[name]}" in done.stderr


def test_faulty_plugins_do_not_disturb_what_does_not_use_them(installed, module):
    done = run(installed, module, "--plan-sites=policy=always", "--no-remarks")
    assert (done.returncode, done.stdout, done.stderr) == (0, MODULE, "")


# ---- reproducers: the command in the file fails as the first one did


def rerun(installed: Path, reproducer: Path) -> subprocess.CompletedProcess:
    lines = reproducer.read_text().splitlines()
    (command,) = [line.removeprefix("// rerun: ") for line in lines if line.startswith("// rerun: ")]
    assert lines[0] == "// reshard-opt reproducer" and any(line.startswith("// jaxlib ") for line in lines)
    tool, *arguments = shlex.split(command)
    assert tool == "reshard-opt"
    return run(installed, *arguments)


def first_error(done: subprocess.CompletedProcess) -> str:
    (line,) = [line.partition(": error: ")[2] for line in done.stderr.splitlines() if ": error: " in line]
    return line


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "name, error",
    [
        ("tiny-raise", "reshard-opt failed through a fault of its own: 'bad luck' (in pass tiny-raise)"),
        ("tiny-abort", "running the passes ended the process (SIGABRT); no output is written"),
    ],
)
@pytest.mark.parametrize("form", ["text", "bytecode", "stdin"])
def test_a_reproducer_fails_as_the_first_run_did(name, error, form, installed, module, tmp_path):
    given = module
    if form == "bytecode":
        given = tmp_path / "in.mlirbc"
        assert (
            run(installed, module, "--pass-pipeline=builtin.module()", "--emit-bytecode", "-o", given).returncode == 0
        )
    pipeline = f"--pass-pipeline=builtin.module(tiny-greet{{loud=true}},func.func(cse),{name})"
    arguments = ["-" if form == "stdin" else given, pipeline, "--emit-bytecode", "--no-check", "-o", tmp_path / "out"]
    options = {"env": {"TMPDIR": str(tmp_path)}} | ({"input": MODULE} if form == "stdin" else {})
    done = run(installed, *arguments, **options)
    assert done.returncode == 1 and first_error(done) == error
    (reproducer,) = tmp_path.glob("reshard-opt-*.mlir")
    assert f"{reproducer}: note: reproducer with versions" in done.stderr
    assert f"{pipeline}' --no-check --emit-bytecode" in reproducer.read_text()
    given.unlink()
    assert first_error(rerun(installed, reproducer)) == error
    assert not (tmp_path / "out").exists()


def test_a_failed_pass_leaves_a_reproducer_where_one_is_asked_for(installed, module, tmp_path):
    path = tmp_path / "reproducer.mlir"
    done = run(installed, module, "--tiny-refuse", f"--mlir-pass-pipeline-crash-reproducer={path}")
    assert done.returncode == 1 and first_error(done) == "no such luck"
    assert f"{path}: note: reproducer with versions and errors" in done.stderr
    assert first_error(rerun(installed, path)) == "no such luck"


def test_the_ir_after_a_failure_is_printed(installed, module):
    done = run(installed, module, "--tiny-greet", "--tiny-refuse", "--mlir-print-ir-after-failure")
    assert "IR Dump After RefusePass Failed" in done.stderr and "After GreetPass" not in done.stderr


def test_a_reproducer_holds_the_part_that_failed(installed, module, tmp_path):
    module.write_text(f"{MODULE.replace('@f', '@one')}// -----\n{MODULE.replace('@f', '@two')}")
    path = tmp_path / "reproducer.mlir"
    run(installed, module, "--split-input-file", "--tiny-refuse", f"--mlir-pass-pipeline-crash-reproducer={path}")
    assert (
        "@two" in path.read_text() and "@one" not in path.read_text() and "--split-input-file" not in path.read_text()
    )


def test_a_reproducer_before_the_run(installed, module, tmp_path):
    path = tmp_path / "reproducer.mlir"
    done = run(installed, module, "--tiny-greet", "--mlir-generate-reproducer", path)
    assert done.returncode == 0 and path.read_text().endswith(MODULE)
    again = rerun(installed, path)
    assert again.returncode == 0 and "remark: hello" in again.stderr


def test_a_reproducer_that_cannot_be_written_is_said_before_any_work(installed, module, tmp_path):
    done = run(installed, module, "--tiny-raise", f"--mlir-pass-pipeline-crash-reproducer={tmp_path}/none/it.mlir")
    assert done.returncode == 1 and done.stderr == f"{tmp_path}/none/it.mlir: error: cannot write: no such directory\n"
