# SPDX-License-Identifier: Apache-2.0
"""Additions of several partial sums to a value that is none, so that devices add the partial sums up once.

    %1 = add %x, %p        %p and %q are partial sums over the same axes
    %2 = add %1, %q        is written as %x + all_reduce(%p + %q)

A block whose attention and feed-forward layer are side by side ends so, `x + attention(h) + feed_forward(h)`, and so
does the gradient of a value that several ops look up. Such a sum has another order, so floats may be rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..ir.ops import producer_of
from ..platform.bindings import ir
from .copied_ops import only_user

_ADD = "stablehlo.add"


@dataclass(frozen=True, slots=True)
class Together:
    """Additions that are written as one: nothing else takes what they make but the last one.

    Attributes:
      adds: the ops, the last one at the end. summands: what they add up, from left to right.
      sums: those of the summands that will be partial sums.
    """

    adds: tuple[ir.Operation, ...]
    summands: tuple[ir.Value, ...]
    sums: tuple[ir.Value, ...]


def sums_together(ops: Sequence[ir.Operation], will_be_sums: Callable[[ir.Value], bool]) -> Iterator[Together]:
    """Yields those additions among some ops of one block in which several partial sums meet another value first."""
    among = {op: number for number, op in enumerate(ops) if op.name == _ADD}
    for last in among:
        if only_user(last.results[0]) in among:
            continue
        adds, summands = [last], list(last.operands)
        at = 0
        while at < len(summands):
            value = summands[at]
            producer = producer_of(value)
            if producer is None or producer not in among or only_user(value) is None or will_be_sums(value):
                at += 1
            else:
                adds.append(producer)
                summands[at : at + 1] = producer.operands
        if len(adds) == 1:
            continue
        sums = tuple(each for each in summands if will_be_sums(each))
        if 1 < len(sums) < len(summands):
            yield Together(tuple(sorted(adds, key=among.__getitem__)), tuple(summands), sums)
