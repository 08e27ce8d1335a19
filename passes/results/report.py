# SPDX-License-Identifier: Apache-2.0
"""Reports for people (text) and programs (json): the sites, the decision about each, and its reason."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from reshard.dialect_utils.ir import diagnostics
from reshard.dialect_utils.xla.child import Compiled, KindCount
from reshard.passes.driver.base import Session
from reshard.passes.results.whole_module_check import Check
from reshard.synthesis.common.numbers import count, counted, tenths_of_us
from reshard.synthesis.common.text_table import table

if TYPE_CHECKING:
    from reshard.dialect_utils.xla.compile_targets import Target
    from reshard.passes.results.values_check import ValuesCheck  # loads numpy

SCHEMA = "reshard.report/1"


def render(session: Session, form: str, locations: str = "user") -> str:
    """Returns the report of a session as "text" or "json"; ends in a newline. Locations: as in `as_text`."""
    return as_text(session, locations) if form == "text" else json.dumps(as_dict(session), indent=2) + "\n"


def as_dict(session: Session) -> dict:
    """Returns the report as plain data: `sites` as plan-sites records them, `totals`, `checks`, `remarks`, `warnings`.

    Bytes are per device. `value_checks` is present if values were to be checked. `no_site` is the reason why `sites` is
    empty; it is null if there are sites.

    The `location` of a site is the user's line. Its `location_chain` has the calls that lead there, innermost first.
    Its `problem` is the problem that its chain solves; it can be planned again. Its `provenance` names the op or
    argument that asked for each axis of the two layouts, if the session has `with_provenance`.
    """
    return {
        "schema": SCHEMA,
        "sites": [dict(row) for row in session.results.report_rows],
        "totals": totals(session),
        "totals_of": "the rewritten sites, each compiled alone; checks has what the whole module gains",
        "checks": [_check_dict(each) for each in session.results.checks],
        **(
            {"value_checks": [asdict(each) for each in session.results.value_checks]}
            if session.results.value_checks
            else {}
        ),
        "remarks": [str(each) for each in session.results.diagnostics.having(diagnostics.REMARK)],
        "warnings": [session.results.left_whole] if session.results.left_whole else [],
        "no_site": None if session.results.report_rows else _why_no_rows(session),
    }


def totals(session: Session) -> dict[str, int]:
    """Returns counts of sites, and the bytes per device that the rewritten sites received before and receive now.

    Bytes are summed over the sites, each compiled alone. In the whole module, XLA may convert in other ways; `checks`
    has the gain of the module.
    """
    rewritten = [row for row in session.results.report_rows if row.get("is_rewritten")]
    measured = {
        (row["group"], row["stock_bytes"], row["our_bytes"]) for row in rewritten if row.get("stock_bytes") is not None
    }
    return {
        "sites": len(session.results.report_rows),
        "rewritten": len(rewritten),
        "left": len(session.results.report_rows) - len(rewritten),
        "stock_bytes": sum(stock for _, stock, _ in measured),
        "our_bytes": sum(ours or 0 for _, _, ours in measured),
    }


def as_text(session: Session, locations: str = "user") -> str:
    """Returns the table of sites, one row each, then totals, the whole-module check, and reasons.

    Args:
      locations: "user" tells one line of each site, "chain" the calls that lead to it below its reason, too.
    """
    if not session.results.report_rows:
        parts = [f"reshard: {_why_no_rows(session)}", *(_check_text(each) for each in session.results.checks)]
        return "\n\n".join([*parts, *_left_alone(session)]) + "\n"
    parts = [table(_HEADINGS, [_cells(row) for row in session.results.report_rows], "l" * 5 + "r" * 4 + "l")]
    parts.append(_totals_text(session))
    parts += [_check_text(each) for each in session.results.checks]
    parts += [_value_check_text(each) for each in session.results.value_checks]
    more = _chain_lines if locations == "chain" else lambda row: ()
    parts.append("\n".join(line for row in session.results.report_rows for line in (_reason(row), *more(row))))
    return "\n\n".join([*parts, *_left_alone(session)]) + "\n"


def _totals_text(session: Session) -> str:
    """Returns the counts of sites, the gain of the sites when each is compiled alone, and the gain of the module."""
    sums = totals(session)
    lines = [
        f"{sums['sites']} site{'s' * (sums['sites'] != 1)}: {sums['rewritten']} rewritten, {sums['left']} left to XLA"
    ]
    if any(row.get("is_rewritten") and row["stock_bytes"] is not None for row in session.results.report_rows):
        received = f"{sums['our_bytes']:,} bytes received per device, {sums['stock_bytes']:,} with stock XLA"
        lines.append(f"  sum over the rewritten sites, each compiled alone: {received}")
        lines.append(f"  the whole module: {_gain_of_module(session)}")
    return "\n".join(lines)


def _gain_of_module(session: Session) -> str:
    compiled = [(each.ours, each.stock) for each in session.results.checks if each.ours.is_ok and each.stock.is_ok]
    if not session.results.checks:
        return "not compiled; reshard-opt --compile-for=cpu:8 or check=True in Python compiles it both ways"
    if len(compiled) < len(session.results.checks):
        return "XLA does not compile it both ways, see below"
    ours, stock = (sum(each.bytes_received for each in side) for side in zip(*compiled))
    return f"{ours:,} bytes received per device, {stock:,} with stock XLA"


def _why_no_rows(session: Session) -> str:
    """Returns the reason why the report has no site. It says that all layouts fit only if no mismatch was skipped."""
    if session.results.left_whole:
        return session.results.left_whole
    if found := session.results.statistics["find-mismatches", "sites"]:
        return f"{found} site{'s' * (found != 1)} found, and none planned: the pipeline has no plan-sites"
    if skipped := len(_skipped(session)):
        count = f"{skipped} mismatch{'es' * (skipped != 1)}"
        return f"no site is planned, since what was found is left alone: {count}, listed below"
    if unread := [each.message for each in session.remarks if _IS_UNREAD in each.message]:
        return unread[0]
    return "no site: every value is used in the layout in which it is produced"


_IS_SKIPPED, _IS_UNREAD = "is left alone", "no site of it is found"  # in remarks of find-mismatches, of import-gspmd


def _skipped(session: Session) -> list[str]:
    return [str(each) for each in session.remarks if _IS_SKIPPED in each.message]


def _left_alone(session: Session) -> list[str]:
    """Returns the part of the text that lists skipped mismatches with their reasons; empty if there are none."""
    skipped = _skipped(session)
    return ["left alone:\n" + "\n".join(f"  {each}" for each in skipped)] if skipped else []


_HEADINGS = ("site", "where", "tensor", "from", "to", "received", "stock", "bound", "tile", "chain")


def _cells(row: dict) -> tuple[str, ...]:
    return (
        f"{row['site']}{'*' if row.get('is_rewritten') else ''}",
        f"{row['location'] or row['op']} ({row['kind']})",
        row["type"].removeprefix("tensor<").removesuffix(">"),
        row["source"],
        row["target"],
        count(row["bytes_received"], missing=""),
        count(row["stock_bytes"], missing=""),
        count(row["bound_bytes"], missing=""),
        count(row["largest_tile_bytes"], missing=""),
        row["chain"] or "",
    )


def _reason(row: dict) -> str:
    outcome = "rewritten" if row.get("is_rewritten") else "left to XLA"
    text = f"site {row['site']}: {outcome}: {row['reason']}; {row['why']}"
    return textwrap.fill(text, 120, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _chain_lines(row: dict) -> list[str]:
    frames = row.get("location_chain", ())
    return [f"    at {each['location']}" + (f" in {each['function']}" if each["function"] else "") for each in frames]


def _check_text(check: Check) -> str:
    if check.target is None or not check.target.is_ahead_of_time:
        lines = ["whole module, as XLA compiles it (bytes per device):", _side_by_side(check, _CPU_COLUMNS)]
    else:
        lines = _ahead_of_time_lines(check, check.target)
    for sites, problem in check.dropped:
        lines.append(f"  left to XLA again: site {', '.join(map(str, sites))}: {problem}")
    return "\n".join(lines)


def _value_check_text(check: ValuesCheck) -> str:
    """Returns a line with the result of the check by values and its time."""
    message = f": {check.message}" if check.message else ""
    left = f"; left to XLA again: site {', '.join(map(str, check.dropped))}" if check.dropped else ""
    compared = f", {counted(check.outputs, 'output')}" if check.outputs else ""
    return (
        f"values on random inputs: {check.status}{compared}{message}{left} ({check.runs} runs, {check.seconds:.1f} s)"
    )


def _ahead_of_time_lines(check: Check, target: Target) -> list[str]:
    lines = [f"whole module, compiled for {target} (bytes per device):", _side_by_side(check, _MEMORY_COLUMNS)]
    lines += ["  right after partitioning:", _side_by_side(check, _TRAFFIC_COLUMNS)]
    if any(_differs_in_the_end(each) for each in (check.stock, check.ours)):
        lines += ["  in the compiler's final program:", _side_by_side(check, _FINAL_COLUMNS)]
    if any(each.estimated_seconds is not None for each in (check.stock, check.ours)):
        lines.append(f"  estimate: the compiler's own, {_ESTIMATED_BY[target.platform]}")
    return lines


_ESTIMATED_BY = {
    "tpu": "by bandwidth; it knows no latency and not where devices are",
    "cuda": "by its model of GPU and network; never compared with hardware here",
}


def _differs_in_the_end(compiled: Compiled) -> bool:
    partitioned = compiled.bytes_received, compiled.bytes_sent, compiled.collectives, compiled.unpriced
    final = (
        compiled.final_bytes_received,
        compiled.final_bytes_sent,
        compiled.final_collectives,
        compiled.final_unpriced,
    )
    return compiled.is_ok and partitioned != final


# Column -> (side on which it is aligned, its cell for a module that compiles).
_Columns = dict[str, tuple[str, Callable[[Compiled], str]]]


def _side_by_side(check: Check, columns: _Columns) -> str:
    """Returns a table with a row for stock and one for ours; if one does not compile, its last column says why."""
    rows = []
    for name, compiled in (("stock", check.stock), ("ours", check.ours)):
        if compiled.is_ok:
            rows.append((name, *(cell(compiled) for _, cell in columns.values())))
        else:
            said = compiled.message.splitlines()[0] if compiled.message else ""
            rows.append((name, compiled.status, *[""] * (len(columns) - 2), said))
    sides = "".join(side for side, _ in columns.values())
    return textwrap.indent(table(("", *columns), rows, "l" + sides), "  ")


def _collectives(counts: Sequence[KindCount], unpriced: Sequence[str] = ()) -> str:
    kinds = [f"{each.runs} {each.kind}" for each in counts]
    return ", ".join([*kinds, *(f"{each} (not counted)" for each in unpriced)]) or "none"


_RECEIVED = ("r", lambda compiled: count(compiled.bytes_received, missing=""))
_TEMPORARIES = ("r", lambda compiled: count(compiled.temp_bytes, missing=""))
_CPU_COLUMNS: _Columns = {
    "received": _RECEIVED,
    "temporaries": _TEMPORARIES,
    "collectives": ("l", lambda compiled: _collectives(compiled.collectives)),
}
_MEMORY_COLUMNS: _Columns = {
    "arguments": ("r", lambda compiled: count(compiled.argument_bytes, missing="")),
    "outputs": ("r", lambda compiled: count(compiled.output_bytes, missing="")),
    "temporaries": _TEMPORARIES,
    "peak": ("r", lambda compiled: count(compiled.peak_memory_bytes, missing="")),
    "compiled in s": ("r", lambda compiled: f"{compiled.compile_seconds:.2f}"),
    "estimate in us": ("r", lambda compiled: tenths_of_us(compiled.estimated_seconds)),
}
_TRAFFIC_COLUMNS: _Columns = {
    "received": _RECEIVED,
    "sent": ("r", lambda compiled: count(compiled.bytes_sent, missing="")),
    "collectives": ("l", lambda compiled: _collectives(compiled.collectives, compiled.unpriced)),
}
_FINAL_COLUMNS: _Columns = {
    "received": ("r", lambda compiled: count(compiled.final_bytes_received, missing="")),
    "sent": ("r", lambda compiled: count(compiled.final_bytes_sent, missing="")),
    "collectives": ("l", lambda compiled: _collectives(compiled.final_collectives, compiled.final_unpriced)),
}


def _check_dict(check: Check) -> dict:
    def costs(compiled: Compiled) -> dict:
        found = {
            "status": compiled.status,
            "bytes_received": compiled.bytes_received,
            "temp_bytes": compiled.temp_bytes,
            "collectives": {each.kind: each.runs for each in compiled.collectives},
        }
        return found | _ahead_of_time_costs(compiled) if is_ahead_of_time else found

    is_ahead_of_time = check.target is not None and check.target.is_ahead_of_time
    target = {"target": str(check.target)} if is_ahead_of_time else {}
    dropped = [{"sites": list(sites), "problem": problem} for sites, problem in check.dropped]
    sides = {"stock": costs(check.stock), "ours": costs(check.ours)}
    return {**target, **sides, "dropped": dropped, "is_rewritten": check.is_rewritten}


_AHEAD_OF_TIME_COSTS = ("message", "bytes_sent", "argument_bytes", "output_bytes", "alias_bytes", "peak_memory_bytes")
_FINAL_COSTS = ("final_bytes_received", "final_bytes_sent", "final_unpriced", "compile_seconds", "estimated_seconds")


def _ahead_of_time_costs(compiled: Compiled) -> dict:
    """Returns the facts that only compilation ahead of time gives, in seconds and in bytes per device."""
    found = {name: getattr(compiled, name) for name in (*_AHEAD_OF_TIME_COSTS, *_FINAL_COSTS)}
    return {**found, "final_collectives": {each.kind: each.runs for each in compiled.final_collectives}}
