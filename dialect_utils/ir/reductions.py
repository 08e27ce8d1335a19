# SPDX-License-Identifier: Apache-2.0
"""Reductions in StableHLO: the region of a reducing collective, and the neutral element of a reduction."""

from __future__ import annotations

from ..platform.bindings import ir, stablehlo
from .ops import CONSTRAINTS, producer_of

_OPS = {
    "sum": "stablehlo.add",
    "prod": "stablehlo.multiply",
    "min": "stablehlo.minimum",
    "max": "stablehlo.maximum",
    "and": "stablehlo.and",
    "or": "stablehlo.or",
}


class UnsupportedReduction(ValueError):
    """A reduction that StableHLO does not have for a type of element, or XLA does not have between devices."""


def write_reducer(op: ir.Operation, element: ir.Type, reduction: str) -> None:
    """Fills the empty region of a collective with `reduction` of two scalars."""
    _check(element, reduction)
    scalar = ir.RankedTensorType.get([], element)
    block = op.regions[0].blocks.append(scalar, scalar, arg_locs=[op.location] * 2)
    with ir.InsertionPoint(block):
        result = ir.Operation.create(_OPS[reduction], results=[scalar], operands=list(block.arguments)).results[0]
        stablehlo.ReturnOp([result])


def neutral_element(tensor: ir.Type, reduction: str) -> ir.Value:
    """Inserts a tensor, every element of which is neutral in a reduction; returns the value."""
    element = ir.RankedTensorType(tensor).element_type
    _check(element, reduction)
    if isinstance(element, ir.ComplexType):
        part = ir.RankedTensorType.get(ir.RankedTensorType(tensor).shape, ir.ComplexType(element).element_type)
        return stablehlo.ComplexOp(neutral_element(part, reduction), neutral_element(part, "sum")).result
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(tensor, _neutral(element, reduction))).result


def reduction_of(op: ir.Operation) -> str | None:
    """Returns the reduction in the region of an op that reduces one array; None if it is another computation.

    JAX puts constraints behind the elements in the regions of partly manual computations, which change nothing.
    """
    blocks = list(op.regions[0].blocks)
    body = [each.operation for each in blocks[0].operations]
    *passed, end = body[1:] or [None]
    if end is None or len(blocks[0].arguments) != 2 or {*body[0].operands} != {*blocks[0].arguments}:
        return None
    reduced = list(body[0].results)
    for each in passed:
        if each.name not in CONSTRAINTS or list(each.operands) != reduced:
            return None
        reduced = list(each.results)
    if list(end.operands) != reduced:
        return None
    return next((name for name, op_name in _OPS.items() if op_name == body[0].name), None)


def reducing_op(reduction: str) -> str:
    """Returns the name of the op that reduces two arrays element by element."""
    return _OPS[reduction]


def is_neutral(value: ir.Value, reduction: str) -> bool:
    """Returns whether a scalar is a constant that changes nothing in a reduction."""
    producer, element = producer_of(value), ir.RankedTensorType(value.type).element_type
    if producer is None or not producer.name.endswith(".constant") or isinstance(element, ir.ComplexType):
        return False
    return str(producer.attributes["value"]) == str(
        ir.DenseElementsAttr.get_splat(value.type, _neutral(element, reduction))
    )


def check_reduction(element: ir.Type, reduction: str) -> None:
    """Checks that devices can reduce elements of a type, and that there is a neutral element.

    Raises: UnsupportedReduction.
    """
    _check(element, reduction)
    if not isinstance(element, ir.ComplexType):
        _neutral(element, reduction)


def is_splittable(element: ir.Type, reduction: str | None) -> bool:
    """Returns whether devices can reduce their parts of elements of a type, and then combine the results."""
    if reduction is None:
        return False
    try:
        check_reduction(element, reduction)
    except UnsupportedReduction:
        return False
    return True


def _check(element: ir.Type, reduction: str) -> None:
    is_truth_value = isinstance(element, ir.IntegerType) and ir.IntegerType(element).width == 1
    if (reduction in ("and", "or")) != is_truth_value:
        why = "and, or are for i1, which has no other"
        raise UnsupportedReduction(f"elements of type {element} have no {reduction} between devices: {why}")
    if reduction in ("min", "max") and isinstance(element, ir.ComplexType):
        raise UnsupportedReduction(f"elements of type {element} have no {reduction}: they have no order")


def _neutral(element: ir.Type, reduction: str) -> ir.Attribute:
    if isinstance(element, ir.IntegerType):
        return ir.IntegerAttr.get(element, _neutral_integer(ir.IntegerType(element), reduction))
    if reduction in ("min", "max") and "FN" in str(element):
        raise UnsupportedReduction(
            f"elements of type {element} have no neutral element of {reduction}: they have no infinity"
        )
    return ir.FloatAttr.get(element, {"sum": 0.0, "prod": 1.0, "min": float("inf"), "max": -float("inf")}[reduction])


def _neutral_integer(element: ir.IntegerType, reduction: str) -> int:
    has_sign = not element.is_unsigned
    most = (1 << (element.width - has_sign)) - 1
    least = -most - 1 if has_sign else 0
    return {"sum": 0, "prod": 1, "or": 0, "and": 1, "min": most, "max": least}[reduction]


def summed_dims(op: ir.Operation, number: int) -> list[int]:
    """Returns the dimensions of an operand over which an op sums, or reduces in another way; none for an op of which
    that is not known."""
    if op.name == "stablehlo.dot_general":
        numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        return sorted((numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)[number])
    if op.name == "stablehlo.reduce" and number < len(op.operands) // 2:
        return list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    return []
