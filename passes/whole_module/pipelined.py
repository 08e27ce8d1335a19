# SPDX-License-Identifier: Apache-2.0
"""Modules in which collectives next to products are pipelines, for the whole-module check: the pass overlap-collectives
on a copy, for the target of the session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import SiteNetwork
from reshard.synthesis.forms.platforms import platform_of

_PASS = "overlap-collectives"
_LEAVES_NOTHING_WHOLE, _ADDED_UP = "product", "added up"  # how the words of patterns begin, and end


def pipelined(
    module: ir.Module,
    session: Session,
    network: SiteNetwork,
    *,
    first: int,
    only: Sequence[int] = (),
    keeps_sums: bool = False,
) -> tuple[ir.Module, list[dict[str, Any]]]:
    """Returns a copy of a module with pipelines, and their report rows.

    Args:
      session: with a target, whose compiler says how much memory the module needs, so pipelines may hold more.
      first: the number of the first pipeline. only: the numbers of those that are written; empty: all.
      keeps_sums: as the option of the pass.
    """
    options = {
        "topology": network.text,
        "platform": platform_of(present(session.options.compile_for).platform),
        "first": str(first),
        "only": "+".join(map(str, sorted(only))),
        "keep-sums": str(keeps_sums).lower(),
        "may-hold-more": "true",
    }
    own = Session(session.options)
    with module.context:
        written = ir.Module.parse(compat.bytecode(module))
        Pipeline.parse(_PASS).with_options(options).run(written, own)
    return written, own.results.report_rows


def promised_s(rows: Sequence[dict[str, Any]]) -> float:
    """Returns the seconds that the pipelines of some rows save by the model, if none is in the way of another."""
    return sum(row["stock_us"] - row["our_us"] for row in rows) / 1e6


def by_pattern(rows: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Returns the numbers of pipelines, those of one pattern together: products that leave nothing whole behind first,
    what is put together last, with which compilers fuse less of what comes next."""
    patterns: dict[str, list[int]] = {}
    for row in rows:
        patterns.setdefault(row["group"].partition(":")[0], []).append(row["site"])
    return [patterns[each] for each in sorted(patterns, key=_order)]


def _order(pattern: str) -> tuple[int, str]:
    return (0 if pattern.startswith(_LEAVES_NOTHING_WHOLE) else 1 if pattern.endswith(_ADDED_UP) else 2), pattern
