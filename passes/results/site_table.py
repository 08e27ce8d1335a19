# SPDX-License-Identifier: Apache-2.0
"""The sites in a text report: a table with a row for each, the reasons of the decisions, and both spellings of layouts.

The costs of stock XLA and of our form come from compiling a site's pair of layouts, or its op with all its conversions,
alone. They say why a site is rewritten, and are no share of the program's costs: in the whole module XLA may convert in
another way. So the columns are headed so, and sites that are decided together have one figure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Iterator, Sequence

from reshard.synthesis.common.numbers import count, counted
from reshard.synthesis.common.text_table import table

WIDTH = 120
_HEADINGS = ("site", "where", "tensor", "from", "to", "received", "bound", "tile", "alone: stock", "ours", "chain")
_FIGURES = ("stock_bytes", "our_bytes")


def together(rows: Sequence[dict]) -> list[list[dict]]:
    """Returns the rows of sites in the groups that are decided together: by one verdict, with one figure each for
    stock XLA and for ours. Groups are in the order of their first sites.

    Sites are numbered anew in each module of a split file; no group has sites of two modules.
    """
    groups: dict[Hashable, list[dict]] = {}
    module, last = 0, -1
    for row in rows:
        module, last = module + (row["site"] <= last), row["site"]
        groups.setdefault((module, row["group"], *(row[name] for name in _FIGURES)), []).append(row)
    return list(groups.values())


def figures(group: Sequence[dict]) -> Iterator[tuple[dict, str, str]]:
    """Yields (row, stock, ours) for the rows of a group: bytes as text in the first row, then `with` that row's site.

    Both texts are empty where XLA was not asked, and in a later row the second one is.
    """
    first = group[0]
    shown = [count(first[name], missing="") for name in _FIGURES]
    yield first, shown[0], shown[1]
    for row in group[1:]:
        yield row, f"with {first['site']}" if any(shown) else "", ""


def table_text(rows: Sequence[dict]) -> str:
    """Returns the table of sites; a star marks those that are rewritten."""
    cells = [_cells(*each) for group in together(rows) for each in figures(group)]
    return table(_HEADINGS, cells, "l" * 5 + "r" * 5 + "l")


def _cells(row: dict, stock: str, ours: str) -> tuple[str, ...]:
    return (
        f"{row['site']}{'*' if row.get('is_rewritten') else ''}",
        f"{row['location'] or row['op']} ({row['kind']})",
        row["type"].removeprefix("tensor<").removesuffix(">"),
        row["source"],
        row["target"],
        count(row["bytes_received"], missing=""),
        count(row["bound_bytes"], missing=""),
        count(row["largest_tile_bytes"], missing=""),
        stock,
        ours,
        row["chain"] or "",
    )


def totals_text(totals: dict, rows: Sequence[dict]) -> str:
    """Returns the counts of sites, and what the rewritten ones receive, each compiled alone."""
    text = f"{counted(totals['sites'], 'site')}: {totals['rewritten']} rewritten, {totals['left']} left to XLA"
    if not any(row.get("is_rewritten") and row["stock_bytes"] is not None for row in rows):
        return text
    received = f"{totals['our_bytes']:,} bytes received per device, {totals['stock_bytes']:,} with stock XLA"
    return f"{text}\n  sum over the rewritten sites, each compiled alone: {received}"


def reasons_text(rows: Sequence[dict], *, with_calls: bool) -> str:
    """Returns for each site the decision and its reason; sites that are decided together have one reason.

    Args:
      with_calls: tell the calls that lead to each site, too.
    """
    return "\n".join(line for group in together(rows) for line in _reasons(group, with_calls))


def _reasons(group: Sequence[dict], with_calls: bool) -> Iterator[str]:
    if len(group) == 1 or len({(each["reason"], each.get("is_rewritten")) for each in group}) > 1:
        for row in group:
            yield _wrapped(f"site {row['site']}: {_decision(row)}; {row['why']}{_runs(row)}")
            yield from _calls(row) if with_calls else ()
        return
    numbers = ", ".join(str(each["site"]) for each in group)
    yield _wrapped(f"sites {numbers}, decided together: {_decision(group[0])}")
    for row in group:
        yield _wrapped(f"  site {row['site']}: {row['why']}{_runs(row)}")
        yield from _calls(row) if with_calls else ()


def _decision(row: dict) -> str:
    return f"{'rewritten' if row.get('is_rewritten') else 'left to XLA'}: {row['reason']}"


def _runs(row: dict) -> str:
    """Returns in words how often a site runs in a step, if that is known and more than once."""
    return f"; used {row['runs']:,} times in a step" if (row.get("runs") or 1) > 1 else ""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _calls(row: dict) -> list[str]:
    frames = row.get("location_chain", ())
    return [f"    at {each['location']}" + (f" in {each['function']}" if each["function"] else "") for each in frames]


def spellings_text(rows: Sequence[dict]) -> str:
    """Returns the layouts of the table beside the same layouts in JAX's spelling; empty if JAX has none of them."""
    ends = [(row[end], row.get(f"{end}_spec")) for row in rows for end in ("source", "target")]
    known = sorted({layout: spec for layout, spec in ends if spec}.items(), key=lambda each: (len(each[0]), each[0]))
    if not known:
        return ""
    width = max(len(layout) for layout, _ in known)
    return "\n".join(["layouts as JAX writes them:", *(f"  {layout:<{width}}  {spec}" for layout, spec in known)])
