# SPDX-License-Identifier: Apache-2.0
"""Spans of a device as text: one line for each lane, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence

from .pipelines import Span


def lines(spans: Sequence[Span], whole_s: float, width: int = 72) -> list[str]:
    """Returns a line for each lane, in the order in which they are first used.

    Args:
      whole_s: the time of `width` characters. What is shorter than one has no name.

    Example: a gather, and then a product.
      >>> spans = [Span("link", 0.0, 2.0, "all_gather"), Span("computing", 2.0, 4.0, "product")]
      >>> print(*lines(spans, 4.0, 32), sep="\\n")
      link       [all_gather....]
      computing                  [product.......]
    """
    lanes: dict[str, list[str]] = {}
    for span in sorted(spans, key=lambda each: each.start_s):
        row = lanes.setdefault(span.lane, [" "] * width)
        first, last = (min(width, round(time_s / whole_s * width)) for time_s in (span.start_s, span.end_s))
        row[first:last] = _bar(span.name, last - first)
    longest = max(map(len, lanes))
    return [f"{lane:<{longest}}  {''.join(row)}".rstrip() for lane, row in lanes.items()]


def _bar(name: str, width: int) -> str:
    if width < 2:
        return "|" * width
    return f"[{name[: width - 2]:.<{width - 2}}]"
