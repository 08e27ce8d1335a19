# SPDX-License-Identifier: Apache-2.0
"""Conversions whose result nobody takes: they are erased, so that a report counts what is really sent.

An op is written with its operands in the layouts at hand that cost least, so the users of a constraint may all take a
tile from before it. Only then is its conversion known to be needless.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.ops import name_of, ops_in
from ..platform.bindings import ir


def conversion_name(number: int) -> str:
    """Returns the name of the ops of a conversion, under which each step's ops have `name/step`."""
    return f"reshard/{number}"


def erase_unneeded(islands: Sequence[ir.Operation]) -> set[int]:
    """Erases what conversions in islands write for nobody; returns the numbers of conversions that are left."""
    left = set()
    for island in islands:
        for op in reversed(ops_in(island)):  # users first
            number = _number_of(op)
            if number is None or not len(op.results):
                continue
            if any(next(iter(result.uses), None) is not None for result in op.results):
                left.add(number)
            else:
                op.erase()
    return left


def _number_of(op: ir.Operation) -> int | None:
    root, _, rest = (name_of(op.location) or "").partition("/")
    number = rest.partition("/")[0]
    return int(number) if root == "reshard" and number.isdecimal() else None
