# SPDX-License-Identifier: Apache-2.0
"""Events of Chrome's trace event format, which ui.perfetto.dev and chrome://tracing show. Times are in microseconds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

PER_SECOND, PER_MICROSECOND = 10**12, 10**6  # picoseconds, to which times are rounded


def as_json(trace: Mapping[str, Any]) -> str:
    """Returns a trace as JSON text."""
    return json.dumps(trace, indent=1, allow_nan=False) + "\n"


def trace_of(events: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the trace: `traceEvents`, `displayTimeUnit`, `otherData`."""
    return {"traceEvents": [*events], "displayTimeUnit": "ns", "otherData": dict(about)}


def slice_of(
    name: str, start_s: float, end_s: float, process: int, track: int, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns a slice of a track. Slices that follow each other do not overlap, whatever is rounded."""
    start = round(start_s * PER_SECOND)
    times = {"ts": start / PER_MICROSECOND, "dur": (round(end_s * PER_SECOND) - start) / PER_MICROSECOND}
    return {"name": name, "cat": "reshard", "ph": "X", **times, "pid": process, "tid": track, "args": dict(arguments)}


def counter(name: str, at_s: float, process: int, values: Mapping[str, int]) -> dict[str, Any]:
    """Returns the values of a counter from a time on."""
    return {"name": name, "ph": "C", "ts": micros(at_s), "pid": process, "args": dict(values)}


def named(what: str, name: str, process: int, track: int = 0) -> dict[str, Any]:
    """Returns the name of a process or of a track; `what` is "process_name" or "thread_name"."""
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def ordered(what: str, process: int, track: int = 0) -> dict[str, Any]:
    """Returns the place of a process, or of a track, among the others: that of its number.

    `what` is "process_sort_index" or "thread_sort_index".
    """
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"sort_index": track or process}}


def micros(seconds: float) -> float:
    """Returns microseconds, rounded to picoseconds."""
    return round(seconds * PER_SECOND) / PER_MICROSECOND
