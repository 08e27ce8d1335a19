# SPDX-License-Identifier: Apache-2.0
"""docs/jax.md: its examples run, and its table has every option."""

import os
import re
import subprocess
import sys
from pathlib import Path

from reshard.configuration.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "jax.md"


def test_examples_run():
    flags = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-m", "doctest", "-o", "NORMALIZE_WHITESPACE", str(PAGE)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | flags, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_table_has_every_option_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(\w*)`? +\|", PAGE.read_text(), re.MULTILINE))
    shown = {True: "true", False: "false", None: ""}
    defaults = {name: shown.get(each.default, each.default) for name, each in SETTINGS.items()}
    rows |= dict.fromkeys(re.findall(r"^\| `(\w+)` \| (?:that of|stock XLA's)", PAGE.read_text(), re.MULTILINE), "")
    assert rows == defaults


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE.read_text())
    assert links and not [link for link in links if not (PAGE.parent / link).exists()]
