# SPDX-License-Identifier: Apache-2.0
"""Additions of several partial sums to a value that is none, so that devices add the partial sums up once.

    %1 = add %x, %p        %p and %q are partial sums over the same axes
    %2 = add %1, %q        is written as %x + all_reduce(%p + %q)

A block whose attention and feed-forward layer are side by side ends so, `x + attention(h) + feed_forward(h)`, and so
does the gradient of a value that several ops look up. Such a sum has another order, so floats may be rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..ir.ops import producer_of
from ..platform.bindings import ir
from ..tiles.copied_ops import CONSTRAINTS, only_user

_ADD = "stablehlo.add"


@dataclass(frozen=True, slots=True)
class Together:
    """Additions that are written as one: nothing else takes what they make but the last one.

    Attributes:
      ops: the additions and what only passes on their results, in program order, the last addition at the end.
      summands: what they add up, from left to right. sums: those of the summands that will be partial sums.
    """

    ops: tuple[ir.Operation, ...]
    summands: tuple[ir.Value, ...]
    sums: tuple[ir.Value, ...]


def sums_together(
    ops: Sequence[ir.Operation],
    will_be_sums: Callable[[ir.Value], bool],
    changes_nothing: Callable[[ir.Operation], bool],
) -> Iterator[Together]:
    """Yields those additions among some ops of one block in which several partial sums meet another value first.

    Args:
      changes_nothing: whether a constraint asks for the layout that its operand has anyway. In explicit mode jax states
        the layout of each sum by such a constraint.
    """
    order = {op: number for number, op in enumerate(ops)}
    passing = {op for op in ops if op.name in CONSTRAINTS and changes_nothing(op)}
    among = dict.fromkeys(op for op in ops if op.name == _ADD)
    for last in among:
        if _taker(last.results[0], passing) in among:
            continue
        taken, summands = [last], list(last.operands)
        at = 0
        while at < len(summands):
            producer, passed = _maker(summands[at], passing)
            if producer is None or producer not in among or will_be_sums(summands[at]):
                at += 1
            else:
                taken += [producer, *passed]
                summands[at : at + 1] = producer.operands
        if len(taken) == 1:
            continue
        sums = tuple(each for each in summands if will_be_sums(each))
        if 1 < len(sums) < len(summands):
            yield Together(tuple(sorted(taken, key=order.__getitem__)), tuple(summands), sums)


def _taker(value: ir.Value, passing: Collection[ir.Operation]) -> ir.Operation | None:
    """Returns the only user of a value, behind ops that pass it on; None if there are several."""
    while (user := only_user(value)) is not None and user in passing:
        value = user.results[0]
    return user


def _maker(value: ir.Value, passing: Collection[ir.Operation]) -> tuple[ir.Operation | None, list[ir.Operation]]:
    """Returns the op that makes a value, before ops that pass it on, and these; None if anything else takes the value
    on its way."""
    passed: list[ir.Operation] = []
    while only_user(value) is not None:
        producer = producer_of(value)
        if producer is None or producer not in passing:
            return producer, passed
        passed.append(producer)
        value = producer.operands[0]
    return None, passed
