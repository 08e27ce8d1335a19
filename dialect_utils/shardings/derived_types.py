# SPDX-License-Identifier: Apache-2.0
"""Constraints that JAX writes for the types of explicit mode, and which of them follow from an annotation.

In explicit mode the sharding of an array is a part of its type. JAX writes a constraint behind each op that says the
type of the result; it has the op's name and line:

    h = einsum(..., out_sharding=P("data", None))    the line states a type
    h = tanh(h)                                      the same type follows
    h = reshard(h, P(None, "model"))                 the line states another one

Where a line states another type, JAX derives others for what is computed from its value, up to the next line that
states one, and for their gradients, which have the types of what they are gradients of. In the module these
constraints say what was derived before, so a changed module has to do without them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..ir.diagnostics import text_of_location
from ..ir.functions import CALL, FUNCTION, callee_of, calls_by_name, function_called, functions_of, has_body, symbol
from ..ir.ops import CONSTANTS, LOOPS, name_of, ops_in, parent_of, producer_of, terminator_of
from ..ir.way_back import WayBack
from ..platform.bindings import ir

CONSTRAINT = "sdy.sharding_constraint"
RESHARD = "reshard"  # the name of what jax.sharding.reshard writes
WRITTEN = ("sharding_constraint", RESHARD)  # those of what somebody writes; the first: by with_sharding_constraint
_STATING = frozenset({CONSTRAINT, "sdy.manual_computation", "sdy.return"})  # a computation states those of its results
_RETURNS = frozenset({"func.return", "stablehlo.return"})
_BRANCHES = frozenset({"stablehlo.case", "stablehlo.if"})
_FREE = CONSTANTS | {"stablehlo.broadcast_in_dim", "stablehlo.iota"}


def is_type_of_gradient(op: ir.Operation, back: WayBack) -> bool:
    """Returns whether a constraint is what JAX makes of a `reshard` on the way back: the type that was before it."""
    return (name_of(op.location) or "").rpartition("/")[2] == RESHARD and back.has(op)


def is_type(op: ir.Operation, back: WayBack) -> bool:
    """Returns whether a constraint says the type of an op's result, or that of a gradient.

    Behind a call it does if the function says the type of what it returns so; else it says what somebody gave `jit` as
    `out_shardings=`.

    Args:
      back: the way back in the op's module.
    """
    if is_type_of_gradient(op, back):
        return True
    producer, name = producer_of(op.operands[0]), name_of(op.location)
    if producer is None or name is None:
        return False
    if producer.name == CALL:
        return name.rpartition("/")[2] not in WRITTEN and _is_returned_so(op, back)
    return text_of_location(op) == text_of_location(producer)


def _is_returned_so(op: ir.Operation, back: WayBack) -> bool:
    """Returns whether the function whose result has a constraint says the same behind what it returns."""
    result = ir.OpResult(op.operands[0])
    function = function_called(result.owner.operation)
    if function is None or not has_body(function):
        return False
    made = producer_of(terminator_of(function.regions[0].blocks[0]).operands[result.result_number])
    if made is None or made.name != CONSTRAINT or made.attributes["sharding"] != op.attributes["sharding"]:
        return False
    return is_type(made, back)


def typed(value: ir.Value, sharding: ir.Attribute) -> str:
    """Returns the type of a value in explicit mode as text."""
    return f"{value.type} {sharding}"


def derived_from(
    module: ir.Module, values: Sequence[ir.Value], types: Collection[str], stated: Collection[ir.Operation]
) -> list[ir.Operation]:
    """Returns the constraints that say types which follow from those of some values.

    Args:
      types: those of the values, as `typed` has them. stated: the constraints that are annotations.
    """
    back = WayBack(module.operation)
    every = [op for op in ops_in(module.operation) if op.name == CONSTRAINT and is_type(op, back)]
    derived = {op for op in every if op not in stated}
    if not derived:
        return []
    forward = {op for op in derived if not back.has(op)}
    found = _following(values, set(every), forward, _Behind(module.operation))
    kinds = {*types, *(typed(each.operands[0], each.attributes["sharding"]) for each in found)}
    found |= {
        op: None
        for op in every
        if op in derived
        and (op not in forward or _is_of_scalar(op))
        and typed(op.operands[0], op.attributes["sharding"]) in kinds
    }
    return list(found)


def _following(
    values: Sequence[ir.Value], types: Collection[ir.Operation], derived: Collection[ir.Operation], behind: _Behind
) -> dict[ir.Operation, None]:
    """Returns the derived types of what is computed from some values, up to the next type that is none of these.

    A value without a type has the one that follows for it: an argument of a function or a loop, the result of a call,
    and what is between the ops that JAX makes of one of its own.
    """
    found: dict[ir.Operation, None] = {}
    waiting, seen = list(values), set(values)
    while waiting:
        for value in [value for use in waiting.pop().uses for value in behind.values(use)]:
            own = [use.owner.operation for use in value.uses if use.owner.operation in types]
            found |= dict.fromkeys(each for each in own if each in derived)
            next_ = [each.results[0] for each in own if each in derived] if own else [value]
            waiting += [each for each in next_ if each not in seen]
            seen.update(next_)
    return found


class _Behind:
    """What is computed from a value: through calls, loops and branches, too.

    State: the functions of a module, and their calls, by name.
    """

    def __init__(self, module: ir.Operation):
        self._functions = {symbol(each): each for each in functions_of(module) if has_body(each)}
        self._calls = calls_by_name(module)

    def values(self, use: ir.OpOperand) -> list[ir.Value]:
        """Returns the values that a use makes: results, or arguments of blocks. What states its type makes none."""
        op, number = use.owner.operation, use.operand_number
        if op.name in _STATING:
            return []
        if op.name == CALL:
            function = self._functions.get(callee_of(op))
            return [] if function is None else [function.regions[0].blocks[0].arguments[number]]
        if op.name in LOOPS:
            return _carried(op, number)
        if op.name not in _RETURNS:
            return list(op.results)
        around = parent_of(op)
        if around.name == FUNCTION:
            return [each.results[number] for each in self._calls.get(symbol(around), [])]
        if around.name in LOOPS:  # the first region is the condition
            return _carried(around, number) if op.block == around.regions[1].blocks[0] else []
        return [around.results[number]] if around.name in _BRANCHES else []


def _carried(loop: ir.Operation, number: int) -> list[ir.Value]:
    return [*(region.blocks[0].arguments[number] for region in loop.regions), loop.results[number]]


def _is_of_scalar(op: ir.Operation) -> bool:
    """Returns whether a constraint is on copies of a scalar, which have the type of what they are added to."""
    producer = producer_of(op.operands[0])
    return producer is not None and producer.name in _FREE
