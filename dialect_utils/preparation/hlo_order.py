# SPDX-License-Identifier: Apache-2.0
"""The order of ops as they come back from HLO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..ir.ops import LOOPS, blocks_of, ops_in
from ..platform.bindings import ir
from .loop_invariants import invariant_numbers

_UNORDERED = frozenset({"builtin.module", "sdy.mesh"})


def order_like_hlo(around: Iterable[ir.Operation]) -> None:
    """Orders the ops of each block in the regions of ops as they come back from HLO.

    The order is depth first from the ops that nothing uses, operands in order.
    Propagation resolves conflicts of equal priority in the order of the ops.
    Source: `HloComputation::MakeInstructionPostOrder`.
    """
    for block in [block for op in around if op.name not in _UNORDERED for block in blocks_of(op)]:
        if len(block.operations) > 2:
            _order_block(block)


def _order_block(block: ir.Block) -> None:
    *ops, terminator = [op.operation for op in block.operations]
    number_of: dict[ir.Value, int] = {}
    for number, op in enumerate(ops):
        results = op.results
        if len(results) == 1:
            number_of[results[0]] = number
        else:
            number_of.update(dict.fromkeys(results, number))
    get = number_of.get
    needs = [
        _operands_in(op, number_of)
        if len(op.regions)
        else [number for value in op.operands if (number := get(value)) is not None]
        for op in ops
    ]
    is_used = set(_operands_in(terminator, number_of)).union(*needs)
    roots = [number for number in range(len(ops)) if number not in is_used]
    order = _depth_first([*roots, *_operands_in(terminator, number_of)], needs)
    in_place = next((place for place, number in enumerate(order) if place != number), len(order))
    for number in order[in_place:]:
        ops[number].move_before(terminator)


def _operands_in(op: ir.Operation, number_of: dict[ir.Value, int]) -> list[int]:
    """Returns the numbers of the ops of a block that an op uses; captures of its regions come last, as in HLO."""
    values = list(op.operands)
    through = invariant_numbers(op) if op.name in LOOPS else ()
    initial = {region.blocks[0].arguments[number]: values[number] for region in op.regions for number in through}
    values = [value for number, value in enumerate(values) if number not in through]
    values += [initial.get(value, value) for inner in _nested(op) for value in inner.operands]
    return [number_of[value] for value in values if value in number_of]


def _nested(op: ir.Operation) -> Iterator[ir.Operation | ir.OpView]:
    """Yields the ops in the regions of an op, parents first; for small regions this is faster than a walk."""
    for block in blocks_of(op):
        for inner in block.operations:
            if len(inner.regions):
                yield from ops_in(inner.operation)  # regions may be nested deeper than Python recurses
            else:
                yield inner


def _depth_first(roots: list[int], needs: list[list[int]]) -> list[int]:
    order: list[int] = []
    opened, done = bytearray(len(needs)), bytearray(len(needs))
    stack = roots[::-1]
    while stack:
        at = stack[-1]
        if not opened[at]:
            opened[at] = 1
            stack += needs[at][::-1]
            continue
        stack.pop()
        if not done[at]:
            done[at] = 1
            order.append(at)
    return order
