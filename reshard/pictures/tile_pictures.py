# SPDX-License-Identifier: Apache-2.0
"""One state of a plan in two pictures and as text: the array with the devices of each block, and each device's tile.

The colour and the letter of a part name the block of the source that it comes from. Its number names the block of the
target that it goes to.
Before the first step a device has one letter, after the last one it has one number.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from reshard.pictures import colours
from reshard.pictures.markup import Markup, element, joined, number
from reshard.pictures.placements import (
    Placements,
    Run,
    State,
    block_classes,
    holders,
    originals,
    part_at,
    part_name,
    part_names,
    runs,
    slices,
    view_of,
)

MOST_DEVICES = 32  # all are drawn; of more devices, SOME_DEVICES
SOME_DEVICES = 12
MOST_RUNS = 16  # of a dimension, drawn
MOST_SLICES = 8
MOST_TEXT_TILES = 32
MOST_NAMES = 16
_GAP = 10
_LEGIBLE, _LARGEST = 24.0, 208.0  # pixels of a part with its name, and of a tile
_NARROWEST = 26.0  # pixels of a tile; a narrower one is widened, not to scale
_ONE_COLUMN = 84.0  # pixels, of an array that is cut along one dimension at most


@dataclass(frozen=True, slots=True)
class Box:
    """Markup with its size in pixels."""

    width: float
    height: float
    content: Markup


class TilePictures:
    """Draws the states of one plan at one scale.

    Args:
      shown: the devices to draw.
    """

    def __init__(self, found: Placements, shown: tuple[int, ...]):
        self.found, self.shown = found, shown
        self.view = view_of(found)
        dims = [dim for dim in (self.view.rows, self.view.columns) if dim is not None]
        self.scale = {dim: _scale(found, dim) for dim in dims}
        self.tile_scale = {dim: self._zoomed(dim) for dim in dims}

    def _zoomed(self, dim: int) -> dict[int, float]:
        """Returns the scale of the array, enlarged for tiles, in pixels of each cell.

        It is enlarged until names are legible, as far as the largest tile that is drawn permits.
        """
        scale = self.scale[dim]
        held = [
            cells[dim]
            for state in self.found.states
            for device in self.shown
            if (cells := self.found.held_cells(state, device))
        ]
        lengths = [sum(scale[cell] for cell in run.cells) for cells in held for run in runs(self.found, dim, cells)]
        largest = max((sum(scale[cell] for cell in cells) for cells in held), default=1.0)
        zoom = max(1.0, min(_LEGIBLE / min(lengths, default=_LEGIBLE), _LARGEST / largest))
        return {cell: zoom * pixels for cell, pixels in scale.items()}

    # ---- the array

    @functools.cached_property
    def _whole(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(range(count)) for count in self.found.cells)

    def logical(self, state: State) -> Box:
        """Returns the picture of the array, one slice beside the other.

        It has heavy lines around the blocks, and in each block the devices that hold it.
        """
        classes = block_classes(state)
        drawn, x, height = [], 0.0, 0.0
        every = slices(self.found, self.view, self._whole)
        for at in every[:MOST_SLICES]:
            box = self._logical_slice(state, classes, at)
            drawn.append(element("g", box.content, transform=f"translate({number(x)} 0)"))
            x, height = x + box.width + _GAP, max(height, box.height)
        if len(every) > MOST_SLICES:
            drawn.append(element("text", f"+{len(every) - MOST_SLICES} slices", x=x, y=16, class_="soft"))
            x += 70
        return Box(max(1.0, x - _GAP), height, joined(drawn))

    def _logical_slice(self, state: State, classes, at: tuple[Run, ...]) -> Box:
        rows = self._along(self.view.rows, self._cells(self.view.rows), self.scale, classes)
        columns = self._along(self.view.columns, self._cells(self.view.columns), self.scale, classes)
        if self.view.columns is None:
            columns = [(columns[0][0], (0.0, _ONE_COLUMN))]
        parts, blocks = [], []
        for row, (top, high) in rows:
            for column, (left, wide) in columns:
                part = part_at(self.found, self.view, self._whole, at, row, column)
                parts.append(self._part(part, left, top, wide, high, with_name=False))
        for block_rows in () if self.is_coarse else _blocks(rows, self.view.rows, classes):
            for block_columns in _blocks(columns, self.view.columns, classes):
                blocks.append(self._owners(state, at, block_rows, block_columns))
        wide, high = _extent(columns), _extent(rows)
        return _with_caption(Box(wide, high, joined([*parts, *blocks])), self._caption(at))

    def _owners(self, state: State, at, rows, columns) -> Markup:
        top, left = rows[0][1][0], columns[0][1][0]
        high, wide = rows[-1][1][0] + rows[-1][1][1] - top, columns[-1][1][0] + columns[-1][1][1] - left
        cells = [each[0] for each in self._whole]
        for dim, run in (*zip(self.view.slices, at), (self.view.rows, rows[0][0]), (self.view.columns, columns[0][0])):
            if dim is not None:
                cells[dim] = run.cells[0]
        ids = holders(state, tuple(cells)) if cells else list(range(self.found.devices))
        said = _fitting(ids, wide, high)
        label = _pill(said, left + wide / 2, top + high / 2) if said else Markup("")
        frame = element(
            "rect",
            element("title", f"on device {_list(ids, 24)}"),
            x=left,
            y=top,
            width=wide,
            height=high,
            class_="edge" if min(wide, high) > 12 else "thin",
        )
        return joined([frame, label])

    # ---- a device

    def tile(self, state: State, device: int) -> Box:
        """Returns the picture of a device's tile, in the order of the array's indices, without the device's name."""
        held = self.found.held_cells(state, device)
        if held is None or not all(self.found.shape):
            return Box(46, 24, joined([element("rect", x=1, y=1, width=44, height=22, class_="none")]))
        drawn, x, height = [], 0.0, 0.0
        for at in slices(self.found, self.view, held)[:MOST_SLICES]:
            rows, columns = (
                self._along(dim, () if dim is None else held[dim], self.tile_scale)
                for dim in (self.view.rows, self.view.columns)
            )
            parts = [
                self._part(part_at(self.found, self.view, held, at, row, column), left, top, wide, high)
                for row, (top, high) in rows
                for column, (left, wide) in columns
            ]
            wide, high = _extent(columns), _extent(rows)
            if state.partial_sum is not None:
                parts.append(element("rect", x=0, y=0, width=wide, height=high, fill="url(#sums)"))
            parts.append(element("rect", x=0.0, y=0.0, width=wide, height=high, class_="edge"))
            drawn.append(element("g", *parts, transform=f"translate({number(x + 1)} 1)"))
            x, height = x + wide + 5, max(height, high + 2)
        return Box(x - 3, height, joined(drawn))

    def note(self, state: State, device: int, first_of: dict[int, int]) -> str:
        """Returns a note about a device's tile: a replica, a partial sum, or nothing at all; else empty."""
        if device not in first_of:
            return "holds nothing"
        said = []
        if state.partial_sum is not None and state.partial_sum[device] >= 0:
            said.append(f"sum {state.partial_sum[device] + 1} of {int(state.partial_sum.max()) + 1}")
        if first_of[device] != device:
            said.append(f"= device {first_of[device]}")
        return ", ".join(said)

    # ---- parts

    def _cells(self, dim: int | None) -> tuple[int, ...]:
        return () if dim is None else self._whole[dim]

    def _along(
        self, dim: int | None, cells: tuple[int, ...], scales, classes=None
    ) -> list[tuple[Run, tuple[float, float]]]:
        """Returns the runs of a dimension with (start, length) in pixels.

        There are at most MOST_RUNS; if the dimension has more, neighbours are drawn as one.
        """
        found = runs(self.found, dim, cells, None if dim is None or classes is None else classes[dim])
        if dim is None:
            return [(found[0], (0.0, 26.0))]
        scale, at, placed = scales[dim], 0.0, []
        share = -(-len(found) // MOST_RUNS)
        for first in range(0, len(found), share):
            group = found[first : first + share]
            length = sum(scale[cell] for run in group for cell in run.cells)
            placed.append((group[0], (at, length)))
            at += length
        stretch = max(1.0, _NARROWEST / at) if at else 1.0
        return [(run, (start * stretch, length * stretch)) for run, (start, length) in placed]

    def _part(self, part: tuple[int, int], left, top, wide, high, with_name: bool = True) -> Markup:
        colour, pattern = colours.fill_of(part[0], self.found.source_blocks)
        name = part_name(self.found, part)
        drawn = [
            element(
                "rect",
                x=left,
                y=top,
                width=wide,
                height=high,
                class_=f"cell k{colour}",
                data_p=name if with_name else None,
            )
        ]
        if pattern:
            drawn.append(
                element("rect", x=left, y=top, width=wide, height=high, fill=f"url(#{pattern})", pointer_events="none")
            )
        if with_name and wide >= 7 * len(name) + 1 and high >= 11:
            drawn.append(
                element("text", name, x=left + wide / 2, y=top + high / 2 + 4, class_="on", pointer_events="none")
            )
        return joined(drawn)

    def _caption(self, at: tuple[Run, ...]) -> str:
        return ", ".join(f"dim {dim}: {run.text}" for dim, run in zip(self.view.slices, at))

    @functools.cached_property
    def is_coarse(self) -> bool:
        """Returns whether a square of the array stands for several blocks."""
        dims = (self.view.rows, self.view.columns)
        return any(len(runs(self.found, dim, self._whole[dim])) > MOST_RUNS for dim in dims if dim is not None)


def shown_devices(found: Placements, partners: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the devices to draw: all if they are few, else some; `partners`, which work together, go first."""
    if found.devices <= MOST_DEVICES:
        return tuple(range(found.devices))
    chosen = list(partners[: SOME_DEVICES - 2])
    chosen += [device for device in range(found.devices) if device not in chosen][: SOME_DEVICES - len(chosen)]
    return tuple(sorted(chosen))


def _scale(found: Placements, dim: int) -> dict[int, float]:
    """Returns the pixels of each cell of a dimension: in proportion to its elements, within limits."""
    count = found.cells[dim]
    edges = found.edges[dim]
    unit = min(30.0, max(14.0, 208.0 / count)) if count <= MOST_RUNS else 208.0 / count
    mean = max(1, edges[-1] - edges[0]) / count
    return {cell: unit * min(2.5, max(0.5, (edges[cell + 1] - edges[cell]) / mean)) for cell in range(count)}


def _extent(placed) -> float:
    start, length = placed[-1][1]
    return start + length


def _blocks(placed, dim: int | None, classes):
    """Yields the neighbouring runs that are in one block of the state."""
    group: list = []
    for each in placed:
        if group and dim is not None and classes[dim][group[-1][0].cells[-1]] != classes[dim][each[0].cells[0]]:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _with_caption(box: Box, caption: str) -> Box:
    if not caption:
        return Box(box.width + 2, box.height + 2, element("g", box.content, transform="translate(1 1)"))
    label = element("text", caption, x=0, y=box.height + 15, class_="soft")
    width = max(box.width + 2, 6.2 * len(caption))
    return Box(width, box.height + 20, element("g", box.content, label, transform="translate(1 1)"))


def _pill(said: str, x: float, y: float) -> Markup:
    """Returns words on a white ground, so that they are legible on all colours."""
    wide = 6.6 * len(said) + 5
    return joined(
        [
            element(
                "rect",
                x=x - wide / 2,
                y=y - 7,
                width=wide,
                height=14.0,
                rx="3",
                fill="#fff",
                opacity="0.86",
                pointer_events="none",
            ),
            element("text", said, x=x, y=y + 4, class_="on", pointer_events="none"),
        ]
    )


def _fitting(ids: list[int], wide: float, high: float) -> str:
    """Returns the numbers of the devices as text, shortened if necessary; empty if no text fits."""
    if high < 14 or not ids:
        return ""
    for said in (" ".join(map(str, ids)), f"{ids[0]} +{len(ids) - 1}" if len(ids) > 1 else str(ids[0])):
        if wide >= 6.6 * len(said) + 5:
            return said
    return ""


def _list(ids: list[int], most: int) -> str:
    shown = " ".join(map(str, ids[:most]))
    return f"{shown} and {len(ids) - most:,} more" if len(ids) > most else shown or "none"


# ---- text


def state_text(found: Placements, state: State) -> str:
    """Returns the tiles of a state as text, a line for all devices with equal tiles.

    `/` stands between rows, `//` between slices.
    """
    head = f"{_headline(state)}: tile {list(state.tile_shape)}, {state.tile_bytes:,} bytes"
    if state.number:
        head += f"; {state.bytes_received:,} bytes received"
    groups: dict[int, list[int]] = {}
    first_of = originals(state)
    for device, first in first_of.items():
        groups.setdefault(first, []).append(device)
    lines = [head]
    if not found.shape:
        lines.append(f"  A  on {_list(list(range(found.devices)), MOST_NAMES)}")
    for first, devices in list(groups.items())[:MOST_TEXT_TILES]:
        said = _sum_of(state, first)
        lines.append(f"  {_names_text(part_names(found, state, first))}{said}  on {_list(devices, MOST_NAMES)}")
    if len(groups) > MOST_TEXT_TILES:
        lines.append(f"  ... and {len(groups) - MOST_TEXT_TILES:,} other tiles")
    without = found.devices - len(first_of)
    if without and found.shape:
        lines.append(f"  nothing  on {_list([d for d in range(found.devices) if d not in first_of], MOST_NAMES)}")
    return "\n".join(lines)


def _headline(state: State) -> str:
    return f"after step {state.number}, {state.title}" if state.number else state.title


def _sum_of(state: State, device: int) -> str:
    if state.partial_sum is None or state.partial_sum[device] < 0:
        return ""
    return f" (sum {state.partial_sum[device] + 1} of {int(state.partial_sum.max()) + 1})"


def _names_text(tables: list[list[list[str]]]) -> str:
    shown = [[" ".join(_clipped(row)) for row in _clipped(table)] for table in _clipped(tables)]
    return " // ".join(" / ".join(rows) for rows in shown)


def _clipped(parts: list) -> list:
    if len(parts) <= MOST_NAMES:
        return parts
    more = f"... {len(parts) - MOST_NAMES} more"
    return [
        *parts[:MOST_NAMES],
        more if isinstance(parts[0], str) else [more] if isinstance(parts[0][0], str) else [[more]],
    ]
