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
_FIELD = re.compile(r"""^ +(name|opcode|op_name|id|called_computation_ids): "?([^"\n]+)"?$""", re.MULTILINE)
_CLOCK = re.compile(r"\bcycles_per_microsecond: ([\d.e+-]+)")
_SCHEDULED = re.compile(
    r"^    id: (\d+)\n(?:    start_timestamp_cycles: ([\d.e+-]+)\n)?(?:    end_timestamp_cycles: ([\d.e+-]+)\n)?",
    re.MULTILINE,
)
_GENERATED = re.compile(r'^ +(?:ROOT )?%?([\w.-]+) = .*"estimated_cycles":"([1-9]\d*)"')
_NAME = re.compile(r"^ +(?:ROOT )?%?([\w.-]+) = ", re.MULTILINE)
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_CALLED = re.compile(r"\bcalls=%?([\w.-]+)")
_OP_NAME = re.compile(r'\bop_name="([^"]+)"')
_IN_PIECES = "async_collective_fusion"  # begins the names of computations with pieces of a collective


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
    clock = cycles_per_second(found)
    if not clock:
        return None
    seconds = max(ends, default=0.0) / clock
    if seconds <= 0 or bytes_received / seconds > _FASTEST_BYTES_PER_S:
        return None
    if has_placeholders and _has_placeholder(_TIMESTAMP.findall(found), clock / 1e6):
        return None
    return seconds


def cycles_per_second(schedule: str) -> float | None:
    """Returns the clock in which a schedule counts; None if it has none."""
    clock = _CLOCK.search(schedule)
    return float(clock[1]) * 1e6 if clock else None


def is_mispriced(schedule: str, final_text: str) -> bool:
    """Returns whether the code generator says that a good part of what the scheduler foresees does not happen.

    Args:
      schedule: as `estimated_seconds` takes it. final_text: HLO of the final program, with the cycles of its
        instructions.
    """
    entry = _ENTRY.search(schedule)
    generated = _Generated.of(final_text)
    if entry is None or not generated.by_name:
        return False
    program = _Program.of(schedule)
    return program.excess(entry[1], generated) > _MOST_MISPRICED * program.end(entry[1])


def instructions_for_free(schedule: str) -> frozenset[str]:
    """Returns the names of the instructions that take no time in a schedule but the cycle that any takes."""
    program = _Program.of(schedule)
    timed = (each for times in program.times.values() for each in times)
    return frozenset(program.names.get(identifier, "") for identifier, start, end in timed if end - start <= 1)


@dataclass(frozen=True, slots=True)
class _Generated:
    """The cycles that the code generator says.

    An instruction beside which a collective runs in pieces is one with the pieces in the final program, under another
    name; what it computes still has the name of the op that it came from.

    Attributes:
      by_name: of each instruction. by_op: by the names of ops: of the one instruction that runs it beside pieces of a
        collective. names: of all instructions.
    """

    by_name: dict[str, float]
    by_op: dict[str, float]
    names: frozenset[str]

    @classmethod
    def of(cls, final_text: str) -> _Generated:
        by_name, callers, ops, computation = {}, {}, {}, ""
        for line in final_text.splitlines():
            if head := _HEAD.match(line):
                computation = head[1]
            elif found := _GENERATED.match(line):
                by_name[found[1]] = float(found[2])
                if called := _CALLED.search(line):
                    callers[called[1]] = float(found[2])
            elif computation.startswith(_IN_PIECES) and (op := _OP_NAME.search(line)):
                ops.setdefault(op[1], set()).add(computation)
        alone = {op: next(iter(found)) for op, found in ops.items() if len(found) == 1}
        by_op = {op: callers[each] for op, each in alone.items() if each in callers}
        return cls(by_name, by_op, frozenset(_NAME.findall(final_text)))

    def cycles(self, name: str, op: str) -> float:
        """Returns the cycles of an instruction of a schedule; infinite if unknown.

        Args:
          op: that it is made of, if no other instruction is.
        """
        return self.by_name.get(name, math.inf if name in self.names else self.by_op.get(op, math.inf))


@dataclass(frozen=True, slots=True)
class _Program:
    """The instructions of a schedule.

    Attributes:
      names, bodies: by the id of an instruction: its name, and the computations that it calls if it is a loop.
      ops: by the id of a fusion: the name of the op that it is made of, if no other one is.
      times: by the id of a computation: the start and end of each of its instructions, in cycles, with its id.
    """

    names: dict[str, str]
    ops: dict[str, str]
    bodies: dict[str, list[str]]
    times: dict[str, list[tuple[str, float, float]]]

    @classmethod
    def of(cls, schedule: str) -> _Program:
        module, *parts = schedule.split(_SCHEDULES)
        names, bodies, made_of, name, op, opcode, identifier = {}, {}, {}, "", "", "", ""
        for field, value in _FIELD.findall(module):
            if field == "name":
                name, op, opcode = value, "", ""
            elif field == "opcode":
                opcode = value
            elif field == "op_name":
                op = value
            elif field == "id" and name and opcode:
                identifier = value
                names[identifier], name = name, ""  # the next number is that of the computation
                if opcode == "fusion" and op:
                    made_of.setdefault(op, []).append(identifier)
            elif field == "called_computation_ids" and opcode == "while":
                bodies.setdefault(identifier, []).append(value)
        ops = {found[0]: op for op, found in made_of.items() if len(found) == 1}
        times = {}
        for part in parts:
            if of := _COMPUTATION.search(part):
                found = _SCHEDULED.findall(part)
                times[of[1]] = [(each, float(start or 0), float(end or 0)) for each, start, end in found]
        return cls(names, ops, bodies, times)

    def end(self, computation: str) -> float:
        return max((end for *_, end in self.times.get(computation, ())), default=0.0)

    def excess(self, computation: str, generated: _Generated) -> float:
        """Returns the cycles that mispriced instructions of a computation take more than the code generator says, with
        loops counted."""
        total = 0.0
        for identifier, start, end in self.times.get(computation, ()):
            for body in self.bodies.get(identifier, ()):
                total += (end - start) * self.excess(body, generated) / max(1.0, self.end(body))
            cycles = generated.cycles(self.names.get(identifier, ""), self.ops.get(identifier, ""))
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
