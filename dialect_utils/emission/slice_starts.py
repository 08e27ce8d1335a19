# SPDX-License-Identifier: Apache-2.0
"""Starts of the program's dynamic slices beside ours: XLA makes one slice of two, and adds up the starts as they are.

    %0 = dynamic_slice %x, %i      XLA clamps %i, so that the slice lies inside
    dynamic_slice %0               of ours: the device's own part, or what it sends
    ==>
    dynamic_slice %x, clamp(%i + own start)

A start that the first slice would have clamped becomes another one; likewise where the program slices what ours has
sliced. So starts of the program that are not known to lie inside are clamped where it has them. A gather of a single
window is a slice to XLA, too.

A start that lies inside is clamped again by XLA when it makes one slice of two, with the number type that it has: 298
is 42 in eight bits. So starts of fewer bits than the array has places become wider.

XLA takes many ops away that lie between two slices: products with one, loops of one turn, what is split and put
together again. So all slices of a module are looked at, not those that a value is seen to come from.
"""

from __future__ import annotations

import numpy as np

from ..ir.index_ranges import Ranges, lies_inside, range_of_type
from ..ir.ops import dense_elements, name_of, ops_in
from ..platform.bindings import ir, stablehlo

SLICE, _GATHER = "stablehlo.dynamic_slice", "stablehlo.gather"
MOVES = frozenset({"stablehlo.reshape", "stablehlo.transpose", "stablehlo.convert"})  # XLA slices before them
_OURS = "reshard/"  # how the locations of ops begin that passes have written for themselves


def put_starts_in_range(module: ir.Operation) -> int:
    """Clamps the starts of the program's dynamic slices in a module that has some of ours, where they may lie outside.

    Returns: the number of these slices.
    """
    found = [op for op in ops_in(module) if op.name in (SLICE, _GATHER) and _is_slice(op) and not _is_ours(op)]
    ranges = Ranges()
    outside = [op for op in found if not _is_inside(op, ranges)]
    for op in outside:
        clamp_starts(op)
    return len(outside)


def _is_ours(op: ir.Operation) -> bool:
    return (name_of(op.location) or "").startswith(_OURS)


def clamp_starts(op: ir.Operation) -> None:
    """Gives a dynamic slice, or a gather of a single window, the starts that it really has."""
    with ir.InsertionPoint(op), op.location:
        if op.name == _GATHER:
            indices = wide_enough(op.operands[1])
            op.operands[1] = _clamped_indices(indices, _last_indices(op))
            return
        for number, most in enumerate(_last_starts(op), 1):
            op.operands[number] = clamped(wide_enough(op.operands[number]), most)


def clamped(start: ir.Value, most: int) -> ir.Value:
    """Returns the start that a dynamic slice really has."""
    number = ir.RankedTensorType(start.type).element_type
    least, last = (
        stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(start.type, ir.IntegerAttr.get(number, each))).result
        for each in (0, most)
    )
    return stablehlo.ClampOp(least, start, last).result


def wide_enough(indices: ir.Value) -> ir.Value:
    """Returns indices of at least 32 bits, so that they can hold the numbers of all places."""
    kind = ir.RankedTensorType(indices.type)
    if ir.IntegerType(kind.element_type).width >= 32:
        return indices
    wide = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(32))
    return stablehlo.ConvertOp(wide, indices).result


def _clamped_indices(indices: ir.Value, last: np.ndarray) -> ir.Value:
    kind = ir.RankedTensorType(indices.type)
    number = kind.element_type
    least = stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(number, 0))).result
    dtype = np.dtype(f"int{ir.IntegerType(number).width}")
    most = stablehlo.ConstantOp(dense_elements(last.astype(dtype).reshape(kind.shape), kind)).result
    return stablehlo.ClampOp(least, indices, most).result


def _last_starts(op: ir.Operation) -> list[int]:
    sizes = (ir.RankedTensorType(each.type).shape for each in (op.operands[0], op.results[0]))
    return [whole - part for whole, part in zip(*sizes, strict=True)]


def _last_indices(op: ir.Operation) -> np.ndarray:
    """Returns the last starts of a gather of a single window, one for each of its indices."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = ir.RankedTensorType(op.operands[0].type).shape
    taken = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    return np.array([sizes[d] - taken[d] for d in numbers.start_index_map])


def _is_slice(op: ir.Operation) -> bool:
    if not all(ir.RankedTensorType(each.type).has_static_shape for each in (*op.operands, *op.results)):
        return False
    if op.name == SLICE:
        return True
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    indices = int(np.prod(ir.RankedTensorType(op.operands[1].type).shape))
    return indices == len(numbers.start_index_map) > 0


def _is_inside(op: ir.Operation, ranges: Ranges) -> bool:
    if op.name == _GATHER:
        last = int(_last_indices(op).min(initial=0))
        return _holds_places(op.operands[1], op.operands[0]) and lies_inside(ranges.of(op.operands[1]), last)
    return all(
        not most or (_holds_places(start, op.operands[0]) and lies_inside(ranges.of(start), most))
        for start, most in zip(list(op.operands)[1:], _last_starts(op), strict=True)
    )


def _holds_places(start: ir.Value, array: ir.Value) -> bool:
    """Returns whether the type of a start has numbers for all places of an array, along each of its dimensions."""
    numbers = range_of_type(start)
    return numbers is not None and max(ir.RankedTensorType(array.type).shape, default=0) <= numbers[1]
