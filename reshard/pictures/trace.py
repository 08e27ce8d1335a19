# SPDX-License-Identifier: Apache-2.0
"""The modelled schedule of a plan in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing show.

One track shows the steps. Each level of the network has a track for the traffic that crosses it: first the latency,
then the transfer. One track shows the copies on the device, and a counter shows the memory. A loop over chunks contains
its rounds, at most `MOST_CHUNKS` of them. In the model all devices do the same at the same time, so one device stands
for all. Times are in microseconds.
"""

from __future__ import annotations

from reshard.pictures.drawing import title_of
from reshard.pictures.memory import memory_of
from reshard.synthesis.common import trace_events
from reshard.synthesis.explain.step_costs import StepCost, step_costs
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan, PlannedStep
from reshard.synthesis.programs.steps import Chunked

MOST_CHUNKS = 64
_PROCESS = 1
_STEPS = 1  # the tracks: steps, then a level each, then copies


def as_json(plan: Plan, topology: Topology) -> str:
    """Returns the trace as JSON text; `topology` is that of the plan. Equal plans give equal text."""
    return trace_events.as_json(as_dict(plan, topology))


def as_dict(plan: Plan, topology: Topology) -> dict:
    """Returns the trace: `traceEvents`, `displayTimeUnit`, `otherData`."""
    levels = [level.name for level in topology.fitted(plan.devices).levels if level.size > 1]
    tracks = {name: _STEPS + 1 + i for i, name in enumerate(levels)}
    copies = _STEPS + 1 + len(levels)
    events = [_named("process_name", f"reshard, modelled: {title_of(plan)}")]
    events += [
        _named("thread_name", name, track)
        for name, track in (
            ("steps", _STEPS),
            *((f"level {n}", t) for n, t in tracks.items()),
            ("copies on the device", copies),
        )
    ]
    held = [each.total_bytes for each in memory_of(plan)]
    at_s = 0.0
    for number, (step, parts) in enumerate(zip(plan.steps, step_costs(plan, topology)), 1):
        events.append(_slice(f"{number}: {step.text}", at_s, step.time_s, _STEPS, _arguments(step, parts)))
        events += _chunks(step, at_s)
        events.append(_counter(at_s, held[number - 1]))
        crossing_s = parts.latency_s + parts.transfer_s
        if parts.level is not None and parts.level.name in tracks:
            track = tracks[parts.level.name]
            events.append(
                _slice(f"{step.op}: latency", at_s, parts.latency_s, track, {"collectives": parts.collectives})
            )
            events.append(
                _slice(
                    f"{step.op}: transfer",
                    at_s + parts.latency_s,
                    parts.transfer_s,
                    track,
                    {"bytes_received": step.bytes_received},
                )
            )
        if parts.copies_s:
            events.append(_slice(step.op, at_s + crossing_s, parts.copies_s, copies, {}))
        at_s += step.time_s
    if held:
        events.append(_counter(at_s, 0))
    about = {
        "mesh": str(plan.mesh),
        "from": str(plan.source),
        "to": str(plan.target),
        "chain": plan.chain_text,
        "topology": plan.topology,
    }
    return trace_events.trace_of(events, about)


def _arguments(step: PlannedStep, parts: StepCost) -> dict:
    return {
        "bytes_received": step.bytes_received,
        "tile_bytes_before": step.tile_bytes_before,
        "tile_bytes_after": step.tile_bytes_after,
        "collectives": parts.collectives,
        "level": parts.level.name if parts.level else "",
    }


def _chunks(step: PlannedStep, start_s: float) -> list[dict]:
    """Returns the steps of each chunk of a loop, inside the slice of the loop.

    The rest of the slice is the time of the loop itself.
    """
    if not step.inside:
        return []
    assert isinstance(step.step, Chunked)  # no other step has steps inside
    count = step.step.count
    each_s = step.time_s / count
    events = []
    for chunk in range(min(count, MOST_CHUNKS)):
        at_s = start_s + chunk * each_s
        for inside in step.inside:
            events.append(
                _slice(
                    f"chunk {chunk + 1} of {count}: {inside.text}",
                    at_s,
                    inside.time_s,
                    _STEPS,
                    {"bytes_received": inside.bytes_received},
                )
            )
            at_s += inside.time_s
    return events


def _slice(name: str, start_s: float, length_s: float, track: int, arguments: dict) -> dict:
    return trace_events.slice_of(name, start_s, start_s + length_s, _PROCESS, track, arguments)


def _counter(at_s: float, num_bytes: int) -> dict:
    return trace_events.counter("memory per device", at_s, _PROCESS, {"bytes": num_bytes})


def _named(what: str, name: str, track: int = 0) -> dict:
    return trace_events.named(what, name, _PROCESS, track)
