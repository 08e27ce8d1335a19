# SPDX-License-Identifier: Apache-2.0
"""Conversions whose result nobody takes: they are erased, so that a report counts what is really sent.

An op is written with its operands in the layouts at hand that cost least, so the users of a constraint may all take a
tile from before it. Only then is its conversion known to be needless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.ops import producer_of
from ..platform.bindings import ir


@dataclass(frozen=True, slots=True)
class Ends:
    """The values between which a conversion is written.

    Attributes:
      number: of the conversion. taken: the tiles that it takes. result: the tile that it makes.
    """

    number: int
    taken: tuple[ir.Value, ...]
    result: ir.Value


def erase_unneeded(conversions: Sequence[Ends]) -> set[int]:
    """Erases the ops of conversions whose result has no use; returns the numbers of these conversions.

    Args:
      conversions: in the order in which they were written.
    """
    unneeded = set()
    for each in reversed(conversions):  # later ones may be all that takes an earlier one
        if _is_used(each.result):
            continue
        unneeded.add(each.number)
        for op in reversed(_ops_between(each)):  # users first
            if not any(map(_is_used, op.results)):
                op.erase()
    return unneeded


def _ops_between(ends: Ends) -> list[ir.Operation]:
    """Returns the ops that the result comes from, up to what is taken, each behind those that it takes values of."""
    is_done: dict[ir.Operation, bool] = {}  # whether all before it are in order
    order: list[ir.Operation] = []
    waiting = [ends.result]
    while waiting:
        op = None if waiting[-1] in ends.taken else producer_of(waiting[-1])
        if op is None or is_done.get(op):
            waiting.pop()
        elif op in is_done:
            is_done[op] = True
            order.append(op)
        else:
            is_done[op] = False
            waiting += list(op.operands)
    return order


def _is_used(value: ir.Value) -> bool:
    return next(iter(value.uses), None) is not None
