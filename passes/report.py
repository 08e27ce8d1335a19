# SPDX-License-Identifier: Apache-2.0
"""Reports: what was found, what was done about it, and why, for people (text) and programs (json)."""

from __future__ import annotations

from collections.abc import Sequence
import json
import textwrap

from reshard.dialect_utils import diagnostics
from reshard.dialect_utils.xla_child import Compiled
from reshard.passes.base import Session
from reshard.passes.whole_module_check import Check

SCHEMA = "reshard.report/1"


def render(session: Session, form: str) -> str:
    """Returns the report of a session as "text" or "json"; ends in a newline."""
    return as_text(session) if form == "text" else json.dumps(as_dict(session), indent=2) + "\n"


def as_dict(session: Session) -> dict:
    """Returns plain data: `sites` as plan-sites records them, `totals`, `checks`, `remarks`, `warnings`. Bytes are per device."""
    return {
        "schema": SCHEMA,
        "sites": [dict(row) for row in session.report_rows],
        "totals": totals(session),
        "checks": [_check_dict(each) for each in session.checks],
        "remarks": [str(each) for each in session.diagnostics.having(diagnostics.REMARK)],
        "warnings": [session.left_whole] if session.left_whole else [],
    }


def totals(session: Session) -> dict[str, int]:
    """Returns counts of sites, and the bytes per device that the rewritten ones received before and receive now."""
    rewritten = [row for row in session.report_rows if row.get("is_rewritten")]
    measured = {(row["group"], row["stock_bytes"], row["our_bytes"]) for row in rewritten if row.get("stock_bytes") is not None}
    return {
        "sites": len(session.report_rows),
        "rewritten": len(rewritten),
        "left": len(session.report_rows) - len(rewritten),
        "stock_bytes": sum(stock for _, stock, _ in measured),
        "our_bytes": sum(ours or 0 for _, _, ours in measured),
    }


def as_text(session: Session) -> str:
    """Returns the table of sites, one row each, then totals, the whole-module check, and reasons."""
    if not session.report_rows:
        return f"reshard: {session.left_whole or 'no site: every value is used in the layout in which it is produced'}\n"
    parts = [table(_HEADINGS, [_cells(row) for row in session.report_rows], wide="l" * 5 + "r" * 4 + "l")]
    sums = totals(session)
    is_measured = any(row.get("is_rewritten") and row["stock_bytes"] is not None for row in session.report_rows)
    received = f"they receive {sums['our_bytes']:,} bytes per device, {sums['stock_bytes']:,} with stock XLA"
    saved = f"; {received}" if is_measured else ""
    sites = f"{sums['sites']} site{'s' * (sums['sites'] != 1)}"
    parts.append(f"{sites}: {sums['rewritten']} rewritten, {sums['left']} left to XLA{saved}")
    parts += [_check_text(each) for each in session.checks]
    parts.append("\n".join(_reason(row) for row in session.report_rows))
    skipped = [str(each) for each in session.remarks if "is left alone" in each.message]
    if skipped:
        parts.append("left alone:\n" + "\n".join(f"  {each}" for each in skipped))
    return "\n\n".join(parts) + "\n"


_HEADINGS = ("site", "where", "tensor", "from", "to", "received", "stock", "bound", "tile", "chain")


def _cells(row: dict) -> tuple[str, ...]:
    return (
        f"{row['site']}{'*' if row.get('is_rewritten') else ''}",
        f"{row['location'] or row['op']} ({row['kind']})",
        row["type"].removeprefix("tensor<").removesuffix(">"),
        row["source"],
        row["target"],
        _number(row["bytes_received"]),
        _number(row["stock_bytes"]),
        _number(row["bound_bytes"]),
        _number(row["largest_tile_bytes"]),
        row["chain"] or "",
    )


def _reason(row: dict) -> str:
    text = f"site {row['site']}: {'rewritten' if row.get('is_rewritten') else 'left to XLA'}: {row['reason']}; {row['why']}"
    return textwrap.fill(text, 120, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _check_text(check: Check) -> str:
    lines = ["whole module, as XLA compiles it (bytes per device):"]
    columns = ("received", "temporaries", "collectives")
    rows = [(name, *_compiled_cells(each)) for name, each in (("stock", check.stock), ("ours", check.ours))]
    lines.append(textwrap.indent(table(("", *columns), rows, wide="lrrl"), "  "))
    for sites, problem in check.dropped:
        lines.append(f"  left to XLA again: site {', '.join(map(str, sites))}: {problem}")
    return "\n".join(lines)


def _compiled_cells(compiled: Compiled) -> tuple[str, ...]:
    if not compiled.is_ok:
        return compiled.status, "", compiled.message.splitlines()[0] if compiled.message else ""
    kinds = ", ".join(f"{each.runs} {each.kind}" for each in compiled.collectives)
    return _number(compiled.bytes_received), _number(compiled.temp_bytes), kinds or "none"


def _check_dict(check: Check) -> dict:
    def costs(compiled: Compiled) -> dict:
        return {
            "status": compiled.status,
            "bytes_received": compiled.bytes_received,
            "temp_bytes": compiled.temp_bytes,
            "collectives": {each.kind: each.runs for each in compiled.collectives},
        }

    dropped = [{"sites": list(sites), "problem": problem} for sites, problem in check.dropped]
    return {"stock": costs(check.stock), "ours": costs(check.ours), "dropped": dropped, "is_rewritten": check.is_rewritten}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], wide: str) -> str:
    """Returns aligned columns with a rule under the headings; `wide` has "l" or "r" for each column."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(headings, *rows)]

    def line(cells) -> str:
        aligned = (cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in zip(cells, widths, wide))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(headings), line(["-" * width for width in widths]), *(line(row) for row in rows)])
