# SPDX-License-Identifier: Apache-2.0
"""Parts of an array that are written into the same array, read before that.

XLA's CPU compiler writes a dynamic_update_slice in place where nobody else needs the array, and computes what is written in the same loop.
If that is read from the array itself, it has to see that both overlap, and does not where the array was reshaped in between:

    b = reshape(copy of a)
    dynamic_update_slice(b, b[0:3], i)        the rows are read after some of them were overwritten

Seen on one device with jaxlib 0.10.2 and 0.12.0.1; see docs/upstream/update-in-place.md. An argument of the program is never overwritten,
but what an island gives may be, and islands end with a reshape. So a barrier lets what is written be computed first.
"""

from __future__ import annotations

from .bindings import ir, stablehlo
from .ops import name_of, ops_in, producer_of

_UPDATE, _ISLAND = "stablehlo.dynamic_update_slice", "sdy.manual_computation"
_SAME_ELEMENTS = frozenset({"stablehlo.reshape", "stablehlo.slice", "sdy.sharding_constraint"})
_MOST_OPS = 64  # that are looked at behind an update


def read_before_writing(module: ir.Module) -> int:
    """Puts a barrier behind what is read from an array that an island of ours gives, and written into that array.

    Returns: how many.
    """
    updates = [op for op in ops_in(module.operation) if op.name == _UPDATE and _is_from_island(op.operands[0])]
    found = [op for op in updates if _depends(op.operands[1], _source(op.operands[0]))]
    for op in found:
        with ir.InsertionPoint(op), op.location:
            op.operands[1] = stablehlo.OptimizationBarrierOp([op.operands[1]]).results[0]
    return len(found)


def _source(value: ir.Value) -> ir.Value:
    """Returns the value of which this one has the elements."""
    while (op := producer_of(value)) is not None and op.name in _SAME_ELEMENTS:
        value = op.operands[0]
    return value


def _is_from_island(value: ir.Value) -> bool:
    op = producer_of(_source(value))
    return op is not None and op.name == _ISLAND and (name_of(op.location) or "").startswith("reshard/")


def _depends(value: ir.Value, source: ir.Value) -> bool:
    """Returns whether a value is computed from another one, as far as one looks."""
    left, seen = [value], set()
    while left and len(seen) < _MOST_OPS:
        value = left.pop()
        if value == source:
            return True
        op = producer_of(value)
        if op is not None and op not in seen and op.name != _ISLAND:
            seen.add(op)
            left += op.operands
    return bool(left)
