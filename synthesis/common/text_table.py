# SPDX-License-Identifier: Apache-2.0
"""Tables for terminals and for Markdown, and messages cut to one line."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    """Returns aligned columns with a rule under the headings.

    Args:
      sides: one letter for each column, "l" to align it on the left or "r" on the right.

    Example:
      >>> print(table(("step", "bytes"), [("slice", "0"), ("all_gather", "1,024")], "lr"))
      step        bytes
      ----------  -----
      slice           0
      all_gather  1,024
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows)]

    def line(cells: Sequence[str]) -> str:
        aligned = (
            cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in zip(cells, widths, sides)
        )
        return "  ".join(aligned).rstrip()

    return "\n".join(map(line, [headings, ["-" * width for width in widths], *rows]))


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], sides: str = "") -> str:
    """Returns a table in Markdown; `sides` as in `table`, or empty to align every column on the left.

    Example:
      >>> print(markdown_table(("pairs", "a|b"), [("340", "1.11")], "lr"))
      | pairs | a\\|b |
      |---|--:|
      | 340 | 1.11 |
    """
    return "\n".join([markdown_head(headings, sides), *map(markdown_line, rows)])


def markdown_head(headings: Sequence[str], sides: str = "") -> str:
    """Returns the two lines above the rows of a Markdown table, for rows that are printed one by one."""
    rule = "".join("--:|" if side == "r" else "---|" for side in sides or "l" * len(headings))
    return f"{markdown_line(headings)}\n|{rule}"


def markdown_line(cells: Sequence[str]) -> str:
    """Returns one row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def first_line(text: str, most: int = 200) -> str:
    """Returns the first line of a message, cut to `most` characters; "no message" if the message is empty.

    Example:
      >>> first_line("out of memory\\n  while allocating"), first_line("")
      ('out of memory', 'no message')
    """
    return text.strip().splitlines()[0][:most] if text.strip() else "no message"
