# SPDX-License-Identifier: Apache-2.0
"""Barriers between consecutive islands that XLA would otherwise join to an op that its verifier refuses.

XLA writes an all_to_all as an op on parts, and joins the parts after it. If another all_to_all takes the same parts out
of the result, for example because the transposes between the two cancel, the simplifier passes parts directly from one
to the other. Some of them have another layout in memory than the others, and compilation ends with "HLO all-to-all has
operands with different shapes". A barrier at the beginning of the second island prevents this. So far only the fuzzer
has seen such programs: two in a thousand, with every site rewritten, on jaxlib 0.10.0 and 0.10.2. Version 0.12.0.1
compiles them without barriers.
"""

from __future__ import annotations

from ..ir.ops import name_of, ops_in, producer_of
from ..platform.bindings import ir, stablehlo

_ISLAND, _ALL_TO_ALL, _BARRIER = "sdy.manual_computation", "stablehlo.all_to_all", "stablehlo.optimization_barrier"
_MOVES = frozenset(
    f"stablehlo.{name}"
    for name in ("reshape", "transpose", "concatenate", "slice", "pad", "reverse", "dynamic_slice", "broadcast_in_dim")
) | {"sdy.sharding_constraint"}  # XLA removes or moves these
_MOST_OPS = 64  # the most ops that are looked at before an island


def separate_islands(module: ir.Module) -> int:
    """Puts a barrier at the beginning of each island that begins with an all_to_all on the result of another one.

    Only islands that this project wrote are looked at.

    Returns: the number of barriers.
    """
    found = [
        op for op in ops_in(module.operation) if op.name == _ISLAND and _is_ours(op) and _begins_with_all_to_all(op)
    ]
    behind = [op for op in found if _comes_from_all_to_all(op.operands[0])]
    for op in behind:
        block = op.regions[0].blocks[0]
        tile = block.arguments[0]
        with ir.InsertionPoint.at_block_begin(block), op.location:
            barrier = stablehlo.OptimizationBarrierOp([tile])
        tile.replace_all_uses_except(barrier.results[0], barrier.operation)
    return len(behind)


def _is_ours(op: ir.Operation) -> bool:
    return (name_of(op.location) or "").startswith("reshard/") and len(op.operands) == 1


def _begins_with_all_to_all(island: ir.Operation) -> bool:
    """Returns whether an all_to_all is the first collective in the island, with no barrier before it."""
    for op in island.regions[0].blocks[0].operations:
        if op.operation.name == _ALL_TO_ALL:
            return True
        if op.operation.name == _BARRIER or op.operation.name.startswith(
            ("stablehlo.all_", "stablehlo.collective_", "stablehlo.reduce_")
        ):
            return False
    return False


def _comes_from_all_to_all(value: ir.Value) -> bool:
    """Returns whether a value comes, through moves only, from an island with an all_to_all."""
    left, seen = [value], 0
    while left and seen < _MOST_OPS:
        op = producer_of(left.pop())
        seen += 1
        if op is None:
            continue
        if op.name == _ISLAND:
            if any(each.operation.name == _ALL_TO_ALL for each in op.regions[0].blocks[0].operations):
                return True
        elif op.name in _MOVES:
            left += op.operands
    return False
