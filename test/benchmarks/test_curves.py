# SPDX-License-Identifier: Apache-2.0
"""Sorted ratios: the picture, the table with the same numbers, and the file from which both are made."""

import doctest
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import curves
from benchmarks.curves import Curve, Figure, Panel

DOCS = Path(__file__).resolve().parents[2] / "docs"
FIGURE = Figure(
    "a <title>",
    "reshard 1",
    (Panel("by devices", (Curve("8 devices", (1.0, 1.0, 1.5, 8.0)), Curve("64 devices", (1.0, 66.0)))),),
)


def test_a_file_comes_back_as_it_was():
    assert Figure.from_json(FIGURE.to_json()) == FIGURE


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "another/1"}', '{"schema": "reshard.curves/1", "panels": [3]}']
)
def test_other_files_are_refused_in_a_line(text, tmp_path, capsys):
    path = tmp_path / "ratios.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        curves.main([str(path)])
    assert f"error: {path}: " in capsys.readouterr().err


def test_a_picture_has_each_curve_with_its_geomean_and_its_end_and_needs_no_colour():
    drawn = curves.svg(FIGURE)
    assert drawn == curves.svg(Figure.from_json(FIGURE.to_json()))
    texts = [
        "".join(each.itertext()) for each in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert {"a <title>", "8 devices 1.86x, max 8x", "64 devices 8.12x, max 66x", "100x", "reshard 1"} <= set(texts)
    dashes = [
        path.get("stroke-dasharray") for path in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}path")
    ]
    assert len(set(dashes)) == 2
    assert "prefers-color-scheme:dark" in drawn


def test_labels_at_the_ends_are_apart_and_inside():
    panel = Panel("all alike", tuple(Curve(f"{i}", (1.0, 2.0 + i / 100)) for i in range(8)))
    drawn = curves.svg(Figure("t", "", (panel,)))
    heights = sorted(float(y) for y in re.findall(r'<text x="621" y="([\d.]+)"', drawn))
    assert (
        len(heights) == 8 and min(b - a for a, b in zip(heights, heights[1:])) >= 16 and heights[-1] <= curves.HIGH + 5
    )


def test_a_table_has_the_quantiles():
    assert "| 8 devices | 4 | 1.86 | 1.00 | 1.00 | 1.00 | 1.00 | 1.50 | 8.00 | 8.00 | 8.00 |" in curves.as_markdown(
        FIGURE
    )


def test_the_command_draws_what_the_file_says(tmp_path, capsys):
    (tmp_path / "ratios.json").write_text(FIGURE.to_json())
    assert curves.main([str(tmp_path / "ratios.json"), "--svg", str(tmp_path / "drawn.svg")]) == 0
    assert (tmp_path / "drawn.svg").read_text() == curves.svg(FIGURE)
    assert curves.as_markdown(FIGURE) in capsys.readouterr().out


def test_the_picture_and_the_tables_of_the_documentation_are_those_of_the_kept_ratios():
    kept = Figure.from_json((DOCS / "pictures" / "pairs.json").read_text())
    assert (DOCS / "pictures" / "pairs.svg").read_text() == curves.svg(kept), (
        "run the command that docs/benchmarks.md names"
    )
    page = (DOCS / "benchmarks.md").read_text().splitlines()
    assert set(curves.as_markdown(kept).splitlines()[1:]) <= set(page)


def test_a_curve_of_nothing_is_left_out():
    drawn = curves.svg(Figure("t", "", (Panel("none", (Curve("empty", ()), Curve("one", (1.0,)))),)))
    assert "empty" not in drawn and "one" in drawn


def test_examples():
    assert doctest.testmod(curves).failed == 0
