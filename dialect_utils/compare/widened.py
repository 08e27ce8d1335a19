# SPDX-License-Identifier: Apache-2.0
"""A module with all its floats of 64 bits, to tell rounding from wrong values.

A loop may enlarge a small error in each of its turns, until two correct runs differ in their first digits; a limit of
rounding, which counts the terms of sums, does not know that. But whatever enlarges them, errors of rounding shrink with
the precision: by 2**29 from float32 to float64. What is lost, counted twice or moved to a wrong place stays as wrong as
it was.

    float32   ours is off by 0.06      float64   off by 1e-10: rounding
                                                 off by 0.06: wrong
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..conversions.repeated import without_waiting
from ..ir.ops import CONSTANTS, blocks_of, ops_in
from ..platform.bindings import ir, stablehlo
from ..platform.typed import asm_of
from .array_differences import Difference, difference, largest_magnitude
from .rounding import Rounding

_PART_LEFT = 2e-6  # of a difference may be left in float64, if it is rounding: 1024 times what float32's would leave
_SLACK = 16  # for outputs whose difference was small before
_NARROW = frozenset({"f16", "bf16", "f32"})
# Ops that depend on the bits of their operands, or that a library has for some types alone: they keep their types.
_KEEP_TYPES = CONSTANTS | {"stablehlo.bitcast_convert", "stablehlo.custom_call"}
_ANNOTATIONS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint", "xla.sdy.")


def widened(module: ir.Module) -> ir.Module | None:
    """Returns a copy of a module with floats of 64 bits in place of narrower ones; None if there are none, or if an op
    does not take them."""
    with module.context, ir.Location.unknown():
        copy = ir.Module.parse(asm_of(module.operation))
        without_waiting(copy)
        ops = [op for op in ops_in(copy.operation) if op.name != "builtin.module"]
        kept = {op: [operand.type for operand in op.operands] for op in ops if _keeps_types(op)}
        is_changed = False
        for op in ops:
            if op.name == "func.func":
                kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
                wide = ir.FunctionType.get([*map(_wide, kind.inputs)], [*map(_wide, kind.results)])
                op.attributes["function_type"] = ir.TypeAttr.get(wide)
            if op.name == "stablehlo.dot_general" and "algorithm" in op.attributes:
                del op.attributes["algorithm"]
            values = [argument for block in blocks_of(op) for argument in block.arguments]
            values += [] if op in kept else [*op.results]
            for value in values:
                wide = _wide(value.type)
                is_changed = is_changed or wide != value.type
                value.set_type(wide)
        for op, types in kept.items():
            _convert_around(op, types)
        for op in ops:
            if op.name == "stablehlo.reduce_precision":
                op.results[0].replace_all_uses_with(op.operands[0])
        return copy if is_changed and _is_valid(copy) else None


def widened_inputs(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns floats and complex numbers in types of 64 bits per float; other arrays, and 8-bit floats, as they are.

    Example:
      >>> [str(each.dtype) for each in widened_inputs([np.float32([1]), np.complex64([1]), np.int8([1])])]
      ['float64', 'complex128', 'int8']
    """
    return [each.astype(_WIDE_DTYPES.get(each.dtype.name, each.dtype)) for each in inputs]


def is_rounding(
    before: Sequence[Difference],
    narrow: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
    roundings: Sequence[Rounding],
) -> bool:
    """Returns whether differences of outputs are rounding, by the outputs of the widened modules.

    An output may be nothing but rounding, as the sum of terms that cancel. With 64 bits it is almost 0, and still has
    the same difference in units of itself. So what is left counts in units of the output as it was before.

    Args:
      before: the differences of the outputs in their own types. narrow: the expected outputs in these types.
      roundings: those on the way to each output.
    """
    for was, own, a, b, rounding in zip(before, narrow, expected, found, roundings, strict=True):
        least = _SLACK * Rounding(np.finfo(np.float64).eps, rounding.terms).limit
        left = _PART_LEFT * was.fraction if np.isfinite(was.fraction) else 0.0
        if not difference(a, b, max(least, left), largest_magnitude(own)).is_within_limit:
            return False
    return True


_WIDE_DTYPES = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}


def _keeps_types(op: ir.Operation) -> bool:
    if op.name == "stablehlo.custom_call":
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        return not target.startswith(_ANNOTATIONS)
    return op.name in _KEEP_TYPES


def _wide(kind: ir.Type) -> ir.Type:
    if not isinstance(kind, ir.RankedTensorType):
        return kind
    tensor = ir.RankedTensorType(kind)
    if str(tensor.element_type) in _NARROW:
        element: ir.Type = ir.F64Type.get()
    elif str(tensor.element_type) == "complex<f32>":
        element = ir.ComplexType.get(ir.F64Type.get())
    else:
        return kind
    return ir.RankedTensorType.get(tensor.shape, element, tensor.encoding)


def _convert_around(op: ir.Operation, types: Sequence[ir.Type]) -> None:
    """Converts operands to the types that an op had, and its results to wide ones."""
    with ir.InsertionPoint(op):
        for number, kind in enumerate(types):
            if op.operands[number].type != kind:
                op.operands[number] = stablehlo.ConvertOp(kind, op.operands[number]).result
    for result in op.results:
        if (wide := _wide(result.type)) != result.type:
            with ir.InsertionPoint(op):
                made = stablehlo.ConvertOp(wide, result).operation
            made.move_after(op)
            result.replace_all_uses_except(made.results[0], made)


def _is_valid(module: ir.Module) -> bool:
    try:
        return module.operation.verify()
    except (ir.MLIRError, ValueError):
        return False
