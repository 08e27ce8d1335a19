# SPDX-License-Identifier: Apache-2.0
"""The parts of a plan for pages and texts: its layouts, its steps, and the other ways that were rejected."""

from __future__ import annotations

from collections.abc import Iterator

from reshard.pictures.markup import Markup, element, joined, table
from reshard.synthesis.common import text_table
from reshard.synthesis.common.numbers import bytes_text, count, time_text
from reshard.synthesis.explain.alternatives import Alternative
from reshard.synthesis.planner.entry import Plan

_STEPS = ("step", "what", "tile before", "after", "received", "time")
_REJECTED = ("rejected way", "received", "time", "peak", "collectives", "why not", "its chain")


def layout_html(text: str, spec: str | None) -> Markup:
    """Returns a sharding as Shardy writes it, and as JAX does; `spec` is None where JAX has no text for it."""
    return joined([element("code", text), *([" ", element("code", spec, class_="soft")] if spec else [])])


def steps_html(plan: Plan) -> Markup:
    """Returns the table of the steps; the title of each size gives it in full."""
    rows = [
        (
            number,
            element("code", what),
            *(element("span", bytes_text(each), title=f"{each:,} bytes") for each in sizes),
            time_text(time_s),
        )
        for number, what, sizes, time_s in _steps(plan)
    ]
    return table(_STEPS, rows, "rlrrrr") if rows else element("p", "No step: source and target place everything alike.")


def steps_text(plan: Plan) -> str:
    rows = [(number, what, *map(count, sizes), time_text(time_s)) for number, what, sizes, time_s in _steps(plan)]
    return text_table.table(_STEPS, rows, "rlrrrr") if rows else "no step: source and target place everything alike"


def _steps(plan: Plan) -> Iterator[tuple[str, str, tuple[int, int, int], float]]:
    for number, step in enumerate(plan.steps, 1):
        for label, each in ((str(number), step), *(("", inside) for inside in step.inside)):
            sizes = each.tile_bytes_before, each.tile_bytes_after, each.bytes_received
            yield label, ("" if label else "each: ") + each.text, sizes, each.time_s


def rejected_html(plan: Plan, ways: tuple[Alternative, ...]) -> Markup:
    """Returns the table of the rejected ways, below a row for the plan itself."""
    rows = [(joined([element("strong", "this plan")]), *_numbers(plan), "", element("code", plan.chain_text))]
    rows += [(each.way, *_numbers(each.plan), each.reason, element("code", each.plan.chain_text)) for each in ways]
    return table(_REJECTED, rows, "lrrrrll")


def rejected_text(plan: Plan, ways: tuple[Alternative, ...]) -> str:
    rows = [("this plan", *_numbers(plan), "", plan.chain_text)]
    rows += [(each.way, *_numbers(each.plan), each.reason, each.plan.chain_text) for each in ways]
    return text_table.table(_REJECTED, rows, "lrrrrll")


def _numbers(plan: Plan) -> tuple[str, ...]:
    return bytes_text(plan.bytes_received), time_text(plan.time_s), bytes_text(plan.peak_bytes), str(plan.collectives)
