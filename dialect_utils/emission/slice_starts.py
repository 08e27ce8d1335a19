# SPDX-License-Identifier: Apache-2.0
"""Starts of dynamic slices before islands: XLA makes one slice of two, and adds up the starts as they are.

    %0 = dynamic_slice %x, %i      XLA clamps %i, so that the slice lies inside
    island on %0: dynamic_slice    the device's own part, or what it sends
    ==>
    dynamic_slice %x, clamp(%i + own start)

A start that the first slice would have clamped becomes another one. So it is clamped in the program, unless it is known
to lie inside.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.functions import CALL, FUNCTION, calls_by_name, function_called, is_public, symbol
from ..ir.index_ranges import Ranges, lies_inside
from ..ir.ops import CONSTRAINTS, ops_in, owner_of_argument, producer_of, terminator_of
from ..platform.bindings import ir, stablehlo

SLICE = "stablehlo.dynamic_slice"
MOVES = frozenset({"stablehlo.reshape", "stablehlo.transpose", "stablehlo.convert"})  # XLA slices before them
_ISLAND = "sdy.manual_computation"


def clamp_starts_before_islands(module: ir.Module) -> int:
    """Clamps the starts of dynamic slices that manual computations take, where they may lie outside.

    Returns: the number of these slices.
    """
    ops = ops_in(module.operation)
    if not any(op.name == SLICE for op in ops):
        return 0
    calls = calls_by_name(module.operation)
    found = {
        op: None
        for island in ops
        if island.name == _ISLAND
        for value in island.operands
        for op in _behind(value, calls)
    }
    ranges = Ranges()
    outside = [op for op in found if not _is_inside(op, ranges)]
    for op in outside:
        clamp_starts(op)
    return len(outside)


def clamp_starts(op: ir.Operation) -> None:
    """Gives a dynamic slice the starts that it really has."""
    with ir.InsertionPoint(op), op.location:
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


def _last_starts(op: ir.Operation) -> list[int]:
    sizes = (ir.RankedTensorType(each.type).shape for each in (op.operands[0], op.results[0]))
    return [whole - part for whole, part in zip(*sizes, strict=True)]


def _is_inside(op: ir.Operation, ranges: Ranges) -> bool:
    starts = (ranges.of(op.operands[number]) for number in range(1, len(op.operands)))
    return all(not most or lies_inside(start, most) for start, most in zip(starts, _last_starts(op), strict=True))


def _behind(value: ir.Value, calls: dict[str, list[ir.Operation]]) -> Iterator[ir.Operation]:
    """Yields the dynamic slices that a value comes from, moved at most, through calls."""
    waiting, seen = [value], set()
    while waiting:
        if (value := waiting.pop()) in seen:
            continue
        seen.add(value)
        op = producer_of(value)
        if op is None:
            function = owner_of_argument(value)
            if function.name == FUNCTION and not is_public(function):
                number = ir.BlockArgument(value).arg_number
                waiting += [call.operands[number] for call in calls.get(symbol(function), ())]
        elif op.name == SLICE:
            yield op
        elif op.name in MOVES or op.name in CONSTRAINTS:
            waiting.append(op.operands[0])
        elif op.name == CALL and (called := function_called(op)) is not None and len(called.regions[0].blocks):
            waiting.append(terminator_of(called.regions[0].blocks[0]).operands[ir.OpResult(value).result_number])
