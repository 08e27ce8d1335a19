# SPDX-License-Identifier: Apache-2.0
"""What several readers and writers of ops need: who makes a value, numbers as attributes and as values."""

from __future__ import annotations

from .bindings import ir, stablehlo
from .interrupts import HeldBack


def producer_of(value: ir.Value) -> ir.Operation | None:
    """Returns the op that makes a value, None for an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def ops_in(root: ir.Operation, order: ir.WalkOrder = ir.WalkOrder.PRE_ORDER) -> list[ir.Operation]:
    """Returns `root` and the ops nested in it, parents first or last."""
    found: list[ir.Operation] = []
    append, advance = found.append, ir.WalkResult.ADVANCE

    def visit(op: ir.Operation) -> ir.WalkResult:
        append(op)
        return advance

    with HeldBack():  # the bindings turn what a visitor raises into another error
        root.walk(visit, order)
    return found


def int64_attr(value: int) -> ir.Attribute:
    """Returns `value : i64`; there has to be a current context."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def int32_constant(value: int) -> ir.Value:
    """Returns the scalar `stablehlo.constant dense<value> : tensor<i32>`, written at the current insertion point."""
    import numpy as np  # here: the other functions are for runs too that need none

    return stablehlo.ConstantOp(ir.DenseElementsAttr.get(np.array(value, np.int32))).result


def name_of(location: ir.Location) -> str | None:
    """Returns the name that a location gives to the one in it; None for a location of another kind."""
    if _NAME_LOC is None:
        return location.name_str if location.is_a_name() else None
    return location.name_str if type(location) is _NAME_LOC else None


_NAME_LOC = getattr(ir, "NameLoc", None)  # old bindings have one class for all kinds of locations
