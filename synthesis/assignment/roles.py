# SPDX-License-Identifier: Apache-2.0
"""What it means that an axis splits a factor of a matrix product: its role, in the words of the field.

The role of an axis follows from the factor that it splits and from which operand is a parameter:

| role | the axis splits |
|---|---|
| data | the batch: the leading dimension of the activations |
| sequence | another dimension of the activations that is no feature |
| tensor | features: the columns of a parameter (its result is split) or its rows (partial sums), or heads |
| expert | a dimension of the parameter, the activations and the result alike |
"""

from __future__ import annotations

from .clusters import Clusters
from .factored_program import FactoredOp, FactoredProgram

DATA, SEQUENCE, TENSOR, EXPERT = "data", "sequence", "tensor", "expert"


class Roles:
    """The roles of the factors of a program's matrix products.

    Attributes:
      parameters: the arguments that are state, since a result shares their layout; without any, all arguments of two or
        more dimensions but the last.
    """

    def __init__(self, program: FactoredProgram, clusters: Clusters):
        self._clusters = clusters
        results = {clusters.of[tensor] for tensor in program.results}
        state = frozenset(tensor for tensor in program.arguments if clusters.of[tensor] in results)
        other = (each for each in program.arguments[:-1] if len(program.tensors[each].shape) > 1)
        self.parameters: frozenset[int] = state or frozenset(other)
        weights = {weight for weight, _ in program.weights}
        copies = {each for op in program.ops if op.name == "copy" and weights & {*op.operands} for each in op.results}
        self._clusters_of_parameters = {clusters.of[each] for each in self.parameters | copies}
        self._derived = set(self.parameters)  # what is made of parameters alone, without a matrix product
        for op in program.ops:
            if op.operands and not op.flops and all(tensor in self._derived for tensor in op.operands):
                self._derived.update(op.results)

    def of(self, op: FactoredOp, factor: int) -> str:
        """Returns the role of an axis that splits a factor of a matrix product."""
        are_parameters = [tensor in self._derived for tensor in op.operands]
        having = [any(factor in factors for factors in dims) for dims in op.operand_dims]
        is_kept = any(factor in factors for dims in op.result_dims for factors in dims)
        if any(are_parameters) and not all(are_parameters):
            parameter = are_parameters.index(True)
            if not having[parameter]:
                return _tokens(op, factor, are_parameters.index(False))
            return EXPERT if is_kept and all(having) else TENSOR
        is_gradient = any(self._clusters.of[tensor] in self._clusters_of_parameters for tensor in op.results)
        if all(having) and is_kept:  # a batch of products of activations: of experts, of examples, or of heads
            return EXPERT if is_gradient else DATA if _dimension(op, factor, 0) == 0 else TENSOR
        if all(having):  # a gradient of a parameter is a sum over tokens
            return DATA if _dimension(op, factor, 0) == 0 else SEQUENCE
        return TENSOR if is_gradient or (op.reduced and len(op.result_dims[0]) == 2) else SEQUENCE


def _tokens(op: FactoredOp, factor: int, operand: int) -> str:
    return DATA if _dimension(op, factor, operand) == 0 else SEQUENCE


def _dimension(op: FactoredOp, factor: int, operand: int) -> int:
    return next((dim for dim, factors in enumerate(op.operand_dims[operand]) if factor in factors), -1)
