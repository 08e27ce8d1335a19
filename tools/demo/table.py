# SPDX-License-Identifier: Apache-2.0
"""The output of the demo: a block per example for the terminal, and a page of Markdown with everything."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable

from reshard.dialect_utils.xla.child import Compiled
from reshard.synthesis.common.numbers import count, decimal_bytes_text, milliseconds
from reshard.synthesis.common.text_table import markdown_table
from reshard.tools.demo.run import ROOT, Measured, Way

WIDTH = 120
_GREEN, _RED, _BOLD = "32", "31", "1"
_SITES_SHOWN = 3

LEGEND = """\
stock: what XLA makes of the program. ours: reshard.optimize first, then XLA. All costs are per device.
received: bytes that arrive at the busiest device, loops counted. temp: temporaries; memory: arguments + outputs + temp.
time: median of runs that take turns; ~ where it is noise: the middle halves of the two sets overlap.
"""

_HEADING = f"{'':12}{'received':>11}{'temp':>11}{'memory':>11}{'time':>11}  collectives, as often as they run"

Paint = Callable[[str, str], str]


def heading(paint: Paint) -> str:
    return f"{paint(_HEADING, _BOLD)}\n{'-' * WIDTH}"


def paint_with(is_colored: bool) -> Paint:
    """Returns a function that gives text an ANSI color, or leaves it as it is."""
    return (lambda text, color: f"\x1b[{color}m{text}\x1b[0m") if is_colored else (lambda text, color: text)


def block(found: Measured, paint: Paint) -> str:
    """Returns the lines of one example, at most `WIDTH` wide."""
    mesh = ", ".join(f"{axis}={size}" for axis, size in found.mesh.items())
    lines = [_wrapped(f"{found.name} ({mesh}): {found.summary}", "").replace(found.name, paint(found.name, _BOLD), 1)]
    lines += [_row("stock", found.stock), _row("ours", found.ours), *_ratio_row(found, paint)]
    lines += [_outputs_line(found, paint), _sites_line(found)]
    lines += [_wrapped(text.strip(), "      " if text.startswith(" ") else "    ") for text in _explanations(found)]
    return "\n".join(lines) + "\n"


def _row(name: str, way: Way) -> str:
    if not way.compiled.is_ok:
        return _wrapped(f"{name:10}XLA {way.compiled.status}: {way.compiled.message}", "  ")
    costs = way.compiled
    sizes = (costs.bytes_received, costs.temp_bytes, costs.peak_bytes)
    # XLA compiled the program, so all sizes are known.
    cells = [*(decimal_bytes_text(size) for size in sizes if size is not None), _time_text(way)]
    return f"  {name:10}{''.join(f'{cell:>11}' for cell in cells)}  {collectives_text(costs)}"


def _ratio_row(found: Measured, paint: Paint) -> list[str]:
    stock, ours = found.stock, found.ours
    if not (stock.compiled.is_ok and ours.compiled.is_ok):
        return []
    fields = ("bytes_received", "temp_bytes", "peak_bytes")
    pairs = [(getattr(stock.compiled, field), getattr(ours.compiled, field)) for field in fields]
    cells = [_ratio(*pair, paint) for pair in pairs]
    if stock.seconds and ours.seconds:
        is_noise = found.is_time_within_noise
        cells.append(_ratio(stock.median_seconds, ours.median_seconds, paint, is_noise))
    return [f"  {'ours/stock':10}{''.join(cells)}"]


def _ratio(stock: float | None, ours: float | None, paint: Paint, is_noise: bool = False) -> str:
    if not stock or ours is None:
        return f"{'1.000' if not ours else 'inf':>11}"
    text = f"{'~' if is_noise else ''}{ours / stock:.3f}".rjust(11)
    if is_noise or ours == stock:
        return text
    return paint(text, _GREEN if ours < stock else _RED)


def _outputs_line(found: Measured, paint: Paint) -> str:
    if found.comparison is None:
        failed = "; ".join(f"{name} does not run: {way.problem}" for name, way in _ways(found) if way.problem)
        return _wrapped(f"outputs not compared: {failed}", "  ")
    color = _GREEN if found.comparison.is_equal else _RED
    worse = f"; {paint('worse in ' + ' and '.join(found.worse), _RED)}" if found.worse else ""
    return f"  outputs {paint(found.comparison.text, color)}{worse}"


def _sites_line(found: Measured) -> str:
    totals = found.report["totals"]
    same = "" if found.is_rewritten else ": the program is handed to XLA as it came"
    return f"  sites: {totals['sites']} found, {totals['rewritten']} rewritten{same}"


def _ways(found: Measured) -> tuple[tuple[str, Way], ...]:
    return (("stock", found.stock), ("ours", found.ours))


# ---- explanations


def _explanations(found: Measured) -> list[str]:
    """Returns the main explanations: rewrites by their gain, undone rewrites, and reasons to leave the other sites.

    The whole-module check undoes rewrites.
    """
    rows = found.report["sites"]
    rewritten = sorted(_judged_together([row for row in rows if row.get("is_rewritten")]), key=_gain, reverse=True)
    lines = [line for group in rewritten[:_SITES_SHOWN] for line in _group_lines(group)]
    if rest := sum(map(len, rewritten[_SITES_SHOWN:])):
        lines.append(f"{rest} more rewritten, see the report")
    for check in found.report["checks"]:
        lines += [
            f"taken back, site {_numbers(each['sites'])}: {with_commas(each['problem'])}" for each in check["dropped"]
        ]
    left = Counter(row["reason"] for row in rows if not row.get("is_rewritten"))
    lines += [f"{count} left to XLA: {with_commas(reason)}" for reason, count in left.most_common(_SITES_SHOWN)]
    if rest := sum(left.values()) - sum(count for _, count in left.most_common(_SITES_SHOWN)):
        lines.append(f"{rest} left to XLA for other reasons, see the report")
    skipped = Counter(each.partition("is left alone: ")[2] for each in left_alone(found))
    lines += [f"{count} left alone: {reason}" for reason, count in skipped.most_common()]
    return lines


def left_alone(found: Measured) -> list[str]:
    """Returns the remarks on mismatches that cannot be rewritten and so are no sites."""
    return [relative(each) for each in found.report["remarks"] if " is left alone: " in each]


def _judged_together(rows: list[dict]) -> list[list[dict]]:
    """Returns the sites in groups that were judged together; the sites of a group share verdict and costs."""
    groups: dict[object, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return list(groups.values())


def _group_lines(group: list[dict]) -> list[str]:
    reason = f"rewritten: {with_commas(group[0]['reason'])}"
    together = f"{len(group)} sites of one op {reason}" if len(group) > 1 else reason
    return [*map(site_text, group), f"  {together}"]


def _gain(group: list[dict]) -> int:
    return (group[0].get("stock_bytes") or 0) - (group[0].get("our_bytes") or 0)


def _numbers(sites: list[int]) -> str:
    return ", ".join(map(str, sites))


def site_text(row: dict) -> str:
    where = relative(row["location"]) or row["op"]
    tensor = row["type"].removeprefix("tensor<").removesuffix(">")
    return f"{where} ({row['kind']}) {tensor} {row['source']} -> {row['target']}: {row['chain'] or 'no chain'}"


def relative(text: str) -> str:
    """Returns a text with the paths in the repository made relative to the repository's root."""
    return text.replace(f"{ROOT}/", "")


def with_commas(text: str) -> str:
    """Returns a text with commas in its long numbers.

    Example:
      >>> with_commas("received bytes 58720256 -> 7340032, collectives 2 -> 1")
      'received bytes 58,720,256 -> 7,340,032, collectives 2 -> 1'
    """
    return re.sub(r"(?<![\w.,])\d{5,}(?![\w.])", lambda found: f"{int(found[0]):,}", text)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


# ---- numbers


def _time_text(way: Way) -> str:
    return "" if way.median_seconds is None else milliseconds(way.median_seconds)


def collectives_text(compiled: Compiled) -> str:
    """Returns how often each kind of collective runs, by its name in HLO ("permute" for collective-permute)."""
    names = {"collective_permute": "permute"}
    words = [f"{each.runs} {names.get(each.kind, each.kind).replace('_', '-')}" for each in compiled.collectives]
    return ", ".join(words) or "none"


# ---- the page


def page(examples: list[Measured], about: str) -> str:
    """Returns the page with all measurements, in Markdown."""
    parts = ["# What reshard does to the examples", about, LEGEND.strip()]
    for found in examples:
        parts += _section(found)
    return "\n\n".join(parts) + "\n"


def _section(found: Measured) -> list[str]:
    mesh = ", ".join(f"{axis}={size}" for axis, size in found.mesh.items())
    parts = [f"## {found.name}", f"{found.summary[0].upper()}{found.summary[1:]}. Mesh {mesh}.", _costs_table(found)]
    parts.append(_outputs_line(found, paint_with(False)).strip().capitalize() + ".")
    parts.append(f"{_sites_line(found).strip().capitalize()}. Optimizing took {found.optimize_seconds:.2f} s.")
    for check in found.report["checks"]:
        parts += [
            f"Taken back, site {_numbers(each['sites'])}: {with_commas(each['problem'])}." for each in check["dropped"]
        ]
    if found.report["sites"]:
        parts.append(_sites_table(found.report["sites"]))
    if skipped := left_alone(found):
        parts.append("Left alone:\n\n" + "\n".join(f"- `{each}`" for each in skipped))
    return parts


_COSTS = (
    ("received bytes", lambda way: count(way.compiled.bytes_received, missing="")),
    ("sent bytes", lambda way: count(way.compiled.bytes_sent, missing="")),
    ("largest tile of a collective, bytes", lambda way: count(way.compiled.largest_collective_tile_bytes, missing="")),
    ("temporaries, bytes", lambda way: count(way.compiled.temp_bytes, missing="")),
    ("arguments, bytes", lambda way: count(way.compiled.argument_bytes, missing="")),
    ("outputs, bytes", lambda way: count(way.compiled.output_bytes, missing="")),
    ("arguments + outputs + temporaries, donated once, bytes", lambda way: count(way.compiled.peak_bytes, missing="")),
    ("collectives", lambda way: collectives_text(way.compiled)),
    ("warnings of full rematerialization", lambda way: count(way.compiled.rematerializations, missing="")),
    ("compile time", lambda way: f"{way.compile_seconds:.2f} s"),
    ("run time, median", lambda way: _time_text(way)),
    (
        "run times",
        lambda way: f"{min(way.seconds) * 1e3:,.1f} to {max(way.seconds) * 1e3:,.1f} ms, {len(way.seconds)} runs",
    ),
)


def _costs_table(found: Measured) -> str:
    rows = [(name, *(_cost(read, way) for _, way in _ways(found))) for name, read in _COSTS]
    return markdown_table(("per device", "stock", "ours"), rows)


def _cost(read: Callable[[Way], str], way: Way) -> str:
    if not way.compiled.is_ok:
        return f"XLA {way.compiled.status}"
    return "did not run" if not way.seconds else read(way)


def _sites_table(rows: list[dict]) -> str:
    headings = ("site", "where", "tensor, from, to", "chain", "received", "bound", "stock", "ours", "what and why")
    return markdown_table(headings, [_site_cells(row) for row in rows])


def _site_cells(row: dict) -> tuple[str, ...]:
    tensor = row["type"].removeprefix("tensor<").removesuffix(">")
    done = "rewritten" if row.get("is_rewritten") else "left to XLA"
    return (
        str(row["site"]),
        f"{relative(row['location']) or row['op']} ({row['kind']})",
        f"`{tensor}` `{row['source']}` to `{row['target']}`",
        row["chain"] or "",
        *(count(row.get(name), missing="") for name in ("bytes_received", "bound_bytes", "stock_bytes", "our_bytes")),
        f"{done}: {with_commas(row['reason'])}; {row['why']}",
    )
