# SPDX-License-Identifier: Apache-2.0
"""Conversions whose result nobody takes: they are erased, so that a report counts what is really sent.

An op is written with its operands in the layouts at hand that cost least, so the users of a constraint may all take a
tile from before it. Only then is its conversion known to be needless.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.ops import name_of, producer_of
from ..platform.bindings import ir


def conversion_name(number: int) -> str:
    """Returns the name of the ops of a conversion, under which each step's ops have `name/step`."""
    return f"reshard/{number}"


def erase_unneeded(results: Sequence[tuple[int, ir.Value]]) -> set[int]:
    """Erases the ops of conversions whose result has no use; returns the numbers of these conversions.

    Args:
      results: the number and the result of each conversion, in the order in which they were written.
    """
    unneeded = set()
    for number, result in reversed(results):  # later ones may be all that takes an earlier one
        if not _is_used(result):
            unneeded.add(number)
            _erase(result, conversion_name(number))
    return unneeded


def _erase(value: ir.Value, name: str) -> None:
    """Erases the op that makes a value, if it has this name, and those before it that nobody needs then."""
    for op in reversed(_producers(value, name)):  # users first
        if not any(map(_is_used, op.results)):
            op.erase()


def _producers(value: ir.Value, name: str) -> list[ir.Operation]:
    """Returns the ops of a conversion that a value comes from, each behind those that it takes values of."""
    found: dict[ir.Operation, bool] = {}  # whether all before it are there
    waiting = [producer_of(value)]
    order = []
    while waiting:
        op = waiting[-1]
        if op is None or found.get(op) or not _is_named(op, name):
            waiting.pop()
        elif op in found:
            found[op] = True
            order.append(waiting.pop())
        else:
            found[op] = False
            waiting += map(producer_of, op.operands)
    return order


def _is_named(op: ir.Operation, name: str) -> bool:
    named = name_of(op.location) or ""
    return named == name or named.startswith(f"{name}/")


def _is_used(value: ir.Value) -> bool:
    return next(iter(value.uses), None) is not None
