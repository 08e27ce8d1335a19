# SPDX-License-Identifier: Apache-2.0
"""Loop invariants: values that a loop carries unchanged are captured instead, as in XLA."""

from __future__ import annotations

from ..ir.ops import LOOPS, blocks_of, ops_in, terminator_of
from ..platform.bindings import ir, sdy
from ..shardings.sdy_shardings import sharding_from_attr, sharding_to_attr
from ..shardings.value_layouts import layout


def capture_invariants(loops: list[ir.Operation]) -> dict[ir.Value, dict[ir.Value, list[int]]]:
    """Makes loops capture the values that they carry unchanged.

    Returns: for each loop, by its first result, value -> the operand numbers that carried it.
    Source: StableHLO's canonicalization of `while`.
    """
    return {loop.results[0]: _capture_invariants(loop) for loop in loops}


def open_captured(
    loops: list[ir.Operation], carried: dict[ir.Value, dict[ir.Value, list[int]]]
) -> list[tuple[ir.Operation, ir.Operation, tuple[int, ...]]]:
    """Puts a constraint with open dimensions between a loop and each value that it captures and that has a sharding.

    Args:
      carried: the result of `capture_invariants`.
    Returns: (constraint, loop, operand numbers that carried the value) for each constraint.
    Source: `open_while_free_vars_sharding.cc` in XLA.
    """
    opened = []
    for loop in loops:
        for value, users in _captured_values(loop).items():
            open_sharding = _opened(layout(value))
            if open_sharding is None:
                continue
            with ir.InsertionPoint(loop), loop.location:
                constraint = sdy.ShardingConstraintOp(value, open_sharding).operation
            for user in users:
                user.replace_uses_of_with(value, constraint.results[0])
            opened.append((constraint, loop, tuple(carried[loop.results[0]].get(value, ()))))
    return opened


def loops_with_results(module: ir.Operation) -> list[ir.Operation]:
    """Returns the loops with results, inner ones first."""
    ops = (op.operation for op in ops_in(module, ir.WalkOrder.POST_ORDER))
    return [op for op in ops if op.name in LOOPS and len(op.results)]


def _capture_invariants(loop: ir.Operation) -> dict[ir.Value, list[int]]:
    """Replaces the values that a loop carries unchanged by their initial values, in the loop and after it.

    Returns: initial value -> the operand numbers that carried it.
    """
    condition, body = (region.blocks[0] for region in loop.regions)
    carried: dict[ir.Value, list[int]] = {}
    for number in invariant_numbers(loop):
        argument, value = body.arguments[number], loop.operands[number]
        argument.replace_all_uses_with(value)
        condition.arguments[number].replace_all_uses_with(value)
        loop.results[number].replace_all_uses_with(value)
        # The operand stays, so that the numbers of the others do not change; a constant takes the place of its value.
        terminator_of(body).operands[number] = argument
        placeholder = _zeros(value.type)
        if placeholder is not None:
            with ir.InsertionPoint(loop) as point, loop.location:
                point.insert(placeholder)
            loop.operands[number] = placeholder.results[0]
        carried.setdefault(value, []).append(number)
    return carried


def _zeros(kind: ir.Type) -> ir.Operation | ir.OpView | None:
    """Returns a constant of zeros, not inserted anywhere, of a static tensor type of numbers; None for any other type.

    It is parsed, since the bindings have no Python class for an attribute of complex numbers.
    """
    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        return None
    element = kind.element_type
    if isinstance(element, ir.ComplexType):
        zero = "(0.0, 0.0)"
    elif isinstance(element, ir.IntegerType):
        zero = "false" if element.width == 1 else "0"
    elif isinstance(element, ir.FloatType):
        zero = "0.0"
    else:
        return None
    return ir.Operation.parse(
        f'"stablehlo.constant"() {{value = dense<{zero}> : {kind}}} : () -> {kind}', context=kind.context
    )


def invariant_numbers(loop: ir.Operation) -> list[int]:
    """Returns the numbers of the values that a loop carries unchanged."""
    body = loop.regions[1].blocks[0]
    returned = terminator_of(body).operands
    return [number for number, argument in enumerate(body.arguments) if returned[number] == argument]


def _captured_values(loop: ir.Operation) -> dict[ir.Value, list[ir.Operation]]:
    """Returns the values from outside that ops inside the loop use, with those ops."""
    inside: set[ir.Value] = set()
    uses: list[tuple[ir.Value, ir.Operation]] = []
    for op in ops_in(loop)[1:]:
        inside.update(op.results)
        for block in blocks_of(op):
            inside.update(block.arguments)
        uses += [(value, op) for value in op.operands]
    for block in blocks_of(loop):
        inside.update(block.arguments)
    captured: dict[ir.Value, list[ir.Operation]] = {}
    for value, user in uses:
        if value not in inside:
            captured.setdefault(value, []).append(user)
    return captured


def _opened(attr: ir.Attribute | None) -> ir.Attribute | None:
    """Returns the sharding with every dimension open and empty; None if there is none, or nothing to open."""
    if attr is None:
        return None
    sharding = sharding_from_attr(attr)
    if sharding.rank == 0:
        return None
    open_sharding = type(sharding)(((),) * sharding.rank, open_dims=frozenset(range(sharding.rank)))
    if open_sharding == sharding:
        return None
    return sharding_to_attr(open_sharding, sdy.TensorShardingAttr(attr).mesh_or_ref)
