# SPDX-License-Identifier: Apache-2.0
"""The examples on the page about live arrays run."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_python_examples_of_the_page_run():
    flags = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-m", "doctest", "docs/redistribute.md"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | flags, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
