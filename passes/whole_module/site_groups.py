# SPDX-License-Identifier: Apache-2.0
"""The groups of sites among which the whole-module check chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.oracle import ALWAYS, BETTER, STRICT
from reshard.passes.synthesize_collectives import SynthesizeCollectivesPass


@dataclass(frozen=True, slots=True)
class Group:
    """Sites that are rewritten together, because they were judged together.

    Attributes:
      sites: their numbers, sorted.
      gain_s: the modelled seconds that the rewrite saves alone, with all its runs; 0 if unknown.
      most_s: what it may save at most: in a loop a conversion may be placed before it, and run once.
      is_known: whether these are known, and how often each site runs.
      is_proposed: whether the pipeline rewrote them. is_strict: whether the policy `strict` would.
      is_even: whether they move as much either way, so that only `always` would.
    """

    sites: tuple[int, ...]
    gain_s: float
    most_s: float
    is_known: bool
    is_proposed: bool
    is_strict: bool
    is_even: bool


def groups_of(rows: Sequence[dict], pipeline: Pipeline, policy: str) -> list[Group]:
    """Returns the groups that the check chooses among, in program order.

    Under `better` these are all that could be rewritten, unless the pipeline names sites.
    """
    is_free = policy == BETTER and not names_sites(pipeline)
    by_group: dict[object, list[dict]] = {}
    for row in rows:
        if row.get("is_rewritten") or (is_free and row.get("possible")):
            by_group.setdefault(row["group"], []).append(row)
    groups = [
        Group(
            tuple(sorted(row["site"] for row in together)),
            max(map(_gain_s, together)),
            max(map(_most_s, together)),
            all(_gain_of_one_run_s(row) is not None and row.get("runs") is not None for row in together),
            any(row.get("is_rewritten") for row in together),
            any(row.get("possible") == STRICT for row in together),
            all(row.get("possible") == ALWAYS for row in together),
        )
        for together in by_group.values()
    ]
    return sorted(groups, key=lambda group: group.sites)


def names_sites(pipeline: Pipeline) -> bool:
    """Returns whether the options of a pipeline say which sites are rewritten."""
    return any(isinstance(each, SynthesizeCollectivesPass) and (each.only or each.leave) for each in pipeline.passes)


def groups_by_gain(rows: Sequence[dict]) -> list[list[int]]:
    """Returns the rewritten sites in groups that were judged together; the group that gains least is first."""
    groups: dict[object, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    ordered = sorted(groups.values(), key=lambda group: (max(map(_gain, group)), group[0]["site"]))
    return [sorted(row["site"] for row in group) for group in ordered]


def _gain_s(row: dict) -> float:
    """Returns the seconds that a rewrite saves alone in a step; 0 if they are unknown. Unknown runs are one."""
    runs = row.get("runs")
    return (_gain_of_one_run_s(row) or 0.0) * (1 if runs is None else runs)


def _most_s(row: dict) -> float:
    runs = row.get("runs")
    return _gain_s(row) if runs in (1, None) else runs * (row.get("stock_us") or 0.0) * 1e-6


def _gain_of_one_run_s(row: dict) -> float | None:
    if row.get("stock_us") is None or row.get("our_us") is None:
        return None
    return (row["stock_us"] - row["our_us"]) * 1e-6


def _gain(row: dict) -> tuple[float, int]:
    """Returns the gain in time, then in bytes that a device receives; the largest if stock XLA fails."""
    if row.get("stock_bytes") is None:
        return (0.0, 0) if row.get("our_bytes") is None else (float("inf"), 0)
    return _gain_s(row), row["stock_bytes"] - (row.get("our_bytes") or 0)
