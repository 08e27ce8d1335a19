# SPDX-License-Identifier: Apache-2.0
"""A `stablehlo.dot_general` block by block: what one dimension is for, and the same product of smaller operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reshard.synthesis.overlap.pipelines import Product

from ..ir.ops import bits_of, shape_of
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present

Shape = tuple[int, ...]
Kind = Literal["batched", "contracted", "free"]


@dataclass(frozen=True, slots=True)
class Role:
    """What a dimension of an operand is for.

    Attributes:
      kind: "batched" and "contracted" dimensions are paired with one of the other operand, `other`.
      result: the dimension of the result; None for a contracted one.
    """

    kind: Kind
    other: int | None
    result: int | None


class DotProduct:
    """A dot_general. Operand 0 is the left one, operand 1 the right one; sizes that are unknown are negative."""

    word = "product"
    has_price = True  # compilers know how long it takes, and so when to start it

    def __init__(self, op: ir.Operation):
        self.op = op
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        self.batched = tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)
        self.contracted = tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)
        self.shapes: tuple[Shape, Shape] = tuple(tuple(present(shape_of(each.type))) for each in op.operands)  # type: ignore[assignment]

    @property
    def result_shape(self) -> Shape:
        return self.shape_of_result(*self.shapes)

    def role(self, operand: int, dim: int) -> Role:
        """Returns what a dimension of an operand is for."""
        other = 1 - operand
        for kind, paired in (("batched", self.batched), ("contracted", self.contracted)):
            if dim in paired[operand]:
                at = paired[operand].index(dim)
                return Role(kind, paired[other][at], at if kind == "batched" else None)  # type: ignore[arg-type]
        free = self.free(operand)
        before = len(self.batched[0]) + (len(self.free(0)) if operand else 0)
        return Role("free", None, before + free.index(dim))

    def origins(self, dim: int) -> tuple[tuple[int, int], ...]:
        """Returns the (operand, dimension) that a dimension of the result comes from: two of a batched one."""
        if dim < len(self.batched[0]):
            return (0, self.batched[0][dim]), (1, self.batched[1][dim])
        dim -= len(self.batched[0])
        left = self.free(0)
        return ((0, left[dim]),) if dim < len(left) else ((1, self.free(1)[dim - len(left)]),)

    def shape_of_result(self, left: Shape, right: Shape) -> Shape:
        """Returns the shape of the product of operands of other sizes."""
        shapes = left, right
        free = [shapes[operand][dim] for operand in (0, 1) for dim in self.free(operand)]
        return (*(left[dim] for dim in self.batched[0]), *free)

    @property
    def element_type(self) -> ir.Type:
        return ir.RankedTensorType(self.op.results[0].type).element_type

    def write(self, operands: Sequence[ir.Value], element: ir.Type | None = None) -> ir.Value:
        """Inserts the product of operands of other sizes, as precise as this one, in elements of its type or another
        one."""
        left, right = (tuple(present(shape_of(each.type))) for each in operands)
        kind = ir.RankedTensorType.get(self.shape_of_result(left, right), element or self.element_type)
        attributes = {name: self.op.attributes[name] for name in _KEPT if name in self.op.attributes}
        return ir.Operation.create(self.op.name, [kind], list(operands), attributes).results[0]

    def sized(self, left: Shape, right: Shape) -> Product:
        """Returns the sizes of the product of operands of other sizes, as matrices."""
        bits = tuple(bits_of(each.type) for each in (*self.op.operands, self.op.results[0]))
        sizes = ((left, self.batched[0]), (left, self.free(0)), (right, self.free(1)), (left, self.contracted[0]))
        return Product(*(math.prod(shape[dim] for dim in dims) for shape, dims in sizes), bits)  # type: ignore[arg-type]

    def free(self, operand: int) -> list[int]:
        """Returns the dimensions of an operand that are neither batched nor contracted."""
        bound = {*self.batched[operand], *self.contracted[operand]}
        return [dim for dim in range(len(self.shapes[operand])) if dim not in bound]


_KEPT = ("dot_dimension_numbers", "precision_config", "algorithm")
