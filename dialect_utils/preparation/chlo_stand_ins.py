# SPDX-License-Identifier: Apache-2.0
"""CHLO ops, for which Shardy has no sharding rules, are replaced by ops that have the rules."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.ops import shape_of
from ..platform.bindings import ir, stablehlo
from ..shardings.value_layouts import replace_op

STANDS_IN = "stablehlo.add"  # for ops of two operands, the only one of StableHLO's elementwise ops that does


def stand_in_for_chlo(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Replaces CHLO ops by ops that have the sharding rules of the ops that XLA lowers them to; returns the new ops."""
    stand_ins = []
    for op in ops:
        with ir.InsertionPoint(op), op.location:
            stand_in = _stand_in(op)
        if stand_in is not None:
            replace_op(op, stand_in)
            stand_ins.append(stand_in.operation)
    return stand_ins


def _stand_in(op: ir.Operation) -> ir.OpView | None:
    """Returns an op with the sharding rule of a CHLO op; None for ops that are rare or have no such rule."""
    operands, results = list(op.operands), [result.type for result in op.results]
    if op.name == "chlo.top_k":
        return stablehlo.CustomCallOp(results, operands, "mhlo.topk")
    if len(results) != 1 or not operands or any(shape_of(value.type) != shape_of(results[0]) for value in operands):
        return None
    if len(operands) == 1:
        return stablehlo.CustomCallOp(results, operands, "mhlo.erf")  # elementwise, for any types
    if len(operands) == 2 and {value.type for value in operands} == {results[0]}:
        return stablehlo.AddOp(*operands)
    return None
