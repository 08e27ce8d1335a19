# SPDX-License-Identifier: Apache-2.0
"""The picture of the import graph, docs/pictures/imports.svg.

Each package is a band, and the highest package is on top. In a band each wing is a box, and the boxes form stairs: a
wing is lower and further left than the wings that may import it. So every import that is allowed points down.

Lines are drawn as in a circuit: all imports of one wing join one line that leads to it, and a dot marks each joint.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reshard.tools.docs import import_graph
from reshard.tools.docs.import_graph import OWN, PACKAGES

Wing = tuple[str, str]  # the package and the wing's name
Point = tuple[float, float]

COLOURS = {
    "synthesis": "#2e7d4f",
    "dialect_utils": "#2f6199",
    "passes": "#7a4a9c",
    "reshard": "#b05a1c",
    "tools": "#5f6368",
}
FORBIDDEN = "#c62828"
_LEFT, _TOP, _WIDTH, _HEIGHT = 24, 24, 134, 32  # left and upper margin; width and height of a box
_COLUMN, _STAIR = _WIDTH + 14, 27  # distances from one wing to the next
_ABOVE, _PADDING, _TRACK = 16, 16, 9  # space above the highest box of a band, below the lowest box, and between lines
_DROP = 24  # lines between bands leave a box right of its middle, and enter a box left of it
_LEGEND = (
    "A box is a wing: its number of modules, and in brackets how many of them other wings may import.",
    "An arrow leads to a wing that is imported, in the colour of its package; a dot marks where an importer joins.",
    "If a imports b and b imports c, an import of c by a is not drawn. A red dashed arrow breaks the rules.",
)


@dataclass(frozen=True)
class _Bus:
    """The line to one wing from its importers in higher bands; a long line has a lane on the right side."""

    imported: Wing
    importers: tuple[Wing, ...]
    lane: int | None

    @property
    def gaps(self) -> range:
        """Returns the gaps between bands that the line crosses; gap 0 is below the highest band."""
        return range(min(map(_row, self.importers)), _row(self.imported))


def picture() -> str:
    """Returns the picture as SVG."""
    places = _Places(tuple(_buses()))
    lines = [*_bands(places), *_steps_down(places), *_lines_of_buses(places), *_forbidden(places), *_boxes(places)]
    size = f"0 0 {places.width:.0f} {places.height:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" font-family="sans-serif">',
            "<defs>",
            *(_arrowhead(name, colour) for name, colour in {**COLOURS, "forbidden": FORBIDDEN}.items()),
            "</defs>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *lines,
            *(_text((_LEFT, places.bottom + 22 + 17 * row), line) for row, line in enumerate(_LEGEND)),
            "</svg>\n",
        ]
    )


@functools.cache
def wings_shown() -> tuple[Wing, ...]:
    """Returns the wings that have modules, the lowest wing first."""
    counts = {(module.package, module.wing) for module in import_graph.modules() if module.name}
    return tuple((p, wing) for p in PACKAGES for wing in import_graph.wings()[p] if (p, wing) in counts)


@functools.cache
def edges() -> frozenset[tuple[Wing, Wing]]:
    """Returns all pairs of a wing and another wing that it imports."""
    pairs = {
        ((each.importer.package, each.importer.wing), (each.imported.package, each.imported.wing))
        for each in import_graph.imports()
        if each.imported.name and each.importer.name
    }
    return frozenset((importer, imported) for importer, imported in pairs if importer != imported)


def forbidden_edges() -> list[tuple[Wing, Wing]]:
    """Returns the edges that point up, which the rules forbid."""
    order = wings_shown()
    return sorted(pair for pair in edges() if order.index(pair[0]) < order.index(pair[1]))


@functools.cache
def drawn_edges() -> tuple[tuple[Wing, Wing], ...]:
    """Returns the edges that point down, without those that follow from others, sorted."""
    below: dict[Wing, set[Wing]] = {wing: set() for wing in wings_shown()}
    for importer, imported in edges() - set(forbidden_edges()):
        below[importer].add(imported)
    reached: dict[Wing, set[Wing]] = {}
    for wing in wings_shown():  # from the lowest wing up: what a wing imports is known before its importers need it
        reached[wing] = below[wing].union(*(reached[each] for each in below[wing]))
    return tuple(
        (wing, each)
        for wing in wings_shown()
        for each in sorted(below[wing])
        if not any(each in reached[other] for other in below[wing])
    )


def _row(wing: Wing) -> int:
    return len(PACKAGES) - 1 - PACKAGES.index(wing[0])


def _buses() -> Iterator[_Bus]:
    lanes = 0
    for imported in wings_shown():
        importers = tuple(a for a, b in drawn_edges() if b == imported and a[0] != b[0])
        if importers:
            is_long = min(map(_row, importers)) < _row(imported) - 1
            yield _Bus(imported, importers, lanes if is_long else None)
            lanes += is_long


class _Places:
    """The positions of boxes, bands, tracks and lanes. y grows downwards."""

    def __init__(self, buses: tuple[_Bus, ...]):
        self.buses = buses
        self.tracks: dict[tuple[Wing, int], float] = {}
        self.bands: list[tuple[float, float]] = []  # top and bottom of each row's band
        top = _TOP
        for row, package in enumerate(reversed(PACKAGES)):
            count = sum(wing[0] == package for wing in wings_shown())
            bottom = top + _ABOVE + _STAIR * (count - 1) + _HEIGHT + _PADDING
            self.bands.append((top, bottom))
            top = self._lay_tracks(row, bottom)
        self.bottom = self.bands[-1][1]
        widest = max(sum(wing[0] == package for wing in wings_shown()) for package in PACKAGES)
        self.right = _LEFT + 14 + widest * _COLUMN
        self.width = self.right + 12 + _TRACK * (1 + sum(bus.lane is not None for bus in buses)) + 14
        self.height = self.bottom + 40 + 17 * len(_LEGEND)

    def _lay_tracks(self, gap: int, top: float) -> float:
        """Sets the height of each line in a gap, and returns the top of the band below the gap."""
        crossing = [bus for bus in self.buses if gap in bus.gaps]
        for number, bus in enumerate(crossing, 1):
            self.tracks[bus.imported, gap] = top + 4 + _TRACK * number
        return top + 18 + _TRACK * len(crossing)

    def box(self, wing: Wing) -> Point:
        """Returns the upper left corner of a wing's box."""
        row = [each for each in wings_shown() if each[0] == wing[0]]
        place = row.index(wing)
        top = self.bands[_row(wing)][0] + _ABOVE
        return _LEFT + 14 + place * _COLUMN, top + _STAIR * (len(row) - 1 - place)

    def middle(self, wing: Wing) -> float:
        return self.box(wing)[0] + _WIDTH / 2

    def lane(self, bus: _Bus) -> float:
        return self.right + 12 + _TRACK * (bus.lane or 0)


def _bands(places: _Places) -> Iterator[str]:
    for package, (top, bottom) in zip(reversed(PACKAGES), places.bands, strict=True):
        size = f'x="{_LEFT}" y="{top}" width="{places.right - _LEFT}" height="{bottom - top:.0f}"'
        yield f'<rect {size} rx="8" fill="{COLOURS[package]}" fill-opacity="0.07"/>'
        style = f'font-size="16" font-weight="bold" text-anchor="end" fill="{COLOURS[package]}"'
        yield _text((places.right - 14, bottom - 12), package, style)


def _boxes(places: _Places) -> Iterator[str]:
    for package, wing in wings_shown():
        x, y = places.box((package, wing))
        count = sum((m.package, m.wing) == (package, wing) and bool(m.name) for m in import_graph.modules())
        numbers = f"{count}" if wing == OWN else f"{count} ({len(import_graph.exported((package, wing)))})"
        size = f'x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}"'
        yield f'<rect {size} rx="5" fill="#ffffff" stroke="{COLOURS[package]}"/>'
        yield _text((x + 8, y + 21), "own modules" if wing == OWN else wing)
        yield _text((x + _WIDTH - 6, y + 21), numbers, 'font-size="11" fill="#777777" text-anchor="end"')


def _steps_down(places: _Places) -> Iterator[str]:
    """Yields the arrows inside bands: down from the importing wing, then left to the imported wing."""
    for importer, imported in drawn_edges():
        if importer[0] == imported[0]:
            x, (left, top) = places.middle(importer), places.box(imported)
            y = top + _HEIGHT / 2
            yield _dot((x, y), imported[0])
            yield _line([(x, places.box(importer)[1] + _HEIGHT), (x, y), (left + _WIDTH + 2, y)], imported[0], "arrow")


def _lines_of_buses(places: _Places) -> Iterator[str]:
    for bus in places.buses:
        package = bus.imported[0]
        ends: dict[int, list[float]] = {gap: [] for gap in bus.gaps}
        for importer in bus.importers:
            gap, x = _row(importer), places.middle(importer) + _DROP
            track = places.tracks[bus.imported, gap]
            ends[gap].append(x)
            yield _line([(x, places.box(importer)[1] + _HEIGHT), (x, track)], package)
            yield _dot((x, track), package)
        if bus.lane is not None:
            used = [gap for gap in bus.gaps if ends[gap] or gap == bus.gaps[-1]]
            for gap in used:
                ends[gap].append(places.lane(bus))
            tracks = [(places.lane(bus), places.tracks[bus.imported, gap]) for gap in (used[0], used[-1])]
            yield _line(tracks, package)
        last, target = bus.gaps[-1], places.middle(bus.imported) - _DROP
        ends[last].append(target)
        for gap, xs in ends.items():
            if xs:
                track = places.tracks[bus.imported, gap]
                yield _line([(min(xs), track), (max(xs), track)], package)
        yield _line(
            [(target, places.tracks[bus.imported, last]), (target, places.box(bus.imported)[1] - 2)], package, "arrow"
        )


def _forbidden(places: _Places) -> Iterator[str]:
    """Yields the imports that point up, drawn in red; the rules forbid them."""
    for importer, imported in forbidden_edges():
        (x, y), (to_x, to_y) = places.box(importer), places.box(imported)
        style = f'stroke="{FORBIDDEN}" stroke-width="2" stroke-dasharray="5 3" marker-end="url(#forbidden)"'
        yield f'<path d="M{x + _WIDTH / 2:.0f},{y} L{to_x + _WIDTH / 2:.0f},{to_y + _HEIGHT:.0f}" {style}/>'


def _line(points: Iterable[Point], package: str, end: str = "") -> str:
    path = " L".join(f"{x:.0f},{y:.0f}" for x, y in points)
    head = f' marker-end="url(#{package})"' if end else ""
    return f'<path d="M{path}" fill="none" stroke="{COLOURS[package]}" stroke-width="1.1"{head}/>'


def _dot(point: Point, package: str) -> str:
    return f'<circle cx="{point[0]:.0f}" cy="{point[1]:.0f}" r="2.4" fill="{COLOURS[package]}"/>'


def _text(point: Point, text: str, style: str = 'font-size="13"') -> str:
    return f'<text x="{point[0]:.0f}" y="{point[1]:.0f}" {style}>{text}</text>'


def _arrowhead(name: str, colour: str) -> str:
    size = 'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"'
    return f'<marker id="{name}" {size}><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
