# SPDX-License-Identifier: Apache-2.0
"""Why a plan is what it is: the layout after each step in digits, where the bounds come from, who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reshard.synthesis import cost, steps
from reshard.synthesis.blocks import Blocks, both_ends
from reshard.synthesis.layout import Factor, Layout, LayoutError, layout_of
from reshard.synthesis.mesh import Mesh
from reshard.synthesis.plan import Plan
from reshard.synthesis.topology import Topology
from reshard.tools.text_table import microseconds, table

if TYPE_CHECKING:
    from reshard.tools.reshard_plan import Answered

MOST_DEVICES_SHOWN = 32


def as_text(found: Answered) -> str:
    """Returns three sections: layouts, bounds, tiles."""
    plan = found.plan
    return "\n\n".join([_layouts(plan), _bounds(plan, found.topology), _tiles(plan)])


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
    rows += [(str(i), step.op, layout.text(plan.mesh)) for i, (step, layout) in enumerate(zip(plan.steps, found[1:]), 1)]
    legend = "layouts: each dimension's digits, major to minor; an axis owns its digit, a number is a local one"
    return f"{legend}\n\n" + table(("step", "", "layout"), rows, "rll")


def layouts(plan: Plan) -> list[Layout] | None:
    """Returns the layout before the first step and after each one; None if the plan's ends are not made of digits."""
    typed = [each.step for each in plan.steps]
    if plan.target_mesh is not None:
        return None
    try:
        layout = _cut(layout_of(plan.mesh, plan.shape, plan.source), _places(typed))
    except LayoutError:
        return None
    found = [layout]
    for step in typed:
        layout = steps.apply(layout, step)
        if layout is None:
            return None
        found.append(layout)
    return found


def _places(typed) -> list[tuple[str, int]]:
    """Returns (axis, place) for every place at which a step cuts an axis."""
    factors: list[Factor] = []
    for step in typed:
        match step:
            case steps.Slice(moves) | steps.AllToAll(moves):
                factors += [factor for factor, _ in moves]
            case steps.AllGather(gathered):
                factors += gathered
            case steps.Permute(after) | steps.Exchanged(_, after) if after is not None:
                factors += [factor for factor, _ in after.owners]
    return sorted({(f.axis, place) for f in factors for place in (f.pre, f.pre * f.size)})


def _cut(layout: Layout, places: list[tuple[str, int]]) -> Layout:
    """Returns the layout with its factors cut at the places of their axes; the elements stay where they are."""
    owners = []
    for factor, slot in layout.owners:
        start, stop = factor.pre, factor.pre * factor.size
        inside = [place for axis, place in places if axis == factor.axis and start < place < stop]
        for place in (*inside, stop):
            if place % start or stop % place:
                continue
            at = slot.start * (start // factor.pre)
            owners.append((Factor(factor.axis, start, place // start), type(slot)(slot.dim, at, at * (place // start))))
            start = place
    return Layout(layout.shape, tuple(owners))


# ---- bounds


def _bounds(plan: Plan, topology: Topology) -> str:
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
    ends = ((side.starts, side.stops) for side in (held, wanted))
    cut = cost.cut_bytes_bound(topology, *ends, plan.bits)
    for level in cut.levels:
        lines.append(
            f"  time: {level.bytes_into_unit:,} bytes have to enter one {level.name}, "
            f"which takes its ports {microseconds(level.seconds)}"
        )
    lines.append(f"  time: and {microseconds(cut.latency_s)} until the first byte arrives")
    return "\n".join(lines)


# ---- tiles


def _tiles(plan: Plan) -> str:
    if plan.devices > MOST_DEVICES_SHOWN:
        return f"tiles: {plan.devices} devices are too many to list; at most {MOST_DEVICES_SHOWN} are"
    held, wanted = _placements(plan)
    meshes = dict.fromkeys((plan.mesh, plan.goal_mesh))
    places = [_places_in_mesh(mesh) for mesh in meshes]
    rows = [
        (str(d), *(each.get(d, "-") for each in places), _box(held, d), _box(wanted, d)) for d in range(plan.devices)
    ]
    names = [",".join(mesh.axis_names) or "-" for mesh in meshes]
    pictures = [picture for title, side in (("before", held), ("after", wanted)) if (picture := _picture(title, side))]
    tiles = table(("device", *names, "before", "after"), rows, "r" + "l" * (2 + len(names)))
    return "\n\n".join(["tiles:", tiles, *pictures])


def _placements(plan: Plan) -> tuple[Blocks, Blocks]:
    return both_ends(plan.mesh, plan.shape, plan.source, plan.target, plan.target_mesh)


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
    grid = [
        (_range_text(row), *(_holders(blocks, {down: row, across: column}) for column in columns))
        for row in rows
    ]
    where = f"dim {down} down, dim {across} across" if down is not None else f"dim {across} across"
    return f"{title}, {where}: the devices that hold each block\n\n" + table(
        ("", *map(_range_text, columns)), grid, "r" + "l" * len(columns)
    )


def _ranges(blocks: Blocks, dim: int | None) -> list[tuple[int, int] | None]:
    """Returns the intervals into which a dimension is split, [None] for no dimension."""
    if dim is None:
        return [None]
    full = blocks.elements > 0
    return sorted(set(zip(blocks.starts[full, dim].tolist(), blocks.stops[full, dim].tolist())))


def _range_text(interval: tuple[int, int] | None) -> str:
    return "" if interval is None else f"{interval[0]}:{interval[1]}"


def _holders(blocks: Blocks, intervals: dict[int | None, tuple[int, int] | None]) -> str:
    holds = blocks.elements > 0
    for dim, interval in intervals.items():
        if dim is not None:
            holds = holds & (blocks.starts[:, dim] == interval[0]) & (blocks.stops[:, dim] == interval[1])
    return " ".join(map(str, np.flatnonzero(holds).tolist()))
