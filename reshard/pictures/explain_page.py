# SPDX-License-Identifier: Apache-2.0
"""`reshard explain --html`: one plan as a page, with its steps, pictures, rejected ways and explanation in words."""

from __future__ import annotations

from reshard.pictures import plan_parts
from reshard.pictures.drawing import Drawing, plan_facts, title_of
from reshard.pictures.markup import element
from reshard.pictures.page import card, page
from reshard.synthesis.explain.alternatives import Alternative
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan


def page_of(
    plan: Plan, topology: Topology, ways: tuple[Alternative, ...], words: str, memory_limit: int | None = None
) -> str:
    """Returns the page.

    Args:
      topology: the plan's, fitted to its devices. ways: those rejected. words: what `reshard explain` prints.
      memory_limit: bytes per device, drawn as a line.
    """
    body = [
        element("p", "reshard explain", class_="soft"),
        element("h1", title_of(plan)),
        card(plan_facts(plan)),
        card(element("h2", "Steps"), plan_parts.steps_html(plan)),
        card(element("h2", "Who holds what"), Drawing(plan, topology, memory_limit).sections("plan")),
    ]
    body += [card(element("h2", "Rejected alternatives"), plan_parts.rejected_html(plan, ways))] if ways else []
    body.append(card(element("h2", "In words"), element("pre", words)))
    return page(f"reshard: {title_of(plan)}", *body)
