# SPDX-License-Identifier: Apache-2.0
"""The modelled memory of a device during each step of a plan, as a plot and as text; see `synthesis.peak`.

>>> from reshard.planning.entry import plan
>>> print(as_text(memory_of(plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=4", shape=(64, 64))), limit=16384))
memory per device, in bytes
  step 1   4,096 source + 4,096 target + 4,096 temporaries = 12,288  relayout 16x4x16 by [1, 0, 2]
  step 2   4,096 source + 4,096 target + 8,192 temporaries = 16,384  all_to_all x: dim 0 -> 1
  peak 16,384, at the limit of 16,384
"""

from __future__ import annotations

from dataclasses import dataclass

from reshard.pictures.markup import Markup, element, joined
from reshard.synthesis.common.numbers import bytes_text
from reshard.synthesis.planner.entry import Plan
from reshard.synthesis.plans.plan_json import tile_bytes
from reshard.synthesis.programs.peak import temporary_bytes_by_step


@dataclass(frozen=True, slots=True)
class MemoryOfStep:
    """Bytes per device during one step.

    The source tile belongs to the caller and stays. If its padding has to be filled, the filled copy counts with it.
    """

    number: int
    title: str
    source_bytes: int
    target_bytes: int
    temporary_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.source_bytes + self.target_bytes + self.temporary_bytes


def memory_of(plan: Plan) -> tuple[MemoryOfStep, ...]:
    """Returns the memory of each step; the largest total is the plan's peak. The empty chain has no steps."""
    if not plan.steps:
        return ()
    temporaries = temporary_bytes_by_step(plan.tile_program, plan.bits)
    source, target = tile_bytes(plan)
    filled = plan.peak_bytes - source - target - max(temporaries)  # a copy of the source tile whose padding is filled
    rows = enumerate(zip(plan.steps, temporaries, strict=True), 1)
    return tuple(MemoryOfStep(number, step.text, source + filled, target, more) for number, (step, more) in rows)


def as_text(steps: tuple[MemoryOfStep, ...], limit: int | None = None) -> str:
    """Returns a line per step, then the peak; `limit` is in bytes per device, None if there is none."""
    if not steps:
        return "memory per device: nothing is allocated"
    numbers = [
        f"{each.source_bytes:,} source + {each.target_bytes:,} target + {each.temporary_bytes:,} temporaries"
        for each in steps
    ]
    totals = [f"{each.total_bytes:,}" for each in steps]
    widths = [max(map(len, column)) for column in (numbers, totals)]
    lines = ["memory per device, in bytes"]
    for each, said, total in zip(steps, numbers, totals):
        lines.append(f"  step {each.number:<3} {said:>{widths[0]}} = {total:>{widths[1]}}  {each.title}")
    peak = max(each.total_bytes for each in steps)
    against = "" if limit is None else f", {_against(peak, limit)} the limit of {limit:,}"
    return "\n".join([*lines, f"  peak {peak:,}{against}"])


def _against(peak: int, limit: int) -> str:
    return "at" if peak == limit else "below" if peak < limit else "above"


_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 660, 220, 78, 30, 44


def picture(steps: tuple[MemoryOfStep, ...], limit: int | None = None) -> Markup:
    """Returns stacked columns, one per step, as the content of an SVG of `SIZE` pixels."""
    peak = max((each.total_bytes for each in steps), default=1) or 1
    top = max(peak, limit if limit is not None and limit <= 3 * peak else 0) * 1.08
    high, wide = _HEIGHT - _TOP - _BOTTOM, _WIDTH - _LEFT - 12
    floor = _TOP + high

    def at(num_bytes: float) -> float:
        return floor - high * num_bytes / top

    drawn = [element("line", x1=_LEFT, x2=_LEFT + wide, y1=floor, y2=floor, class_="axis")]
    for tick in round_ticks(top):
        drawn.append(element("line", x1=_LEFT, x2=_LEFT + wide, y1=at(tick), y2=at(tick), class_="axis"))
        drawn.append(element("text", bytes_text(tick), x=_LEFT - 8, y=at(tick) + 4, class_="end soft"))
    drawn += _lines(limit, top, at, wide)
    slot = wide / max(1, len(steps))
    column = min(90.0, slot * 0.66)
    for i, each in enumerate(steps):
        left, below = _LEFT + slot * (i + 0.5) - column / 2, 0
        what = f"step {each.number}, {each.title}"
        for part, cls, value in (
            ("source", "one", each.source_bytes),
            ("target", "two", each.target_bytes),
            ("temporaries", "three", each.temporary_bytes),
        ):
            title = element("title", f"{what}: {part} {value:,} bytes")
            drawn.append(
                element(
                    "rect",
                    title,
                    x=left,
                    y=at(below + value),
                    width=column,
                    height=at(below) - at(below + value),
                    class_=cls,
                )
            )
            below += value
        drawn.append(element("text", bytes_text(below), x=left + column / 2, y=at(below) - 5, class_="mid halo"))
        if slot > 22:
            drawn.append(
                element(
                    "text",
                    f"step {each.number}" if slot > 46 else each.number,
                    x=left + column / 2,
                    y=floor + 17,
                    class_="mid",
                )
            )
    drawn += _legend()
    return joined(drawn)


SIZE = (_WIDTH, _HEIGHT)


def _lines(limit: int | None, top: float, at, wide: float) -> list[Markup]:
    if limit is None:
        return []
    if limit > top:
        return [
            element(
                "text", f"limit {bytes_text(limit)}, above this plot", x=_LEFT + wide, y=_TOP - 12, class_="end soft"
            )
        ]
    line = element("path", d=f"M{_LEFT} {at(limit):.1f}H{_LEFT + wide}", class_="limit")
    return [line, element("text", f"limit {bytes_text(limit)}", x=_LEFT + wide, y=at(limit) - 6, class_="end halo")]


def _legend() -> list[Markup]:
    drawn, x = [], _LEFT
    for name, cls, width in (("source tile", "one", 92), ("target tile", "two", 92), ("temporaries", "three", 96)):
        drawn += [
            element("rect", x=x, y=_HEIGHT - 15, width=11, height=11, class_=cls),
            element("text", name, x=x + 16, y=_HEIGHT - 5),
        ]
        x += width
    return drawn


def round_ticks(top: float) -> list[int]:
    """Returns three to six round numbers of bytes below `top`, in powers of two."""
    step = 1
    while top / step > 6:
        step *= 2
    return [step * i for i in range(int(top // step) + 1)]
