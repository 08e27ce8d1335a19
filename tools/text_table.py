# SPDX-License-Identifier: Apache-2.0
"""Tables and numbers as tools print them."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    """Returns aligned columns with a rule under the headings; `sides` has "l" or "r" for each column.

    Example:
      >>> print(table(("step", "bytes"), [("slice", "0"), ("all_gather", "1,024")], "lr"))
      step        bytes
      ----------  -----
      slice           0
      all_gather  1,024
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows)]

    def line(cells: Sequence[str]) -> str:
        aligned = (cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in zip(cells, widths, sides))
        return "  ".join(aligned).rstrip()

    return "\n".join(map(line, [headings, ["-" * width for width in widths], *rows]))


def count(number: int | None) -> str:
    """Returns a whole number with thousands apart; "-" for None."""
    return "-" if number is None else f"{number:,}"


def microseconds(seconds: float | None) -> str:
    """Returns a time such as `37.28 us`; "-" for None.

    Example:
      >>> [microseconds(each) for each in (0.0, 2e-11, 2e-9, 3.72757e-05, 1.5, None)]
      ['0 us', '<0.001 us', '0.002 us', '37.28 us', '1,500,000 us', '-']
    """
    if seconds is None:
        return "-"
    number = seconds * 1e6
    if 0 < number < 0.0005:
        return "<0.001 us"
    digits = 0 if number >= 1000 or not number else 1 if number >= 100 else 2 if number >= 1 else 3
    return f"{number:,.{digits}f} us"


def first_line(text: str, most: int = 200) -> str:
    """Returns the first line of a message, cut to `most` characters; `no message` if it says nothing.

    Example:
      >>> first_line("out of memory\\n  while allocating"), first_line("")
      ('out of memory', 'no message')
    """
    return text.strip().splitlines()[0][:most] if text.strip() else "no message"


def ratio(mine: float, bound: float) -> str:
    """Returns mine ÷ bound with three digits; "-" where the bound is zero and something is needed nevertheless."""
    if mine == bound:
        return "1.000"
    return f"{mine / bound:.3f}" if bound else "-"
