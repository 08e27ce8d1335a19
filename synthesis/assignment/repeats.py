# SPDX-License-Identifier: Apache-2.0
"""Repeated layers: parts of a program that follow each other and look alike, so that one layout serves all of them.

A scan over layers is one layer already. Where layers are unrolled, the ops of a layer come again a period later, and
those of its backward pass likewise. Two ops *look alike* if all is equal that a layout may depend on: their factors,
the types of their tensors, and how often they run. A *repeat* is a stretch of ops of which each looks like the one a
period later. It is several periods long, and an op in it has a choice, since it does not tie.

Ops a period apart then have the same way, and what they take and make the same layout, as if the layers stood in a
loop. So tensors of different layers have their dimensions named alike (`alike_clusters`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .clusters import Clusters
from .factored_program import FactoredProgram

_LONGEST_PERIOD = 4096  # ops


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
    before it and behind it.

    Args:
      ties: the numbers of the ops that tie.
      least: the least number of layers.

    Example: two layers of a product and a `tanh`, then another product.
      >>> names, dims = ("dot", "tanh", "dot", "tanh", "dot"), (((0,), (1,)),)
      >>> ops = tuple(FactoredOp(name, (at,), (at + 1,), dims, dims, (4, 4)) for at, name in enumerate(names))
      >>> repeats_of(FactoredProgram((Tensor((4, 4), 32),) * 6, ops), frozenset({1, 3}))
      (Repeat(first=0, last=4, period=2),)
    """
    looks = _looks(program)
    choices = np.array([op not in ties for op in range(len(looks))], dtype=bool)
    found, waiting = [], [(0, len(looks))]
    while waiting:
        start, end = waiting.pop()
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


@dataclass
class AlikeClusters:
    """Clusters of layers that repeat, with their dimensions named alike.

    Attributes:
      of: for each cluster the number of the one that stands for it.
      dims: for each cluster its own dimension for each named dimension of the one that stands for it.
    """

    of: list[int]
    dims: list[tuple[int, ...]]

    def __post_init__(self) -> None:
        self._members = {number: [number] for number in range(len(self.of))}

    def join(self, one: int, other: int, named: dict[int, int]) -> None:
        """Makes two clusters alike, each dimension of one to that of the other; not if they have more dimensions, or
        are alike in another way."""
        first, second = self.of[one], self.of[other]
        rank = len(self.dims[one])
        if first == second or not len(named) == len({*named.values()}) == rank == len(self.dims[other]):
            return
        own = {dim: at for at, dim in enumerate(self.dims[other])}  # of what stands for `other`
        turned = tuple(own[named[dim]] for dim in self.dims[one])
        for member in self._members.pop(second):
            self.of[member] = first
            self.dims[member] = tuple(self.dims[member][dim] for dim in turned)
            self._members[first].append(member)


def alike_clusters(program: FactoredProgram, clusters: Clusters, repeats: Sequence[Repeat]) -> AlikeClusters:
    """Returns the clusters that are alike, since they are the same part of layers that repeat."""
    ranks = [len(each.sizes) for each in clusters.all]
    found = AlikeClusters(list(range(len(ranks))), [tuple(range(rank)) for rank in ranks])
    for one, other in (pair for repeat in repeats for pair in repeat.alike()):
        here, there = program.ops[one], program.ops[other]
        for a, b in zip((*here.operands, *here.results), (*there.operands, *there.results), strict=True):
            if clusters.of[a] >= 0:
                dims = zip(clusters.dims[a], clusters.dims[b], strict=True)
                found.join(clusters.of[a], clusters.of[b], {dim: same for dim, same in dims if dim >= 0})
    return found
