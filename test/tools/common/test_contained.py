# SPDX-License-Identifier: Apache-2.0
"""Work in a child process, and the ways in which it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import atexit, sys
from reshard.tools.common import contained

class Kept:
    def __del__(self):
        print("taken down")

def work():
    global kept
    kept = Kept()
    atexit.register(print, "due at the end")
    sys.stdout.write("written, ")
    return 3

status = contained.run(work, "in.mlir")
sys.stdout.write(f"status {status}")
"""


def test_a_child_does_what_is_due_at_its_end_and_takes_nothing_down():
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("written, due at the end\nstatus 3", "")


# ---- signals

SLEEPER = """
import os, signal, sys, time
from reshard.tools.common import command, contained

def work():
    if "deaf" in sys.argv:  # as it is in long work of C++
        signal.pthread_sigmask(signal.SIG_BLOCK, command.ENDING)
    open(sys.argv[1] + f".{os.getpid()}.tmp", "w").close()
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        if "deaf" not in sys.argv:
            time.sleep(0.2)  # cleans up, and is not stopped in it
            os.unlink(sys.argv[1] + f".{os.getpid()}.tmp")

contained.leave(command.run(lambda: contained.run(work, "in.mlir", [sys.argv[1]]), "tool", [], is_process=True))
"""


@pytest.mark.parametrize(
    "number, who",
    [(signal.SIGINT, each) for each in ("alone", "all", "all, twice")]
    + [(signal.SIGTERM, "alone"), (signal.SIGHUP, "all")],
)
def test_a_signal_ends_the_work_cleanly_and_is_the_status(number, who, tmp_path):
    process, output = _begun(tmp_path)
    for _ in range(2 if "twice" in who else 1):
        (os.kill if who == "alone" else os.killpg)(process.pid, number)
        time.sleep(0.05)
    assert process.communicate(timeout=30) == ("", "") and process.returncode == 128 + number
    assert not list(tmp_path.iterdir())


def test_work_that_does_not_hear_a_signal_is_ended_promptly_and_its_files_go(tmp_path):
    process, output = _begun(tmp_path, "deaf")
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "") and process.returncode == 130
    assert time.monotonic() - began_s < 10 and not list(tmp_path.iterdir())


FINISHER = """
import sys, time
from reshard.tools.common import command, contained

def work():
    try:
        print("begun", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        if "says so" in sys.argv:
            contained.enter(contained.FINISHING)
        time.sleep(2.5)  # more than a child is given that does not say so
        print("written", flush=True)
    return 0

contained.leave(command.run(lambda: contained.run(work, "in.mlir"), "tool", [], is_process=True))
"""


@pytest.mark.mostly_slow
@pytest.mark.parametrize("who", ["alone", "all"])
@pytest.mark.parametrize("how, output, status", [("says so", "written\n", 0), ("is silent", "", 130)])
def test_work_that_is_interrupted_may_write_what_it_has_if_it_says_so(how, output, status, who):
    env, pipe = os.environ | {"PYTHONPATH": str(ROOT)}, subprocess.PIPE
    command = [sys.executable, "-c", FINISHER, how]
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "begun\n"
        (os.kill if who == "alone" else os.killpg)(process.pid, signal.SIGINT)
        assert process.communicate(timeout=30) == (output, "") and process.returncode == status


def test_a_signal_that_is_to_be_ignored_is_ignored(tmp_path):
    process, output = _begun(tmp_path, ignored=(signal.SIGHUP,))
    os.killpg(process.pid, signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) == 143


def _begun(folder: Path, *how: str, ignored: tuple[int, ...] = ()) -> tuple[subprocess.Popen, Path]:
    """Returns a command during its work, in its own process group, and the path of the output that it has begun."""
    output = folder / "out"

    def set_signals() -> None:  # in the background of a shell some signals are ignored
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(output), *how],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=set_signals,
    )
    assert process.stdout.readline() == "begun\n"
    return process, output
