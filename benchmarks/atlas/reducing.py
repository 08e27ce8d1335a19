# SPDX-License-Identifier: Apache-2.0
"""Makes a case of the atlas simpler while a condition stays true for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.atlas.layouts import ARGUMENT, CONSTRAINT, Axes, Case
from benchmarks.atlas.programs import Program


def reduced(program: Program, case: Case, is_alike: Callable[[Case], bool]) -> Case:
    """Returns a case from which no more axis, conversion or island can be removed while `is_alike` stays true."""
    found = next((each for each in _simpler(program, case) if each != case and is_alike(each)), None)
    return case if found is None else reduced(program, found, is_alike)


def _simpler(program: Program, case: Case) -> Iterator[Case]:
    for at, hold in enumerate(case.holds):
        if hold != ARGUMENT:
            yield replace(
                case,
                before=_with(case.before, at, ((),) * len(case.before[at])),
                holds=_with(case.holds, at, CONSTRAINT),
            )
            if hold != CONSTRAINT:
                yield replace(case, holds=_with(case.holds, at, CONSTRAINT))
    for name in ("operands", "results"):
        sides = getattr(case, name)
        for at, layout in enumerate(sides):
            for fewer in _fewer(layout):
                held = name == "operands" and case.holds[at] == ARGUMENT
                changes = {"before": _with(case.before, at, fewer)} if held else {}
                yield replace(case, **{name: _with(sides, at, fewer)}, **changes)


def _fewer(layout: Axes) -> Iterator[Axes]:
    for dim, axes in enumerate(layout):
        for axis in axes:
            yield _with(layout, dim, tuple(each for each in axes if each != axis))


def _with(items: tuple, at: int, item) -> tuple:
    return (*items[:at], item, *items[at + 1 :])
