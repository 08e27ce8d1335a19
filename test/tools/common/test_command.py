# SPDX-License-Identifier: Apache-2.0
"""The ends of the commands: with missing packages, with a full disk, with a reader that closes its pipe."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reshard.tools import reshard
from reshard.tools.common import command

ROOT = Path(__file__).resolve().parents[3]
PLAN = ["plan", "--mesh", "x=4", "--type", "f32[8,8]", "--from", '[{"x"}, {}]', "--to", '[{}, {"x"}]']
TINY = ["docs/tiny.mlir", "--strip-findings"]
needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def start(tool: str, *arguments: str, without: tuple[str, ...] = (), **options) -> subprocess.Popen:
    """Starts the command in its own process, in which the packages `without` are missing."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({without!r})); from reshard.tools.{tool} import main; "
        f"sys.exit(main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, text=True, stderr=subprocess.PIPE, **options
    )


@pytest.mark.parametrize(
    "end", [["advise"], ["place", "--topology", "h100:1x8"], ["auto", "--mesh", "x=8"], ["traffic"]]
)
@pytest.mark.parametrize(
    "variables, said",
    [
        ({"RESHARD_POLICY": "foo"}, "RESHARD_POLICY: policy=foo is not available; choose from better, strict, always"),
        ({"RESHARD_CONFIG": "no.toml"}, "RESHARD_CONFIG: cannot read no.toml: no such file or directory"),
    ],
)
def test_a_wrong_option_in_the_environment_is_no_fault_of_ours(capsys, monkeypatch, tmp_path, variables, said, end):
    module = tmp_path / "step.mlir"
    module.write_text("func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }")
    if end[0] == "place":
        module.write_text('sdy.mesh @mesh = <["x"=8]>\n' + module.read_text())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert reshard.main([end[0], str(module), *end[1:]]) == 1
    assert capsys.readouterr().err == f"reshard: error: {said}\n"


@pytest.mark.parametrize(
    "tool, arguments, said",
    [
        ("reshard_opt", TINY, "reshard-opt: error: jaxlib is not installed; run: pip install jax jaxlib\n"),
        (
            "reshard_opt",
            ["--list-passes"],
            "reshard-opt: error: jaxlib is not installed; run: pip install jax jaxlib\n",
        ),
        ("reshard", [*PLAN, "--verify"], "reshard: error: jaxlib is not installed; run: pip install jax jaxlib\n"),
        (
            "reshard",
            ["calibrate", "--mesh", "x=4"],
            "reshard: error: jax is not installed; run: pip install jax jaxlib\n",
        ),
    ],
)
def test_what_is_not_installed_is_one_line(tool, arguments, said):
    process = start(tool, *arguments, without=("jax", "jaxlib"), stdout=subprocess.DEVNULL)
    assert process.communicate()[1] == said and process.returncode == 1


@pytest.mark.parametrize(
    "tool, arguments", [("reshard", PLAN), ("reshard", ["--version"]), ("reshard_opt", ["--version"])]
)
def test_planning_and_versions_need_no_jax(tool, arguments):
    process = start(tool, *arguments, without=("jax", "jaxlib"), stdout=subprocess.DEVNULL)
    assert process.communicate()[1] == "" and process.returncode == 0


@needs_dev_full
@pytest.mark.parametrize(
    "tool, arguments", [("reshard", PLAN), ("reshard_opt", TINY), ("reshard_opt", ["--list-passes"])]
)
def test_a_full_disk_behind_stdout_is_one_line(tool, arguments):
    with open("/dev/full", "w") as full:
        process = start(tool, *arguments, stdout=full)
    assert process.communicate()[1] == "<stdout>: error: no space left on device\n" and process.returncode == 1


@pytest.mark.parametrize("number", command.ENDING)
def test_the_first_signal_ends_the_work_and_more_do_not_stop_the_cleaning_up(number, default_signals):
    cleaned = []

    def work() -> int:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            cleaned.append(True)
        return 0

    before = [signal.getsignal(each) for each in command.ENDING]
    assert command.run(work, "tool", []) == 128 + number and cleaned
    assert [signal.getsignal(each) for each in command.ENDING] == before


def test_a_signal_while_an_extension_is_loaded_ends_the_process_with_its_status():
    """An exception at this moment would make MLIR's bindings abort; the loader here takes their place."""
    program = """
import importlib.machinery, signal
from reshard.tools.common import command

class Loader(importlib.machinery.ExtensionFileLoader):
    def exec_module(self, module):
        signal.raise_signal(signal.SIGTERM)

command.run(lambda: Loader("name", "path").exec_module(None), "tool", [])
"""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program], env=env, timeout=60).returncode == 143


def test_in_a_thread_signals_are_left_alone():
    statuses = []
    thread = threading.Thread(target=lambda: statuses.append(command.run(lambda: 3, "tool", [])))
    thread.start()
    thread.join()
    assert statuses == [3]


@pytest.mark.parametrize("tool, arguments", [("reshard", PLAN), ("reshard_opt", TINY)])
def test_a_reader_that_goes_away_ends_the_command_quietly(tool, arguments):
    process = start(tool, *arguments, stdout=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 1


def ended(command: str, cwd: Path = ROOT) -> tuple[int, str, str]:
    """Returns the exit status, the output and the errors of a shell command.

    In the command, `reshard` and `reshard-opt` are those of this checkout.
    """
    names = (("reshard", "reshard"), ("reshard-opt", "reshard_opt"))
    functions = "\n".join(f'{name}() {{ "$PYTHON" -m reshard.tools.{module} "$@"; }}' for name, module in names)
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", f"{functions}\n{command}"], cwd=cwd, env=environment, capture_output=True)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


PLAN_TEXT = """reshard plan --mesh x=4 --type 'f32[8,8]' --from '[{"x"}, {}]' --to '[{}, {"x"}]'"""
NO_STDOUT = "<stdout>: error: bad file descriptor\n"


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "command, said",
    [
        (f"{PLAN_TEXT} >&-", (1, "", NO_STDOUT)),
        ("reshard --version >&-", (1, "", NO_STDOUT)),
        ("reshard-opt docs/tiny.mlir --strip-findings >&-", (1, "", NO_STDOUT)),
        ("reshard-opt --version >&-", (1, "", NO_STDOUT)),
        ("reshard-opt --list-passes >&-", (1, "", NO_STDOUT)),
        ("reshard-opt --completion bash >&-", (1, "", NO_STDOUT)),
        ("reshard-opt docs/tiny.mlir --strip-findings -o /dev/null >&- 2>&- <&-", (0, "", "")),
        ("reshard-opt no.mlir 2>&-", (1, "", "")),
        ("reshard plan --no-such-flag 2>&-", (2, "", "")),
        ("reshard-opt - --strip-findings <&-", (1, "", "<stdin>: error: bad file descriptor\n")),
        ("reshard verify - <&-", (1, "", "<stdin>: error: bad file descriptor\n")),
        ("reshard fix-warnings - <&-", (1, "", "reshard: error: -: bad file descriptor\n")),
    ],
)
def test_closed_streams_are_errors_where_they_are_needed(command, said):
    assert ended(command) == said


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_of_files_may_be_no_utf_8(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.mlir")).write_bytes((ROOT / "docs/tiny.mlir").read_bytes())
    outputs = r"--mlir-generate-reproducer=$'\xfd.mlir' -o $'\xfc.mlir'"
    for flags in (
        "--strip-findings",
        "--split-input-file --strip-findings",
        r"--find-mismatches --report-file=$'\xfe' --report=html",
    ):
        command = rf"reshard-opt $'\xff.mlir' {flags} --mlir-print-debuginfo {outputs}"
        assert ended(command, tmp_path) == (0, "", ""), flags
        written = (tmp_path / os.fsdecode(b"\xfc.mlir")).read_text()
        assert 'loc("\\\\xff.mlir"' in written, flags
    assert ended("reshard-opt $'no\\xff.mlir'", tmp_path) == (1, "", "no\\xff.mlir: error: no such file or directory\n")
