# SPDX-License-Identifier: Apache-2.0
"""Tables as text: columns are aligned, and a table in Markdown reads back as the cells that were written."""

import re

from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.common.text_table import first_line, markdown_head, markdown_line, markdown_table, table

_CELL = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=9)


@given(st.lists(st.tuples(_CELL, _CELL, _CELL), max_size=5))
def test_columns_begin_or_end_at_one_place(rows):
    headings = ("left", "right", "last")
    lines = table(headings, rows, "lrl").splitlines()
    widths = [max(map(len, column)) for column in zip(headings, *rows)]
    assert lines[1] == "  ".join("-" * width for width in widths)
    for cells, line in zip((headings, *rows), [lines[0], *lines[2:]], strict=True):
        left, right, last = cells
        assert line.startswith(left) and line.endswith(last) and line == line.rstrip()
        assert line[widths[0] + 2 :][: widths[1]].lstrip() == right


def test_a_table_without_rows_has_its_head():
    assert table(("a", "bytes"), [], "lr") == "a  bytes\n-  -----"


@given(st.lists(st.tuples(_CELL.filter(lambda text: not text.endswith("\\")), st.just("1|2")), max_size=4))
def test_a_bar_in_a_cell_does_not_end_it(rows):
    lines = markdown_table(("a", "b"), rows).splitlines()
    for cells, line in zip(rows, lines[2:], strict=True):
        found = [each.strip().replace(r"\|", "|") for each in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert tuple(found) == cells


def test_rows_that_are_printed_one_by_one_make_the_same_table():
    rows = [("x", "1"), ("y", "22")]
    assert "\n".join([markdown_head(("a", "b"), "lr"), *map(markdown_line, rows)]) == markdown_table(
        ("a", "b"), rows, "lr"
    )
    assert markdown_head(("a", "b"), "lr").endswith("\n|---|--:|")


def test_first_line_of_a_message():
    assert first_line("  one\ntwo") == "one" and first_line("x" * 300) == "x" * 200
    assert first_line(" \n ") == "no message"
