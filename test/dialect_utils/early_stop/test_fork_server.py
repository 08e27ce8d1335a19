# SPDX-License-Identifier: Apache-2.0
"""Each request has a fork of its own, and says how the fork has ended."""

import os
import signal
import subprocess
import sys

import pytest

from reshard.dialect_utils.early_stop.fork_server import IS_AVAILABLE

pytestmark = pytest.mark.skipif(not IS_AVAILABLE, reason="forks are used on Linux only")

PROGRAM = """
import os, time
from reshard.dialect_utils.early_stop.fork_server import ForkServer

def work(request):
    if request.get("kills"):
        os.kill(os.getpid(), request["kills"])
    if request.get("raises"):
        raise ValueError("made up")
    time.sleep(request.get("seconds", 0))
    return request["code"]

server = ForkServer(work, lambda: None)
print(*(f"{number}:{code}" for number, code in server.run(REQUESTS, AT_ONCE)))
server.close()
"""


def codes(*requests: dict, at_once: int = 1) -> tuple[list[int], str]:
    """Returns the exit codes of requests, and what was written to stderr, in a process without threads."""
    ended, said = ends(*requests, at_once=at_once)
    return [code for _, code in sorted(ended)], said


def ends(*requests: dict, at_once: int) -> tuple[list[tuple[int, int]], str]:
    """Returns (number of the request, exit code) in the order in which the forks end, and what was written."""
    program = PROGRAM.replace("REQUESTS", repr(list(requests))).replace("AT_ONCE", str(at_once))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return [(int(number), int(code)) for number, code in (each.split(":") for each in ran.stdout.split())], ran.stderr


def test_exit_codes_come_back_and_the_server_goes_on():
    found, said = codes({"code": 0}, {"code": 7}, {"kills": int(signal.SIGABRT)}, {"code": 0})
    assert found == [0, 7, -signal.SIGABRT, 0]
    assert not said


@pytest.mark.parametrize("at_once", [2, 3, 8])
def test_each_code_comes_with_the_number_of_its_request_whichever_ends_first(at_once):
    found, _ = codes({"code": 5, "seconds": 0.3}, {"code": 6, "seconds": 0.1}, {"code": 7}, at_once=at_once)
    assert found == [5, 6, 7]


@pytest.mark.slow
def test_what_ends_first_is_told_first():
    ended, _ = ends({"code": 5, "seconds": 2}, {"code": 6}, at_once=2)
    assert ended == [(1, 6), (0, 5)]


def test_an_exception_is_printed_and_its_code_is_1():
    found, said = codes({"raises": True}, {"code": 0})
    assert found == [1, 0]
    assert "ValueError: made up" in said


def test_the_server_ends_when_the_process_that_uses_it_ends():
    program = PROGRAM.replace("REQUESTS, AT_ONCE", "[]").replace("server.close()", "print(server.process)")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    server = int(ran.stdout)
    with pytest.raises(ProcessLookupError):
        for _ in range(200):
            os.kill(server, 0)
            subprocess.run(["sleep", "0.05"], check=True)
