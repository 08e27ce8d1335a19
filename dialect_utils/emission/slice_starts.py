# SPDX-License-Identifier: Apache-2.0
"""Starts of dynamic slices before ours: XLA makes one slice of two, and adds up the starts as they are.

    %0 = dynamic_slice %x, %i      XLA clamps %i, so that the slice lies inside
    dynamic_slice %0               of ours: the device's own part, or what it sends
    ==>
    dynamic_slice %x, clamp(%i + own start)

A start that the first slice would have clamped becomes another one. So it is clamped in the program, unless it is known
to lie inside. A gather of a single window is a slice to XLA, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ..ir.functions import CALL, FUNCTION, calls_by_name, function_called, is_public, symbol
from ..ir.index_ranges import Ranges, lies_inside
from ..ir.ops import (
    CONSTRAINTS,
    LOOPS,
    blocks_of,
    dense_elements,
    ops_in,
    owner_of_argument,
    parent_of,
    producer_of,
    terminator_of,
)
from ..platform.bindings import ir, stablehlo

SLICE, _GATHER = "stablehlo.dynamic_slice", "stablehlo.gather"
MOVES = frozenset({"stablehlo.reshape", "stablehlo.transpose", "stablehlo.convert"})
_SLICED_BEFORE = MOVES | CONSTRAINTS | {"stablehlo.broadcast_in_dim"}  # XLA slices before them
_BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
_TERMINATORS = frozenset({"stablehlo.return", "sdy.return", "func.return"})
_ISLAND, _CLAMP = "sdy.manual_computation", "stablehlo.clamp"


def clamp_starts_before_islands(module: ir.Module) -> int:
    """Clamps the starts of dynamic slices that manual computations take, where they may lie outside.

    Returns: the number of these slices.
    """
    ops = ops_in(module.operation)
    if not any(op.name in (SLICE, _GATHER) for op in ops):
        return 0
    calls = calls_by_name(module.operation)
    islands = [op for op in ops if op.name == _ISLAND]
    found = {op: None for island in islands for value in island.operands for op in slices_behind(value, calls)}
    ranges = Ranges()
    outside = [op for op in found if not _is_inside(op, ranges)]
    for op in outside:
        clamp_starts(op)
    return len(outside)


def put_in_range(value: ir.Value) -> None:
    """Makes the dynamic slices that a value comes from, if any, take starts that are in range.

    For a value that is sliced next, by the program or for the device's own part.
    """
    for op in list(slices_behind(value)):
        if not _is_clamped(op):
            clamp_starts(op)


def put_inner_in_range(op: ir.Operation) -> None:
    """Makes the dynamic slices in an op, or the op itself, take starts that are in range where they slice a slice.

    For a program that slices on each device what is there the device's own part.
    """
    for each in ops_in(op):
        if _is_slice(each) and not _is_clamped(each) and any(slices_behind(each.operands[0])):
            clamp_starts(each)


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
    if op.name != _GATHER:
        return op.name == SLICE
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    indices = ir.RankedTensorType(op.operands[1].type)
    is_single = indices.has_static_shape and int(np.prod(indices.shape)) == len(numbers.start_index_map)
    return is_single and ir.RankedTensorType(op.operands[0].type).has_static_shape


def _is_inside(op: ir.Operation, ranges: Ranges) -> bool:
    if op.name == _GATHER:
        return lies_inside(ranges.of(op.operands[1]), int(_last_indices(op).min(initial=0)))
    starts = (ranges.of(op.operands[number]) for number in range(1, len(op.operands)))
    return all(not most or lies_inside(start, most) for start, most in zip(starts, _last_starts(op), strict=True))


def _is_clamped(op: ir.Operation) -> bool:
    makers = (producer_of(each) for each in list(op.operands)[1:])
    return all(each is not None and each.name == _CLAMP for each in makers)


def slices_behind(value: ir.Value, calls: Mapping[str, list[ir.Operation]] | None = None) -> Iterator[ir.Operation]:
    """Yields the slices at computed places that a value comes from, moved at most, through calls, loops, branches and
    manual computations. A block that is not yet written to its end is not entered.

    Args:
      calls: those of the functions of the module, by name; None to look for them where one is asked for.
    """
    waiting, seen = [value], set()
    while waiting:
        if (value := waiting.pop()) in seen:
            continue
        seen.add(value)
        op = producer_of(value)
        if op is None:
            waiting += _given(value, calls)
        elif _is_slice(op):
            yield op
        elif op.name in _SLICED_BEFORE:
            waiting.append(op.operands[0])
        else:
            waiting += _returned(op, ir.OpResult(value).result_number)


def _given(argument: ir.Value, calls: Mapping[str, list[ir.Operation]] | None) -> Iterator[ir.Value]:
    """Yields what an argument of a block may be."""
    op, number = owner_of_argument(argument), ir.BlockArgument(argument).arg_number
    if op.name == FUNCTION:
        if not is_public(op):
            calls = calls_by_name(parent_of(op)) if calls is None else calls
            yield from (call.operands[number] for call in calls.get(symbol(op), ()))
    elif op.name in LOOPS:
        yield op.operands[number]
        yield from _ends(op.regions[1].blocks, number)
    elif op.name == _ISLAND:
        yield op.operands[number]


def _returned(op: ir.Operation, number: int) -> Iterator[ir.Value]:
    """Yields what a result of an op with regions, or of a call, may be."""
    if op.name == CALL:
        called = function_called(op)
        yield from _ends(() if called is None else called.regions[0].blocks, number)
    elif op.name in LOOPS:
        yield op.operands[number]
        yield from _ends(op.regions[1].blocks, number)
    elif op.name in _BRANCHES or op.name == _ISLAND:
        yield from _ends(blocks_of(op), number)


def _ends(blocks: Iterable[ir.Block], number: int) -> Iterator[ir.Value]:
    for block in blocks:
        if len(block.operations):
            end = terminator_of(block)
            if end.name in _TERMINATORS:
                yield end.operands[number]
