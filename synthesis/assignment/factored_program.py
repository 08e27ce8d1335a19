# SPDX-License-Identifier: Apache-2.0
"""Programs as layouts see them: tensors, and ops whose dimensions are made of *factors*.

A factor is a dimension of an op's iteration space. Two dimensions of one factor must be split alike for the op to work
on tiles. So a matrix product has three factors, rows, columns and the contracted one; a reshape of [8, 4] to [32] has
two, and the dimension of 32 is made of both, major to minor.

Source: Shardy's `OpShardingRuleAttr`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Dims = tuple[tuple[int, ...], ...]  # for each dimension of a tensor its factors, major to minor
Span = tuple[int, int]  # the first and the last of several moments


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of a program.

    Attributes:
      shape: global, in elements. bits: of an element. runs: how often a run of the program makes it.
      name, element: for people: of the value, and of the type of its elements.
    """

    shape: tuple[int, ...]
    bits: int
    runs: int = 1
    name: str = ""
    element: str = ""

    @property
    def bytes(self) -> int:
        """Returns the size of the whole tensor, in bytes."""
        return -(-math.prod(self.shape) * self.bits // 8)


@dataclass(frozen=True, slots=True)
class FactoredOp:
    """An op with its factors.

    Attributes:
      name: for people.
      operands, results: numbers of tensors; only those that have a dimension to split.
      operand_dims, result_dims: for each of them the factors of its dimensions.
      sizes: of the factors, in elements.
      reduced: factors that the result has no longer: if one is split, results are partial sums.
      whole: factors that cannot be split.
      moved: factors along which elements move between tiles if it is split, as in a slice or a convolution.
      flops: operations of matrix products in the whole op. runs: how often a run of the program runs it.
      is_free: whether it computes nothing that counts: a copy, a view.
      is_sum: whether it adds its operands, so that partial sums may be added before they are completed.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    operand_dims: tuple[Dims, ...]
    result_dims: tuple[Dims, ...]
    sizes: tuple[int, ...]
    reduced: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()
    flops: int = 0
    runs: int = 1
    is_free: bool = False
    is_sum: bool = False

    @classmethod
    def copy(cls, source: int, result: int, shape: Sequence[int], runs: int = 1) -> FactoredOp:
        """Returns the op that gives a value to a place whose layout may be another one, such as a loop's carry."""
        dims = tuple((number,) for number in range(len(shape)))
        return cls("copy", (source,), (result,), (dims,), (dims,), tuple(shape), runs=runs, is_free=True)


@dataclass(frozen=True, slots=True)
class Interval:
    """When a tensor is in memory: from the number of one op to that of another, both included."""

    tensor: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class FactoredProgram:
    """A program.

    Attributes:
      tensors, ops: in the program's order; ops have the numbers of tensors.
      arguments, results: numbers of tensors.
      pinned: (tensor, for each dimension the axes that split it): layouts that somebody has fixed; None for a dimension
        that is free.
      lives: of the tensors that are in memory as a whole.
      moments: for each op the moment at which it runs; None for one that makes nothing in memory, since it is a view or
        a part of the ops that take what it makes. Empty if nothing is known of it.
      loops: from the first moment of each loop to its last.
      weights: (argument, result): a weight and its new value. They have one layout, though no op ties them, since what
        the optimizer takes and makes are copies of them that may have another one.
    """

    tensors: tuple[Tensor, ...]
    ops: tuple[FactoredOp, ...]
    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    pinned: tuple[tuple[int, tuple[tuple[str, ...] | None, ...]], ...] = ()
    lives: tuple[Interval, ...] = ()
    moments: tuple[int | None, ...] = ()
    loops: tuple[Span, ...] = ()
    weights: tuple[tuple[int, int], ...] = ()
