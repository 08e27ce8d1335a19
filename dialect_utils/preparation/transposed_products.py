# SPDX-License-Identifier: Apache-2.0
"""Products whose operands are named in the order in which the result is used.

    %0 = dot_general %x, %y : ... -> tensor<32768x2048xbf16>
    %1 = transpose %0, dims = [1, 0] : ... -> tensor<2048x32768xbf16>
    ==>
    %1 = dot_general %y, %x : ... -> tensor<2048x32768xbf16>

JAX writes the first form for gradients of weights. XLA makes the second one of it wherever nothing is between the two.
On tiles a sum over devices may be between them: then the sum is scattered along the other dimension, and the transpose
stays behind it. The compiler for TPUs avoids that transpose by a layout in memory, which it gives to all that the
gradient meets: it copies the weight and the optimizer's state into that layout, long before they are needed, and back.
"""

from __future__ import annotations

import itertools

from ..ir.ops import attribute_names, ops_in, producer_of
from ..platform.bindings import ir, stablehlo
from ..shardings.sdy_shardings import SHARDING
from ..shardings.value_layouts import replace_op

PRODUCT, TRANSPOSE, _PERMUTATION = "stablehlo.dot_general", "stablehlo.transpose", "permutation"
_NUMBERS, _PRECISION = "dot_dimension_numbers", "precision_config"
_OF_EITHER_ORDER = frozenset({_NUMBERS, _PRECISION})


def untranspose_products(module: ir.Module) -> int:
    """Swaps the operands of products that are used transposed alone, in place, and returns how many these were."""
    return sum(_untransposed(op) for op in ops_in(module.operation) if op.name == TRANSPOSE)


def _untransposed(transpose: ir.Operation) -> bool:
    product = producer_of(transpose.operands[0])
    if product is None or product.name != PRODUCT or len(list(product.results[0].uses)) > 1:
        return False
    if not set(attribute_names(product.attributes)) <= _OF_EITHER_ORDER:
        return False  # a sharding of the result, a sharding rule, or an algorithm for operands of two kinds
    if not set(attribute_names(transpose.attributes)) <= {_PERMUTATION, SHARDING}:
        return False
    permutation = list(ir.DenseI64ArrayAttr(transpose.attributes[_PERMUTATION]))
    if permutation != _swapped_order(product):
        return False
    with product.location, ir.InsertionPoint(product):
        swapped = ir.Operation.create(
            PRODUCT,
            results=[transpose.results[0].type],
            operands=[product.operands[1], product.operands[0]],
            attributes=_swapped(product),
        )
    replace_op(transpose, swapped)
    product.erase()
    return True


def _swapped_order(product: ir.Operation) -> list[int]:
    """Returns the dimensions of a result in the order that it has with the operands swapped."""
    numbers = stablehlo.DotDimensionNumbers(product.attributes[_NUMBERS])
    ranks = [ir.RankedTensorType(each.type).rank for each in product.operands]
    batch, contracted = len(numbers.lhs_batching_dimensions), len(numbers.lhs_contracting_dimensions)
    left, right = (rank - batch - contracted for rank in ranks)
    dims = iter(range(batch + left + right))
    batching, lefts, rights = (list(itertools.islice(dims, count)) for count in (batch, left, right))
    return [*batching, *rights, *lefts]


def _swapped(product: ir.Operation) -> dict[str, ir.Attribute]:
    numbers = stablehlo.DotDimensionNumbers(product.attributes[_NUMBERS])
    attributes: dict[str, ir.Attribute] = {
        _NUMBERS: stablehlo.DotDimensionNumbers.get(
            list(numbers.rhs_batching_dimensions),
            list(numbers.lhs_batching_dimensions),
            list(numbers.rhs_contracting_dimensions),
            list(numbers.lhs_contracting_dimensions),
        )
    }
    if _PRECISION in product.attributes:
        attributes[_PRECISION] = ir.ArrayAttr.get(list(ir.ArrayAttr(product.attributes[_PRECISION]))[::-1])
    return attributes
