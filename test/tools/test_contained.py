# SPDX-License-Identifier: Apache-2.0
"""Work in a child process: how that ends."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import atexit, sys
from reshard.tools import contained

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
