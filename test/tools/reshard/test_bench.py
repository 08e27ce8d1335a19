# SPDX-License-Identifier: Apache-2.0
"""`reshard bench`: which suites run, and the page that is made of what they print."""

import json
import sys

import pytest

from reshard.tools import reshard_bench
from reshard.tools.reshard import main
from reshard.tools.reshard_bench import SUITES, Outcome, Suite, as_html, as_markdown

TABLE = "two pairs\n\n| pairs | geomean |\n|---|---|\n| 2 | 1.50 |\n\nslower than stock:\n  0.90  x=2"


@pytest.fixture
def suites(monkeypatch):
    """Two suites: one that prints a table, one that fails."""
    said = Suite("said", "prints a table", ("-c", f"print({TABLE!r})"), ("-c", "print('all of it')"))
    failing = Suite("failing", "fails", ("-c", "print('so far'); exit(3)"), ())
    monkeypatch.setattr(reshard_bench, "SUITES", (said, failing))


def test_suites_are_listed_with_their_commands(capsys):
    assert main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{each.name:10} {each.summary}" in listed for each in SUITES)
    assert "python benchmarks/run_times.py --on shared --count 8 --turns 3\n" in listed


def test_an_unknown_suite_is_named_with_the_known_ones(capsys):
    assert main(["bench", "pears"]) == 1
    assert "reshard: error: no suite 'pears'; there are pairs, compiled, shared, uniform, " in capsys.readouterr().err


def test_a_page_has_what_each_suite_found_and_a_failure_is_the_exit_status(suites, tmp_path, capsys):
    assert main(["bench", "-o", str(tmp_path / "new")]) == 1
    assert "FAILED in " in capsys.readouterr().out
    page = (tmp_path / "new" / "report.md").read_text()
    assert "| pairs | geomean |\n|---|---|\n| 2 | 1.50 |" in page
    assert "**Ended with 3.**" in page and "so far" in page
    found = json.loads((tmp_path / "new" / "report.json").read_text())
    assert found["schema"] == "reshard.bench/1" and [each["status"] for each in found["suites"]] == [0, 3]
    assert set(found["environment"]) >= {"reshard", "python", "platform", "cores"}
    assert main(["bench", "said", "--full", "-o", str(tmp_path)]) == 0
    assert "all of it" in (tmp_path / "report.md").read_text()


def test_tables_are_tables_and_the_rest_is_kept_in_blocks():
    page = as_markdown([Outcome("said", "prints", "python x.py", 0, 1.0, TABLE)], {"reshard": "1"})
    assert "```\ntwo pairs\n" in page and "```\nslower than stock:\n  0.90  x=2\n```" in page
    assert page.count("```") == 4


def test_what_a_suite_prints_is_text_in_html():
    outcome = Outcome("said", "prints", "python x.py", 0, 1.0, "<script>alert(1)</script>\n\n| <b> |\n|---|\n| & |")
    page = as_html(as_markdown([outcome], {"reshard": "1"}))
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>" not in page
    assert "<table>" in page
    assert sys.getsizeof(page) < 10_000
