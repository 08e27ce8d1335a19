# SPDX-License-Identifier: Apache-2.0
"""Texts about collectives in the plain data of ledgers. No MLIR is needed, so pages may use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reshard.synthesis.common.numbers import counted, decimal_bytes_text, percent, time_text
from reshard.synthesis.common.text_table import table

STOCK, OURS = "stock XLA", "ours"
SIDES = (("stock", STOCK), ("ours", OURS))
HEADINGS = ("time", "share", "received", "x bound", "runs", "collective", "tile", "line", "why")
RIGHT_OR_LEFT = "rrrrrllll"


def summary_text(found: Mapping[str, Any], name: str = "FILE") -> str:
    """Returns the tables of a `summary` as text, without a newline at its end.

    Args:
      name: of the module's file, for the command that lists the rest.
    """
    parts = [f"where the bytes go, times modelled on {found['topology']}:"]
    is_cut = False
    for key, title in SIDES:
        if (side := found[key]) is None:
            continue
        rows = [cells(each, side["seconds"]) for each in side["collectives"]]
        parts.append(
            f"{title}, the longest first\n{table(HEADINGS, rows, RIGHT_OR_LEFT)}" if rows else f"{title}: none"
        )
        if side["rest"]["collectives"]:
            is_cut = True
            parts[-1] += f"\n{rest_text(side)}"
    if is_cut:
        parts.append(f"reshard traffic {name} lists the rest")
    return "\n\n".join(parts)


def cells(row: Mapping[str, Any], seconds: float) -> tuple[str, ...]:
    """Returns the cells of a row under `HEADINGS`; `seconds` are those of all collectives."""
    return (
        time_text(row["seconds"]),
        percent(row["seconds"] / seconds) if seconds else "-",
        decimal_bytes_text(row["bytes_received"]),
        bound_text(row["bound_bytes"], row["times_bound"]),
        f"{row['runs']:,}",
        row["kind"],
        row["tile"],
        row["location"],
        row["why"],
    )


def rest_text(side: Mapping[str, Any]) -> str:
    """Returns what the rows that are left out take and receive."""
    rest = side["rest"]
    share = f" ({percent(rest['seconds'] / side['seconds'])})" if side["seconds"] else ""
    more = counted(rest["collectives"], "more collective")
    received = decimal_bytes_text(rest["bytes_received"])
    return f"and {more}, which take {time_text(rest['seconds'])}{share} and receive {received}"


def bound_text(bound_bytes: int | None, times_bound: float | None) -> str:
    """Returns how often the bound is received; "needs 0" if nothing had to be, "" if no bound is known.

    Example:
      >>> bound_text(64, 2.0), bound_text(0, None), bound_text(None, None)
      ('2.00', 'needs 0', '')
    """
    if bound_bytes == 0:
        return "needs 0"
    return "" if times_bound is None else f"{times_bound:.2f}"
