# SPDX-License-Identifier: Apache-2.0
"""Products and lookups before a collective, and the ops between them and it, all of which can be computed block by
block.

A block of the collective's operand is a part along one dimension. If the operand is a sum of products, or elementwise
of them, or a transpose of that, its block is the same of their blocks; `blocks` has all ops that may be between. What
else goes in, such as a residual, is there as a whole, and a part of it is cut out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.ops import producer_of, shape_of, short_name
from ..platform.bindings import ir
from ..platform.typed import present
from .blocks import PLAIN, RESHAPING, along
from .lookups import TableLookup
from .products import DotProduct

Made = DotProduct | TableLookup  # what makes the blocks that travel

DOT = "stablehlo.dot_general"
_MADE = {DOT: DotProduct, "stablehlo.gather": TableLookup}
_MOST_OPS = 24  # they are written once for each block; of what lies behind, parts are cut out


@dataclass(frozen=True, slots=True)
class Cone:
    """The ops that only lead to one value, the nearest ones if they are many.

    Attributes:
      root: the value. ops: of its block, each behind what it uses; products too.
      products: those among them, and lookups, each with the dimension of its result along which blocks are apart.
      left_out: those that cannot be cut, or that are used elsewhere, too, and so are computed as a whole; each with the
        reason.
      sizes: of the dimensions along which values are cut.
    """

    root: ir.Value
    ops: tuple[ir.Operation, ...]
    products: tuple[tuple[Made, int], ...]
    left_out: tuple[tuple[Made, str], ...]
    sizes: frozenset[int]

    @staticmethod
    def of(root: ir.Value, block: ir.Block, dim: int, blocks: int) -> Cone:
        """Returns the cone of a value, in which so many blocks are apart along a dimension.

        Args:
          block: that of the collective, in which all ops lie.
        """
        ops, products, left_out, sizes = [], [], [], set()
        left = deque([(root, dim)])
        while left and len(ops) < _MOST_OPS:
            value, dim = left.popleft()
            sizes.add(present(shape_of(value.type))[dim])
            op = producer_of(value)
            if op is None or op.block != block or len(op.results) != 1:
                continue
            if why_not := _why_not(op, dim, blocks):
                left_out += [(made, why_not.format(made.word)) for made in _made_behind(op)]
                continue
            ops.append(op)
            if (made := made_by(op)) is not None:
                products.append((made, dim))
            else:
                cut = zip(op.operands, present(along(op, dim, blocks)), strict=True)
                left += [(operand, of_operand) for operand, of_operand in cut if of_operand is not None]
        sizes.update(present(shape_of(value.type))[dim] for value, dim in left)  # parts of these are cut out
        return Cone(root, tuple(ops), tuple(products), tuple(left_out), frozenset(sizes))

    @property
    def is_reshaped(self) -> bool:
        """Returns whether ops between have other shapes than what they take, but for transposes."""
        return any(op.name in RESHAPING - PLAIN for op in self.ops)

    @property
    def near(self) -> tuple[Made, ...]:
        """Returns all products and lookups that lead to the value."""
        return tuple(made for made, _ in (*self.products, *self.left_out))


def made_by(op: ir.Operation) -> Made | None:
    """Returns an op as a product or a lookup; None if it is neither."""
    return _MADE[op.name](op) if op.name in _MADE else None


def _why_not(op: ir.Operation, dim: int, blocks: int) -> str:
    """Returns why blocks of an op's result are not computed from blocks, with a place for the word of what is made;
    empty if they are."""
    made = made_by(op)
    if made is not None and not made.origins(dim):
        return "the {} takes a part of the dimension of its table that would be cut"
    if made is None and along(op, dim, blocks) is None:
        return f"{short_name(op)} behind the {{}} does not keep its blocks apart"
    return "the {} is used as a whole, too" if sum(1 for _ in op.results[0].uses) > 1 else ""


def _made_behind(op: ir.Operation | None) -> Iterator[Made]:
    """Yields the product or lookup that an op is, or is a conversion of, or has in another shape."""
    while op is not None and op.name in RESHAPING:
        op = producer_of(op.operands[0])
    if op is not None and (made := made_by(op)) is not None:
        yield made
