# SPDX-License-Identifier: Apache-2.0
"""The end of a benchmark: its table on stdout, and in a file if one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.progress import replace_line
from reshard.synthesis.common.text_table import markdown_table


def show(headings: Sequence[str], rows: Sequence[Sequence[str]], columns: str, out: Path | None) -> None:
    """Prints a table in place of the progress, and writes it to `out`; `columns` has `l` or `r` for each column."""
    replace_line("")
    text = markdown_table(headings, [list(row) for row in rows], columns)
    print(text)
    if out is not None:
        out.write_text(f"{text}\n")
