# SPDX-License-Identifier: Apache-2.0
"""`reshard.visualize`: a plan as a picture, in SVG, HTML and plain text."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from reshard.pictures import colours, memory, traffic_map
from reshard.pictures.markup import Markup, element, joined
from reshard.pictures.page import card, facts, in_frame, page, svg, twin
from reshard.pictures.placements import Placements, State, differing, originals, placements
from reshard.pictures.plan_parts import layout_html
from reshard.pictures.tile_pictures import TilePictures, shown_devices, state_text
from reshard.planning.byte_sizes import byte_size
from reshard.synthesis.common.numbers import bandwidth, bytes_text, counted, time_text
from reshard.synthesis.explain.proofs import proof_of
from reshard.synthesis.layouts.partition_specs import text_of
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.programs.tile_program import collectives_by_step

_SUFFIXES = (".svg", ".html", ".htm", ".txt")
_LEGEND = (
    "letter and colour: the block of the source that a part is of; number: the block of the target that it goes to"
)


def visualize(plan: Plan, *, topology: Topology | str | None = None, memory_limit: int | str | None = None) -> Drawing:
    """Returns a drawing of a plan: each device's tile before and after each step, the memory and the traffic.

    Args:
      plan: a plan of `reshard.plan` or `reshard.pareto`.
      topology: the topology that the plan was made for: a `Topology`, or text that `Topology.parse` reads. It may be
        omitted if it is a preset.
      memory_limit: bytes per device, or text such as "2GiB"; drawn as a line over the memory.
    Raises:
      TopologyError: the topology does not fit the mesh; or it is omitted, and the plan's topology is no preset.
      ByteSizeError: the memory limit is not a number of bytes.
      TypeError: `plan` is not a plan.

    Example:
      >>> from reshard import plan
      >>> drawn = visualize(plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=2", shape=(4, 4)))
      >>> print(drawn.text().partition("memory")[0].rstrip())
      f32[4,4] on <["x"=2]>, 2 devices
      from:  [{"x"}, {}]
      to:    [{}, {"x"}]
      chain: all_to_all x: dim 0 -> 1
      <BLANKLINE>
      letter and colour: the block of the source that a part is of; number: the block of the target that it goes to
      before: tile [2, 4], 32 bytes
        A0 A1  on 0
        B0 B1  on 1
      after step 2, all_to_all x: dim 0 -> 1: tile [4, 2], 32 bytes; 16 bytes received
        A0 / B0  on 0
        A1 / B1  on 1
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"visualize takes what reshard.plan returns, not {type(plan).__name__}")
    network = (
        topology
        if isinstance(topology, Topology)
        else Topology.parse(plan.topology if topology is None else os.fspath(topology))
    )
    return Drawing(plan, network.fitted(plan.devices), None if memory_limit is None else byte_size(memory_limit))


class Drawing:
    """The pictures of one plan; equal plans give equal bytes.

    A notebook shows the drawing as a page. If a plan has many devices, the pictures show only some of them; the text
    covers all of them.
    """

    def __init__(self, plan: Plan, topology: Topology, memory_limit: int | None = None):
        self.plan, self.topology, self.memory_limit = plan, topology, memory_limit

    def text(self) -> str:
        """Returns the content of the pictures as plain text, which ends in a newline."""
        parts = [head_text(self.plan), self._tiles_text(), self._memory_text(), self._traffic_text()]
        return "\n\n".join(each for each in parts if each) + "\n"

    def svg(self, part: str = "all") -> str:
        """Returns an SVG of all states, one below the other, and then the memory.

        Each state has the array on the left and the devices on the right.

        Args:
          part: "all", or only the "tiles", or only the "memory".
        Raises: ValueError if `part` is another text.
        """
        if part not in ("all", "tiles", "memory"):
            raise ValueError(f'unknown part "{part}"; choose from all, tiles, memory')
        width, y, drawn = 960.0, 34.0, [element("text", title_of(self.plan), x=20, y=26, class_="head")]
        if part == "memory":
            width, drawn = (
                memory.SIZE[0] + 40.0,
                [element("text", f"memory per device: {self.plan.chain_text}", x=20, y=26, class_="sub")],
            )
        if part != "memory":
            width, y = self._add_states(drawn, width, y)
        if part != "tiles" and self._memory:
            if part == "all":
                drawn.append(
                    element("text", "memory per device", x=20, y=y + 26, class_="sub", style="font-weight:600")
                )
            drawn.append(
                element(
                    "g",
                    memory.picture(self._memory, self.memory_limit),
                    transform=f"translate(20 {y + (34 if part == 'all' else 0):.0f})",
                )
            )
            y += memory.SIZE[1] + (40 if part == "all" else 0)
        return _sheet(f"{title_of(self.plan)}: {self.plan.chain_text}", width, y + 16, drawn)

    def _add_states(self, drawn: list[Markup], width: float, y: float) -> tuple[float, float]:
        """Adds all states below `y`; returns the width, and the `y` at which the states end."""
        for line in (f"from {self.plan.source}", f"to {self.plan.target}", _LEGEND):
            y += 17
            drawn.append(element("text", line, x=20, y=y, class_="sub soft"))
        for state in self._found.states:
            wide, high, content = self._state_svg(state)
            drawn.append(element("g", content, transform=f"translate(20 {y + 22:.0f})"))
            width, y = max(width, wide + 40), y + high + 30
        return width, y

    def html(self) -> str:
        """Returns an HTML page that needs no other file: a slider over the steps, the memory and the traffic."""
        return page(
            title_of(self.plan),
            element("h1", title_of(self.plan)),
            card(plan_facts(self.plan)),
            card(self.sections("plan")),
        )

    def sections(self, name: str) -> Markup:
        """Returns the HTML of this plan as a part of a larger page.

        Args:
          name: the name of the slider; each slider of the page needs another one.
        """
        parts = [self._steps_html(name)]
        if self._memory:
            plot = svg(
                *memory.SIZE,
                memory.picture(self._memory, self.memory_limit),
                "memory per device over the steps",
                fits=False,
            )
            shown = element("div", plot, class_="wide", tabindex="0")
            parts += [element("h3", "Memory per device"), shown, twin(self._memory_text())]
        if self.plan.collectives:
            parts += [element("h3", "Where the bytes go"), self._traffic_html(), twin(self._traffic_text())]
        return joined(parts)

    def _repr_html_(self) -> str:
        rows = -(-len(self._shown) // 4)
        return in_frame(self.html(), 760 + 90 * rows)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the drawing as SVG, HTML or text, by the ending of the file's name: .svg, .html, .htm or .txt.

        Raises: ValueError if the file's name has another ending.
        """
        made = {".svg": self.svg, ".html": self.html, ".htm": self.html, ".txt": self.text}
        suffix = Path(path).suffix.lower()
        if suffix not in made:
            raise ValueError(f"cannot draw a {suffix or 'file without an ending'}; choose from {', '.join(_SUFFIXES)}")
        Path(path).write_text(made[suffix](), encoding="utf-8")

    def __repr__(self) -> str:
        return (
            f"<Drawing of {title_of(self.plan)}: {self.plan.chain_text}; it has .text(), .svg(), .html(), .save(path)>"
        )

    # ---- what is drawn

    @functools.cached_property
    def _found(self) -> Placements:
        return differing(placements(self.plan))

    @functools.cached_property
    def _shown(self) -> tuple[int, ...]:
        return shown_devices(self._found, _partners(self.plan))

    @functools.cached_property
    def _pictures(self) -> TilePictures:
        return TilePictures(self._found, self._shown)

    @functools.cached_property
    def _memory(self) -> tuple[memory.MemoryOfStep, ...]:
        return memory.memory_of(self.plan)

    @functools.cached_property
    def _traffic(self) -> traffic_map.Traffic:
        return traffic_map.traffic_of(self.plan, self.topology)

    # ---- text

    def _tiles_text(self) -> str:
        lines = [_LEGEND, *(state_text(self._found, state) for state in self._found.states)]
        return "\n".join([*lines, *self._left_out()])

    def _left_out(self) -> list[str]:
        numbers = ", ".join(map(str, self._found.left_out))
        return (
            [f"what devices hold after step {numbers} is not shown: the tiles are too large to run the plan on them"]
            if numbers
            else []
        )

    def _memory_text(self) -> str:
        return memory.as_text(self._memory, self.memory_limit)

    def _traffic_text(self) -> str:
        return traffic_map.as_text(self._traffic)

    # ---- one state

    def _state_svg(self, state: State) -> tuple[float, float, Markup]:
        array, first_of = self._pictures.logical(state), originals(state)
        left = max(array.width, 216.0) + 30
        wide, high = self._card_size(state)
        per_row = max(1, min(len(self._shown), int(940 - left) // int(wide + 16)))
        drawn = [
            element("text", _head_of(state), x=0, y=12, class_="sub", style="font-weight:600"),
            element("text", _array_head(self._pictures), x=0, y=34, class_="soft"),
            element("text", _devices_head(self._found, self._shown), x=left, y=34, class_="soft"),
            element("g", array.content, transform="translate(0 42)"),
        ]
        for i, device in enumerate(self._shown):
            x, y = left + i % per_row * (wide + 16), 42 + i // per_row * (high + 42)
            note = self._pictures.note(state, device, first_of)
            words = element(
                "text",
                element("tspan", device, style="font-weight:600"),
                f" {note or self._found.place(device)}",
                x=0,
                y=11,
            )
            tile = element("g", self._pictures.tile(state, device).content, transform="translate(0 17)")
            drawn.append(
                element(
                    "g",
                    element("title", f"device {device}: {self._found.place(device)}"),
                    words,
                    tile,
                    transform=f"translate({x:.0f} {y:.0f})",
                )
            )
        rows = -(-len(self._shown) // per_row)
        return left + per_row * (wide + 16), 42 + max(array.height, rows * (high + 42)), joined(drawn)

    def _card_size(self, state: State) -> tuple[float, float]:
        """Returns the size of the largest tile that is drawn, or the width of the longest name if that is wider."""
        boxes = [self._pictures.tile(state, device) for device in self._shown]
        first_of = originals(state)
        names = [
            f"{device} {self._pictures.note(state, device, first_of) or self._found.place(device)}"
            for device in self._shown
        ]
        width = max(48.0, *(box.width for box in boxes), *(6.3 * len(name) for name in names))
        return width, max(box.height for box in boxes)

    def _steps_html(self, name: str) -> Markup:
        states = self._found.states
        shown = [self._state_html(i, state) for i, state in enumerate(states)]
        slider = element(
            "input", type="range", min=0, max=len(states) - 1, value=0, step=1, aria_label="step of the chain"
        )
        back, on = (
            element("button", said, type="button", class_=cls) for said, cls in (("back", "back"), ("next", "on-"))
        )
        bar = element("div", back, slider, on, element("output", "", aria_live="polite"), class_="bar")
        said = [element("p", each, class_="soft") for each in self._left_out()]
        key = element(
            "p", f"{_LEGEND}. Point at a part to find it everywhere; arrow keys move the slider.", class_="key"
        )
        return joined([element("div", bar, *shown, key, id=name, class_="steps"), *said, twin(self._tiles_text())])

    def _state_html(self, i: int, state: State) -> Markup:
        array, first_of = self._pictures.logical(state), originals(state)
        head = _head_of(state)
        about = f"tile {list(state.tile_shape)}, {bytes_text(state.tile_bytes)}" + (
            f"; {bytes_text(state.bytes_received)} received" if state.number else ""
        )
        logical = element(
            "div",
            element("h4", _array_head(self._pictures)),
            svg(array.width, array.height, array.content, f"the array {head}", fits=False),
            class_="logical",
        )
        grid = element("div", *(self._device_html(state, device, first_of) for device in self._shown), class_="grid")
        devices = element("div", element("h4", _devices_head(self._found, self._shown)), grid, class_="devices")
        short = f"step {state.number} of {len(self.plan.steps)}" if state.number else "before"
        caption = element("figcaption", head, " ", element("span", about))
        return element(
            "figure",
            caption,
            element("div", logical, devices, class_="views"),
            class_="state",
            data_title=head,
            data_short=short,
            data_i=i,
        )

    def _device_html(self, state: State, device: int, first_of: dict[int, int]) -> Markup:
        tile, note = self._pictures.tile(state, device), self._pictures.note(state, device, first_of)
        is_copy = first_of.get(device, device) != device
        drawn = svg(tile.width + 2, tile.height, tile.content, f"tile of device {device}", fits=False)
        name = joined([element("b", device), " ", element("span", self._found.place(device))])
        width = f"min-width:{max(84, tile.width + 2):.0f}px"
        return element(
            "div",
            name,
            element("div", drawn, class_="same" if is_copy else None),
            element("small", note),
            class_="dev",
            style=width,
        )

    def _traffic_html(self) -> Markup:
        found = self._traffic
        wide, high, content = traffic_map.between_picture(found)
        bins = "devices" if found.devices_per_bin == 1 else f"groups of {found.devices_per_bin} devices"
        parts = [
            element(
                "div",
                element("h4", f"Who sends to whom, {bins}"),
                svg(wide, high, content, "bytes from device to device"),
            )
        ]
        for each in found.levels:
            wide, high, content = traffic_map.level_picture(each)
            speed = f"{each.level.name}, {each.level.kind}, {bandwidth(each.level.bandwidth_bytes_per_s)}"
            said = "load of each link" if each.links is not None else "bytes that enter each"
            parts.append(
                element(
                    "div",
                    element("h4", f"{speed}: {said}"),
                    svg(wide, high, content, f"traffic at level {each.level.name}"),
                )
            )
        return element("div", *parts, class_="pair")


def _sheet(title: str, width: float, height: float, drawn: list[Markup]) -> str:
    """Returns an SVG file; it follows the reader's choice of light or dark."""
    style = element("style", Markup(colours.styles() + f"@media (prefers-color-scheme:dark){{.pic{{{colours.DARK}}}}}"))
    sheet = element("rect", x=0, y=0, width=width, height=height, class_="sheet")
    content = joined([element("title", title), style, colours.definitions(), sheet, *drawn])
    size = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    return element("svg", content, xmlns="http://www.w3.org/2000/svg", **size, class_="pic", role="img") + "\n"


def title_of(plan: Plan) -> str:
    """Returns the title of a plan, e.g. `f32[16,16] on 8 devices`."""
    return f"{_tensor(plan)} on {counted(plan.devices, 'device')}"


def _tensor(plan: Plan) -> str:
    return f"{plan.dtype or f'{plan.bits} bits '}[{','.join(map(str, plan.shape))}]"


def head_text(plan: Plan) -> str:
    """Returns the plan's problem and chain as text, as `reshard plan` prints them."""
    devices = f"{plan.devices} device{'s' * (plan.devices != 1)}"
    to_mesh = f" on {plan.target_mesh}" if plan.target_mesh else ""
    return "\n".join(
        [
            f"{_tensor(plan)} on {_short_mesh(plan.mesh)}, {devices}",
            f"from:  {plan.source}",
            f"to:    {plan.target}{to_mesh}",
            f"chain: {plan.chain_text}",
        ]
    )


def plan_facts(plan: Plan) -> Markup:
    """Returns a list of a plan's mesh, source, target, chain and totals."""
    ratio = f", {plan.ratio_to_bound:.2f}x the least that any method needs" if plan.bound_bytes else ""
    to_mesh = f" on {_short_mesh(plan.target_mesh)}" if plan.target_mesh else ""
    return facts(
        [
            ("mesh", element("code", _short_mesh(plan.mesh))),
            ("from", layout_html(str(plan.source), text_of(plan.source))),
            ("to", joined([layout_html(str(plan.target), text_of(plan.target)), to_mesh])),
            ("chain", element("code", plan.chain_text)),
            ("received", f"{plan.bytes_received:,} bytes by the busiest device{ratio}"),
            ("memory", f"peak {plan.peak_bytes:,} bytes per device; largest tile {plan.largest_tile_bytes:,}"),
            (
                "time",
                f"{time_text(plan.time_s)} modelled, {counted(plan.collectives, 'collective')}",
            ),
            ("proof", proof.text if (proof := proof_of(plan)) else ""),
        ]
    )


def _short_mesh(mesh) -> str:
    """Returns the mesh as text; a long order of devices is cut off after its beginning."""
    text = str(mesh)
    return text if len(text) <= 200 else f"{text[:180]} ...>"


def _partners(plan: Plan) -> tuple[int, ...]:
    """Returns the devices that work together with device 0 in the first collective."""
    for own in collectives_by_step(plan.tile_program, plan.bits):
        for each in own:
            group = next((group for group in each.groups if 0 in group), None)
            if group:
                return group
            if each.pairs:
                return tuple(sorted({0, *(device for pair in each.pairs for device in pair if 0 in pair)}))
    return (0,)


def _head_of(state: State) -> str:
    return f"after step {state.number}: {state.title}" if state.number else "before"


def _array_head(pictures: TilePictures) -> str:
    return "the array; a square is several blocks" if pictures.is_coarse else "the array; in each block its devices"


def _devices_head(found: Placements, shown: tuple[int, ...]) -> str:
    return (
        "each device's tile"
        if len(shown) == found.devices
        else f"the tiles of {len(shown)} of {found.devices:,} devices"
    )
