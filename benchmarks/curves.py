# SPDX-License-Identifier: Apache-2.0
"""Draws sorted ratios as curves in SVG, and prints their quantiles: all pairs of a benchmark, not only their mean.

    python benchmarks/curves.py docs/pictures/pairs.json [--svg docs/pictures/pairs.svg]

The file is what `random_pairs.py --ratios` wrote; the same file gives the same picture.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reshard.pictures import colours  # noqa: E402
from reshard.pictures.markup import Markup, element, joined  # noqa: E402
from reshard.synthesis.common.text_table import markdown_table  # noqa: E402

SCHEMA = "reshard.curves/1"
_INNER = (("10 %", 0.1), ("25 %", 0.25), ("median", 0.5), ("75 %", 0.75), ("90 %", 0.9), ("99 %", 0.99))
QUANTILES = (("min", 0.0), *_INNER, ("max", 1.0))


@dataclass(frozen=True, slots=True)
class Curve:
    """The sorted ratios of a curve, the least first; all are above 0."""

    name: str
    ratios: tuple[float, ...]

    @property
    def geomean(self) -> float:
        return statistics.geometric_mean(self.ratios)

    def quantile(self, share: float) -> float:
        """Returns the least ratio that at least this share of the pairs does not exceed.

        Example:
          >>> [Curve("", (1.0, 2.0, 4.0)).quantile(share) for share in (0, 0.5, 0.9, 1)]
          [1.0, 2.0, 4.0, 4.0]
        """
        return self.ratios[max(0, math.ceil(share * len(self.ratios)) - 1)]


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the figure: curves in one coordinate system."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """Panels one below the other, and the environment (versions and cores) in a line below them."""

    title: str
    environment: str
    panels: tuple[Panel, ...]

    def to_json(self) -> str:
        """Returns the figure as text that `from_json` reads; ratios have four digits."""
        panels = [
            {
                "title": panel.title,
                "curves": {each.name: [float(f"{ratio:.4g}") for ratio in each.ratios] for each in panel.curves},
            }
            for panel in self.panels
        ]
        return json.dumps({"schema": SCHEMA, **asdict(self), "panels": panels}) + "\n"

    @staticmethod
    def from_json(text: str) -> Figure:
        """Returns the figure that `to_json` wrote. Raises: ValueError if the text is no such file."""
        try:
            found = json.loads(text)
            if found["schema"] != SCHEMA:
                raise ValueError(f'schema "{found["schema"]}" is not "{SCHEMA}"')
            panels = tuple(
                Panel(each["title"], tuple(Curve(name, tuple(ratios)) for name, ratios in each["curves"].items()))
                for each in found["panels"]
            )
            return Figure(found["title"], found["environment"], panels)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no file of curves: {error}") from None


def as_markdown(figure: Figure) -> str:
    """Returns the quantiles of each curve in Markdown, one table for each panel."""
    parts = [f"### {figure.title}"]
    for panel in figure.panels:
        headings = (panel.title, "pairs", "geomean", *(name for name, _ in QUANTILES))
        lines: list[tuple[str, ...]] = []
        for curve in (each for each in panel.curves if each.ratios):
            values = (curve.geomean, *(curve.quantile(share) for _, share in QUANTILES))
            lines.append((curve.name, str(len(curve.ratios)), *(f"{value:.2f}" for value in values)))
        parts.append(markdown_table(headings, lines))
    return "\n\n".join(parts)


# ---- the picture

WIDTH, LEFT, RIGHT, HIGH, GAP, HEAD, FOOT = 860, 56, 222, 210, 84, 66, 14
# One colour scale: in the first panel it goes from few devices to many. Dashes distinguish the curves too.
LIGHT = ("#d97b09", "#d1603d", "#bd4760", "#a0357b", "#7d2c8e", "#5a2a97", "#3a2a94", "#1b2580")
DARK = ("#f7d13d", "#fbb04a", "#f68f5c", "#ec7886", "#dd70b0", "#c678d3", "#ac8aea", "#9db0fa")
DASHES = ("", "7 3", "2 3", "9 3 2 3")


def svg(figure: Figure) -> str:
    """Returns the picture as SVG; it is light or dark as the reader's system asks for."""
    drawn = [element("text", figure.title, x=20, y=28, class_="head")]
    for number, panel in enumerate(figure.panels):
        top = HEAD + number * (HIGH + GAP)
        drawn.append(element("g", joined(_panel(panel)), transform=f"translate({LEFT} {top})"))
    height = HEAD + len(figure.panels) * (HIGH + GAP) + FOOT
    drawn.append(element("text", figure.environment, x=20, y=height - 12, class_="soft"))
    sheet = element("rect", x=0, y=0, width=WIDTH, height=height, class_="sheet")
    content = joined([element("title", _said(figure)), element("style", Markup(_style())), sheet, *drawn])
    size = {"viewBox": f"0 0 {WIDTH} {height}", "width": WIDTH, "height": height}
    return element("svg", content, xmlns="http://www.w3.org/2000/svg", **size, class_="pic curves", role="img") + "\n"


def _style() -> str:
    lines = "".join(f".curves .l{i}{{stroke:var(--l{i})}}" for i in range(len(LIGHT)))
    shades = [";".join(f"--l{i}:{shade}" for i, shade in enumerate(each)) for each in (LIGHT, DARK)]
    return (
        colours.styles() + f".curves{{{shades[0]}}}.curves .line{{fill:none;stroke-width:2;stroke-linejoin:round}}"
        ".curves .lead{fill:none;stroke:var(--line);stroke-width:1}.curves .even{stroke:var(--soft);stroke-width:1.4}"
        + lines
    ) + f"@media (prefers-color-scheme:dark){{.pic{{{colours.DARK}}}.curves{{{shades[1]}}}}}"


def _said(figure: Figure) -> str:
    """Returns the content of the picture in words, for readers who cannot see it."""
    curves = (
        f"{each.name}: geomean {each.geomean:.2f}, max {each.ratios[-1]:.4g}"
        for panel in figure.panels
        for each in panel.curves
        if each.ratios
    )
    return f"{figure.title}. {'; '.join(curves)}"


def _panel(panel: Panel) -> Iterator[Markup]:
    """Yields the elements of a panel; the upper left corner of its plot is at (0, 0)."""
    wide = WIDTH - LEFT - RIGHT
    curves = [each for each in panel.curves if each.ratios]
    least = min((each.ratios[0] for each in curves), default=1.0)
    ticks = _ticks(min(1.0, least), max((each.ratios[-1] for each in curves), default=2.0))
    low, span = math.log(ticks[0]), math.log(ticks[-1] / ticks[0])

    def at(ratio: float) -> float:
        return HIGH * (1 - (math.log(ratio) - low) / span)

    yield element("text", panel.title, x=-36, y=-12, class_="sub", style="font-weight:600")
    yield element("text", "geomean and max", x=wide + 39, y=-12, class_="soft")
    for tick in ticks:
        yield element("line", x1=0, x2=wide, y1=at(tick), y2=at(tick), class_="even" if tick == 1 else "axis")
        yield element("text", f"{tick:g}x", x=-8, y=at(tick) + 4, class_="end soft")
    for percent in (0, 25, 50, 75, 100):
        x = wide * percent / 100
        yield element("line", x1=x, x2=x, y1=0, y2=HIGH, class_="axis")
        yield element("text", f"{percent} %", x=x, y=HIGH + 17, class_="mid soft")
    yield element("text", "share of the pairs, sorted by ratio", x=wide / 2, y=HIGH + 34, class_="mid soft")
    ends = _apart([at(each.ratios[-1]) for each in curves])
    for number, (curve, end) in enumerate(zip(curves, ends)):
        yield from _curve(curve, at, wide, end, *_look(number, len(curves)))


def _look(number: int, curves: int) -> tuple[str, str | None]:
    """Returns the class of a curve's colour, and its dashes; the colours are spread over the scale."""
    shade = round(number * (len(LIGHT) - 1) / max(1, curves - 1))
    return f"l{shade}", DASHES[number % len(DASHES)] or None


def _curve(curve: Curve, at, wide: float, end: float, cls: str, dashes: str | None) -> Iterator[Markup]:
    count = len(curve.ratios)
    points = [(wide * i / max(1, count - 1), at(ratio)) for i, ratio in enumerate(curve.ratios)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in _without_middles(points))
    words = f"{curve.name}: geomean {curve.geomean:.2f}x, max {curve.ratios[-1]:.3g}x"
    yield element("path", element("title", words), d=path, class_=f"line {cls}", stroke_dasharray=dashes)
    yield element("path", d=f"M{wide + 3:.1f} {points[-1][1]:.1f}L{wide + 14:.1f} {end:.1f}", class_="lead")
    yield element("path", d=f"M{wide + 16:.1f} {end:.1f}h18", class_=f"line {cls}", stroke_dasharray=dashes)
    name = element("tspan", curve.name, style="font-weight:600")
    yield element("text", name, f" {curve.geomean:.2f}x, max {curve.ratios[-1]:.3g}x", x=wide + 39, y=end + 4)


def _without_middles(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the points without those between two points of the same height: equal ratios make long flat lines."""
    inner = (b for a, b, c in zip(points, points[1:], points[2:]) if not a[1] == b[1] == c[1])
    return [points[0], *inner, *points[-1:]]


def _ticks(least: float, most: float) -> list[float]:
    """Returns the ticks 1, 2, 5, 10, ... from `least` or below it to `most` or above it.

    Example:
      >>> _ticks(0.9, 12)
      [0.5, 1, 2, 5, 10, 20]
      >>> _ticks(1.0, 1.0)
      [1, 2]
    """
    steps = [digit * 10**power if power >= 0 else digit / 10**-power for power in range(-4, 7) for digit in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step <= least)
    last = min(i for i, step in enumerate(steps) if step >= most and i > first)
    return steps[first : last + 1]


def _apart(heights: Sequence[float], gap: float = 17.0) -> list[float]:
    """Returns heights that are at least `gap` apart, in the same order, within the plot if there is room.

    Example:
      >>> _apart([10.0, 12.0, 100.0], gap=16.0)
      [10.0, 26.0, 100.0]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed: list[float] = []
    for i in order:
        placed.append(max(heights[i], placed[-1] + gap if placed else 0.0))
    for k in range(len(placed) - 1, -1, -1):
        most = HIGH if k == len(placed) - 1 else placed[k + 1] - gap
        placed[k] = min(placed[k], most)
    return [placed[order.index(i)] for i in range(len(heights))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="a file that random_pairs.py --ratios wrote")
    parser.add_argument("--svg", type=Path, help="the file for the picture; the table is always printed")
    options = parser.parse_args(arguments)
    try:
        figure = Figure.from_json(options.file.read_text())
    except (OSError, ValueError) as error:
        parser.error(f"{options.file}: {error}")
    print(as_markdown(figure))
    if options.svg:
        options.svg.write_text(svg(figure))
    return 0


if __name__ == "__main__":
    sys.exit(main())
