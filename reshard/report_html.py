# SPDX-License-Identifier: Apache-2.0
"""A report as a fragment of HTML, for notebooks: one table of sites and the totals, with no style of its own."""

from __future__ import annotations

from html import escape
from typing import Any

_COLUMNS = {
    "site": "site",
    "location": "where",
    "type": "tensor",
    "source": "from",
    "target": "to",
    "bytes_received": "received",
    "stock_bytes": "stock",
    "bound_bytes": "bound",
    "chain": "chain",
    "verdict": "verdict",
    "reason": "reason",
}


def fragment(report: dict[str, Any]) -> str:
    """Returns the HTML of a report's plain data, schema `reshard.report/1`.

    Example:
      >>> fragment({"sites": [], "totals": {"sites": 0, "rewritten": 0}})
      '<p>reshard: 0 sites: 0 rewritten</p>'
    """
    totals = report["totals"]
    noun = "site" if totals["sites"] == 1 else "sites"
    summary = f"<p>reshard: {totals['sites']} {noun}: {totals['rewritten']} rewritten</p>"
    if not report["sites"]:
        return summary
    head = "".join(f"<th>{title}</th>" for title in _COLUMNS.values())
    rows = "".join(f"<tr>{''.join(_cell(site.get(name)) for name in _COLUMNS)}</tr>" for site in report["sites"])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{summary}"


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f'<td style="text-align: right">{value:,}</td>'
    return f"<td>{'' if value is None else escape(str(value))}</td>"
