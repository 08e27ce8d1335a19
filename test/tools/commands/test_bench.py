# SPDX-License-Identifier: Apache-2.0
"""`reshard bench`: the suites that run, and the page that is made from their output."""

import importlib.util
import json
import platform
import sys
from pathlib import Path

import pytest

from benchmarks import curves
from benchmarks.curves import Curve, Figure, Panel
from reshard.tools.commands import bench as reshard_bench
from reshard.tools.commands.bench import SUITES, Outcome, Suite, as_html, as_markdown
from reshard.tools.reshard import main

_spec = importlib.util.spec_from_file_location(
    "chromium", Path(__file__).parents[2] / "reshard" / "pictures" / "chromium.py"
)
chromium = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(chromium)

TABLE = "two pairs\n\n| pairs | geomean |\n|---|---|\n| 2 | 1.50 |\n\nslower than stock:\n  0.90  x=2"


@pytest.fixture
def suites(monkeypatch):
    """Two suites: one prints a table, and one fails."""
    said = Suite("said", "prints a table", 1, ("-c", f"print({TABLE!r})"), ("-c", "print('all of it')"))
    failing = Suite("failing", "fails", 1, ("-c", "print('so far'); exit(3)"), ())
    monkeypatch.setattr(reshard_bench, "SUITES", (said, failing))


def test_suites_are_listed_with_their_commands(capsys):
    assert main(["bench", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"{each.name:10} {each.summary}" in listed for each in SUITES)
    assert "python benchmarks/run_times.py --on shared --count 8 --turns 3\n" in listed


def test_an_unknown_suite_is_named_with_the_known_ones(capsys):
    assert main(["bench", "pears"]) == 1
    assert "reshard: error: no suite 'pears'; there are pairs, modelled, shared, uniform, " in capsys.readouterr().err


def test_a_page_has_what_each_suite_found_and_a_failure_is_the_exit_status(suites, tmp_path, capsys):
    assert main(["bench", "-o", str(tmp_path / "new")]) == 1
    assert "FAILED in " in capsys.readouterr().out
    page = (tmp_path / "new" / "report.md").read_text()
    assert "| pairs | geomean |\n|---|---|\n| 2 | 1.50 |" in page
    assert "**Ended with 3.**" in page and "so far" in page
    found = json.loads((tmp_path / "new" / "report.json").read_text())
    assert found["schema"] == "reshard.bench/1" and [each["status"] for each in found["suites"]] == [0, 3]
    assert set(found["environment"]) >= {"reshard", "python", "system", "machine", "cores"}
    assert main(["bench", "said", "--full", "-o", str(tmp_path)]) == 0
    assert "all of it" in (tmp_path / "report.md").read_text()


def test_tables_are_tables_and_the_rest_is_kept_in_blocks():
    page = as_markdown([Outcome("said", "prints", "python x.py", 0, 1.0, TABLE)], {"reshard": "1"})
    assert "```\ntwo pairs\n" in page and "```\nslower than stock:\n  0.90  x=2\n```" in page
    assert page.count("```") == 4


def test_what_a_suite_prints_is_text_in_html():
    outcome = Outcome("said", "prints", "python x.py", 0, 1.0, "<script>alert(1)</script>\n\n| <b> |\n|---|\n| & |")
    page = as_html(as_markdown([outcome], {"reshard": "1"}), {})
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>" not in page
    assert "<table>" in page
    assert sys.getsizeof(page) < 10_000


def test_a_picture_is_a_file_beside_the_page_and_in_it(monkeypatch, tmp_path):
    draws = (
        "import sys; name = sys.argv[sys.argv.index('--curves') + 1]; open(name, "
        "'w').write('<svg><path/></svg>'); print(name)"
    )
    monkeypatch.setattr(reshard_bench, "SUITES", (Suite("drawn", "draws", 1, ("-c", draws), (), draws=True),))
    assert main(["bench", "-o", str(tmp_path)]) == 0
    assert (tmp_path / "drawn.svg").read_text() == "<svg><path/></svg>"
    assert "![drawn: draws](drawn.svg)" in (tmp_path / "report.md").read_text()
    assert '<span class="picture"><svg><path/></svg></span>' in (tmp_path / "report.html").read_text()
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["suites"][0]["output"] == found["suites"][0]["picture"] == "drawn.svg" and str(tmp_path) not in str(
        found
    )


def test_what_a_suite_is_about_to_do_comes_first_and_what_it_prints_as_it_comes(suites, tmp_path, capsys):
    main(["bench", "said", "-o", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/1] said, about 1 min: prints a table"
    assert lines[1].startswith("    $ python -c print(") and "    | 2 | 1.50 |" in lines


def test_all_suites_together_are_to_take_less_than_a_quarter_of_an_hour():
    assert sum(each.minutes for each in SUITES) <= 15


def test_the_machine_is_told_without_its_name():
    assert platform.node() not in reshard_bench.environment().values()


@pytest.mark.slow
@pytest.mark.skipif(chromium.executable() is None, reason="needs chromium: apt-get install chromium")
@pytest.mark.parametrize("scheme, light", [("light", True), ("dark", False)])
def test_the_page_in_a_browser_shows_the_curves_and_asks_nothing_of_the_network(tmp_path, scheme, light):
    figure = Figure(
        "ratios", "reshard 1", (Panel("all", (Curve("8 devices", (1.0, 2.0, 8.0)), Curve("64 devices", (1.0, 66.0)))),)
    )
    outcome = Outcome("pairs", "prints", "python x.py", 0, 1.0, TABLE, curves.svg(figure))
    reshard_bench._write([outcome], tmp_path)
    with chromium.Chromium() as browser:
        browser.emulate(scheme=scheme)
        browser.open((tmp_path / "report.html").as_uri())
        assert browser.evaluate("document.querySelectorAll('.picture svg .line').length") == 4
        assert browser.evaluate(
            "document.querySelector('a[href=\"#pairs\"]').hash == '#' + document.querySelector('h2').id"
        )
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        pixels = browser.screenshot("svg")
        assert browser.errors == [] and all(url.startswith(("file:", "about:")) for url in browser.requests)
    assert bool(pixels.mean() > 128) == light and len({tuple(each) for each in pixels.reshape(-1, 3)}) > 20
