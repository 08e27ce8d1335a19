# SPDX-License-Identifier: Apache-2.0
"""Run times that the compiler estimates: the schedule that its latency-hiding scheduler dumps.

The schedule has the time at which each instruction starts and ends; the last end is the estimate. The scheduler's own
`total_cycles` is that only if nothing runs beside a collective: it adds up what instructions and collectives take, one
after the other. A loop takes the last end of its body, times its trips.

The estimate is by bandwidth: it knows neither the places of devices nor latency, and not every collective has a price.
Implausible estimates are recognized and count as missing.
"""

from __future__ import annotations

import re
from bisect import bisect_left

# XLA's GPU backend gives a collective that its model does not cover some 5 ms.
_PLACEHOLDER_US = (4998.0, 5001.0)
# No link brings this much into a device: a total that says so has left collectives out, or trips of loops.
_FASTEST_BYTES_PER_S = 1e12

_ENTRY = re.compile(r"^  entry_computation_id: (\d+)$", re.MULTILINE)
_COMPUTATION = re.compile(r"^  computation_id: (\d+)$", re.MULTILINE)
_SCHEDULES = "\ncomputation_schedules {"
_END = re.compile(r"end_timestamp_cycles: ([\d.e+-]+)")
_TIMESTAMP = re.compile(r"(?:start|end)_timestamp_cycles: ([\d.e+-]+)")


def estimated_seconds(schedule: str, bytes_received: int, *, has_placeholders: bool = False) -> float | None:
    """Returns the seconds that the entry computation takes, with loops times their trip counts; None if unknown.

    Args:
      schedule: text of a `*.schedule.txt`, as `xla_dump_latency_hiding_schedule` writes it.
      bytes_received: the bytes that a device receives while the program runs.
      has_placeholders: whether the compiler prices some collectives at a fixed time that means nothing, as XLA does for
        GPUs.

    Example:
      >>> text = '''hlo_module {
      ...   entry_computation_id: 7
      ... }
      ... computation_schedules {
      ...   computation_id: 7
      ...   instructions {
      ...     start_timestamp_cycles: 1000
      ...     end_timestamp_cycles: 3000
      ...   }
      ...   cycles_per_microsecond: 1500
      ... }'''
      >>> estimated_seconds(text, 1000), estimated_seconds(text, 1 << 30)
      (2e-06, None)
    """
    found = _entry_schedule(schedule)
    if found is None:
        return None
    ends = map(float, _END.findall(found))
    clock = re.search(r"\bcycles_per_microsecond: ([\d.e+-]+)", found)
    if not clock:
        return None
    seconds = max(ends, default=0.0) / (float(clock[1]) * 1e6)
    if seconds <= 0 or bytes_received / seconds > _FASTEST_BYTES_PER_S:
        return None
    if has_placeholders and _has_placeholder(_TIMESTAMP.findall(found), float(clock[1])):
        return None
    return seconds


def _entry_schedule(schedule: str) -> str | None:
    """Returns the part of the text about the entry computation, None if there is none."""
    entry = _ENTRY.search(schedule)
    if entry is None:
        return None
    for part in schedule.split(_SCHEDULES)[1:]:
        if (of := _COMPUTATION.search(part)) and of[1] == entry[1]:
            return part
    return None


def _has_placeholder(timestamps: list[str], cycles_per_microsecond: float) -> bool:
    """Returns whether two timestamps are as far apart as a placeholder is long; the start of the program is one of
    them."""
    least, most = _PLACEHOLDER_US
    times = sorted({0.0, *(float(each) / cycles_per_microsecond for each in timestamps)})
    next_after = ((each, bisect_left(times, each + least)) for each in times)
    return any(i < len(times) and times[i] - each <= most for each, i in next_after)
