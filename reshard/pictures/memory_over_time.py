# SPDX-License-Identifier: Apache-2.0
"""The memory of a device over a program's instructions: a stacked area, the collectives marked below it.

Made of the entry `memory` of the plain data `reshard.traffic/1`:

    bytes ^      ____      temporaries
          |_____/    \\__   results
          |____________ \\  arguments
          +--|-----|------> instructions, in the order of the compiler's schedule
             collectives; bars are loops
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reshard.pictures.markup import Markup, element, joined, number
from reshard.pictures.memory import round_ticks
from reshard.pictures.page import svg, twin
from reshard.synthesis.common.numbers import bytes_text, counted
from reshard.synthesis.common.text_table import table

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 1080, 250, 78, 16, 62
_PARTS = (("arguments", "one"), ("results", "two"), ("temporaries", "three"))
_MOST_LINES = 12  # of the text: the moments with the most bytes


def parts(memory: Mapping[str, Any], title: str) -> Iterator[Markup]:
    """Yields the heading, the picture and its text, for the card of one program."""
    yield element("h2", f"{title}: memory over time")
    yield element("p", _said(memory))
    yield svg(_WIDTH, _HEIGHT, joined(_drawn(memory)), f"{title}: {_said(memory)}")
    yield twin(as_text(memory))


def _said(memory: Mapping[str, Any]) -> str:
    moments = memory["moments"]
    at = max(range(len(moments)), key=lambda each: sum(moments[each]), default=0)
    most = memory["argument_bytes"] + (sum(moments[at]) if moments else 0)
    own = memory["peak_bytes"]
    said = "" if own is None else f"; the compiler itself counts {bytes_text(own)}"
    before = counted(sum(each["at"] < at for each in memory["collectives"]), "collective")
    return (
        f"A device holds at most {bytes_text(most)}, after {before} of {len(memory['collectives'])}, as modelled "
        f"over the {memory['instructions']:,} instructions of the compiler's schedule{said}."
    )


def _drawn(memory: Mapping[str, Any]) -> Iterator[Markup]:
    moments, arguments = memory["moments"], memory["argument_bytes"]
    most = arguments + max((sum(each) for each in moments), default=0)
    top = max(1.0, most * 1.08)
    high, wide = _HEIGHT - _TOP - _BOTTOM, _WIDTH - _LEFT - 12
    floor, slot = _TOP + high, wide / max(1, len(moments))

    def at(num_bytes: float) -> float:
        return floor - high * num_bytes / top

    for tick in round_ticks(top):
        yield element("line", x1=_LEFT, x2=_LEFT + wide, y1=at(tick), y2=at(tick), class_="axis")
        yield element("text", bytes_text(tick), x=_LEFT - 8, y=at(tick) + 4, class_="end soft")
    levels = [[arguments] * len(moments), [arguments + each[1] for each in moments]]
    levels.append([arguments + sum(each) for each in moments])
    for (name, cls), level in reversed(list(zip(_PARTS, levels))):
        yield element("path", element("title", name), d=_area(level, slot, floor, at), class_=cls)
    yield from _loops(memory["loops"], slot, floor)
    yield from _collectives(memory["collectives"], slot, floor)
    yield from _legend()


def _area(level: list[int], slot: float, floor: float, at: Callable[[float], float]) -> str:
    """Returns the path of a filled curve with a step for each moment."""
    path, last = [f"M{_LEFT} {number(floor)}"], None
    for place, value in enumerate(level):
        if value != last:
            path.append(f"H{number(_LEFT + slot * place)}V{number(at(value))}")
        last = value
    return "".join([*path, f"H{number(_LEFT + slot * len(level))}V{number(floor)}Z"])


def _loops(loops: list[Mapping[str, Any]], slot: float, floor: float) -> Iterator[Markup]:
    for each in loops:
        left, width = _LEFT + slot * each["first"], slot * (each["last"] + 1 - each["first"])
        said = element("title", f"{each['name']}: its body runs {each['runs']:,} times")
        yield element("rect", said, x=left, y=floor + 16, width=max(1.0, width), height=7, class_="k8")
        if width > 60:
            yield element("text", f"{each['runs']:,} times", x=left + 2, y=floor + 34, class_="soft")


def _collectives(collectives: list[Mapping[str, Any]], slot: float, floor: float) -> Iterator[Markup]:
    for each in collectives:
        place = f", {each['location']}" if each["location"] else ""
        said = element("title", f"{each['kind']}{place}, {counted(each['runs'], 'run')}")
        left = _LEFT + slot * (each["at"] + 0.5) - 1
        yield element("rect", said, x=left, y=floor + 3, width=2.0, height=10, class_="warm")


def _legend() -> Iterator[Markup]:
    x = float(_LEFT)
    for name, cls in (*_PARTS, ("collectives", "warm"), ("loops", "k8")):
        yield element("rect", x=x, y=_HEIGHT - 15, width=11, height=11, class_=cls)
        yield element("text", name, x=x + 16, y=_HEIGHT - 5)
        x += 36 + 7 * len(name)


def as_text(memory: Mapping[str, Any]) -> str:
    """Returns what the picture shows, as text: the bytes at the collectives that find most of them.

    Example:
      >>> moved = {"at": 1, "kind": "all_gather", "runs": 4, "location": "a.py:3:1"}
      >>> print(as_text({"argument_bytes": 8, "moments": [[0, 0], [16, 4]], "collectives": [moved]}))
      at               arguments  results  temporaries  total  collective      line
      ---------------  ---------  -------  -----------  -----  --------------  --------
      collective 1           8 B      4 B         16 B   28 B  4 x all_gather  a.py:3:1
      the most of all        8 B      4 B         16 B   28 B
    """
    arguments, moments = memory["argument_bytes"], memory["moments"]
    found = sorted(enumerate(memory["collectives"], 1), key=lambda each: -sum(moments[each[1]["at"]]))
    rows = [
        (
            f"collective {count}",
            *_sizes(arguments, moments[each["at"]]),
            f"{each['runs']} x {each['kind']}",
            each["location"],
        )
        for count, each in sorted(found[:_MOST_LINES], key=lambda each: each[0])
    ]
    most = max(moments, key=sum, default=[0, 0])
    rows.append(("the most of all", *_sizes(arguments, most), "", ""))
    return table(("at", *(name for name, _ in _PARTS), "total", "collective", "line"), rows, "lrrrrll")


def _sizes(arguments: int, moment: list[int]) -> tuple[str, ...]:
    temporaries, results = moment
    return tuple(bytes_text(each) for each in (arguments, results, temporaries, arguments + results + temporaries))
