# SPDX-License-Identifier: Apache-2.0
"""How far partial sums travel before devices add them up: ops that are linear, and values that loops accumulate.

    dot -> all_reduce -> transpose -> add to a carried value      the carried value has partial sums, which are added
                                                                  up once, behind the loop
    dot -> all_reduce -> dynamic_update_slice of a carried value  the same: the reductions of all turns are one

A linear op of partial sums gives partial sums of its result. The value that a loop begins with counts on one device
alone, so that it is in the sum once. A sum has another order than if each turn were summed, so floats may be rounded
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..ir.ops import CONSTANTS, producer_of
from ..ir.reductions import is_neutral, reduction_of
from ..platform.bindings import ir

ADDS = frozenset({"stablehlo.add", "stablehlo.subtract"})
UPDATE = "stablehlo.dynamic_update_slice"
_KEEPS_BYTES = frozenset(f"stablehlo.{each}" for each in ("negate", "reshape", "transpose", "broadcast_in_dim"))
_SCALES = frozenset({"stablehlo.multiply", "stablehlo.divide"})
_REPEATS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "sdy.reshard", "sdy.sharding_constraint"})


def linear_operand(op: ir.Operation) -> int | None:
    """Returns the number of the operand in which an op is linear and that has as many elements as its result, but for
    zeros; None if there is none."""
    if op.name == "stablehlo.pad":
        return 0 if is_neutral(op.operands[1], "sum") else None
    is_one_to_one = op.name in _KEEPS_BYTES or is_unit_sum(op)
    return 0 if is_one_to_one and elements(op.operands[0]) == elements(op.results[0]) else None


def is_unit_sum(op: ir.Operation) -> bool:
    """Returns whether an op sums along dimensions of size 1 alone, as gradients of repeated vectors end."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1:
        return False
    shape, along = ir.RankedTensorType(op.operands[0].type).shape, ir.DenseI64ArrayAttr(op.attributes["dimensions"])
    is_sum = reduction_of(op) == "sum" and is_neutral(op.operands[1], "sum")
    kinds = {str(ir.RankedTensorType(each.type).element_type) for each in (op.operands[0], op.results[0])}
    return is_sum and len(kinds) == 1 and all(shape[dim] == 1 for dim in along)


def scaled_operands(op: ir.Operation) -> tuple[int, ...]:
    """Returns the numbers of the operands in each of which an op is linear: those that a constant makes no larger.

    By a large factor, partial sums could become infinite, with both signs, where their sum is not.
    """
    if op.name not in _SCALES or not _is_float(op.results[0]):
        return ()
    factors = ((0, 1), (1, 0)) if op.name == "stablehlo.multiply" else ((0, 1),)
    return tuple(scaled for scaled, by in factors if _shrinks(op.operands[by], op.name == "stablehlo.divide"))


def _shrinks(value: ir.Value, is_divisor: bool) -> bool:
    """Returns whether a value is one number, a constant, repeated or not, that makes nothing larger as a factor, or as
    a divisor."""
    while (producer := producer_of(value)) is not None and producer.name in _REPEATS:
        value = producer.operands[0]
    if producer is None or producer.name not in CONSTANTS:
        return False
    if isinstance(ir.RankedTensorType(value.type).element_type, ir.ComplexType):
        return False  # the bindings cannot read it
    attr = ir.DenseElementsAttr(producer.attributes["value"])
    if not attr.is_splat:
        return False
    number: Any = attr.get_splat_value()
    return 1 <= abs(number.value) < math.inf if is_divisor else abs(number.value) <= 1


def widens(op: ir.Operation) -> bool:
    """Returns whether an op converts floats to floats that hold all of their values, so that it is linear."""
    if op.name != "stablehlo.convert" or not all(map(_is_float, (op.operands[0], op.results[0]))):
        return False
    before, after = (str(ir.RankedTensorType(each.type).element_type) for each in (op.operands[0], op.results[0]))
    return (before, after) in {("bf16", "f32"), ("f16", "f32"), ("bf16", "f64"), ("f16", "f64"), ("f32", "f64")}


@dataclass(frozen=True, slots=True)
class Accumulation:
    """What a loop does to a value that it carries: an op adds to it, or writes a part of it, in each turn.

    Attributes:
      argument: the value. op: the op. held: the operand of the op that is the value.
      returned: what is carried on. passed: the ops between, from the value to the op and on, which only pass it on.
    """

    argument: ir.Value
    op: ir.Operation
    held: ir.Value
    returned: ir.Value
    passed: tuple[ir.Operation, ...]


def accumulation(loop: ir.Operation, number: int, passing: Collection[str]) -> Accumulation | None:
    """Returns what a loop accumulates in the value of a number; None unless nothing else reads it in the loop.

    Args:
      passing: the names of ops that may change the layout of a value, and nothing else.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    argument = body.arguments[number]
    held, op, before = _passed_on(argument, passing)
    if list(condition.arguments[number].uses) or op is None or op.block != body:
        return None
    is_added_to = op.name == "stablehlo.add" or op.name == "stablehlo.subtract" and op.operands[0] == held
    if not is_added_to and not (op.name == UPDATE and op.operands[0] == held):
        return None
    returned, end, behind = _passed_on(op.results[0], passing)
    if end is None or end.name != "stablehlo.return" or end.operands[number] != returned:
        return None
    return Accumulation(argument, op, held, returned, (*before, *behind))


def _passed_on(value: ir.Value, passing: Collection[str]) -> tuple[ir.Value, ir.Operation | None, list[ir.Operation]]:
    """Returns the value behind the ops that only pass a value on, the one use of it, and these ops; no use if there are
    several."""
    passed: list[ir.Operation] = []
    while True:
        uses = list(value.uses)
        if len(uses) != 1:
            return value, None, passed
        op = uses[0].owner.operation
        if op.name not in passing:
            return value, op, passed
        passed.append(op)
        value = op.results[0]


def begins_with_nothing(value: ir.Value, reduction: str = "sum") -> bool:
    """Returns whether all elements of a value are the neutral one of a reduction, by the ops that make it."""
    while (producer := producer_of(value)) is not None and producer.name in _REPEATS:
        value = producer.operands[0]
    return is_neutral(value, reduction)


def elements(value: ir.Value) -> int:
    """Returns the number of elements of a value of a static shape."""
    return math.prod(ir.RankedTensorType(value.type).shape)


def _is_float(value: ir.Value) -> bool:
    return isinstance(ir.RankedTensorType(value.type).element_type, ir.FloatType)
