# SPDX-License-Identifier: Apache-2.0
"""Clusters: tensors that have one layout, since an op between them works element by element.

An op *ties* its tensors if each of its factors is one dimension of every tensor, as in `tanh`, `add`, `transpose`, and
none is reduced. Nothing is gained by another layout on the other side of it: whatever the conversion is, it costs the
same on this side. (It may cost less where the types differ in size; this is left to those who write the conversion.)
Tied tensors are a *cluster*, and tied dimensions are one *named dimension* of it.

If a tie would make two dimensions of one cluster the same, as in `x + x.T`, no layout could split either of them. The
op does not tie then, and is kept as a *conflict*: its operands may be converted.

Nor does a *sum of sums* tie: an `add` of which each operand is made, for it alone, by an op that reduces, or by another
sum of sums. Its operands may be partial sums, and so may its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .factored_program import Dims, FactoredOp, FactoredProgram, Tensor


@dataclass(frozen=True, slots=True)
class Cluster:
    """Tensors with one layout.

    Attributes:
      members: their numbers. sizes: of the named dimensions, in elements.
    """

    members: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clusters of a program.

    Attributes:
      all: the clusters, in the order of their first tensors.
      of: for each tensor the number of its cluster; -1 for one without a dimension to split.
      dims: for each tensor and each of its dimensions the number of the named dimension; -1 for one of size 1.
      ties: the numbers of the ops that tie. conflicts: of those that would tie, but for a conflict.
      sums: the numbers of the sums of sums. partial: the tensors that may be partial sums.
    """

    all: tuple[Cluster, ...]
    of: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]
    ties: frozenset[int]
    conflicts: tuple[int, ...]
    sums: frozenset[int] = frozenset()
    partial: frozenset[int] = frozenset()


@dataclass
class _Growing:
    """Clusters while ops tie. A tensor's dimensions are numbered within its cluster."""

    of: list[int]
    dims: list[tuple[int, ...]]
    members: dict[int, list[int]] = field(default_factory=dict)

    def tie(self, one: int, other: int, pairs: list[tuple[int, int]]) -> None:
        """Ties two tensors by pairs of dimensions; two that are in one cluster stay as they are."""
        if self.of[one] == self.of[other]:
            return
        named = {self.dims[one][a]: self.dims[other][b] for a, b in pairs}
        small, large, renamed = other, one, {there: here for here, there in named.items()}
        if len(self.members[self.of[one]]) < len(self.members[self.of[other]]):
            small, large, renamed = one, other, named
        kept, left = self.of[large], self.of[small]
        for member in self.members.pop(left):
            self.of[member] = kept
            self.dims[member] = tuple(-1 if dim < 0 else renamed[dim] for dim in self.dims[member])
            self.members[kept].append(member)


def clusters_of(program: FactoredProgram) -> Clusters:
    """Returns the clusters of a program.

    Example: `x + x.T` is a conflict with itself; `tanh(x)` is not.
      >>> x, y, z = (Tensor((4, 4), 32) for _ in range(3))
      >>> same, turned = ((0,), (1,)), ((1,), (0,))
      >>> tanh = FactoredOp("tanh", (0,), (1,), (same,), (same,), (4, 4))
      >>> turn = FactoredOp("transpose", (0,), (2,), (turned,), (same,), (4, 4))
      >>> add = FactoredOp("add", (1, 2), (1,), (same, same), (same,), (4, 4))
      >>> found = clusters_of(FactoredProgram((x, y, z), (tanh, turn, add)))
      >>> found.of, found.dims, found.conflicts
      ((0, 0, 0), ((0, 1), (0, 1), (1, 0)), (2,))
    """
    of, dims, members = [], [], {}
    for number, tensor in enumerate(program.tensors):
        named = [-1 if size == 1 else dim for dim, size in enumerate(tensor.shape)]
        order = {dim: at for at, dim in enumerate(dim for dim in named if dim >= 0)}
        dims.append(tuple(order.get(dim, -1) for dim in named))
        of.append(number if order else -1)
        if order:
            members[number] = [number]
    growing = _Growing(of, dims, members)
    sums = sums_of_sums(program)
    ties, conflicts = set(), []
    for number, op in enumerate(program.ops):
        if number not in sums and is_tie(op, program.tensors):
            (ties.add if _tie(growing, op) else conflicts.append)(number)
    for weight, new in program.weights:
        dims = [dim for dim, size in enumerate(program.tensors[weight].shape) if size > 1]
        growing.tie(weight, new, [(dim, dim) for dim in dims])
    found = _numbered(program, growing, frozenset(ties), tuple(conflicts))
    partial = frozenset(tensor for number in sums for tensor in program.ops[number].operands)
    return replace(found, sums=sums, partial=partial)


def sums_of_sums(program: FactoredProgram) -> frozenset[int]:
    """Returns the numbers of the ops that add what only ops that reduce, or other such ops, have made for them."""
    uses: dict[int, int] = {}
    for op in program.ops:
        for tensor in op.operands:
            uses[tensor] = uses.get(tensor, 0) + 1
    kept = {*program.results, *(tensor for tensor, _ in program.pinned)}
    alone = {tensor for tensor, count in uses.items() if count == 1 and tensor not in kept}
    found, summed = set(), set()
    for number, op in enumerate(program.ops):
        is_sum = op.is_sum and len(op.operands) > 1 and all(each in summed and each in alone for each in op.operands)
        if is_sum:
            found.add(number)
        if is_sum or (op.reduced and op.flops):
            summed.update(op.results)
    return frozenset(found)


def is_tie(op: FactoredOp, tensors: Sequence[Tensor]) -> bool:
    """Returns whether each factor of an op is one dimension of each of its tensors, and none is special."""
    factors = {factor for factor, size in enumerate(op.sizes) if size > 1}
    if op.name == "copy" or factors & (op.reduced | op.whole | op.moved) or len(op.operands) + len(op.results) < 2:
        return False
    every = zip((*op.operands, *op.results), (*op.operand_dims, *op.result_dims), strict=True)
    return all(_factors_alone(dims, tensors[tensor].shape, op) == factors for tensor, dims in every)


def _factors_alone(dims: Dims, shape: Sequence[int], op: FactoredOp) -> set[int] | None:
    """Returns the factors of a tensor if each dimension that can be split is one of them; else None."""
    found = [[factor for factor in factors if op.sizes[factor] > 1] for factors in dims]
    if any(len(each) != (size > 1) for each, size in zip(found, shape, strict=True)):
        return None
    return {factor for each in found for factor in each}


def _tie(growing: _Growing, op: FactoredOp) -> bool:
    """Ties the tensors of an op, or none of them if two are in one cluster and disagree; returns whether it has."""
    tensors = [*zip(op.operands, op.operand_dims), *zip(op.results, op.result_dims)]
    wheres = [(tensor, _dimension_of(dims, op)) for tensor, dims in tensors]
    names: dict[int, dict[int, int]] = {}  # of the factors, by cluster
    for tensor, where in wheres:
        named = {factor: growing.dims[tensor][dim] for factor, dim in where.items()}
        if names.setdefault(growing.of[tensor], named) != named:
            return False
    first, first_where = wheres[0]
    for tensor, where in wheres[1:]:
        growing.tie(first, tensor, [(first_where[factor], dim) for factor, dim in where.items()])
    return True


def _dimension_of(dims: Dims, op: FactoredOp) -> dict[int, int]:
    return {factor: dim for dim, factors in enumerate(dims) for factor in factors if op.sizes[factor] > 1}


def _numbered(
    program: FactoredProgram, growing: _Growing, ties: frozenset[int], conflicts: tuple[int, ...]
) -> Clusters:
    numbers: dict[int, int] = {}
    found: list[Cluster] = []
    for tensor, cluster in enumerate(growing.of):
        if cluster < 0 or cluster in numbers:
            continue
        numbers[cluster] = len(found)
        size_of = dict(zip(growing.dims[tensor], program.tensors[tensor].shape, strict=True))
        sizes = tuple(size_of[dim] for dim in sorted(dim for dim in size_of if dim >= 0))
        found.append(Cluster(tuple(sorted(growing.members[cluster])), sizes))
    return Clusters(
        tuple(found), tuple(numbers.get(each, -1) for each in growing.of), tuple(growing.dims), ties, conflicts
    )
