# SPDX-License-Identifier: Apache-2.0
"""A plan as text for people. Bytes are those of the busiest device; times are modelled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reshard.synthesis.common.numbers import bandwidth, count, counted, microseconds, ratio, time_text
from reshard.synthesis.common.text_table import first_line, table
from reshard.synthesis.explain.proofs import proof_of
from reshard.synthesis.layouts.partition_specs import text_of
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan, PlannedStep
from reshard.synthesis.plans.plan_json import bound_bytes_sent, bound_tile_bytes

if TYPE_CHECKING:
    from reshard.tools.commands.plan import Answered

MOST_CHARACTERS = 120  # shown of the chain of a rejected alternative


def as_text(found: Answered) -> str:
    """Returns the plan as text: head, chain, steps, totals, topology, then the optional parts that are present.

    The optional parts are rejected alternatives, Pareto list, comparison and verdict.
    """
    plan = found.plan
    parts = [_head(plan), *([_steps(plan)] if plan.steps else []), _totals(plan), _facts(found)]
    if found.rejected:
        parts.append(_rejected(found))
    if found.pareto:
        parts.append(_pareto(found.pareto))
    if found.answers:
        parts.append(_comparison(found))
    if found.verdict:
        parts.append(found.verdict.text + _peak_of(found))
    return "\n\n".join(parts)


def _head(plan: Plan) -> str:
    dims = ",".join(map(str, plan.shape))
    devices = counted(plan.devices, "device")
    to_mesh = f" on {plan.target_mesh}" if plan.target_mesh else ""
    ends = [("from: ", plan.source, ""), ("to:   ", plan.target, to_mesh)]
    return "\n".join(
        [
            f"{plan.dtype}[{dims}] on {plan.mesh}, {devices}",
            *in_both_spellings([(f"{word} {end}{mesh}", text_of(end)) for word, end, mesh in ends]),
            f"chain: {plan.chain_text}",
        ]
    )


def in_both_spellings(lines: list[tuple[str, str | None]]) -> list[str]:
    """Returns lines with the same layouts in JAX's spelling behind them, one below the other, if the width allows.

    Args:
      lines: each with its layout as JAX writes it; None where JAX has no text for it.
    """
    width = max(len(line) for line, _ in lines)
    if any(spec and width + 2 + len(spec) > MOST_CHARACTERS for _, spec in lines):
        return [line for line, _ in lines]
    return [f"{line:<{width}}  {spec}" if spec else line for line, spec in lines]


def _steps(plan: Plan) -> str:
    headings = ("step", "what", "tile before", "after", "received", "time")
    rows = []
    for number, step in enumerate(plan.steps, 1):
        rows.append((str(number), _what(step), *_costs(step)))
        rows += [("", f"  {each.text}", *_costs(each)) for each in step.inside]
    return table(headings, rows, "rlrrrr")


def _what(step: PlannedStep) -> str:
    """Returns the step's text; for chunks only their number.

    The steps inside of chunks have rows of their own, with the costs of one chunk.
    """
    return f"{step.text.split(':')[0]}, each:" if step.inside else step.text


def _costs(step: PlannedStep) -> tuple[str, ...]:
    tiles = (step.tile_bytes_before, step.tile_bytes_after)
    return (*map(count, tiles), count(step.bytes_received), microseconds(step.time_s))


def _pareto(plans: tuple[Plan, ...]) -> str:
    """Returns the table of the Pareto list, one row per plan."""
    rows = [
        (each.chain_text, microseconds(each.time_s), count(each.bytes_received), count(each.peak_bytes))
        for each in plans
    ]
    return table(("time against peak", "time", "received", "peak"), rows, "lrrr")


def _totals(plan: Plan) -> str:
    numbers = [
        ("bytes received", plan.bytes_received, plan.bound_bytes),
        ("bytes sent", plan.bytes_sent, bound_bytes_sent(plan)),
        ("largest tile, bytes", plan.largest_tile_bytes, bound_tile_bytes(plan)),
    ]
    rows = [(what, count(mine), count(bound), ratio(mine, bound)) for what, mine, bound in numbers]
    time = ("time", microseconds(plan.time_s), microseconds(plan.bound_time_s), ratio(plan.time_s, plan.bound_time_s))
    return table(("busiest device", "plan", "bound", "ratio"), [*rows, time], "lrrr")


def _facts(found: Answered) -> str:
    plan = found.plan
    runs = counted(plan.collectives, "collective")
    return "\n".join([f"{runs}; peak {plan.peak_bytes:,} bytes; {_proof(plan)}", topology_text(found.topology)])


def _proof(plan: Plan) -> str:
    proof = proof_of(plan)
    return proof.text if proof else f"how far from the least {plan.objective} is not proved"


def topology_text(topology: Topology) -> str:
    """Returns the topology in one line, e.g. `topology: h100, 4 node x 8 gpu; node: switch, 50 GB/s, ...`."""
    levels = "; ".join(
        f"{level.name}: {level.kind}, {bandwidth(level.bandwidth_bytes_per_s)}, {time_text(level.latency_s)}"
        for level in topology.levels
        if level.size > 1
    )
    return f"topology: {topology.name}, {topology.shape_text}" + (f"; {levels}" if levels else "")


def _rejected(found: Answered) -> str:
    headings = ("rejected", "received", "time", "peak", "collectives", "why")
    rows = [
        (
            each.way,
            count(plan.bytes_received),
            microseconds(plan.time_s),
            count(plan.peak_bytes),
            count(plan.collectives),
            each.reason,
        )
        for each in found.rejected
        for plan in (each.plan,)
    ]
    chains = [f"  {each.way}: {_clipped(each.plan.chain_text)}" for each in found.rejected]
    return "\n".join([table(headings, rows, "lrrrrl"), "", *chains])


def _clipped(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 4] + " ..."


def _comparison(found: Answered) -> str:
    """Returns the table of the answers, one row each. A time includes the copies on the device."""
    headings = ("", "received", "time", "in collectives", "temporaries", "collectives", "status")
    rows = []
    for each in found.answers:
        status = f"{each.status}: {first_line(each.message, 120)}" if each.message else each.status
        numbers = (
            count(each.bytes_received),
            microseconds(each.time_s(found.topology)),
            microseconds(each.collectives_time_s(found.topology)),
            count(each.temp_bytes),
        )
        rows.append((each.name, *numbers, each.kinds_text if each.is_ok else "-", status))
    return table(headings, rows, "lrrrrll")


def _peak_of(found: Answered) -> str:
    peak = found.verdict and found.verdict.peak_bytes
    return "" if peak is None else f"; XLA's own peak is {peak:,} bytes"
