# SPDX-License-Identifier: Apache-2.0
"""Run times that the compiler estimates: the schedule that its latency-hiding scheduler dumps.

The schedule has the time at which each instruction starts and ends; the last end is the estimate. The scheduler's own
`total_cycles` is that only if nothing runs beside a collective: it adds up what instructions and collectives take, one
after the other. A loop takes the last end of its body, times its trips.

The estimate is by bandwidth: it knows neither the places of devices nor latency, and not every collective has a price.
Implausible estimates are recognized and count as missing. One is that of a program with an instruction that the
scheduler prices many times higher than the code generator of the same compiler, which writes its price into the final
program. That of TPUs runs a product with many heads as a convolution over them, with windows that are padding but for
one element; the scheduler counts the padding.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

# XLA's GPU backend gives a collective that its model does not cover some 5 ms.
_PLACEHOLDER_US = (4998.0, 5001.0)
# No link brings this much into a device: a total that says so has left collectives out, or trips of loops.
_FASTEST_BYTES_PER_S = 1e12

# Other prices of the scheduler are 0.1 to 8 times those of the code generator.
_TIMES_TOO_HIGH = 16.0
_MOST_MISPRICED = 0.02  # share of the program's time that such instructions may take

_ENTRY = re.compile(r"^  entry_computation_id: (\d+)$", re.MULTILINE)
_COMPUTATION = re.compile(r"^  computation_id: (\d+)$", re.MULTILINE)
_SCHEDULES = "\ncomputation_schedules {"
_END = re.compile(r"end_timestamp_cycles: ([\d.e+-]+)")
_TIMESTAMP = re.compile(r"(?:start|end)_timestamp_cycles: ([\d.e+-]+)")
_FIELD = re.compile(r"""^ +(name|opcode|id|called_computation_ids): "?([^"\n]+)"?$""", re.MULTILINE)
_SCHEDULED = re.compile(
    r"^    id: (\d+)\n(?:    start_timestamp_cycles: ([\d.e+-]+)\n)?(?:    end_timestamp_cycles: ([\d.e+-]+)\n)?",
    re.MULTILINE,
)
_GENERATED = re.compile(r'^ +(?:ROOT )?%?([\w.-]+) = .*"estimated_cycles":"([1-9]\d*)"', re.MULTILINE)


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


def is_mispriced(schedule: str, final_text: str) -> bool:
    """Returns whether the code generator says that a good part of what the scheduler foresees does not happen.

    Args:
      schedule: as `estimated_seconds` takes it. final_text: HLO of the final program, with the cycles of its
        instructions.
    """
    entry = _ENTRY.search(schedule)
    generated = {name: float(cycles) for name, cycles in _GENERATED.findall(final_text)}
    if entry is None or not generated:
        return False
    program = _Program.of(schedule)
    return program.excess(entry[1], generated) > _MOST_MISPRICED * program.end(entry[1])


@dataclass(frozen=True, slots=True)
class _Program:
    """The instructions of a schedule.

    Attributes:
      names, bodies: by the id of an instruction: its name, and the computations that it calls if it is a loop.
      times: by the id of a computation: the start and end of each of its instructions, in cycles, with its id.
    """

    names: dict[str, str]
    bodies: dict[str, list[str]]
    times: dict[str, list[tuple[str, float, float]]]

    @classmethod
    def of(cls, schedule: str) -> _Program:
        module, *parts = schedule.split(_SCHEDULES)
        names, bodies, name, opcode, identifier = {}, {}, "", "", ""
        for field, value in _FIELD.findall(module):
            if field == "name":
                name, opcode = value, ""
            elif field == "opcode":
                opcode = value
            elif field == "id" and opcode:
                identifier = value
                names[identifier] = name
            elif field == "called_computation_ids" and opcode == "while":
                bodies.setdefault(identifier, []).append(value)
        times = {}
        for part in parts:
            if of := _COMPUTATION.search(part):
                found = _SCHEDULED.findall(part)
                times[of[1]] = [(each, float(start or 0), float(end or 0)) for each, start, end in found]
        return cls(names, bodies, times)

    def end(self, computation: str) -> float:
        return max((end for *_, end in self.times.get(computation, ())), default=0.0)

    def excess(self, computation: str, generated: Mapping[str, float]) -> float:
        """Returns the cycles that mispriced instructions of a computation take more than the code generator says, with
        loops counted."""
        total = 0.0
        for identifier, start, end in self.times.get(computation, ()):
            for body in self.bodies.get(identifier, ()):
                total += (end - start) * self.excess(body, generated) / max(1.0, self.end(body))
            cycles = generated.get(self.names.get(identifier, ""), math.inf)
            if end - start > _TIMES_TOO_HIGH * cycles:
                total += end - start - cycles
        return total


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
