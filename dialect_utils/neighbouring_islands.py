# SPDX-License-Identifier: Apache-2.0
"""Islands in a row, kept apart where XLA would join them to something that its verifier refuses.

XLA makes of an all_to_all one of parts, and puts the parts together behind it. Where another all_to_all takes its own parts out of
that again, for example since the transposes between the two cancel, the simplifier hands parts on from one to the other, some in
another layout in memory than the rest, and compilation ends with "HLO all-to-all has operands with different shapes". A barrier at the
beginning of the second island is in the way of that. So far only the fuzzer has seen such programs, two in a thousand, with every site
rewritten, on jaxlib 0.10.0 and 0.10.2; 0.12.0.1 compiles them as they are.
"""

from __future__ import annotations

from .bindings import ir, stablehlo
from .ops import name_of, producer_of
from .propagation import ops_in

_ISLAND, _ALL_TO_ALL, _BARRIER = "sdy.manual_computation", "stablehlo.all_to_all", "stablehlo.optimization_barrier"
_MOVES = frozenset(
    f"stablehlo.{name}" for name in ("reshape", "transpose", "concatenate", "slice", "pad", "reverse", "dynamic_slice", "broadcast_in_dim")
) | {"sdy.sharding_constraint"}  # what XLA simplifies away, or moves out of the way
_MOST_OPS = 64  # that are looked at before an island


def keep_apart(module: ir.Module) -> int:
    """Puts a barrier at the beginning of each island of ours that begins with an all_to_all and takes what another one gives.

    Returns: how many.
    """
    found = [op for op in ops_in(module.operation) if op.name == _ISLAND and _is_ours(op) and _begins_with_all_to_all(op)]
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
    """Returns whether the island's tile reaches an all_to_all with nothing but moves, and no barrier, on the way."""
    for op in island.regions[0].blocks[0].operations:
        if op.operation.name == _ALL_TO_ALL:
            return True
        if op.operation.name == _BARRIER or op.operation.name.startswith(("stablehlo.all_", "stablehlo.collective_", "stablehlo.reduce_")):
            return False
    return False


def _comes_from_all_to_all(value: ir.Value) -> bool:
    """Returns whether a value is made by moves of what an island gives that ends with an all_to_all."""
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
