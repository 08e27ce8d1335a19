# SPDX-License-Identifier: Apache-2.0
"""Products before a collective, and the ops between them and it, all of which can be computed block by block.

A block of the collective's operand is a part along one dimension. If the operand is a sum of products, or elementwise
of them, or a transpose of that, its block is the same of their blocks. What else goes in, such as a residual, is there
as a whole, and a part of it is cut out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.ops import producer_of
from ..partitioning.local_rules import is_elementwise_of_alike
from ..platform.bindings import ir
from .products import DotProduct

DOT, TRANSPOSE = "stablehlo.dot_general", "stablehlo.transpose"
_MOST_OPS = 24  # they are written once for each block; of what lies behind, parts are cut out


@dataclass(frozen=True, slots=True)
class Cone:
    """The ops that only lead to one value, the nearest ones if they are many.

    Attributes:
      root: the value. ops: of its block, each behind what it uses; products too.
      products: those among them, each with the dimension of its result along which blocks are apart.
      is_shared: whether a product, or what is made of one, is used elsewhere, too, and so is computed as a whole.
    """

    root: ir.Value
    ops: tuple[ir.Operation, ...]
    products: tuple[tuple[DotProduct, int], ...]
    is_shared: bool = False

    @staticmethod
    def of(root: ir.Value, block: ir.Block, dim: int) -> Cone:
        """Returns the cone of a value, in which blocks are apart along a dimension.

        Args:
          block: that of the collective, in which all ops lie.
        """
        ops, products, shared = [], [], []
        left = deque([(root, dim)])
        while left and len(ops) < _MOST_OPS:
            value, dim = left.popleft()
            op = producer_of(value)
            if op is None or op.block != block or len(op.results) != 1 or not _can_be_cut(op):
                continue
            if sum(1 for _ in value.uses) > 1:
                shared.append(_is_of_product(op))
                continue
            ops.append(op)
            if op.name == DOT:
                products.append((DotProduct(op), dim))
            elif op.name == TRANSPOSE:
                left.append((op.operands[0], permutation_of(op)[dim]))
            else:
                left += [(operand, dim) for operand in op.operands]
        return Cone(root, tuple(ops), tuple(products), any(shared))


def permutation_of(transpose: ir.Operation) -> list[int]:
    """Returns for each dimension of a transpose's result that of its operand."""
    return list(ir.DenseI64ArrayAttr(transpose.attributes["permutation"]))


def _can_be_cut(op: ir.Operation) -> bool:
    return op.name in (DOT, TRANSPOSE) or is_elementwise_of_alike(op)


def _is_of_product(op: ir.Operation) -> bool:
    """Returns whether an op is a product, or a conversion or transpose of one."""
    return any(each.name == DOT for each in _behind_conversions(op))


def _behind_conversions(op: ir.Operation | None) -> Iterator[ir.Operation]:
    while op is not None:
        yield op
        op = producer_of(op.operands[0]) if op.name in (TRANSPOSE, "stablehlo.convert") else None
