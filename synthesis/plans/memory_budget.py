# SPDX-License-Identifier: Apache-2.0
"""Chooses among plans: the one that fits a memory limit, and those that no other beats in both time and peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..layouts.refinement import NoPlanError
from .plan import Plan
from .plan_json import tile_bytes


class TooLittleMemory(NoPlanError):
    """No plan fits the limit; the message names the least one that would do, and no axis."""


def cheapest_within(
    limit: int, plans: Iterable[Plan], key: Callable[[Plan], tuple], in_chunks: Callable[[Plan], Iterator[Plan]]
) -> Plan:
    """Returns the cheapest plan whose peak is at most `limit` bytes; each plan is cut into as few chunks as possible.

    Chunks repeat the latencies of a plan and add copies, so no plan costs less in more chunks. So the plans are cut in
    the order of their costs, until the next one costs no less than the best that fits. Packed elements are the
    exception: parts are whole bytes on their way, and what is rounded up depends on the parts.

    Args:
      key: returns the numbers by which plans are compared. in_chunks: yields a plan in more and more chunks.
    Raises: TooLittleMemory, with the smallest limit that would be enough.
    """
    best, least = None, None
    for plan in sorted(plans, key=key):
        is_packed = plan.bits % 8 != 0
        if best is not None and not is_packed and key(plan) >= key(best):
            break
        for each in _versions(plan, in_chunks):
            if best is not None and not is_packed and key(each) >= key(best):
                break
            if each.peak_bytes <= limit:
                best = each if best is None else min(best, each, key=key)
                break
            least = each if least is None or each.peak_bytes < least.peak_bytes else least
    if best is not None:
        return best
    assert least is not None, "no plans"
    raise TooLittleMemory(_refusal(least, limit))


def pareto(plans: Iterable[Plan], in_chunks: Callable[[Plan], Iterator[Plan]]) -> tuple[Plan, ...]:
    """Returns the plans, whole and in chunks, that no other one beats in time and in peak, the fastest first."""
    every = [each for plan in plans for each in _versions(plan, in_chunks)]
    found: list[Plan] = []
    for plan in sorted(every, key=lambda each: (each.time_s, each.peak_bytes, each.bytes_received, each.collectives)):
        if not found or plan.peak_bytes < found[-1].peak_bytes:
            found.append(plan)
    return tuple(found)


def _versions(plan: Plan, in_chunks: Callable[[Plan], Iterator[Plan]]) -> Iterator[Plan]:
    yield plan
    yield from in_chunks(plan)


def _refusal(least: Plan, limit: int) -> str:
    source, target = tile_bytes(least)
    needed = least.peak_bytes
    parts = f"source tile {source:,} + target tile {target:,} + temporaries {needed - source - target:,}"
    if not least.steps:
        parts = f"source tile {source:,}"
    return f"needs at least {needed:,} bytes per device ({parts}), limit {limit:,}; raise the limit to {needed}"
