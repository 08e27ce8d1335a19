# SPDX-License-Identifier: Apache-2.0
"""Repeated layers: parts of a program that follow each other and look alike, such as the layers of a transformer.

A scan over layers is one layer already. Where layers are unrolled, the ops of a layer come again a period later, and
those of its backward pass likewise. Two ops *look alike* if all is equal that a layout may depend on: their factors,
the types of their tensors, and how often they run. A *repeat* is a stretch of ops of which each looks like the one a
period later. It is several periods long, and an op in it has a choice, since it does not tie.

What ops a period apart take and make is the same part of different layers, so that its dimensions have one name
(`dimensions`). Their layouts need not be the same: products that are split by columns and by rows in turn look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .factored_program import FactoredProgram

_LONGEST_PERIOD = 4096  # ops
_MOST_REPEATS = 32  # each takes a look at all periods


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repeat.

    Attributes:
      first, last: the numbers of its first and last op.
      period: the number of ops of a layer.
    """

    first: int
    last: int
    period: int

    @property
    def layers(self) -> int:
        """Returns how many whole layers there are."""
        return (self.last - self.first + 1) // self.period

    def alike(self) -> Iterator[tuple[int, int]]:
        """Returns each op, but for those of the last period, with the one a period later."""
        return ((op, op + self.period) for op in range(self.first, self.last + 1 - self.period))


def repeats_of(program: FactoredProgram, ties: frozenset[int], least: int = 2) -> tuple[Repeat, ...]:
    """Returns the repeats of a program, in its order; no op is in two of them.

    The one that has the most ops is found first; of several, the one with the shortest period; then those of the ops
    before it and behind it, the longest stretch first, until there are `_MOST_REPEATS`.

    Args:
      ties: the numbers of the ops that tie.
      least: the least number of layers.

    Example: two layers of a product and a `tanh`, then another product.
      >>> from .factored_program import FactoredOp, Tensor
      >>> names, dims = ("dot", "tanh", "dot", "tanh", "dot"), (((0,), (1,)),)
      >>> ops = tuple(FactoredOp(name, (at,), (at + 1,), dims, dims, (4, 4)) for at, name in enumerate(names))
      >>> repeats_of(FactoredProgram((Tensor((4, 4), 32),) * 6, ops), frozenset({1, 3}))
      (Repeat(first=0, last=4, period=2),)
    """
    looks = _looks(program)
    choices = np.array([op not in ties for op in range(len(looks))], dtype=bool)
    found, waiting = [], [(0, len(looks))]
    while waiting and len(found) < _MOST_REPEATS:
        start, end = waiting.pop(max(range(len(waiting)), key=lambda at: waiting[at][1] - waiting[at][0]))
        if (longest := _longest(looks[start:end], choices[start:end], least)) is not None:
            repeat = Repeat(start + longest.first, start + longest.last, longest.period)
            found.append(repeat)
            waiting += [(start, repeat.first), (repeat.last + 1, end)]
    return tuple(sorted(found, key=lambda each: each.first))


def _looks(program: FactoredProgram) -> np.ndarray:
    """Returns a number for each op; ops that look alike have the same one."""
    numbers: dict[tuple, int] = {}
    found = []
    for op in program.ops:
        tensors = (program.tensors[each] for each in (*op.operands, *op.results))
        types = tuple((each.shape, each.bits, each.runs) for each in tensors)
        dims = op.operand_dims, op.result_dims, op.sizes, op.reduced, op.whole, op.moved
        look = op.name, types, dims, op.flops, op.runs, op.is_free, op.is_sum
        found.append(numbers.setdefault(look, len(numbers)))
    return np.array(found, dtype=np.int64)


def _longest(looks: np.ndarray, choices: np.ndarray, least: int) -> Repeat | None:
    """Returns the repeat with the most ops; None without any."""
    count = len(looks)
    choices_before = np.concatenate([[0], np.cumsum(choices)])
    best, most = None, 0
    for period in range(1, min(count // least, _LONGEST_PERIOD) + 1):
        if most == count:
            break
        same = np.concatenate([[False], looks[:-period] == looks[period:], [False]])
        changes = np.flatnonzero(same[1:] != same[:-1])
        starts, ends = changes[::2], changes[1::2]  # of stretches in which each op looks like the one a period later
        lengths = ends - starts + period
        has_choice = choices_before[np.minimum(starts + period, count)] > choices_before[starts]
        lengths = np.where((lengths >= least * period) & has_choice, lengths, 0)
        if lengths.max(initial=0) > most:
            at = int(lengths.argmax())
            most = int(lengths[at])
            best = Repeat(int(starts[at]), int(ends[at]) + period - 1, period)
    return best
