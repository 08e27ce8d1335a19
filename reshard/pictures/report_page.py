# SPDX-License-Identifier: Apache-2.0
"""The report of a module as one HTML page, and as text that says the same.

Both are made of the plain data of `reshard.report/1`, as `--report=json` writes it: each site's chain is planned again
from its `problem`, which gives the same plan (R5). Names and places come from the module; they are escaped wherever
they go.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass

from reshard.pictures import plan_parts
from reshard.pictures.drawing import Drawing
from reshard.pictures.markup import Markup, element, joined, number, table
from reshard.pictures.page import card, facts, in_frame, page, svg, twin
from reshard.synthesis.common import text_table
from reshard.synthesis.common.numbers import bytes_text, count, counted, tenths_of_us
from reshard.synthesis.explain.alternatives import rejected
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import Sharding, ShardingError
from reshard.synthesis.network.topology import DEFAULT, Topology
from reshard.synthesis.planner.entry import NoPlanError, Plan, plan

MOST_DRAWN = 24  # conversions that gain most have pictures, so that a page stays a few MB
MOST_OPEN = 4  # sites are unfolded at first: rewritten ones if there are any
_FRAME_PIXELS = 900


@dataclass(frozen=True, slots=True)
class _Site:
    """A row of the report with its plan.

    `like` is the site with the same conversion that has the pictures; it may be this site itself.
    """

    row: dict
    plan: Plan | None
    like: int | None

    @property
    def number(self) -> int:
        return self.row["site"]

    @property
    def heading(self) -> str:
        return f"Site {self.number}: {self.row['op']} ({self.row['kind']})"

    @property
    def decision(self) -> str:
        return "rewritten" if self.row.get("is_rewritten") else "left to XLA"

    @property
    def drawn(self) -> Plan:
        """Returns the plan of a site that has one."""
        assert self.plan is not None
        return self.plan

    @property
    def is_drawn(self) -> bool:
        return self.plan is not None and self.like == self.number


def page_of(report: dict, name: str) -> str:
    """Returns the page of a report; `name` is the name of the module, as the reader knows it."""
    sites = _sites(report)
    body = [
        element("p", "reshard report", class_="soft"),
        element("h1", name),
        element("p", _outcome(report)),
        _summary(report),
    ]
    body += [_overview(sites)] if sites else []
    unfolded = [each.number for each in sites if each.row.get("is_rewritten")] or [each.number for each in sites]
    body += [_site_html(each, is_open=each.number in unfolded[:MOST_OPEN]) for each in sites]
    body += _remarks_html(report)
    return page(f"reshard: {name}", *body)


def text_of(report: dict, name: str) -> str:
    """Returns the text of the page without its pictures; ends in a newline."""
    parts = [f"reshard report: {name}", _outcome(report), *_summary_text(report)]
    parts += [part for site in _sites(report) for part in _site_text(site)]
    remarks = report.get("remarks", ())
    parts += ["remarks:\n" + "\n".join(f"  {each}" for each in remarks)] if remarks else []
    return "\n\n".join(parts) + "\n"


def notebook_html(report: dict) -> str:
    """Returns the page in a frame, for a notebook's cell."""
    return in_frame(page_of(report, "this program"), _FRAME_PIXELS)


# ---- plans


def _sites(report: dict) -> list[_Site]:
    rows = report["sites"]
    by_gain = sorted(rows, key=lambda row: (not row.get("is_rewritten"), -_gain(row), row["site"]))
    drawn: dict[str, int] = {}
    for row in by_gain:
        if row.get("problem") and len(drawn) < MOST_DRAWN:
            drawn.setdefault(_key(row), row["site"])
    return [_Site(row, planned_again(row.get("problem")), drawn.get(_key(row))) for row in rows]


def _gain(row: dict) -> int:
    return (row.get("stock_bytes") or 0) - (row.get("our_bytes") or row.get("bytes_received") or 0)


def _key(row: dict) -> str:
    return json.dumps(row.get("problem"), sort_keys=True)


def planned_again(problem: dict | None) -> Plan | None:
    """Returns the plan of a report's `problem`; None if there is none, or if a name cannot be read back."""
    if not problem:
        return None
    try:
        mesh = Mesh.parse(problem["mesh"])
        ends = Sharding.parse(problem["source"]), Sharding.parse(problem["target"])
        goal = Mesh.parse(problem["target_mesh"]) if "target_mesh" in problem else None
        is_by_time = problem["objective"] == "time"
        return plan(
            mesh,
            tuple(problem["shape"]),
            problem["bits"],
            *ends,
            objective=problem["objective"],
            with_exchange=is_by_time,
            target_mesh=goal,
        )
    except (MeshError, ShardingError, NoPlanError):
        return None


@functools.lru_cache(maxsize=1)
def _network() -> Topology:
    return Topology.parse(DEFAULT)


def _drawing(site: _Site) -> Drawing:
    return Drawing(site.drawn, _network().fitted(site.drawn.devices))


# ---- summary


def _outcome(report: dict) -> str:
    totals = report["totals"]
    if report.get("warnings"):
        return " ".join(report["warnings"])
    if not totals["sites"]:
        why = report.get("no_site", "no site: every value is used in the layout in which it is produced")
        return f"{why[0].upper()}{why[1:]}."
    sites = f"{totals['rewritten']} of {counted(totals['sites'], 'site')} rewritten, {totals['left']} left to XLA."
    if not report["checks"] and totals["stock_bytes"]:
        received = f"{totals['our_bytes']:,} bytes instead of {totals['stock_bytes']:,}"
        sites += f" At these, each compiled alone, a device receives {received} in sum; "
        sites += "what the whole module gains is unknown."
    for check in report["checks"]:
        stock, ours = check["stock"], check["ours"]
        if stock["status"] == ours["status"] == "ok":
            sites += f" A device receives {ours['bytes_received']:,} bytes instead of {stock['bytes_received']:,}"
            sites += f" and needs {ours['temp_bytes']:,} bytes of temporaries instead of {stock['temp_bytes']:,}."
        elif stock["status"] != "ok":
            sites += f" Stock XLA does not compile the module as it came ({stock['status']})."
    return sites


def _summary(report: dict) -> Markup:
    parts = []
    for check in report["checks"]:
        drawn = [("received per device", "bytes_received"), ("temporaries per device", "temp_bytes")]
        bars = [_bars(title, check["stock"].get(key), check["ours"].get(key)) for title, key in drawn]
        collectives = table(
            ("collective", "stock XLA", "ours", "change"), _differences(check), "lrrr", "Collectives that run"
        )
        dropped = [
            element("p", f"Left to XLA again: site {', '.join(map(str, each['sites']))}: {each['problem']}")
            for each in check["dropped"]
        ]
        rows = list(_ahead_of_time(check))
        more = [table(("", "stock XLA", "ours"), rows, "lrr", "Ahead of time")] if rows else []
        parts.append(
            card(element("h2", _head(check)), element("div", *bars, class_="pair"), collectives, *more, *dropped)
        )
    if not parts and report["totals"]["stock_bytes"]:
        totals = report["totals"]
        title = "received per device, sum over the rewritten sites, each compiled alone"
        bars = _bars(title, totals["stock_bytes"], totals["our_bytes"])
        parts.append(card(element("h2", "Site by site, as XLA compiles them"), bars))
    return joined(parts)


def _bars(title: str, stock: int | None, ours: int | None) -> Markup:
    """Returns two bars, ours below that of stock XLA; a value of None is shown as "does not compile"."""
    most = max(stock or 0, ours or 0, 1)
    drawn = []
    for y, (name, value, cls) in zip((0, 30), (("stock XLA", stock, "warm"), ("ours", ours, "one"))):
        said = "does not compile" if value is None else f"{value:,} bytes"
        drawn.append(element("text", name, x=66, y=y + 16, class_="end"))
        drawn.append(element("rect", x=74, y=y + 3, width=max(1.0, 230.0 * (value or 0) / most), height=18, class_=cls))
        drawn.append(element("text", said, x=80 + 230.0 * (value or 0) / most, y=y + 16))
    ratio = f": {number(stock / ours)} times less" if stock and ours and stock / ours >= 1.05 else ""
    return element(
        "div", element("h4", title + ratio), svg(430, 54, joined(drawn), f"{title}: stock {stock}, ours {ours}")
    )


def _head(check: dict) -> str:
    return (
        f"The whole module, compiled for {check['target']}"
        if "target" in check
        else "The whole module, as XLA compiles it"
    )


_AHEAD_OF_TIME = (
    ("arguments, bytes per device", "argument_bytes"),
    ("outputs, bytes per device", "output_bytes"),
    ("peak memory, bytes per device", "peak_memory_bytes"),
    ("received in the final program, bytes per device", "final_bytes_received"),
    ("time as the compiler estimates it, us", "estimated_seconds"),
    ("why it does not compile", "message"),
)


def _ahead_of_time(check: dict) -> Iterator[tuple[str, str, str]]:
    """Yields (name, value of stock XLA, our value) of facts that are known only if the check compiles for a target."""
    for what, key in _AHEAD_OF_TIME if "target" in check else ():
        stock, ours = (_cell(check[side].get(key)) for side in ("stock", "ours"))
        if stock or ours:
            yield what, stock, ours


def _cell(value: float | str | None) -> str:
    """Returns the text of a number of bytes, of seconds in microseconds, or of a message's first line."""
    if isinstance(value, str):
        return text_table.first_line(value, 120) if value else ""
    return tenths_of_us(value) if isinstance(value, float) else count(value, missing="")


def _differences(check: dict) -> list[tuple]:
    stock, ours = check["stock"]["collectives"], check["ours"]["collectives"]
    rows = []
    for kind in sorted({*stock, *ours}):
        before, after = stock.get(kind, 0), ours.get(kind, 0)
        rows.append((kind, before, after, f"{after - before:+}" if after != before else "same"))
    return rows or [("none", 0, 0, "same")]


def _summary_text(report: dict) -> Iterator[str]:
    for check in report["checks"]:
        rows = [
            (
                what,
                *(count(check[side].get(key)) for side in ("stock", "ours")),
                "",
            )
            for what, key in (
                ("received, bytes per device", "bytes_received"),
                ("temporaries, bytes per device", "temp_bytes"),
            )
        ]
        rows += [tuple(map(str, row)) for row in _differences(check)]
        rows += [(*row, "") for row in _ahead_of_time(check)]
        name = f"the whole module for {check['target']}" if "target" in check else "the whole module"
        lines = [text_table.table((name, "stock XLA", "ours", "change"), rows, "lrrr")]
        lines += [
            f"left to XLA again: site {', '.join(map(str, each['sites']))}: {each['problem']}"
            for each in check["dropped"]
        ]
        yield "\n".join(lines)


# ---- sites


def _overview(sites: list[_Site]) -> Markup:
    headings = ("site", "where", "tensor", "from", "to", "received", "stock", "least", "decision")
    rows = []
    for each in sites:
        row = each.row
        codes = (
            element("code", row[name].removeprefix("tensor<").removesuffix(">"))
            for name in ("type", "source", "target")
        )
        sizes = (_size(row[name]) for name in ("bytes_received", "stock_bytes", "bound_bytes"))
        rows.append(
            (
                element("a", each.number, href=f"#card-{each.number}"),
                row["location"] or row["op"],
                *codes,
                *sizes,
                _badge(each),
            )
        )
    return card(element("h2", "Sites"), table(headings, rows, "rllllrrrl"))


def _badge(site: _Site) -> Markup:
    return element("span", site.decision, class_="badge good" if site.row.get("is_rewritten") else "badge soft")


def _size(value: int | None) -> Markup | str:
    return "" if value is None else element("span", bytes_text(value), title=f"{value:,} bytes")


def _site_html(site: _Site, is_open: bool) -> Markup:
    row = site.row
    head = element("summary", element("h2", site.heading, style="display:inline"), " ", _badge(site))
    said = facts([(term, element("code", what) if is_code else what) for term, what, is_code in _facts(site)])
    parts = [said]
    if row.get("provenance"):
        rows = [
            (each["side"], element("code", each["axis"]), each["asked_by"], element("code", each["location"]))
            for each in row["provenance"]
        ]
        parts.append(table(("layout", "axis", "asked for by", "at"), rows, "llll", "Who asked for these layouts"))
    if site.is_drawn:
        ways = rejected(site.drawn)
        parts += [
            element("h3", "Steps"),
            plan_parts.steps_html(site.drawn),
            element("h3", "Who holds what"),
            _drawing(site).sections(f"site-{site.number}"),
        ]
        parts += [element("h3", "Rejected alternatives"), plan_parts.rejected_html(site.drawn, ways)] if ways else []
    elif site.plan is not None:
        parts.append(_elsewhere(site))
    body = element("details", head, *parts, open=is_open, style="margin:0")
    return card(body, id=f"card-{site.number}")


def _elsewhere(site: _Site) -> Markup:
    if site.like is None:
        said = (
            f"The pictures are of the {MOST_DRAWN} conversions that gain most; reshard explain --html draws any other."
        )
    else:
        said = joined(
            [
                "The same conversion as ",
                element("a", f"site {site.like}", href=f"#card-{site.like}"),
                ", which has the pictures.",
            ]
        )
    return joined([element("h3", "Steps"), plan_parts.steps_html(site.drawn), element("p", said, class_="soft")])


def _facts(site: _Site) -> Iterator[tuple[str, str, bool]]:
    """Yields (term, its value, whether the value is code)."""
    row = site.row
    yield "where", row["location"], True
    if len(frames := row.get("location_chain", ())) > 1:
        yield "calls", " < ".join(f"{each['location']} {each['function']}".rstrip() for each in frames), True
    yield "tensor", row["type"], True
    meshes = row.get("problem") or {}
    goal = f" on {meshes['target_mesh']}" if "target_mesh" in meshes else ""
    yield "mesh", meshes.get("mesh", ""), True
    yield "from", row["source"], True
    yield "to", f"{row['target']}{goal}", True
    yield "why there is a site", row["why"], False
    yield "decision", f"{site.decision}: {row['reason']}", False
    yield "chain", row.get("chain") or "", True
    numbers = (("ours", "bytes_received"), ("stock XLA", "stock_bytes"), ("least that any method needs", "bound_bytes"))
    yield (
        "received per device",
        "; ".join(f"{who} {row[key]:,}" for who, key in numbers if row.get(key) is not None),
        False,
    )
    temporaries = (("ours", "our_temp_bytes"), ("stock XLA", "stock_temp_bytes"))
    yield (
        "temporaries, with the op around",
        "; ".join(f"{who} {row[key]:,}" for who, key in temporaries if row.get(key) is not None),
        False,
    )


def _site_text(site: _Site) -> Iterator[str]:
    terms = [(term, what) for term, what, _ in _facts(site) if what]
    width = max(len(term) for term, _ in terms)
    lines = [
        f"---- {site.heading[0].lower()}{site.heading[1:]}: {site.decision}",
        *(f"  {term:<{width}}  {what}" for term, what in terms),
    ]
    lines += [
        f"  {each['side']} {each['axis']}: asked for by {each['asked_by']}{_at(each)}"
        for each in site.row.get("provenance", ())
    ]
    yield "\n".join(lines)
    if site.plan is None:
        return
    yield plan_parts.steps_text(site.plan)
    if site.is_drawn:
        yield _drawing(site).text().partition("\n\n")[2].rstrip()
        ways = rejected(site.drawn)
        if ways:
            yield plan_parts.rejected_text(site.plan, ways)
    elif site.like is not None:
        yield f"the same conversion as site {site.like}"


def _at(provenance: dict) -> str:
    return f" at {provenance['location']}" if provenance["location"] else ""


def _remarks_html(report: dict) -> list[Markup]:
    remarks = report.get("remarks", ())
    if not remarks:
        return []
    return [card(element("h2", "Remarks"), twin("\n".join(remarks), counted(len(remarks), "remark")))]
