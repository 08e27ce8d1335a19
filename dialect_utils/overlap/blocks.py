# SPDX-License-Identifier: Apache-2.0
"""Ops whose blocks are the same op of blocks of their operands.

| op                | a block of the result along a dimension is that of                                        |
|-------------------|-------------------------------------------------------------------------------------------|
| elementwise       | the blocks of all operands                                                                |
| transpose         | the block along the dimension that it comes from                                          |
| reduce            | the block along the dimension that is kept; what is reduced is whole in each block        |
| reshape           | the block along a dimension with as many elements before it, if there are as many blocks  |
| broadcast_in_dim  | the block along the dimension that it comes from, the whole operand if it comes from none |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.fusing import is_elementwise_of_alike
from ..ir.ops import shape_of
from ..ir.reductions import is_splittable, reduction_of, write_reducer
from ..platform.bindings import ir
from ..platform.typed import present

TRANSPOSE = "stablehlo.transpose"
_REDUCE = "stablehlo.reduce"
Along = tuple[int | None, ...]  # for each operand the dimension along which it is cut; None: it is taken whole


def along(op: ir.Operation, dim: int, blocks: int) -> Along | None:
    """Returns how operands are cut if the result of an op is, in so many blocks along a dimension; None if blocks of
    the result are not made of blocks."""
    if op.name in _RULES:
        is_known = all(ir.RankedTensorType(each.type).has_static_shape for each in op.operands)
        return _RULES[op.name](op, dim, blocks) if is_known else None
    return (dim,) * len(op.operands) if is_elementwise_of_alike(op) else None


def write_block(op: ir.Operation, operands: Sequence[ir.Value], dim: int, blocks: int) -> ir.Value:
    """Inserts a block of the result of an op, from its operands, cut as `along` says."""
    kind = ir.RankedTensorType(op.results[0].type)
    shape = list(kind.shape)
    shape[dim] //= blocks
    attributes = {name: op.attributes[name] for name in _names(op)}
    result = ir.RankedTensorType.get(shape, kind.element_type)
    made = ir.Operation.create(op.name, [result], list(operands), attributes, regions=len(op.regions))
    if op.name == _REDUCE:
        write_reducer(made, kind.element_type, present(reduction_of(op)))
    return made.results[0]


def permutation_of(transpose: ir.Operation) -> list[int]:
    """Returns for each dimension of a transpose's result that of its operand."""
    return _ints(transpose, "permutation")


def _transposed(op: ir.Operation, dim: int, blocks: int) -> Along:
    return (permutation_of(op)[dim],)


def _reduced(op: ir.Operation, dim: int, blocks: int) -> Along | None:
    element = ir.RankedTensorType(op.results[0].type).element_type
    if len(op.results) != 1 or not is_splittable(element, reduction_of(op)):
        return None
    dims = _ints(op, "dimensions")
    kept = [each for each in range(len(_shape(op.operands[0]))) if each not in dims]
    return kept[dim], None


def _reshaped(op: ir.Operation, dim: int, blocks: int) -> Along | None:
    """Returns the dimension whose blocks are the same elements in the same order.

    Example: in 2 blocks, [4,3,5] -> [12,5] along 0: 0. Along 0 of [3,4,5] -> [12,5]: none, since 2 does not divide 3.
    """
    shape, result = _shape(op.operands[0]), _shape(op.results[0])
    before = math.prod(result[:dim])
    found = [d for d, size in enumerate(shape) if math.prod(shape[:d]) == before and size and size % blocks == 0]
    return (found[0],) if found and result[dim] % blocks == 0 else None


def _broadcast(op: ir.Operation, dim: int, blocks: int) -> Along:
    to = _ints(op, "broadcast_dimensions")
    if dim not in to or _shape(op.operands[0])[to.index(dim)] != _shape(op.results[0])[dim]:
        return (None,)
    return (to.index(dim),)


def _ints(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _shape(value: ir.Value) -> list[int]:
    return present(shape_of(value.type))


def _names(op: ir.Operation) -> list[str]:
    return [name for name, _ in op.attributes.items()]


_RULES = {
    TRANSPOSE: _transposed,
    _REDUCE: _reduced,
    "stablehlo.reshape": _reshaped,
    "stablehlo.broadcast_in_dim": _broadcast,
}
PLAIN = frozenset({TRANSPOSE, "stablehlo.convert"})
RESHAPING = frozenset({*_RULES, *PLAIN})  # ops of one array
