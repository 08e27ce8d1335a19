# SPDX-License-Identifier: Apache-2.0
"""A plan in detail: its reasons, the layout after each step, the origin of its bounds, and the tile of each device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reshard.synthesis.common.numbers import microseconds
from reshard.synthesis.common.text_table import table
from reshard.synthesis.layouts.blocks import Blocks, both_ends
from reshard.synthesis.layouts.layout import coordinates, unreduced_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network import cut_bounds
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.plans.plan_layouts import layouts
from reshard.tools.commands.why import as_text as reasons

if TYPE_CHECKING:
    from reshard.tools.commands.plan import Answered

MOST_DEVICES_SHOWN = 32


def as_text(found: Answered) -> str:
    """Returns the explanation of a plan in four sections: reasons, layouts, bounds, tiles."""
    plan = found.plan
    return "\n\n".join([reasons(found), _layouts(plan), _bounds(plan, found.topology), _tiles(plan)])


# ---- layouts


def _layouts(plan: Plan) -> str:
    found = layouts(plan)
    if found is None:
        tiles = (list(plan.tile_program.in_shape), list(plan.tile_program.out_shape))
        return (
            "layouts: dimensions that do not divide, axes in two radices and two meshes have no common digits; "
            f"tile {tiles[0]} becomes {tiles[1]}"
        )
    rows = [("", "source", found[0].text(plan.mesh))]
    rows += [
        (str(i), step.op, layout.text(plan.mesh)) for i, (step, layout) in enumerate(zip(plan.steps, found[1:]), 1)
    ]
    legend = "layouts: each dimension's digits, major to minor; an axis owns its digit, a number is a local one"
    return f"{legend}\n\n" + table(("step", "", "layout"), rows, "rll")


# ---- bounds


def _bounds(plan: Plan, topology: Topology) -> str:
    if plan.source.unreduced or plan.target.unreduced:
        return _bounds_of_sums(plan)
    held, wanted = _placements(plan)
    common = np.maximum(0, np.minimum(held.stops, wanted.stops) - np.maximum(held.starts, wanted.starts)).prod(axis=1)
    device = int(np.argmax(wanted.elements - common))
    needs, has = int(wanted.elements[device]), int(common[device])
    lines = ["bounds, whatever the method:"]
    if needs == has:
        return f"{lines[0]} every device has what it needs; nothing has to move"
    lines.append(
        f"  received: device {device} needs {needs:,} elements in the end and has {has:,} of them; the other "
        f"{needs - has:,} are {plan.bound_bytes:,} bytes"
    )
    ends = (held.starts, held.stops), (wanted.starts, wanted.stops)
    cut = cut_bounds.cut_bytes_bound(topology, *ends, plan.bits)
    for level in cut.levels:
        lines.append(
            f"  time: {level.bytes_into_unit:,} bytes have to enter one {level.name}, "
            f"which takes its ports {microseconds(level.seconds)}"
        )
    lines.append(f"  time: and {microseconds(cut.latency_s)} until the first byte arrives")
    return "\n".join(lines)


def _bounds_of_sums(plan: Plan) -> str:
    ends = (plan.mesh, plan.source), (plan.goal_mesh, plan.target)
    before, after = (math.prod(axis.resolve(mesh)[1] for axis in side.unreduced) for mesh, side in ends)
    sums = [f"{each} partial sum{'s' * (each > 1)}" if each > 1 else "itself" for each in (before, after)]
    return "\n".join(
        [
            "bounds, whatever the method:",
            f"  received: each element is {sums[0]} in the source and {sums[1]} in the target; the transfers that "
            f"this takes, "
            f"shared among all devices, are {plan.bound_bytes:,} bytes (docs/theory.md, section 4)",
            f"  time: {microseconds(plan.bound_time_s)}",
        ]
    )


# ---- tiles


def _tiles(plan: Plan) -> str:
    if plan.devices > MOST_DEVICES_SHOWN:
        return f"tiles: {plan.devices} devices are too many to list; at most {MOST_DEVICES_SHOWN} are"
    meshes = plan.mesh, plan.goal_mesh
    held, wanted = ends = _placements(plan)
    of_sum = [_sum_of_each_device(mesh, side) for mesh, side in zip(meshes, (plan.source, plan.target))]
    places = [_places_in_mesh(mesh) for mesh in dict.fromkeys(meshes)]
    rows = [
        (
            str(d),
            *(each.get(d, "-") for each in places),
            *(_box(end, d) + sums.get(d, "") for end, sums in zip(ends, of_sum)),
        )
        for d in range(plan.devices)
    ]
    names = [",".join(mesh.axis_names) or "-" for mesh in dict.fromkeys(meshes)]
    pictures = [picture for title, side in (("before", held), ("after", wanted)) if (picture := _picture(title, side))]
    tiles = table(("device", *names, "before", "after"), rows, "r" + "l" * (2 + len(names)))
    return "\n\n".join(["tiles:", tiles, *pictures])


def _placements(plan: Plan) -> tuple[Blocks, Blocks]:
    return both_ends(plan.mesh, plan.shape, plan.source, plan.target, plan.target_mesh)


def _sum_of_each_device(mesh: Mesh, side: Sharding) -> dict[int, str]:
    """Returns for each device which partial sum it holds, e.g. ` of sum 2`; empty texts without partial sums."""
    factors = unreduced_factors(mesh, side)
    number = np.zeros(mesh.size, np.int64)
    for factor in factors:
        number = number * factor.size + coordinates(mesh, factor)
    return {mesh.device_at(i): f" of sum {number[i]}" if factors else "" for i in range(mesh.size)}


def _places_in_mesh(mesh: Mesh) -> dict[int, str]:
    """Returns the coordinates of each device along the mesh axes, e.g. `3,1`."""
    sizes = [size for _, size in mesh.axes]
    return {mesh.device_at(i): ",".join(map(str, position)) for i, position in enumerate(np.ndindex(*sizes))}


def _box(blocks: Blocks, device: int) -> str:
    if not blocks.elements[device]:
        return "nothing"
    bounds = zip(blocks.starts[device].tolist(), blocks.stops[device].tolist())
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in bounds) + "]"


def _picture(title: str, blocks: Blocks) -> str | None:
    """Returns a grid of the blocks with the devices that hold each; None unless one or two dimensions are split."""
    split = [dim for dim in range(len(blocks.shape)) if blocks.tile_shape[dim] != blocks.shape[dim]]
    if not 1 <= len(split) <= 2:
        return None
    down, across = split if len(split) == 2 else (None, split[0])
    rows, columns = (_ranges(blocks, dim) for dim in (down, across))
    grid = [(_range_text(row), *(_holders(blocks, {down: row, across: column}) for column in columns)) for row in rows]
    where = f"dim {down} down, dim {across} across" if down is not None else f"dim {across} across"
    return f"{title}, {where}: the devices that hold each block\n\n" + table(
        ("", *map(_range_text, columns)), grid, "r" + "l" * len(columns)
    )


def _ranges(blocks: Blocks, dim: int | None) -> Sequence[tuple[int, int] | None]:
    """Returns the intervals into which a dimension is split, or [None] if `dim` is None."""
    if dim is None:
        return [None]
    full = blocks.elements > 0
    return sorted(set(zip(blocks.starts[full, dim].tolist(), blocks.stops[full, dim].tolist())))


def _range_text(interval: tuple[int, int] | None) -> str:
    return "" if interval is None else f"{interval[0]}:{interval[1]}"


def _holders(blocks: Blocks, intervals: dict[int | None, tuple[int, int] | None]) -> str:
    holds = blocks.elements > 0
    for dim, interval in intervals.items():
        if dim is not None and interval is not None:
            holds = holds & (blocks.starts[:, dim] == interval[0]) & (blocks.stops[:, dim] == interval[1])
    return " ".join(map(str, np.flatnonzero(holds).tolist()))
