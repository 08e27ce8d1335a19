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
from ..ir.ops import CONSTANTS, name_of, ops_in, producer_of
from ..platform.bindings import ir

CONSTRAINT = "sdy.sharding_constraint"
RESHARD = "reshard"  # the name of what jax.sharding.reshard writes
_BACKWARD, _AGAIN = "transpose(", "rematted_computation"  # in the names that JAX gives ops
_CALL = "func.call"
_FREE = CONSTANTS | {"stablehlo.broadcast_in_dim", "stablehlo.iota"}


def is_backward(op: ir.Operation) -> bool:
    """Returns whether an op belongs to the way back, by its name; what is computed again there does not."""
    name = name_of(op.location) or ""
    return _BACKWARD in name and _AGAIN not in name


def is_type_of_gradient(op: ir.Operation) -> bool:
    """Returns whether a constraint is what JAX makes of a `reshard` on the way back: the type that was before it."""
    return is_backward(op) and (name_of(op.location) or "").rpartition("/")[2] == RESHARD


def is_type(op: ir.Operation) -> bool:
    """Returns whether a constraint says the type of an op's result, or that of a gradient.

    Behind a call it says what somebody gave `jit` as `out_shardings=`.
    """
    producer = producer_of(op.operands[0])
    if is_type_of_gradient(op) or producer is None or name_of(op.location) is None:
        return is_type_of_gradient(op)
    return producer.name != _CALL and text_of_location(op) == text_of_location(producer)


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
    found: dict[ir.Operation, None] = {}
    waiting = list(values)
    while waiting:
        for op in (use.owner.operation for use in waiting.pop().uses):
            if op.name == CONSTRAINT:
                continue
            for own in (use.owner.operation for result in op.results for use in result.uses):
                if own not in found and _follows(own, stated) and not is_backward(own):
                    found[own] = None
                    waiting.append(own.results[0])
    kinds = {*types, *(typed(each.operands[0], each.attributes["sharding"]) for each in found)}
    for op in ops_in(module.operation):
        if _follows(op, stated) and (is_backward(op) or _is_of_scalar(op)):
            if typed(op.operands[0], op.attributes["sharding"]) in kinds:
                found[op] = None
    return list(found)


def _follows(op: ir.Operation, stated: Collection[ir.Operation]) -> bool:
    return op.name == CONSTRAINT and op not in stated and is_type(op)


def _is_of_scalar(op: ir.Operation) -> bool:
    """Returns whether a constraint is on copies of a scalar, which have the type of what they are added to."""
    producer = producer_of(op.operands[0])
    return producer is not None and producer.name in _FREE
