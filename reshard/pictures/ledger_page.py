# SPDX-License-Identifier: Apache-2.0
"""The traffic of a program as one HTML page: totals, then a table of collectives that can be sorted and filtered.

The page is made of the plain data of `reshard.traffic/1`. Names and places come from the module; they are escaped
wherever they go. Without scripts the tables are there all the same, the longest rows first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from reshard.passes.traffic import row_text
from reshard.pictures import memory_over_time
from reshard.pictures.markup import Markup, element, joined, table
from reshard.pictures.page import card, in_frame, page
from reshard.synthesis.common.numbers import bytes_text, counted, percent, time_text

_FRAME_PIXELS, _BAR_PIXELS = 900, 60
_MOST = 1e300
_GROUPINGS = ("cause", "line", "kind", "axis", "level")

_STYLE = """
main{max-width:1640px}
.ledger th button{all:unset;cursor:pointer;font-weight:600}
.ledger th button:focus-visible{outline:3px solid var(--mark)}
.ledger th[aria-sort=ascending] button::after{content:" \\2191"}
.ledger th[aria-sort=descending] button::after{content:" \\2193"}
.ledger .share{display:inline-block;height:9px;background:var(--mark);border-radius:2px;margin-right:6px;min-width:1px}
.ledger .words{min-width:28ch}
.filter{display:none;font:inherit;font-size:13px;padding:4px 10px;border:1px solid var(--line);border-radius:6px;
background:var(--paper);color:var(--ink);width:min(420px,100%);margin:6px 0}
.scripted .filter{display:block}
"""

_SCRIPT = """
for (const box of document.querySelectorAll(".ledger")) {
  const body = box.querySelector("tbody"), heads = [...box.querySelectorAll("th")];
  const value = (row, at) => row.cells[at].dataset.v ?? row.cells[at].textContent;
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const isNumber = body.rows.length > 0 && body.rows[0].cells[at].dataset.v !== undefined;
      const order = (a, b) => isNumber ? value(a, at) - value(b, at) : value(a, at).localeCompare(value(b, at));
      body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
    });
  });
  const filter = box.querySelector(".filter");
  if (filter) filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\\s+/);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
    }
  });
}
"""


def page_of(traffic: Mapping[str, Any]) -> str:
    """Returns the page of a program's traffic, given as the plain data of `reshard.traffic/1`."""
    name = traffic["module"]
    network = f"{counted(traffic['num_devices'], 'device')}, times modelled on {traffic['topology']}"
    body = [
        element("style", Markup(_STYLE)),
        element("p", "reshard traffic", class_="soft"),
        element("h1", name),
        element("p", network),
        _tiles(traffic),
    ]
    for side, title in row_text.SIDES:
        if traffic[side] is not None:
            body += _side(traffic[side], title)
    if traffic["is_unchanged"]:
        body.append(element("p", "reshard leaves the program as it is, so there is one table."))
    return page(f"reshard traffic: {name}", *body, element("script", Markup(_SCRIPT)))


def notebook_html(traffic: Mapping[str, Any]) -> str:
    """Returns the page in a frame, for a notebook's cell."""
    return in_frame(page_of(traffic), _FRAME_PIXELS)


def _tiles(traffic: Mapping[str, Any]) -> Markup:
    tiles = [
        _tile("received by the busiest device", traffic, "bytes_received", bytes_text),
        _tile("time of the collectives", traffic, "seconds", time_text),
        _tile("temporaries", traffic, "temp_bytes", bytes_text),
        _tile("bytes with a known cause", traffic, "explained_share", percent),
    ]
    return element("div", *tiles, class_="tiles")


def _tile(title: str, traffic: Mapping[str, Any], key: str, text: Any) -> Markup:
    said = []
    for side, name in row_text.SIDES:
        if traffic[side] is not None:
            value = traffic[side][key]
            shown = "does not compile" if value is None else text(value)
            figure = element("span", shown, class_="figure")
            said.append(element("div", figure, " ", element("span", name, class_="soft")))
    return card(element("div", title, class_="soft"), *said)


def _side(ledger: Mapping[str, Any], title: str) -> Iterator[Markup]:
    """Yields the cards of one program: its collectives in groups, then each of them."""
    heading = element("h2", title)
    if ledger["status"] != "ok":
        yield card(heading, element("p", f"{ledger['status']}: {ledger['message']}"))
        return
    if not ledger["collectives"]:
        yield card(heading, element("p", "No collective: no device receives anything."))
        return
    groups = [
        element("details", element("summary", f"by {by}"), _groups(ledger, by), open=by == "cause") for by in _GROUPINGS
    ]
    yield card(heading, *_notes(ledger), *groups)
    if ledger.get("memory"):
        yield card(*memory_over_time.parts(ledger["memory"], title))
    yield card(element("h2", f"{title}: each collective"), _collectives(ledger, title))


def _notes(ledger: Mapping[str, Any]) -> Iterator[Markup]:
    if loops := ledger["unknown_trip_counts"]:
        text = f"XLA does not tell how often {', '.join(loops)} runs, so the collectives in it are counted once."
        yield element("p", text)
    if ledger["unpriced"]:
        yield element("p", f"{', '.join(ledger['unpriced'])} moves data, too, and is not counted.")


_NUMBERS = ("share", "time", "received", "bound", "x bound", "runs", "collectives")
_AMOUNTS = ("share", "time", "received", "x bound", "runs")
_HEADINGS = (*_AMOUNTS, "collective", "tile", "axes", "line", "why", "could overlap", "bound", "level", "op")


def _collectives(ledger: Mapping[str, Any], title: str) -> Markup:
    rows, longest = [], max(each["seconds"] for each in ledger["collectives"])
    for each in ledger["collectives"]:
        calls, (bound, ratio) = "\n".join(each["location_chain"]), _bound(each)
        rows.append(
            [
                *_amounts(each, ledger, longest),
                ratio,
                _number(each["runs"], f"{each['runs']:,}"),
                element("td", each["kind"]),
                element("td", element("code", each["tile"])),
                element("td", each["axes"]),
                element("td", each["location"], title=calls or None),
                element("td", each["why"], class_="words"),
                element("td", _overlap(each), class_="words"),
                bound,
                element("td", each["level"]),
                element("td", each["op"].removeprefix("stablehlo.")),
            ]
        )
    said = {"placeholder": "show rows with ...", "aria_label": f"filter the rows of {title}"}
    return _table(_HEADINGS, rows, element("input", class_="filter", type="search", **said))


def _bound(row: Mapping[str, Any]) -> list[Markup]:
    """Returns the cells of the bound, in bytes and as a multiple; the time of the bound is behind the pointer."""
    if (bound := row.get("bound_bytes")) is None:
        return [_number(-1.0, ""), _number(-1.0, "")]
    seconds = "" if row["bound_seconds"] is None else f", at least {time_text(row['bound_seconds'])}"
    shown = element("span", bytes_text(bound), title=f"{bound:,} bytes{seconds}")
    ratio = row["times_bound"] if bound else _MOST  # what needs nothing comes last
    return [_number(bound, shown), _number(ratio, row_text.bound_text(bound, row["times_bound"]))]


def _overlap(row: Mapping[str, Any]) -> str:
    if not row.get("could_overlap"):
        return "no"
    beside = row["beside"]
    place = f" at {beside['place']}" if beside["place"] else ""
    return f"yes, {percent(row['overlap'])}: {beside['op']}{place}"


def _groups(ledger: Mapping[str, Any], by: str) -> Markup:
    longest = max(each["seconds"] for each in ledger["by"][by])
    rows = [
        [
            *_amounts(each, ledger, longest),
            _number(each["runs"], f"{each['runs']:,}"),
            _number(each["collectives"], str(each["collectives"])),
            element("td", each["name"]),
        ]
        for each in ledger["by"][by]
    ]
    return _table(("share", "time", "received", "runs", "collectives", by), rows)


def _amounts(row: Mapping[str, Any], ledger: Mapping[str, Any], longest_s: float) -> list[Markup]:
    share = row["seconds"] / ledger["seconds"] if ledger["seconds"] else 0.0
    width = _BAR_PIXELS * row["seconds"] / longest_s if longest_s else 0.0
    bar = element("span", class_="share", style=f"width:{width:.0f}px", aria_hidden="true")
    received = element("span", bytes_text(row["bytes_received"]), title=f"{row['bytes_received']:,} bytes")
    return [
        _number(share, joined([bar, percent(share)])),
        _number(row["seconds"], time_text(row["seconds"])),
        _number(row["bytes_received"], received),
    ]


def top_rows(side: Mapping[str, Any], title: str, sites: Collection[int] = ()) -> Markup:
    """Returns the longest collectives of one program as a table, and what the rest takes.

    Args:
      side: "stock" or "ours" of a `passes.traffic.summary`. sites: the numbers of those that have a card on the page.
    """
    rows = []
    for each in side["collectives"]:
        *said, why = row_text.cells(each, side["seconds"])
        site = each["site"]
        linked = element("a", why, href=f"#card-{site}") if site in sites else why
        rows.append((*said, linked))
    caption = f"{title}, the longest first"
    if not rows:
        return element("p", f"{title}: no collective: no device receives anything.")
    parts = [table(row_text.HEADINGS, rows, row_text.RIGHT_OR_LEFT, caption)]
    if side["rest"]["collectives"]:
        parts.append(element("p", f"{row_text.rest_text(side)}; reshard traffic lists them.", class_="soft"))
    return joined(parts)


def _number(value: float, shown: object) -> Markup:
    return element("td", shown, class_="n", data_v=f"{value:.12g}")


def _table(headings: tuple[str, ...], rows: list[list[Markup]], *above: Markup) -> Markup:
    sides = ["n" if each in _NUMBERS else None for each in headings]
    head = element("tr", *(element("th", each, scope="col", class_=side) for each, side in zip(headings, sides)))
    body = element("tbody", *(element("tr", *row) for row in rows))
    drawn = element("div", element("table", element("thead", head), body), class_="wide", tabindex="0")
    return element("div", *above, drawn, class_="ledger")
