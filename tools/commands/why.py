# SPDX-License-Identifier: Apache-2.0
"""Explains a chain: the purpose of each step, the level of the network that it crosses, its distance to the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reshard.synthesis.common.numbers import bandwidth, count, counted, microseconds, ratio
from reshard.synthesis.common.text_table import table
from reshard.synthesis.explain.step_costs import StepCost, step_costs
from reshard.synthesis.layouts.blocks import both_ends
from reshard.synthesis.layouts.layout import Factor, Layout, Slot
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network import bounds, cut_bounds
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.plans.plan_layouts import layouts
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.tile_program import On

if TYPE_CHECKING:
    from reshard.tools.commands.plan import Answered


def as_text(found: Answered) -> str:
    """Returns two sections: the steps with their purposes, and the distance to the bounds.

    For the empty chain it returns one line, which says that source and target are alike.
    """
    plan, topology = found.plan, found.topology
    if not plan.steps:
        return "why this chain: source and target place everything alike"
    costs = step_costs(plan, topology)
    return "\n\n".join([_purposes(plan, costs), _gap(plan, topology, costs)])


# ---- steps


def _purposes(plan: Plan, costs: tuple[StepCost, ...]) -> str:
    at = layouts(plan)
    rows = []
    for number, (step, parts, mesh) in enumerate(zip(plan.steps, costs, _meshes(plan)), 1):
        before, after = (at[number - 1], at[number]) if at else (None, None)
        purpose = _purpose(mesh, step.step, before, after, at[-1] if at else None, is_last=number == len(plan.steps))
        share = f"{step.time_s / plan.time_s:.0%}" if plan.time_s else "-"
        rows.append((str(number), step.op, _crosses(parts), microseconds(step.time_s), share, purpose))
    return table(("why", "this chain", "crosses", "time", "share", "what it is for"), rows, "rllrrl")


def _meshes(plan: Plan) -> Iterator[Mesh]:
    """Yields for each step the mesh that has its axes."""
    mesh = plan.mesh
    for _, operations in plan.tile_program.steps:
        mesh = next((each.mesh for each in operations if isinstance(each, On)), mesh)
        yield mesh


def _crosses(parts: StepCost) -> str:
    return "-" if parts.level is None else f"{parts.level.name}, {bandwidth(parts.level.bandwidth_bytes_per_s)}"


# For steps that move factors to digits: the effect on factors that reach their place in the target, and on the others.
_MOVES = {
    steps.Slice: (
        "keeps the part of {dims} that the target has along {axes}",
        "makes tiles smaller along {axes} for the steps behind it",
    ),
    steps.AllToAll: ("brings {axes} to the place that the target names", "moves {axes} out of the way"),
    steps.ReduceScatter: (
        "adds up the sums along {axes}, each device the part that the target gives it",
        "adds up the sums along {axes}, each device a part",
    ),
}


def _purpose(
    mesh: Mesh, step: steps.Step, before: Layout | None, after: Layout | None, goal: Layout | None, *, is_last: bool
) -> str:
    """Returns the purpose of a step in words."""
    match step:
        case steps.Relayout():
            return (
                "puts the tile's elements in order"
                if is_last
                else "puts the tile's elements in the order in which the next step takes them"
            )
        case steps.Chunked(dim, count):
            return f"does it on one of {count} slices of dim {dim} after the other, which needs less memory at a time"
        case steps.Exchanged():
            return "fetches what each device lacks, each piece from a device that has it"
        case steps.Reorder():
            return "hands tiles whole to the devices that have their place in the other mesh"
        case steps.Permute() if after == goal:
            return "hands blocks to the devices that the target names"
        case steps.Permute():
            return "lets other axes own the blocks, so that they can move on"
        case steps.Slice(moves) | steps.AllToAll(moves) | steps.ReduceScatter(moves):
            return _sorted_by_goal(mesh, moves, goal, *_MOVES[type(step)])
        case steps.AllReduce(factors):
            return f"adds up the sums along {steps.factors_text(factors, mesh)}, on all devices"
        case steps.ToUnreduced(factors):
            return f"lets the tiles along {steps.factors_text(factors, mesh)} be partial sums, with zeros elsewhere"
        case steps.AllGather(factors):
            return _purpose_of_gather(mesh, factors, goal)
    raise TypeError(step)


def _purpose_of_gather(mesh: Mesh, factors: tuple[Factor, ...], goal: Layout | None) -> str:
    said = []
    if wanted := [each for each in factors if goal is None or goal.slot_of(each) is None]:
        said.append(f"the target has the whole along {steps.factors_text(wanted, mesh)}")
    if others := [each for each in factors if each not in wanted]:
        said.append(f"takes {steps.factors_text(others, mesh)} off its digit, to own another one")
    return "; ".join(said)


def _sorted_by_goal(
    mesh: Mesh, moves: tuple[tuple[Factor, Slot], ...], goal: Layout | None, arrived: str, aside: str
) -> str:
    """Returns in words a step's effect on the factors that reach their place in the target, and on the others."""
    said = []
    for words, is_there in ((arrived, True), (aside, False)):
        chosen = [
            (factor, slot) for factor, slot in moves if (goal is not None and goal.slot_of(factor) == slot) == is_there
        ]
        if chosen:
            axes, dims = (
                steps.factors_text([factor for factor, _ in chosen], mesh),
                sorted({slot.dim for _, slot in chosen}),
            )
            dims_text = f"dim{'s' * (len(dims) > 1)} {', '.join(map(str, dims))}"
            said.append(words.format(axes=axes, dims=dims_text))
    return "; ".join(said)


# ---- distance to the bounds


def _gap(plan: Plan, topology: Topology, costs: tuple[StepCost, ...]) -> str:
    lines = [
        f"distance to the bounds: received {_of(plan.bytes_received, plan.bound_bytes)}, time "
        f"{_of(plan.time_s, plan.bound_time_s)}"
    ]
    lines += _byte_lines(plan)
    if plan.time_s:
        lines.append(f"  time: {_parts(plan, topology, costs)}")
    return "\n".join(lines)


def _of(mine: float, bound: float) -> str:
    return "at the bound" if mine == bound else f"{ratio(mine, bound)} x the bound" if bound else "above a bound of 0"


def _byte_lines(plan: Plan) -> list[str]:
    """Returns a line for each step that receives more bytes than the target comes closer by.

    The neediest device counts: the one that lacks most elements of its target tile.
    """
    if plan.bytes_received <= plan.bound_bytes:
        return ["  received: no method has the busiest device receive less"]
    at = layouts(plan)
    if plan.source.unreduced or plan.target.unreduced:
        return ["  received: the bound on partial sums is loose, see docs/theory.md, section 4"]
    if at is None:
        return [
            f"  received: pieces are padded to one shape per round: {plan.bytes_received - plan.bound_bytes:,} bytes"
        ]
    known = [bounds.lacking_elements(plan.mesh, layout, at[-1]) for layout in at]
    lacking = [each for each in known if each is not None]
    if len(lacking) < len(known):
        return []
    lines = []
    for number, (step, lacked, lacks) in enumerate(zip(plan.steps, lacking, lacking[1:]), 1):
        closer = -(-(lacked - lacks) * plan.bits // 8)
        if step.bytes_received > closer:
            lines.append(
                f"  received: step {number} receives {count(step.bytes_received)} bytes and brings the target "
                f"{count(closer)} closer: "
                + ("it undoes more than it does" if closer < 0 else "the rest is passed on later, or was here before")
            )
    return lines


def _parts(plan: Plan, topology: Topology, costs: tuple[StepCost, ...]) -> str:
    latency_s, transfer_s, copies_s = (
        sum(getattr(each, part) for each in costs) for part in ("latency_s", "transfer_s", "copies_s")
    )
    mine = (
        f"{microseconds(latency_s)} to start {counted(plan.collectives, 'collective')}, "
        f"{microseconds(transfer_s)} for bytes, {microseconds(copies_s)} for copies on the device"
    )
    if plan.source.unreduced or plan.target.unreduced:
        return mine
    sides = both_ends(plan.mesh, plan.shape, plan.source, plan.target, plan.target_mesh)
    (start, goal) = ((side.starts, side.stops) for side in sides)
    bound = cut_bounds.cut_bytes_bound(topology, start, goal, plan.bits)
    return (
        f"{mine}; the bound has {microseconds(bound.latency_s)}, {microseconds(bound.seconds)} and nothing for copies"
    )
