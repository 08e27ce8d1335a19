# SPDX-License-Identifier: Apache-2.0
"""Masks over one device's tile: which of its elements lie in a part of the array.

A dimension that does not divide into its shards has tiles of the size rounded up, as in XLA. What a tile has behind the
end of the array is its *padding*. Its elements are not defined: ops compute on them like on others, and nothing that
the array has depends on them. An op that combines elements along such a dimension works on tiles whose padding is
filled with what changes nothing (`filled`).

    8 devices, 10 rows                  tiles of 2 rows; the last three devices have padding only
    reduce of these rows, by add        the padding is filled with 0 before
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..ir.reductions import neutral_element
from ..platform.bindings import ir, stablehlo
from .local_rules import Axes, Dims, is_even

Bounds = Mapping[int, tuple[int | None, int | None]]  # (first, stop) by dimension; None where there is none
Place = Callable[[Axes], ir.Value]  # writes the number of this device's shard along axes, a tensor<1xi32>


def within(place: Place, tile: Sequence[int], dims: Dims, bounds: Bounds) -> ir.Value | None:
    """Returns where a tile of some shape, in the layout `dims`, has elements of the array within bounds, as i1.

    None if there are no bounds.
    """
    mask = ir.RankedTensorType.get(list(tile), ir.IntegerType.get_signless(1))
    is_inside = None
    for d, ends in bounds.items():
        if ends == (None, None):
            continue
        line = ir.RankedTensorType.get([tile[d]], ir.IntegerType.get_signless(32))
        places = indices(place, line, dims[d])
        for bound, direction in zip(ends, ("GE", "LT"), strict=True):
            if bound is None:
                continue
            how = stablehlo.ComparisonDirectionAttr.get(direction)
            found = stablehlo.CompareOp(places, _splat([tile[d]], bound), how).result
            found = stablehlo.BroadcastInDimOp(mask, found, [d]).result
            is_inside = found if is_inside is None else stablehlo.AndOp(is_inside, found).result
    return is_inside


def indices(place: Place, line: ir.RankedTensorType, axes: Axes) -> ir.Value:
    """Returns the indices in the array of a tile's elements along a dimension, of type `line`, a tensor<Nxi32>."""
    places, (size,) = stablehlo.IotaOp(line, 0).result, line.shape
    if not axes:
        return places
    first = stablehlo.MulOp(place(axes), _splat([1], size)).result
    first = stablehlo.BroadcastInDimOp(line, first, [0]).result if size > 1 else first
    return stablehlo.AddOp(places, first).result


def filled(
    place: Place, tile: ir.Value, shape: Sequence[int], dims: Dims, along: Sequence[int], element: ir.Value | str
) -> ir.Value:
    """Returns a tile whose padding is filled.

    Args:
      shape, dims: of the array. along: the dimensions whose padding is filled.
      element: a scalar, or the reduction in which the elements of the padding are to change nothing.
    """
    bounds = {d: (None, shape[d]) for d in along if not is_even(shape[d], dims[d])}
    kind = ir.RankedTensorType(tile.type)
    is_inside = within(place, kind.shape, dims, bounds)
    if is_inside is None:
        return tile
    if isinstance(element, str):
        around = neutral_element(kind, element)
    else:
        around = stablehlo.BroadcastInDimOp(kind, element, []).result
    return stablehlo.SelectOp(is_inside, tile, around).result


def _splat(shape: Sequence[int], value: int) -> ir.Value:
    number = ir.IntegerType.get_signless(32)
    kind = ir.RankedTensorType.get(list(shape), number)
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(number, value))).result
