# SPDX-License-Identifier: Apache-2.0
"""The report of a module as one HTML page, and as text that says the same.

Both are made of the plain data of `reshard.report/1`, as `--report=json` writes it: each site's chain is planned again
from its `problem`, which gives the same plan (R5). Names and places come from the module; they are escaped wherever
they go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard.passes.results import site_table
from reshard.passes.traffic import row_text
from reshard.pictures import ledger_page, plan_parts
from reshard.pictures.drawing import Drawing
from reshard.pictures.markup import Markup, element, joined, number, table
from reshard.pictures.page import card, facts, in_frame, page, svg, twin
from reshard.synthesis.common import text_table
from reshard.synthesis.common.numbers import bytes_text, count, counted, tenths_of_us
from reshard.synthesis.explain.alternatives import rejected
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import Sharding, ShardingError
from reshard.synthesis.network.topology import DEFAULT, Topology, TopologyError
from reshard.synthesis.overlap.pipelines import Span, end_s
from reshard.synthesis.overlap.timelines import lines as lanes_of
from reshard.synthesis.planner.entry import NoPlanError, Plan, plan

MOST_DRAWN = 24  # conversions that gain most have pictures, so that a page stays a few MB
MOST_OPEN = 4  # sites are unfolded at first: rewritten ones if there are any
_FRAME_PIXELS = 900


@dataclass(frozen=True, slots=True)
class _Site:
    """A row of the report with its plan.

    `like` is the site with the same conversion that has the pictures; it may be this site itself. `together` are the
    sites that are decided together with this one and share its figures, this one included.
    """

    row: dict
    plan: Plan | None
    like: int | None
    together: tuple[int, ...]

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
        *_traffic(report, sites),
    ]
    body += [_overview(sites)] if sites else []
    unfolded = [each.number for each in sites if each.row.get("is_rewritten")] or [each.number for each in sites]
    body += [_site_html(each, is_open=each.number in unfolded[:MOST_OPEN]) for each in sites]
    body += _remarks_html(report)
    return page(f"reshard: {name}", *body)


def text_of(report: dict, name: str, remarks: str = "sum") -> str:
    """Returns the text of the page without its pictures; ends in a newline. `remarks`: "all" lists each of them."""
    parts = [f"reshard report: {name}", _outcome(report), *_summary_text(report)]
    parts += [row_text.summary_text(each["traffic"], name) for each in report["checks"] if each.get("traffic")]
    parts += [part for site in _sites(report) for part in _site_text(site)]
    parts += _remarks_text(report, lists_all=remarks == "all")
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
    groups = site_table.together(rows)
    together = {id(row): tuple(each["site"] for each in group) for group in groups for row in group}
    return [_Site(row, planned_again(row.get("problem")), drawn.get(_key(row)), together[id(row)]) for row in rows]


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
        topology = Topology.parse(problem.get("topology", DEFAULT))
        return plan(
            mesh,
            tuple(problem["shape"]),
            problem["bits"],
            *ends,
            objective=problem["objective"],
            topology=topology,
            with_exchange=problem["with_exchange"],
            memory_limit=problem.get("memory_limit"),
            target_mesh=goal,
        )
    except (MeshError, ShardingError, TopologyError, NoPlanError):
        return None


def _drawing(site: _Site) -> Drawing:
    return Drawing(site.drawn, site.drawn.request.topology.fitted(site.drawn.devices))


# ---- summary


def _outcome(report: dict) -> str:
    totals = report["totals"]
    if report.get("warnings"):
        return " ".join(report["warnings"])
    if not totals["sites"]:
        why = report.get("no_site", "no site: every value is used in the layout in which it is produced")
        return f"{why[0].upper()}{why[1:]}."
    said = []
    for check in report["checks"]:
        stock, ours = check["stock"], check["ours"]
        if stock["status"] == ours["status"] == "ok":
            said += _modelled_words(check)
            said.append(
                f"A device receives {ours['bytes_received']:,} bytes instead of {stock['bytes_received']:,} "
                f"and needs {ours['temp_bytes']:,} bytes of temporaries instead of {stock['temp_bytes']:,}."
            )
        elif stock["status"] != "ok":
            said.append(f"Stock XLA does not compile the module as it came ({stock['status']}).")
    if report.get("not_measured"):
        said.append(f"The whole module: {report['not_measured']}.")
    said.append(f"{totals['rewritten']} of {counted(totals['sites'], 'site')} rewritten, {totals['left']} left to XLA.")
    return " ".join(said)


def _modelled_words(check: dict) -> Iterator[str]:
    """Yields a sentence with the modelled times of both modules, if the check has them."""
    then, now = (check[side].get("modelled_us") for side in ("stock", "ours"))
    if then is not None and now is not None:
        yield f"It takes {now:,.1f} us instead of {then:,.1f}, modelled on {check['topology'] or 'an unknown network'}."


def _summary(report: dict) -> Markup:
    parts = []
    for check in report["checks"]:
        drawn = [("received per device", "bytes_received"), ("temporaries per device", "temp_bytes")]
        bars = [_bars(title, check["stock"].get(key), check["ours"].get(key)) for title, key in drawn]
        if check["stock"].get("modelled_us") is not None:
            times = [check[side].get("modelled_us") for side in ("stock", "ours")]
            bars.insert(0, _bars(f"modelled time on {check['topology'] or 'an unknown network'}", *times, unit="us"))
        collectives = table(
            ("collective", "stock XLA", "ours", "change"), _differences(check), "lrrr", "Collectives that run"
        )
        dropped = [
            element("p", f"Left to XLA again: site {', '.join(map(str, each['sites']))}: {each['problem']}")
            for each in check["dropped"]
        ]
        dropped += [
            element("p", f"Rewritten, though alone no better: site {_numbers(each['sites'])}: {each['reason']}")
            for each in check.get("added", ())
        ]
        rows = list(_ahead_of_time(check))
        more = [table(("", "stock XLA", "ours"), rows, "lrr", "Ahead of time")] if rows else []
        parts.append(
            card(element("h2", _head(check)), element("div", *bars, class_="pair"), collectives, *more, *dropped)
        )
    return joined(parts)


def _traffic(report: dict, sites: list[_Site]) -> Iterator[Markup]:
    """Yields a card for each check that tells where the bytes go; causes that are sites link to the sites' cards."""
    numbers = {each.number for each in sites}
    for check in report["checks"]:
        if not (found := check.get("traffic")):
            continue
        sides = [(found[key], title) for key, title in row_text.SIDES if found[key] is not None]
        tables = [ledger_page.top_rows(side, title, numbers) for side, title in sides]
        network = element("p", f"Times are modelled on {found['topology']}.", class_="soft")
        yield card(element("h2", "Where the bytes go"), network, *tables)


def _bars(title: str, stock: float | None, ours: float | None, unit: str = "bytes") -> Markup:
    """Returns two bars, ours below that of stock XLA; a value of None is shown as "does not compile"."""
    most = max(stock or 0, ours or 0, 1)
    drawn = []
    for y, (name, value, cls) in zip((0, 30), (("stock XLA", stock, "warm"), ("ours", ours, "one"))):
        said = "does not compile" if value is None else f"{value:,} {unit}"
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
    ("time by the code generator, without estimates to compare, us", "generated_seconds"),
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


def _number(value: float | None) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else count(value)


def _numbers(sites: Sequence[int]) -> str:
    return ", ".join(map(str, sites))


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
                *(_number(check[side].get(key)) for side in ("stock", "ours")),
                "",
            )
            for what, key in (
                ("modelled, us", "modelled_us"),
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
        lines += [
            f"rewritten, though alone no better: site {_numbers(each['sites'])}: {each['reason']}"
            for each in check.get("added", ())
        ]
        yield "\n".join(lines)


# ---- sites


_HEADINGS = ("site", "where", "tensor", "from", "to", "received", "least", "alone: stock", "alone: ours", "decision")


def _overview(sites: list[_Site]) -> Markup:
    """Returns the table of sites. Those that are decided together are rows in a row, with one pair of figures."""
    site_of = {id(each.row): each for each in sites}
    groups = site_table.together([each.row for each in sites])
    rows = [_row(site_of[id(row)]) for group in groups for row in group]
    said = "Received bytes per device: of the chain, the least of any method, and where the site or its op is compiled "
    said += "alone. In the whole module XLA may convert in another way, so the figures do not add up to the program's."
    return card(element("h2", "Sites"), element("p", said, class_="soft"), table(_HEADINGS, rows, "rllllrrrrl"))


def _row(site: _Site) -> tuple:
    row, first = site.row, site.together[0]
    figures = [_size(row[name]) for name in ("stock_bytes", "our_bytes")]
    if site.number != first and any(figures):
        figures = [joined(["with ", element("a", first, href=f"#card-{first}")]), ""]
    return (
        element("a", site.number, href=f"#card-{site.number}"),
        row["location"] or row["op"],
        element("code", row["type"].removeprefix("tensor<").removesuffix(">")),
        *(plan_parts.layout_html(row[end], row.get(f"{end}_spec")) for end in ("source", "target")),
        *(_size(row[name]) for name in ("bytes_received", "bound_bytes")),
        *figures,
        _badge(site),
    )


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
    if timelines := _timelines(row):
        parts += [element("h3", "What runs beside what"), element("pre", timelines)]
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
    specs = [row.get(f"{end}_spec") for end in ("source", "target")]
    yield "as JAX writes them", " to ".join(map(str, specs)) if all(specs) else "", True
    yield "why there is a site", row["why"], False
    yield "decision", f"{site.decision}: {row['reason']}", False
    yield "chain", row.get("chain") or "", True
    numbers = (("chain", "bytes_received"), ("least that any method needs", "bound_bytes"))
    yield "received per device", _listed(row, numbers), False
    others = [number for number in site.together if number != site.number]
    received = (("ours", "our_bytes"), ("stock XLA", "stock_bytes"))
    if others and _listed(row, received):
        yield "decided together with", f"site {', '.join(map(str, others))}; one figure for all of them:", False
    yield "compiled alone: received", _listed(row, received), False
    temporaries = (("ours", "our_temp_bytes"), ("stock XLA", "stock_temp_bytes"))
    yield "compiled alone: temporaries", _listed(row, temporaries), False


def _listed(row: dict, numbers: tuple[tuple[str, str], ...]) -> str:
    return "; ".join(f"{what} {row[key]:,}" for what, key in numbers if row.get(key) is not None)


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
    if timelines := _timelines(site.row):
        yield timelines
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


def _timelines(row: dict) -> str:
    """Returns what runs beside what, as it is and as it is written, on one scale; empty where a row has nothing."""
    timelines = {
        form: [Span(lane, start / 1e6, end / 1e6, name) for lane, start, end, name in spans]
        for form, spans in row.get("timelines", {}).items()
    }
    whole_s = max(map(end_s, timelines.values()), default=0.0)
    said = []
    for form, spans in timelines.items():
        said += [f"  {form}, {1e6 * end_s(spans):,.0f} us", *(f"    {line}" for line in lanes_of(spans, whole_s))]
    return "\n".join(said)


def _at(provenance: dict) -> str:
    return f" at {provenance['location']}" if provenance["location"] else ""


def _remarks_html(report: dict) -> list[Markup]:
    """Returns a card with the number of remarks by reason; all remarks are folded below."""
    remarks, reasons = report.get("remarks", ()), report.get("reasons", ())
    if not remarks:
        return []
    rows = [(each["count"], each["reason"], element("code", each["first"])) for each in reasons]
    counts = [table(("remarks", "reason", "the first"), rows, "rll")] if rows else []
    return [card(element("h2", "Remarks"), *counts, twin("\n".join(remarks), counted(len(remarks), "remark")))]


def _remarks_text(report: dict, *, lists_all: bool) -> list[str]:
    remarks, reasons = report.get("remarks", ()), report.get("reasons", ())
    if not remarks:
        return []
    if lists_all or not reasons:
        return ["remarks:\n" + "\n".join(f"  {each}" for each in remarks)]
    lines = ["remarks by reason, with the first of each (--remarks=all lists them):"]
    for each in reasons:
        lines += [f"  {counted(each['count'], 'remark')}: {each['reason']}", f"    {each['first']}"]
    return ["\n".join(lines)]
