# SPDX-License-Identifier: Apache-2.0
"""How the commands end: what is missing on the machine, a disk that is full, a reader that goes away."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import threading

import pytest

from reshard.tools import command

ROOT = Path(__file__).resolve().parents[2]
PLAN = ["plan", "--mesh", "x=4", "--type", "f32[8,8]", "--from", '[{"x"}, {}]', "--to", '[{}, {"x"}]']
TINY = ["docs/tiny.mlir", "--strip-findings"]
needs_dev_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def start(tool: str, *arguments: str, without: tuple[str, ...] = (), **options) -> subprocess.Popen:
    """Returns the command in a process of its own, in which some packages are not there."""
    program = f"import sys; sys.modules.update(dict.fromkeys({without!r})); from reshard.tools.{tool} import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=ROOT, text=True, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize(
    "tool, arguments, said",
    [
        ("reshard_opt", TINY, "reshard-opt: error: jaxlib is not installed; run: pip install jax jaxlib\n"),
        ("reshard_opt", ["--list-passes"], "reshard-opt: error: jaxlib is not installed; run: pip install jax jaxlib\n"),
        ("reshard", [*PLAN, "--verify"], "reshard: error: jaxlib is not installed; run: pip install jax jaxlib\n"),
        ("reshard", ["calibrate", "--mesh", "x=4"], "reshard: error: jax is not installed; run: pip install jax jaxlib\n"),
    ],
)
def test_what_is_not_installed_is_one_line(tool, arguments, said):
    process = start(tool, *arguments, without=("jax", "jaxlib"), stdout=subprocess.DEVNULL)
    assert process.communicate()[1] == said and process.returncode == 1


@pytest.mark.parametrize("tool, arguments", [("reshard", PLAN), ("reshard", ["--version"]), ("reshard_opt", ["--version"])])
def test_planning_and_versions_need_no_jax(tool, arguments):
    process = start(tool, *arguments, without=("jax", "jaxlib"), stdout=subprocess.DEVNULL)
    assert process.communicate()[1] == "" and process.returncode == 0


@needs_dev_full
@pytest.mark.parametrize("tool, arguments", [("reshard", PLAN), ("reshard_opt", TINY), ("reshard_opt", ["--list-passes"])])
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
    """An exception there makes MLIR's bindings abort; what is imported here stands for them."""
    program = """
import importlib.machinery, signal
from reshard.tools import command

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
