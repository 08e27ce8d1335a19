# SPDX-License-Identifier: Apache-2.0
"""What several readers and writers of ops need: who makes a value, numbers as attributes."""

from __future__ import annotations

from .bindings import ir


def producer_of(value: ir.Value) -> ir.Operation | None:
    """Returns the op that makes a value, None for an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def int64_attr(value: int) -> ir.Attribute:
    """Returns `value : i64`; there has to be a current context."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
