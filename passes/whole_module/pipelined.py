# SPDX-License-Identifier: Apache-2.0
"""Modules in which collectives next to products are pipelines, for the whole-module check: the pass overlap-collectives
on a copy, for the target of the session."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.typed import present
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.overlap_collectives import gains_little
from reshard.passes.sites.network import SiteNetwork
from reshard.synthesis.forms.platforms import platform_of
from reshard.synthesis.overlap.pipelines import AHEAD, IN_ANOTHER_SHAPE

_PASS = "overlap-collectives"
_log = logging.getLogger("reshard.optimize")
_LEAVES_NOTHING_WHOLE, _ADDED_UP = ("product", "lookup"), "added up"  # in the words of patterns


def pipelined(
    module: ir.Module,
    session: Session,
    network: SiteNetwork,
    *,
    first: int = 0,
    only: Sequence[int] = (),
    keeps_sums: bool = False,
    sends_only: bool = False,
    any_gain: bool = False,
) -> tuple[ir.Module, list[dict[str, Any]]]:
    """Returns a copy of a module with pipelines, and their report rows; none where the pass fails.

    Args:
      session: with a target, whose compiler says how much memory the module needs, so pipelines may hold more.
      first: the number of the first pipeline. only: the numbers of those that are written; empty: all.
      keeps_sums, sends_only, any_gain: as the options of the pass.
    """
    platform = platform_of(present(session.options.compile_for).platform)
    options = {"first": str(first), "only": "+".join(map(str, sorted(only))), "any-gain": str(any_gain).lower()}
    own = Session(session.options)
    with module.context:
        written = ir.Module.parse(compat.bytecode(module))
        try:
            overlapping(network, platform, keeps_sums, sends_only).with_options(options).run(written, own)
        except DiagnosedError as error:  # a fault of ours is no reason to give up the module
            _log.warning("no pipelines: %s", error.diagnostics[0].message)
            return ir.Module.parse(compat.bytecode(module)), []
    return written, own.results.report_rows


def overlapping(network: SiteNetwork, platform: str, keeps_sums: bool, sends_only: bool) -> Pipeline:
    """Returns the pass that writes all pipelines that promise something on a network, whatever memory they hold."""
    options = {
        "topology": network.text,
        "platform": platform,
        "keep-sums": str(keeps_sums).lower(),
        "sends-only": str(sends_only).lower(),
        "may-hold-more": "true",
    }
    return Pipeline.parse(_PASS).with_options(options)


def keeps_sums(pipeline: Pipeline) -> bool:
    """Returns whether a pass of a pipeline leaves sums in the order that XLA gives them."""
    return any(getattr(each, "keep_sums", False) for each in pipeline.passes)


def promised_s(rows: Sequence[dict[str, Any]]) -> float:
    """Returns the seconds that the pipelines that are written save by the model."""
    return sum(row["stock_us"] - row["our_us"] for row in rows if row["is_rewritten"]) / 1e6


def pattern_of(row: dict[str, Any]) -> str:
    """Returns the pattern of a pipeline in words, from its report row."""
    return row["group"].partition(":")[0]


def by_pattern(rows: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Returns the numbers of pipelines, those of one pattern together: products that leave nothing whole behind first,
    then collectives as a whole, what is put together last, with which compilers fuse less of what comes next. Among
    these, what promises most comes first. Pipelines that gain less than the model may be wrong are apart from the
    others of their pattern, behind all that gain more."""
    patterns: dict[tuple[bool, str], list[dict[str, Any]]] = {}
    for row in rows:
        patterns.setdefault((promises_little(row), pattern_of(row)), []).append(row)

    def order(found: tuple[bool, str]) -> tuple[bool, int, bool, float]:
        gain_us = sum(row["stock_us"] - row["our_us"] for row in patterns[found])
        is_weak, pattern = found
        return is_weak, _kind(pattern), IN_ANOTHER_SHAPE in pattern, -gain_us

    return [[row["site"] for row in patterns[each]] for each in sorted(patterns, key=order)]


def promises_little(row: dict[str, Any]) -> bool:
    """Returns whether a pipeline gains less than the model may be wrong, from its report row."""
    return gains_little(row["stock_us"], row["our_us"])


def _kind(pattern: str) -> int:
    kinds = pattern.startswith(_LEAVES_NOTHING_WHOLE), _ADDED_UP in pattern, AHEAD in pattern
    return kinds.index(True) if any(kinds) else len(kinds)
