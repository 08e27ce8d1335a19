# SPDX-License-Identifier: Apache-2.0
"""The weights of a training step: arguments that the forward pass takes, and that an optimizer makes anew.

    %w, %m -> dot_general %x, %w            the forward pass takes the weight
    %u = multiply %m, %rate                 the optimizer's arithmetic, element by element,
    %new = subtract %w, %u                  takes it too
    return %new, ...                        its new value

An op belongs to the optimizer's arithmetic if a result of the program follows from it element by element. So a weight's
uses are told apart by themselves: a decay of weights belongs to the arithmetic, a cast before a matrix product does
not.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..ir.fusing import ELEMENTWISE, is_elementwise_of_one
from ..ir.ops import shape_of, terminator_of
from ..platform.bindings import ir

Use = tuple[ir.Operation, int]  # an op and the number of its operand


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """A weight and its new value.

    Attributes:
      argument, result: their numbers. uses: those of the weight in the optimizer's arithmetic.
    """

    argument: int
    result: int
    uses: frozenset[Use]


def weight_updates(function: ir.Operation) -> list[WeightUpdate]:
    """Returns the weights of a function without calls, each with its new value.

    That is the result of the same type that the fewest ops lie before. Arguments that the optimizer alone takes, such
    as moments, have theirs first. A weight that is returned as it came is its own new value. Which buffers are donated
    to which results says nothing: jax pairs them by their types.
    """
    block = function.regions[0].blocks[0]
    end = terminator_of(block)
    arithmetic = _arithmetic(block)
    weights, taken = {}, set()
    for number, argument in enumerate(block.arguments):
        uses = [each for each in _uses(argument, arithmetic) if each[0] != end]
        inside = frozenset(use for use in uses if use[0] in arithmetic)
        returned = [use.operand_number for use in argument.uses if use.owner.operation == end]
        if len(inside) < len(uses) and (inside or returned):
            weights[number] = inside, returned
        elif inside and (result := _nearest(inside, arithmetic, end, _of_type(argument, end) - taken)) is not None:
            taken.add(result)
    found = []
    for number, (inside, returned) in weights.items():
        free = _of_type(block.arguments[number], end) - taken
        result = returned[0] if returned else _nearest(inside, arithmetic, end, free)
        if result in free:
            taken.add(result)
            found.append(WeightUpdate(number, result, inside))
    return found


def _of_type(argument: ir.Value, end: ir.Operation) -> set[int]:
    return {number for number, each in enumerate(end.operands) if each.type == argument.type}


def _uses(value: ir.Value, arithmetic: set[ir.Operation]) -> list[Use]:
    """Returns the uses of a value; where it is cast once for the arithmetic and for others, the uses of the cast."""
    found: list[Use] = []
    for use in value.uses:
        op = use.owner.operation
        behind = _uses(op.results[0], arithmetic) if op in arithmetic and is_elementwise_of_one(op) else []
        if any(user not in arithmetic for user, _ in behind):
            found += behind
        else:
            found.append((op, use.operand_number))
    return found


def _arithmetic(block: ir.Block) -> set[ir.Operation]:
    """Returns the ops from which results follow element by element."""
    found: set[ir.Operation] = set()
    waiting = list(terminator_of(block).operands)
    while waiting:
        owner = waiting.pop().owner
        if isinstance(owner, ir.Block):
            continue
        op = owner.operation
        if op in found or op.name not in ELEMENTWISE or op.block != block:
            continue
        found.add(op)
        shape = shape_of(op.results[0].type)
        waiting += [each for each in op.operands if shape_of(each.type) == shape]
    return found


def _nearest(uses: frozenset[Use], arithmetic: set[ir.Operation], end: ir.Operation, results: set[int]) -> int | None:
    """Returns the number of the result that the fewest ops lie before; None if none of these follows from the uses."""
    waiting, seen = deque(op for op, _ in uses), {op for op, _ in uses}
    while waiting:
        op = waiting.popleft()
        users = [(use.owner.operation, use.operand_number) for use in op.results[0].uses]
        if found := [number for user, number in users if user == end and number in results]:
            return min(found)
        for user, _ in users:
            if user in arithmetic and user not in seen:
                seen.add(user)
                waiting.append(user)
    return None
