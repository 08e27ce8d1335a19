# SPDX-License-Identifier: Apache-2.0
"""A function in segments: between ops that stay with XLA, all other ops are written per device.

    ops, an op without a rule, ops    ==>    an island, the op as it came, an island

A value that is used behind its segment leaves its island and enters the next one. What costs nothing to make again, a
constant or a repeated constant, is made in each island that uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..ir.ops import CONSTANTS, ops_in, parent_of, producer_of
from ..platform.bindings import ir


@dataclass(frozen=True, slots=True)
class Segment:
    """Ops of a block that become one island.

    Attributes:
      ops: in their order, with those from before it that are made again.
      taken: the values from before it that its ops use. given: the values of its ops that are used behind it, by the
        end of the block, too.
      left: the op behind it, which stays with XLA; None at the end of the block.
    """

    ops: tuple[ir.Operation, ...]
    taken: tuple[ir.Value, ...]
    given: tuple[ir.Value, ...]
    left: ir.Operation | None


def segments(
    block: ir.Block, left: Collection[ir.Operation], needed: Mapping[ir.Operation, Sequence[ir.Value]]
) -> list[Segment]:
    """Returns the segments of a block; without an op that is left one, which takes all arguments.

    Args:
      left: the ops of the block that stay with XLA.
      needed: for each of these the values of the block that it uses.
    """
    *ops, terminator = [each.operation for each in block.operations]
    if not left:
        return [Segment(tuple(ops), tuple(block.arguments), tuple(terminator.operands), None)]
    runs: list[list[ir.Operation]] = [[]]
    ends: list[ir.Operation] = []
    for op in ops:
        if op in left:
            ends.append(op)
            runs.append([])
        else:
            runs[-1].append(op)
    uses = [*map(_used_by, runs[:-1]), _used_by([*runs[-1], terminator])]
    behind = [list(needed[op]) for op in ends] + [list(terminator.operands)]
    found = []
    for at, run in enumerate(runs):
        again = _made_again(uses[at], run)
        own = {value for op in run for value in op.results}
        used = dict.fromkeys([*_used_by(again), *uses[at]])
        taken = [value for value in used if value not in own and not _is_in(value, again)]
        later = [value for each in (*behind[at:], *uses[at + 1 :]) for value in each]
        given = [value for value in dict.fromkeys(later) if value in own and not is_free(value)]
        wanted = [*given, *(terminator.operands if at == len(ends) else ())]
        kept = _needed([*again, *run], wanted)
        used = {*_used_by(kept), *wanted}
        taken = [value for value in taken if value in used]
        found.append(Segment(tuple(kept), tuple(taken), tuple(given), ends[at] if at < len(ends) else None))
    return found


def _needed(ops: Sequence[ir.Operation], given: Collection[ir.Value]) -> list[ir.Operation]:
    """Returns the ops without those that nobody needs, such as changes of layout before an op that is left."""
    needed, kept = {*given}, []
    for op in reversed(ops):
        if not len(op.results) or any(value in needed for value in op.results):
            kept.append(op)
            needed.update(value for each in ops_in(op) for value in each.operands)
    return kept[::-1]


def top_level(op: ir.Operation) -> ir.Operation:
    """Returns the op of a function's own block that is or holds an op of the function."""
    while parent_of(op).name != "func.func":
        op = parent_of(op)
    return op


def _used_by(ops: Sequence[ir.Operation]) -> list[ir.Value]:
    """Returns the values from outside of their regions that ops use, each once."""
    block = ops[0].block if ops else None
    used = (value for op in ops for each in ops_in(op) for value in each.operands)
    return [value for value in dict.fromkeys(used) if _block_of(value) == block]


def _block_of(value: ir.Value) -> ir.Block:
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def is_free(value: ir.Value) -> bool:
    """Returns whether a value is a constant, or one that is repeated."""
    op = producer_of(value)
    while op is not None and op.name == "stablehlo.broadcast_in_dim":
        op = producer_of(op.operands[0])
    return op is not None and (op.name in CONSTANTS or op.name == "stablehlo.iota")


def _made_again(used: Sequence[ir.Value], run: Collection[ir.Operation]) -> list[ir.Operation]:
    """Returns the ops before a run that make what is free and used in it, in their order."""
    found: list[ir.Operation] = []
    for value in used:
        if not is_free(value):
            continue
        chain, op = [], producer_of(value)
        while op is not None and op not in run and op not in found:
            chain.append(op)
            op = producer_of(op.operands[0]) if len(op.operands) else None
        found += reversed(chain)
    return found


def _is_in(value: ir.Value, ops: Collection[ir.Operation]) -> bool:
    op = producer_of(value)
    return op is not None and op in ops
