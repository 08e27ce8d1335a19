# SPDX-License-Identifier: Apache-2.0
"""Scatters whose indices say no more than where rows go.

- S1 Windows of size 1 along a dimension that the indices point into become an inserted dimension:

      scatter of updates tensor<64x512x1xf32>, whose windows are 64x1
      ==>
      scatter of updates tensor<64x512xf32>, whose windows are 64, with the other dimension inserted

  JAX writes the first one for the gradient of a slice at a computed place, once that is batched. Both write the same
  elements, since a window of size 1 lies inside wherever its only element does.
- S2 Components of the indices that are known to be 0, along dimensions that windows cover whole, are left out:

      indices tensor<64x3xi32> = clamp(0, (row, 0, 0), (1023, 0, 0))
      ==>
      indices tensor<64x1xi32>, the rows

  JAX writes the first ones for the update of a slice at a computed place, once that is batched. A window along a
  dimension that no component points into begins at 0.

Shapes that are not known stay, and scatters with a sharding rule of their own, which is one for their dimensions.

Rules for rows that are split are of the second forms. So is a kernel of the compiler for TPUs, which makes a loop of
the first ones that writes one window after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.index_ranges import Ranges
from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, stablehlo

SCATTER = "stablehlo.scatter"
_NUMBERS, _RULE = "scatter_dimension_numbers", "sdy.sharding_rule"


def simplify_scatters(module: ir.Module) -> int:
    """Rewrites the scatters of a module in place, and returns how many of them had another form."""
    scatters, ranges = [op for op in ops_in(module.operation) if op.name == SCATTER and _may_change(op)], Ranges()
    told = [_told(op, ranges) for op in scatters]  # all of them first: ranges are those of a module that stays as it is
    return sum(_simplify(op, kept) for op, kept in zip(scatters, told, strict=True))


def _may_change(op: ir.Operation) -> bool:
    types = [ir.RankedTensorType(each.type) for each in op.operands]
    return _RULE not in op.attributes and all(each.has_static_shape for each in types)


def _numbers_of(op: ir.Operation) -> stablehlo.ScatterDimensionNumbers:
    return stablehlo.ScatterDimensionNumbers(op.attributes[_NUMBERS])


def window_dims(op: ir.Operation) -> dict[int, int]:
    """Returns the dimensions of the operand that windows have, each with that of the updates."""
    numbers, rank = _numbers_of(op), ir.ShapedType(op.operands[0].type).rank
    apart = [*numbers.inserted_window_dims, *numbers.input_batching_dims]
    return dict(zip((dim for dim in range(rank) if dim not in apart), numbers.update_window_dims, strict=True))


def _told(op: ir.Operation, ranges: Ranges) -> list[int]:
    """Returns the components of the indices that say where a window goes; the first one if none does. S2"""
    numbers, indices = _numbers_of(op), op.operands[_count(op)]
    pointed, windows = list(numbers.scattered_dims_to_operand_dims), window_dims(op)
    operand, updates = (ir.ShapedType(op.operands[at].type).shape for at in (0, _count(op) + 1))

    def is_told(component: int, dim: int) -> bool:
        if dim not in windows or operand[dim] != updates[windows[dim]]:
            return True
        return ranges.along(indices, numbers.index_vector_dim, component) != (0, 0)

    if len(pointed) < 2:
        return list(range(len(pointed)))
    return [component for component, dim in enumerate(pointed) if is_told(component, dim)] or [0]


def _count(op: ir.Operation) -> int:
    """Returns how many operands a scatter updates; then come the indices, and as many updates."""
    return (len(op.operands) - 1) // 2


def _simplify(op: ir.Operation, kept: Sequence[int]) -> bool:
    numbers, count = _numbers_of(op), _count(op)
    updates = ir.RankedTensorType(op.operands[count + 1].type)
    before = list(numbers.scattered_dims_to_operand_dims)
    pointed = [before[each] for each in kept]
    inserted = {dim: at for dim, at in window_dims(op).items() if dim in pointed and updates.shape[at] == 1}
    if not inserted and pointed == before:
        return False
    with op.location, ir.InsertionPoint(op):
        if pointed != before:
            op.operands[count] = _components(op.operands[count], numbers.index_vector_dim, kept)
        if inserted:
            _insert(op, inserted)
        op.attributes[_NUMBERS] = stablehlo.ScatterDimensionNumbers.get(
            _kept_windows(updates.rank, numbers.update_window_dims, inserted),
            sorted({*numbers.inserted_window_dims, *inserted}),
            list(numbers.input_batching_dims),
            list(numbers.scatter_indices_batching_dims),
            pointed,
            numbers.index_vector_dim,
        )
    return True


def _components(indices: ir.Value, dim: int, kept: Sequence[int]) -> ir.Value:
    """Returns some of the components of indices, in their order."""
    shape = ir.ShapedType(indices.type).shape
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    parts = []
    for component in kept:
        starts[dim], limits[dim] = component, component + 1
        parts.append(stablehlo.slice(indices, starts, limits, strides))
    return parts[0] if len(parts) == 1 else stablehlo.concatenate(parts, dim)


def _kept_dims(rank: int, inserted: Mapping[int, int]) -> list[int]:
    return [dim for dim in range(rank) if dim not in inserted.values()]


def _kept_windows(rank: int, windows: Sequence[int], inserted: Mapping[int, int]) -> list[int]:
    kept = _kept_dims(rank, inserted)
    return [kept.index(dim) for dim in windows if dim in kept]


def _insert(op: ir.Operation, inserted: Mapping[int, int]) -> None:
    """Takes dimensions of size 1 out of the updates. S1"""
    for at in range(_count(op) + 1, len(op.operands)):
        kept = _kept_dims(ir.ShapedType(op.operands[at].type).rank, inserted)
        op.operands[at] = _without(op.operands[at], kept)


def _without(value: ir.Value, kept: Sequence[int]) -> ir.Value:
    """Returns the value with these dimensions alone; that from which a reshape made it, if it had no others."""
    type_, made = ir.RankedTensorType(value.type), producer_of(value)
    target = ir.RankedTensorType.get([type_.shape[dim] for dim in kept], type_.element_type)
    if made is not None and made.name == "stablehlo.reshape" and made.operands[0].type == target:
        return made.operands[0]
    return stablehlo.reshape(target, value)
