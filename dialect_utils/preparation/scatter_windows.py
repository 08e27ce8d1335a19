# SPDX-License-Identifier: Apache-2.0
"""Scatters without windows of size 1 along the dimensions that their indices point into.

    scatter of updates tensor<64x512x1xf32>, whose windows are 64x1       jax writes it for the gradient of a slice at a
    ==>                                                                   computed place, once that is batched
    scatter of updates tensor<64x512xf32>, whose windows are 64, with the other dimension inserted

Both write the same elements, since a window of size 1 lies inside wherever its only element does. Rules for rows that
are split are of the second form. So is a kernel of the compiler for TPUs, which makes a loop of the first one that
writes one window after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, stablehlo

SCATTER = "stablehlo.scatter"
_NUMBERS = "scatter_dimension_numbers"


def insert_unit_windows(module: ir.Module) -> int:
    """Rewrites the scatters of a module in place, and returns how many of them had such windows."""
    return sum(_insert(op) for op in ops_in(module.operation) if op.name == SCATTER)


def _insert(op: ir.Operation) -> bool:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes[_NUMBERS])
    count = (len(op.operands) - 1) // 2
    operand, updates = (ir.RankedTensorType(op.operands[at].type) for at in (0, count + 1))
    apart = [*numbers.inserted_window_dims, *numbers.input_batching_dims]
    pointed = numbers.scattered_dims_to_operand_dims
    dims = (dim for dim in range(operand.rank) if dim not in apart)
    windows = zip(dims, numbers.update_window_dims, strict=True)
    inserted = {dim: window for dim, window in windows if dim in pointed and updates.shape[window] == 1}
    if not inserted or not updates.has_static_shape:
        return False
    kept = [dim for dim in range(updates.rank) if dim not in inserted.values()]
    with op.location, ir.InsertionPoint(op):
        for at in range(count + 1, len(op.operands)):
            op.operands[at] = _without(op.operands[at], kept)
        op.attributes[_NUMBERS] = stablehlo.ScatterDimensionNumbers.get(
            [kept.index(dim) for dim in numbers.update_window_dims if dim in kept],
            sorted({*numbers.inserted_window_dims, *inserted}),
            list(numbers.input_batching_dims),
            list(numbers.scatter_indices_batching_dims),
            list(pointed),
            numbers.index_vector_dim,
        )
    return True


def _without(value: ir.Value, kept: Sequence[int]) -> ir.Value:
    """Returns the value with these dimensions alone; that from which a reshape made it, if it had no others."""
    type_, made = ir.RankedTensorType(value.type), producer_of(value)
    target = ir.RankedTensorType.get([type_.shape[dim] for dim in kept], type_.element_type)
    if made is not None and made.name == "stablehlo.reshape" and made.operands[0].type == target:
        return made.operands[0]
    return stablehlo.reshape(target, value)
