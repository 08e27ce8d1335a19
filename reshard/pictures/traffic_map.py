# SPDX-License-Identifier: Apache-2.0
"""The traffic of a plan: bytes between devices, bytes that enter each unit of each level, and the load of each link.

The bytes of a collective count as sent directly from the device that has them to the device that gets them. On a ring
or torus they take the shortest way, one dimension after the other. A library that passes pieces on in a ring loads
other links with the same bytes.

>>> from reshard.planning.entry import plan
>>> from reshard.synthesis.network.topology import Topology
>>> found = plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=4", shape=(64, 64), topology="h100:2x2")
>>> print(as_text(traffic_of(found, Topology.parse("h100:2x2"))))
traffic, in bytes, as sent straight to whom it is for
  node  switch, 50 GB/s: enters the busiest of 2 units 4,096, the idlest 4,096
  gpu   switch, 450 GB/s: enters the busiest of 4 units 1,024, the idlest 1,024
  from 0: 1,024 to 1 2 3
  from 1: 1,024 to 0 2 3
  from 2: 1,024 to 0 1 3
  from 3: 1,024 to 0 1 2
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reshard.pictures.colours import heat
from reshard.pictures.markup import Markup, element, joined
from reshard.synthesis.common.numbers import bandwidth, bytes_text
from reshard.synthesis.network.cost import network_of
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.programs.tile_program import collectives_by_step
from reshard.synthesis.programs.traffic import Collective, received_in_group

MOST_BINS = 32
MOST_COLUMNS, MOST_ROWS = 32, 16  # of units
MOST_PAIRS = 1 << 20  # that are routed along links
MOST_NODES = 256  # of a grid that is drawn


@dataclass(frozen=True, slots=True, eq=False)
class LevelTraffic:
    """One level of the network.

    Attributes:
      level: the level of the topology. around: the number of units of the next outer level.
      entering: bytes that come into each unit from others of the same surrounding unit, float64 (units,).
      links: for a ring or a torus, the bytes on the link from each node to the next one of each dimension, in the
        fuller direction; float64 (dimensions, units). None if there are too many pairs to route.
    """

    level: Level
    around: int
    entering: np.ndarray
    links: np.ndarray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """All bytes that a plan sends.

    Attributes:
      between: the bytes from each bin of devices to each other bin, float64 (bins, bins). The devices of a bin are
        neighbours in the network.
      devices_per_bin: the number of devices in a bin. levels: outer to inner, without levels of one unit.
    """

    between: np.ndarray
    devices_per_bin: int
    devices: int
    levels: tuple[LevelTraffic, ...]


def traffic_of(plan: Plan, topology: Topology) -> Traffic:
    """Returns the bytes of all steps of a plan on the network that it was made for."""
    network = network_of(topology, plan.devices)
    flows = [each for own in collectives_by_step(plan.tile_program, plan.bits) for each in own]
    per_bin = -(-plan.devices // MOST_BINS)
    between = np.zeros((-(-plan.devices // per_bin),) * 2)
    for positions, each_way, pairs in _flows(flows, network):
        _add_between(between, positions // per_bin, each_way, pairs)
    levels = tuple(_of_level(view, network, flows) for view in network.views)
    return Traffic(between, per_bin, plan.devices, levels)


def _flows(collectives: list[Collective], network) -> Iterator[tuple[np.ndarray, float, bool]]:
    """Yields (positions, bytes, are pairs) for each group and each set of pairs of the collectives.

    The positions are the members of a group, each of which sends these bytes to each other member; or they are rows
    (from, to), and each row sends these bytes.
    """
    for each in collectives:
        if each.pairs:
            pairs = network.positions_of(np.array(each.pairs))
            yield pairs[pairs[:, 0] != pairs[:, 1]], float(each.bytes_before * each.trip_count), True
        for group in each.groups:
            if len(group) > 1:
                received = received_in_group(each, len(group)) * each.trip_count
                yield network.positions_of(np.array(group)), received / (len(group) - 1), False


def _add_between(between: np.ndarray, bins: np.ndarray, num_bytes: float, are_pairs: bool) -> None:
    if are_pairs:
        np.add.at(between, (bins[:, 0], bins[:, 1]), num_bytes)
    else:
        counts = np.bincount(bins, minlength=len(between)).astype(float)
        between += num_bytes * (np.outer(counts, counts) - np.diag(counts))


def _of_level(view, network, collectives: list[Collective]) -> LevelTraffic:
    size = view.level.size
    entering = np.zeros(network.size // view.unit)
    pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    routed = 0
    for positions, num_bytes, are_pairs in _flows(collectives, network):
        units = positions // view.unit
        if are_pairs:
            meets = (units[:, 0] // size == units[:, 1] // size) & (units[:, 0] != units[:, 1])
            np.add.at(entering, units[meets, 1], num_bytes)
            here, there, weight = units[meets, 0], units[meets, 1], np.full(int(meets.sum()), num_bytes)
        else:
            parts, counts = np.unique(units, return_counts=True)
            _, surrounding = np.unique(parts // size, return_inverse=True)
            together = np.bincount(surrounding, weights=counts)[surrounding]
            entering[parts] += num_bytes * counts * (together - counts)
            if not view.is_grid or len(parts) ** 2 + routed > MOST_PAIRS:
                here = there = weight = np.zeros(0, np.int64)
                routed += len(parts) ** 2
            else:
                one, other = (
                    each.ravel() for each in np.meshgrid(np.arange(len(parts)), np.arange(len(parts)), indexing="ij")
                )
                meet = (surrounding[one] == surrounding[other]) & (one != other)
                here, there = parts[one[meet]], parts[other[meet]]
                weight = num_bytes * counts[one[meet]] * counts[other[meet]]
        routed += len(here)
        pairs.append((here, there, weight))
    links = None
    if view.is_grid and routed <= MOST_PAIRS and pairs:
        here, there, weight = (np.concatenate([np.zeros(0, np.int64), *column]) for column in zip(*pairs))
        links = _links(view, here, there, weight, len(entering))
    return LevelTraffic(view.level, len(entering) // size, entering, links)


def _links(view, here: np.ndarray, there: np.ndarray, num_bytes: np.ndarray, units: int) -> np.ndarray:
    """Returns for each dimension the bytes on the link from each unit upwards, in the fuller direction."""
    here, there = here.astype(np.int64), there.astype(np.int64)
    around, dims = here // view.level.size, view.level.dims
    at, goal = list(view.nodes(here)), view.nodes(there)
    loads = np.zeros((len(dims), 2, units))
    for dim, size in enumerate(dims):
        up, down = (goal[dim] - at[dim]) % size, (at[dim] - goal[dim]) % size
        if view.level.wraps[dim]:
            shares = (np.where(up == down, 0.5, up < down), np.where(up == down, 0.5, down < up))
        else:
            shares = ((goal[dim] > at[dim]).astype(float), (goal[dim] < at[dim]).astype(float))
        for direction, (hops, share) in enumerate(zip((up, down), shares)):
            node = at[dim].copy()
            for hop in range(int((hops * (share > 0)).max(initial=0))):
                goes = (hop < hops) & (share > 0)
                link = node if direction == 0 else (node - 1) % size  # a link belongs to its lower end
                unit = around * view.level.size + np.ravel_multi_index([*at[:dim], link, *at[dim + 1 :]], dims)
                np.add.at(loads[dim, direction], unit[goes], (num_bytes * share)[goes])
                node = (node + (1 if direction == 0 else -1)) % size
        at[dim] = goal[dim]
    return loads.max(axis=1)


# ---- text


def as_text(found: Traffic) -> str:
    """Returns a line per level, with the busiest unit and link, then the bytes from each device to the others."""
    lines = ["traffic, in bytes, as sent straight to whom it is for"]
    width = max((len(each.level.name) for each in found.levels), default=0)
    for each in found.levels:
        most, least = each.entering.max(), each.entering.min()
        line = f"  {each.level.name:<{width}}  {each.level.kind}, {bandwidth(each.level.bandwidth_bytes_per_s)}: "
        line += f"enters the busiest of {len(each.entering)} units {most:,.0f}, the idlest {least:,.0f}"
        if each.links is not None:
            line += "; on the busiest link along " + ", along ".join(
                f"dim {dim} {load.max():,.0f}" for dim, load in enumerate(each.links)
            )
        lines.append(line)
    if not found.between.any():
        return "traffic: nothing is sent"
    if found.devices_per_bin > 1:
        lines.append(f"  between groups of {found.devices_per_bin} devices:")
    return "\n".join(
        [*lines, *(line for source, row in enumerate(found.between.tolist()) for line in _sent_text(source, row))]
    )


def _sent_text(source: int, row: list[float]) -> Iterator[str]:
    """Yields a line for each amount that one device sends, the largest first."""
    for num_bytes in sorted({each for each in row if each}, reverse=True):
        targets = " ".join(str(target) for target, each in enumerate(row) if each == num_bytes)
        yield f"  from {source}: {num_bytes:,.0f} to {targets}"


# ---- pictures


def between_picture(found: Traffic) -> tuple[float, float, Markup]:
    """Returns width, height and the matrix of the bytes from each device, or bin of devices, to each other."""
    count, most = len(found.between), found.between.max(initial=0)
    cell = 12.0 if count > 16 else 18.0 if count > 8 else 26.0
    left, top = 46.0, 40.0
    drawn = [
        element("text", "to \N{RIGHTWARDS ARROW}", x=left, y=14, class_="soft"),
        element("text", "from \N{DOWNWARDS ARROW}", x=0, y=top - 7, class_="soft"),
    ]
    step = 1 if cell > 12 else 4
    for i in range(0, count, step):
        drawn.append(element("text", i, x=left + (i + 0.5) * cell, y=top - 7, class_="mid soft"))
        drawn.append(element("text", i, x=left - 6, y=top + (i + 0.5) * cell + 4, class_="end soft"))
    for source, row in enumerate(found.between.tolist()):
        for target, num_bytes in enumerate(row):
            fill, _ = heat(num_bytes / most if most else 0)
            title = element("title", f"from {source} to {target}: {num_bytes:,.0f} bytes")
            drawn.append(
                element(
                    "rect",
                    title,
                    x=left + target * cell,
                    y=top + source * cell,
                    width=cell - 1,
                    height=cell - 1,
                    style=f"fill:{fill}",
                )
            )
    wide, high = left + count * cell + 4, top + count * cell + 30
    drawn.append(_scale(left, top + count * cell + 8, most))
    return max(wide, left + 250), high, joined(drawn)


def level_picture(each: LevelTraffic) -> tuple[float, float, Markup]:
    """Returns width, height and a heat map of one level: its units, or the links of its grid."""
    if not each.entering.any():
        return 250.0, 20.0, element("text", "nothing crosses this level", x=0, y=14, class_="soft")
    if each.links is not None and len(each.entering) <= MOST_NODES:
        return _grid(each)
    columns = min(each.level.size, MOST_COLUMNS)
    rows = min(each.around, MOST_ROWS)
    by_row = each.entering.reshape(each.around, each.level.size)
    most = each.entering.max(initial=0)
    cell = 46.0 if columns <= 12 else 24.0
    drawn = []
    for row in range(rows):
        around = by_row[row * each.around // rows : max(row * each.around // rows + 1, (row + 1) * each.around // rows)]
        for column in range(columns):
            first, last = column * each.level.size // columns, (column + 1) * each.level.size // columns
            num_bytes = around[:, first : max(first + 1, last)].max()
            fill, ink = heat(num_bytes / most if most else 0)
            title = element("title", f"{each.level.name} {row * each.level.size + first}: {num_bytes:,.0f} bytes enter")
            x, y = column * cell, row * 26.0
            drawn.append(element("rect", title, x=x + 1, y=y + 1, width=cell - 2, height=24, style=f"fill:{fill}"))
            if cell > 40:
                drawn.append(
                    element(
                        "text",
                        _short(num_bytes),
                        x=x + cell / 2,
                        y=y + 17,
                        class_="mid",
                        style=f"fill:{ink};font-size:10px",
                    )
                )
    drawn.append(_scale(0, rows * 26 + 8, most))
    return max(columns * cell, 250.0), rows * 26 + 30, joined(drawn)


def _grid(each: LevelTraffic) -> tuple[float, float, Markup]:
    *outer, columns = each.level.dims
    assert each.links is not None  # else it is no grid
    rows = outer[-1] if outer else 1
    links = each.links
    sheets = math.prod(outer[:-1]) * each.around
    pitch, most = 30.0, links.max(initial=0)
    wide, high = columns * pitch + 26, rows * pitch + 26
    across = max(1, min(sheets, int(640 // wide)))
    drawn = []
    for sheet in range(sheets):
        x, y = sheet % across * wide, sheet // across * high
        drawn.append(
            element("g", _sheet(each, sheet, rows, columns, pitch, most), transform=f"translate({x:.0f} {y:.0f})")
        )
    down = -(-sheets // across) * high
    drawn.append(_scale(8, down + 6, most))
    return max(across * wide, 260.0), down + 30, joined(drawn)


def _sheet(each: LevelTraffic, sheet: int, rows: int, columns: int, pitch: float, most: float) -> Markup:
    loads = each.links
    assert loads is not None  # else it is no grid
    links, nodes = [], []
    for row in range(rows):
        for column in range(columns):
            unit = (sheet * rows + row) * columns + column
            x, y = 24 + column * pitch, 18 + row * pitch
            ways = [(len(each.level.dims) - 1, pitch if column < columns - 1 else -14.0, 0.0)]
            if rows > 1:
                ways.append((len(each.level.dims) - 2, 0.0, pitch if row < rows - 1 else -14.0))
            for dim, over, under in ways:
                num_bytes = loads[dim, unit]
                is_around = over < 0 or under < 0
                if is_around and not each.level.wraps[dim]:
                    continue
                fill, _ = heat(num_bytes / most if most else 0)
                # the link around the end leaves on the far side
                over, under = (abs(over), abs(under)) if is_around else (over, under)
                around = " around the end" if is_around else ""
                title = element("title", f"{each.level.name} {unit}, dim {dim}: {num_bytes:,.0f} bytes{around}")
                ends = {"x1": x, "y1": y, "x2": x + over, "y2": y + under}
                dashes = "3 2" if is_around else None
                links.append(element("line", **ends, style="stroke:var(--soft)", stroke_width="7"))
                links.append(
                    element("line", title, **ends, style=f"stroke:{fill}", stroke_width="5", stroke_dasharray=dashes)
                )
            nodes.append(
                element(
                    "circle",
                    element("title", f"{each.level.name} {unit}"),
                    cx=x,
                    cy=y,
                    r="5",
                    class_="sheet",
                    style="stroke:var(--ink)",
                )
            )
    return joined([*links, *nodes])


def _scale(x: float, y: float, most: float) -> Markup:
    """Returns the legend of the heat maps."""
    steps = [
        element("rect", x=x + 16 + i * 16, y=y, width=16, height=10, style=f"fill:{heat(i / 8)[0]}") for i in range(9)
    ]
    return joined(
        [
            element("text", "0", x=x, y=y + 9, class_="soft"),
            *steps,
            element("text", bytes_text(most), x=x + 166, y=y + 9, class_="soft"),
        ]
    )


def _short(num_bytes: float) -> str:
    return bytes_text(num_bytes).replace(" ", "").replace("iB", "")
