# SPDX-License-Identifier: Apache-2.0
"""A solution in the words of the field: what each mesh axis is for.

Each axis of each matrix product has a role, by the factor that it splits and by which operand is a parameter:

| role | the axis splits |
|---|---|
| data | the batch: the leading dimension of the activations |
| sequence | another dimension of the activations that is no feature |
| tensor | features: the columns of a parameter (its result is split) or its rows (partial sums), or heads |
| expert | a dimension of the parameter, the activations and the result alike |

With parameters and optimizer state in shards over the axis that splits the batch, data parallelism is ZeRO-3; with the
state alone in shards, ZeRO-1. Tensor parallelism as in Megatron has columns first, then rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .clusters import Clusters
from .factored_program import FactoredOp, FactoredProgram
from .layout_problem import Assignment

DATA, SEQUENCE, TENSOR, EXPERT = "data", "sequence", "tensor", "expert"
_MOST = 0.5  # of the matrix work that makes a role the axis's own
_MUCH = 0.05  # that is worth a word


@dataclass(frozen=True, slots=True)
class AxisUse:
    """What an axis is for.

    Attributes:
      work: role -> its share of the matrix work, by operations.
      stored: the share of the bytes of state, which the program returns as new values, that the axis splits.
    """

    axis: str
    work: Mapping[str, float]
    stored: float

    @property
    def is_used(self) -> bool:
        """Returns whether the axis splits any matrix product or any state."""
        return bool(self.work) or self.stored > 0

    @property
    def words(self) -> str:
        """Returns the use in words."""
        shares = [
            f"{role} parallel in {share:.0%} of the matrix work" for role, share in self._sorted() if share >= _MUCH
        ]
        if self.stored >= _MOST and self.work.get(DATA, 0.0) + self.work.get(SEQUENCE, 0.0) >= _MOST:
            shares.append("parameters and state kept in shards, gathered where they are used (ZeRO-3)")
        elif self.stored >= _MUCH:
            shares.append(f"{self.stored:.0%} of the state kept in shards")
        return "; ".join(shares) or "not used"

    def _sorted(self) -> list[tuple[str, float]]:
        return sorted(self.work.items(), key=lambda each: (-each[1], each[0]))


def uses_of(
    program: FactoredProgram, clusters: Clusters, assignment: Assignment, axes: Mapping[str, int]
) -> list[AxisUse]:
    """Returns what each axis of a mesh is for; `axes` has their sizes, and those of size 1 are left out."""
    parameters = parameters_of(program, clusters)
    derived = _derived(program, parameters)
    whole = sum(op.flops * op.runs for number, op in enumerate(program.ops) if number in assignment.ways)
    found = []
    for axis, size in axes.items():
        if size == 1:
            continue
        work: dict[str, float] = {}
        for number, way in assignment.ways.items():
            op = program.ops[number]
            factor = next((factor for factor, some in enumerate(way) if axis in some), None)
            if op.flops and factor is not None:
                role = role_of(op, factor, [tensor in derived for tensor in op.operands])
                work[role] = work.get(role, 0.0) + op.flops * op.runs / whole
        found.append(AxisUse(axis, work, _stored(program, parameters, assignment, axis)))
    return found


def parameters_of(program: FactoredProgram, clusters: Clusters) -> frozenset[int]:
    """Returns the arguments that are state, since a result shares their layout; without any, all arguments of two or
    more dimensions but the last."""
    results = {clusters.of[tensor] for tensor in program.results}
    state = frozenset(tensor for tensor in program.arguments if clusters.of[tensor] in results)
    return state or frozenset(each for each in program.arguments[:-1] if len(program.tensors[each].shape) > 1)


def role_of(op: FactoredOp, factor: int, are_parameters: list[bool]) -> str:
    """Returns the role of an axis that splits a factor of a matrix product.

    Args:
      are_parameters: for each operand, whether it is made of parameters alone.
    """
    having = [any(factor in factors for factors in dims) for dims in op.operand_dims]
    is_kept = any(factor in factors for dims in op.result_dims for factors in dims)
    if any(are_parameters) and not all(are_parameters):
        parameter = are_parameters.index(True)
        if not having[parameter]:
            return _tokens(op, factor, are_parameters.index(False))
        return EXPERT if is_kept and all(having) else TENSOR
    if all(having) and is_kept:  # a batch of products of activations: of examples, or of heads
        return DATA if _dimension(op, factor, 0) == 0 else TENSOR
    if all(having):  # a gradient of a parameter is a sum over tokens
        return DATA if _dimension(op, factor, 0) == 0 else SEQUENCE
    return TENSOR if op.reduced and len(op.result_dims[0]) == 2 else SEQUENCE


def _tokens(op: FactoredOp, factor: int, operand: int) -> str:
    return DATA if _dimension(op, factor, operand) == 0 else SEQUENCE


def _dimension(op: FactoredOp, factor: int, operand: int) -> int:
    return next((dim for dim, factors in enumerate(op.operand_dims[operand]) if factor in factors), -1)


def _derived(program: FactoredProgram, parameters: frozenset[int]) -> set[int]:
    """Returns the tensors that are made of parameters alone, without a matrix product."""
    found = set(parameters)
    for op in program.ops:
        if op.operands and not op.flops and all(tensor in found for tensor in op.operands):
            found.update(op.results)
    return found


def _stored(program: FactoredProgram, parameters: frozenset[int], assignment: Assignment, axis: str) -> float:
    sizes = {tensor: math.prod(program.tensors[tensor].shape) * program.tensors[tensor].bits for tensor in parameters}
    split = sum(size for tensor, size in sizes.items() if _splits(assignment.layouts[tensor], axis))
    return split / max(1, sum(sizes.values()))


def _splits(layout, axis: str) -> bool:
    return layout is not None and any(each.name == axis for axes in layout.dims for each in axes)
