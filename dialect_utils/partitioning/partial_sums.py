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

from ..ir.ops import producer_of
from ..ir.reductions import is_neutral
from ..platform.bindings import ir

ADDS = frozenset({"stablehlo.add", "stablehlo.subtract"})
UPDATE = "stablehlo.dynamic_update_slice"
_KEEPS_BYTES = frozenset(f"stablehlo.{each}" for each in ("negate", "reshape", "transpose", "broadcast_in_dim"))
_SCALES = frozenset({"stablehlo.multiply", "stablehlo.divide"})
_REPEATS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "sdy.reshard", "sdy.sharding_constraint"})


def linear_operand(op: ir.Operation) -> int | None:
    """Returns the number of the operand in which an op is linear and that has as many elements as its result; None if
    there is none."""
    if op.name in _KEEPS_BYTES and _elements(op.operands[0]) == _elements(op.results[0]):
        return 0
    return None


def scaled_operands(op: ir.Operation) -> tuple[int, ...]:
    """Returns the numbers of the operands in each of which an op, a product or a quotient, is linear."""
    if op.name not in _SCALES or not _is_float(op.results[0]):
        return ()
    return (0, 1) if op.name == "stablehlo.multiply" else (0,)


def widens(op: ir.Operation) -> bool:
    """Returns whether an op converts floats to floats that hold all of their values, so that it is linear."""
    if op.name != "stablehlo.convert" or not all(map(_is_float, (op.operands[0], op.results[0]))):
        return False
    before, after = (str(ir.RankedTensorType(each.type).element_type) for each in (op.operands[0], op.results[0]))
    return (before, after) in {("bf16", "f32"), ("f16", "f32"), ("bf16", "f64"), ("f16", "f64"), ("f32", "f64")}


def accumulator(loop: ir.Operation, number: int) -> ir.Operation | None:
    """Returns the op that adds to a value that a loop carries, or writes a part of it, in each turn.

    None unless nothing else reads the value in the loop and the result of the op alone is carried on.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    users = [use.owner.operation for use in body.arguments[number].uses]
    if list(condition.arguments[number].uses) or len(users) != 1 or users[0].block != body:
        return None
    op, held = users[0], body.arguments[number]
    is_added_to = op.name == "stablehlo.add" or op.name == "stablehlo.subtract" and op.operands[0] == held
    if not is_added_to and not (op.name == UPDATE and op.operands[0] == held):
        return None
    ends = list(op.results[0].uses)
    is_carried = len(ends) == 1 and ends[0].owner.operation.name == "stablehlo.return"
    return op if is_carried and ends[0].operand_number == number else None


def begins_with_nothing(value: ir.Value, reduction: str = "sum") -> bool:
    """Returns whether all elements of a value are the neutral one of a reduction, by the ops that make it."""
    while (producer := producer_of(value)) is not None and producer.name in _REPEATS:
        value = producer.operands[0]
    return is_neutral(value, reduction)


def _elements(value: ir.Value) -> int:
    return math.prod(ir.RankedTensorType(value.type).shape)


def _is_float(value: ir.Value) -> bool:
    return isinstance(ir.RankedTensorType(value.type).element_type, ir.FloatType)
