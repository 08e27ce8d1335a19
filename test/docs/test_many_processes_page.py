# SPDX-License-Identifier: Apache-2.0
"""docs/many-processes.md: its links and its settings; the tests in end_to_end check the output of its examples."""

import re
from pathlib import Path

from reshard.jobs.agreement import DEFAULT_TIMEOUT_S, MODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "many-processes.md"


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE.read_text())
    assert links and not [link for link in links if not (PAGE.parent / link).exists()]


def test_settings_are_those_there_are():
    settings = re.findall(r"^\| `RESHARD_AGREEMENT=(\w+)`", PAGE.read_text(), re.MULTILINE)
    assert settings == list(MODES)
    assert f"`RESHARD_AGREEMENT_TIMEOUT_S={DEFAULT_TIMEOUT_S:g}`" in PAGE.read_text()
