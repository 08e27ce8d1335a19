# SPDX-License-Identifier: Apache-2.0
"""The modelled run of a compiled module in Chrome's trace event format: stock XLA's program, and ours beside it.

A process of the trace is a program. Its tracks are the loops, by their depth; the local work; the collectives; and each
level of the network with the collectives that occupy it. In the model nothing overlaps: a step begins when the one
before ends, so a program ends at its modelled time. Of a loop one trip is shown, at its beginning, and a slice of the
track of loops spans all trips. In the model all devices do the same at the same time, so one device stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reshard.passes.traffic.ledger import Ledger
from reshard.passes.traffic.ledger_text import network_text
from reshard.passes.traffic.row_text import OURS, STOCK
from reshard.passes.traffic.steps import LoopStep, MoveStep, Step, WorkStep
from reshard.synthesis.common import trace_events
from reshard.synthesis.common.numbers import counted, time_text
from reshard.synthesis.common.trace_events import micros, slice_of
from reshard.synthesis.network.occupancy import AtLevel

MOST_LISTED = 16  # devices of a group whose ids are shown


def as_json(name: str, stock: Ledger, ours: Ledger | None = None) -> str:
    """Returns the trace as JSON text; equal ledgers give equal text."""
    return trace_events.as_json(as_dict(name, stock, ours))


def as_dict(name: str, stock: Ledger, ours: Ledger | None = None) -> dict[str, Any]:
    """Returns the trace of the programs that XLA compiles.

    Args:
      name: of the module. stock, ours: ledgers with steps, on the same network; None if there is no such program.
    """
    sides = [(key, title, each) for key, title, each in (("stock", STOCK, stock), ("ours", OURS, ours)) if each]
    sides = [(key, title, ledger) for key, title, ledger in sides if ledger.compiled.is_ok]
    events = [
        event
        for process, (_, title, ledger) in enumerate(sides, 1)
        for event in _Program(process, ledger).events(f"{title}, modelled {time_text(ledger.time.seconds)}")
    ]
    about = {"module": name, "devices": stock.num_devices, "topology": network_text(stock)}
    return trace_events.trace_of(events, {**about, **{key: _totals(ledger) for key, _, ledger in sides}})


def _totals(ledger: Ledger) -> dict[str, float]:
    time = ledger.time
    return {
        "modelled_us": micros(time.seconds),
        "in_collectives_us": micros(time.collectives_s),
        "local_work_us": micros(time.local_s),
    }


class _Program:
    """Makes the events of one program.

    State: `_tracks` has the number of each track, in the order in which they are shown.
    """

    def __init__(self, process: int, ledger: Ledger):
        self._process, self._ledger = process, ledger
        levels = [level.name for level in ledger.topology.levels if level.size > 1]
        loops = [_loops_track(depth) for depth in range(_depth(ledger.steps))]
        names = [*loops, "compute", "collectives", *map(_level_track, levels)]
        self._tracks = {name: number for number, name in enumerate(names, 1)}

    def events(self, title: str) -> Iterator[dict[str, Any]]:
        yield trace_events.named("process_name", title, self._process)
        yield trace_events.ordered("process_sort_index", self._process)
        for name, track in self._tracks.items():
            yield trace_events.named("thread_name", name, self._process, track)
            yield trace_events.ordered("thread_sort_index", self._process, track)
        yield from self._sequence(self._ledger.steps, 0.0, 0)

    def _sequence(self, steps: Sequence[Step], at_s: float, depth: int) -> Iterator[dict[str, Any]]:
        for step in steps:
            match step:
                case WorkStep():
                    yield self._slice("compute", _work_name(step), at_s, step.seconds, _of_work(step))
                case MoveStep():
                    yield from self._move(step, at_s)
                case LoopStep():
                    yield from self._loop(step, at_s, depth)
            at_s += step.seconds

    def _loop(self, loop: LoopStep, at_s: float, depth: int) -> Iterator[dict[str, Any]]:
        trips = "trips unknown" if loop.trip_count is None else counted(loop.trip_count, "trip")
        yield self._slice(_loops_track(depth), f"loop, {trips}", at_s, loop.seconds, _of_loop(loop))
        for runs, steps in ((loop.condition_runs, loop.condition), (loop.body_runs, loop.body)):
            if runs:
                yield from self._sequence(steps, at_s, depth + 1)
                at_s += sum(each.seconds for each in steps)

    def _move(self, move: MoveStep, at_s: float) -> Iterator[dict[str, Any]]:
        name, arguments = f"{move.entry.collective.kind} {move.entry.tensor}", _of_move(move)
        yield self._slice("collectives", name, at_s, move.seconds, arguments)
        for each in move.occupancy.levels:
            of_level = {**_of_level(each), **arguments}
            yield self._slice(_level_track(each.level), name, at_s + each.starts_s, each.seconds, of_level)

    def _slice(
        self, track: str, name: str, at_s: float, length_s: float, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        return slice_of(name, at_s, at_s + length_s, self._process, self._tracks[track], arguments)


def _level_track(level: str) -> str:
    return f"level {level}"


def _loops_track(depth: int) -> str:
    return f"loops, depth {depth + 1}" if depth else "loops"


def _depth(steps: Sequence[Step]) -> int:
    """Returns how many loops are inside each other at most."""
    loops = [each for each in steps if isinstance(each, LoopStep)]
    return max((1 + _depth((*each.condition, *each.body)) for each in loops), default=0)


def _work_name(step: WorkStep) -> str:
    return step.op if step.ops == 1 else f"{step.op} and {step.ops - 1} more"


def _of_work(step: WorkStep) -> dict[str, Any]:
    return {"line": step.place, "flops": step.work.flops, "bytes_moved": step.work.bytes_moved, "ops": step.ops}


def _of_loop(loop: LoopStep) -> dict[str, Any]:
    trips = "unknown, counted once" if loop.trip_count is None else loop.trip_count
    once = sum(each.seconds for each in loop.body)
    return {"trips": trips, "us_of_one_trip": micros(once), "line": loop.place, "instruction": loop.name}


def _of_move(move: MoveStep) -> dict[str, Any]:
    """Returns what is known of one run of a collective."""
    entry, moved = move.entry, move.entry.collective
    sets = moved.groups or moved.pairs
    return {
        "line": entry.place,
        "why": entry.cause.text,
        "algorithm": move.occupancy.algorithm,
        "bytes_received": entry.bytes_received // entry.runs if entry.runs else 0,
        **({"groups": len(sets), "devices_in_a_group": max(map(len, sets))} if moved.groups else {"pairs": len(sets)}),
        **({"first_group": _devices(sets[0])} if moved.groups else {}),
        "axes": entry.axes,
        "op": entry.op,
        "instruction": entry.name,
        "runs": entry.runs,
        "us_of_all_runs": micros(entry.seconds),
    }


def _devices(group: Sequence[int]) -> str:
    """Returns ids of devices as text.

    Example:
      >>> _devices(range(18))
      '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 2 more'
    """
    shown, more = ", ".join(map(str, group[:MOST_LISTED])), len(group) - MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown


def _of_level(at: AtLevel) -> dict[str, Any]:
    return {
        "latency_us": micros(at.latency_s),
        "transfer_us": micros(at.transfer_s),
        "limited_by": at.port,
        "bytes_over_the_busiest": round(at.port_bytes),
        **({} if at.sharing is None else {"groups_sharing_it": at.sharing}),
    }
