# SPDX-License-Identifier: Apache-2.0
"""Calls are inlined, as HLO's `CallInliner` does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from ..ir.diagnostics import error_at
from ..ir.functions import functions_of, has_body, symbol
from ..ir.ops import LOOPS, has_place, ops_around, ops_in, placed
from ..ir.pipelines import run_pipeline
from ..ir.shardy_limits import refuse_bodiless, refuse_collectives, refuse_growth
from ..platform.bindings import ir, stablehlo
from .serials import own_location

_NO_INLINE = "no_inline"
_MOST_OPS = 20_000  # of a loop
_TUPLE = "reshard.tuple"
CALLS = "reshard.calls"  # the calls through which an op was inlined; on a call, the call itself; see `call_paths`


def inline_calls(module: ir.Operation) -> list[ir.Operation]:
    """Replaces each `func.call` by the body of its function, as XLA does; a call that names no function stays.

    MLIR's `inline` pass is in jaxlib but finds nothing to inline there, since no dialect registers its interface.

    Returns: for each call with several results a barrier over them, in place of the tuple that HLO has there;
      `remove_call_barriers` removes the barriers once the ops are in order.
    Raises: NotPropagatedError for a function without a body, or if inlining makes too many ops; DiagnosedError at a
      call through which a function calls itself.
    """
    _inline_all(module)
    run_pipeline(module, "builtin.module(symbol-dce)")  # may erase ops: none that it erases may be held here
    for declared in functions_of(module):  # named, not called; Shardy looks into the body of each function
        if not has_body(declared):
            declared.erase()
    return [op for op in ops_in(module) if _TUPLE in op.attributes]


def inline_in_loops(module: ir.Operation, kinds: Collection[str]) -> None:
    """Replaces the calls in loops, and those in what they call, by the bodies of the functions.

    A loop stays as it is if no op of some kinds is in it or in what it calls, or if it would become too long. A call
    stays that names no function with a body, or one that calls itself, or that has attributes, which may say where it
    is to run.
    """
    functions = {symbol(op): op for op in functions_of(module) if has_body(op) and _NO_INLINE not in op.attributes}
    functions = {name: op for name, op in functions.items() if op not in _called_in(op, functions)}
    lengths: dict[str, int] = {}
    for loop in _outermost(op for op in ops_in(module) if op.name in LOOPS):
        inside = chain(ops_in(loop), *map(ops_in, _called_in(loop, functions)))
        if not any(op.name in kinds for op in inside) or _length(loop, functions, lengths) > _MOST_OPS:
            continue
        while calls := [call for op in ops_in(loop) if (call := _plain_call_of(op, functions))]:
            for call, callee in calls:
                _inline_call(call, functions[callee])
        remove_call_barriers([op for op in ops_in(loop) if _TUPLE in op.attributes])
    run_pipeline(module, "builtin.module(symbol-dce)")


def _plain_call_of(op: ir.Operation, functions: Collection[str]) -> tuple[ir.Operation, str] | None:
    """Returns a call without attributes, with its name; None for any other op."""
    return _call_of(op, functions) if {name for name, _ in op.attributes.items()} == {"callee"} else None


def _length(op: ir.Operation, functions: Mapping[str, ir.Operation], lengths: dict[str, int]) -> int:
    """Returns the number of ops of an op once all calls in it are inlined; none of the functions calls itself.

    Args:
      lengths: of functions, as far as they are known.
    """
    count = 0
    for each in ops_in(op):
        count += 1
        if call := _plain_call_of(each, functions):
            name = call[1]
            if name not in lengths:
                lengths[name] = _length(functions[name], functions, lengths)
            count += lengths[name]
    return count


def _outermost(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Returns those of some ops that are in no other one."""
    found = dict.fromkeys(ops)
    return [op for op in found if not any(each in found for each in ops_around(op))]


def _called_in(op: ir.Operation, functions: Mapping[str, ir.Operation]) -> list[ir.Operation]:
    """Returns the functions that an op calls, and that they call."""
    found: dict[str, ir.Operation] = {}
    left = [op]
    while left:
        for each in ops_in(left.pop()):
            if (call := _call_of(each, functions)) and call[1] not in found:
                found[call[1]] = functions[call[1]]
                left.append(functions[call[1]])
    return list(found.values())


def _inline_all(module: ir.Operation) -> None:
    functions = {symbol(op): op for op in functions_of(module)}
    ops = {name: ops_in(function) for name, function in functions.items()}
    calls = {name: [call for op in own if (call := _call_of(op, functions))] for name, own in ops.items()}
    order = _callees_first(calls)
    refuse_growth(order, functions, calls, {name: len(own) for name, own in ops.items()})
    for callee in dict.fromkeys(callee for called in calls.values() for _, callee in called):
        refuse_collectives(ops[callee])
    for name in order:
        for call, callee in calls[name]:
            if not has_body(functions[callee]):
                refuse_bodiless(call, callee)
            _inline_call(call, functions[callee])


def _call_of(op: ir.Operation, functions: Collection[str]) -> tuple[ir.Operation, str] | None:
    """Returns a call of one of the functions, with its name; None for any other op."""
    if op.name != "func.call":
        return None
    callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
    return (op, callee) if callee in functions else None


def _callees_first(calls: dict[str, list[tuple[ir.Operation, str]]]) -> list[str]:
    """Returns the names of functions, each behind those that it calls; the calls may nest to any depth.

    Args:
      calls: for each function its calls, each with the name of the function that it calls.
    Raises: DiagnosedError at a call through which a function calls itself; Shardy would end the process.
    """
    order: dict[str, None] = {}
    for start in calls:
        around: dict[str, Iterator[tuple[ir.Operation, str]]] = {} if start in order else {start: iter(calls[start])}
        while around:
            name, left = next(reversed(around.items()))
            call, callee = next(left, (None, ""))
            if call is None:
                del around[name]
                order[name] = None
            elif callee in around:
                raise error_at(
                    call, f"@{callee} calls itself by way of this call; XLA compiles no recursion, write a loop"
                )
            elif callee not in order:
                around[callee] = iter(calls[callee])
    return list(order)


def _inline_call(call: ir.Operation, function: ir.Operation) -> None:
    copy = function.clone(ip=False).operation
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = [op.operation for op in block.operations]
    inside = [nested for op in body for nested in ops_in(op)]
    if CALLS in call.attributes:
        _prepend_calls(inside, calls_through(call))
    if has_place(place := own_location(call)):
        for op in inside:
            if not has_place(op.location):
                op.location = placed(op.location, place)
    for op in body:
        op.move_before(call)
    values = list(terminator.operands)
    if len(values) > 1:
        with ir.InsertionPoint(call), call.location:
            barrier = stablehlo.OptimizationBarrierOp(values).operation
        barrier.attributes[_TUPLE] = ir.UnitAttr.get()
        values = list(barrier.results)
    for result, value in zip(call.results, values, strict=True):
        result.replace_all_uses_with(value)
    terminator.erase()
    call.erase()


def calls_through(op: ir.Operation) -> tuple[int, ...]:
    """Returns the indices of the calls through which an op was inlined, outermost first."""
    return tuple(ir.DenseI64ArrayAttr(op.attributes[CALLS])) if CALLS in op.attributes else ()


def _prepend_calls(ops: list[ir.Operation], calls: tuple[int, ...]) -> None:
    for op in ops:
        op.attributes[CALLS] = ir.DenseI64ArrayAttr.get([*calls, *calls_through(op)])


def remove_call_barriers(barriers: list[ir.Operation]) -> None:
    """Removes the barriers that `inline_calls` put over the results of calls."""
    for barrier in barriers:
        for result, value in zip(barrier.results, list(barrier.operands), strict=True):
            result.replace_all_uses_with(value)
        barrier.erase()
