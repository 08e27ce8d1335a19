# SPDX-License-Identifier: Apache-2.0
"""Functions of a module: their names, visibility, types and bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..platform.bindings import ir
from .ops import attribute_names, ops_in, parent_of

FUNCTION = "func.func"
ENTRY = "main"
CALL = "func.call"


def functions_of(module: ir.Operation) -> list[ir.Operation]:
    """Returns the functions of a module."""
    return [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == FUNCTION]


def public_functions(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Returns the public functions with a body that are among some ops."""
    return [op for op in ops if op.name == FUNCTION and is_public(op) and has_body(op)]


def symbol(op: ir.Operation) -> str:
    """Returns the name of a function or mesh."""
    return ir.StringAttr(op.attributes["sym_name"]).value


def is_public(function: ir.Operation) -> bool:
    """Returns whether callers outside of the module may use a function."""
    return visibility(function) != "private"


def visibility(symbol: ir.Operation) -> str:
    """Returns the visibility of a function or mesh: `public`, `private` or `nested`."""
    attr = symbol.attributes.get("sym_visibility")
    return "public" if attr is None else ir.StringAttr(attr).value


def has_body(function: ir.Operation) -> bool:
    """Returns whether a function is defined, not only declared."""
    return len(function.regions[0].blocks) == 1


def function_called(call: ir.Operation) -> ir.Operation | None:
    """Returns the function that a `func.call` runs; None if the module around it has none of that name."""
    name = callee_of(call)
    around = call
    while around.name != FUNCTION:
        around = parent_of(around)
    return next((each for each in functions_of(parent_of(around)) if symbol(each) == name), None)


def calls_by_name(module: ir.Operation) -> dict[str, list[ir.Operation]]:
    """Returns the calls of each function, without functions that something else than a `func.call` names, too."""
    calls: dict[str, list[ir.Operation]] = {}
    others = set()
    for op in ops_in(module):
        if op.name == CALL:
            calls.setdefault(callee_of(op), []).append(op)
        else:
            others |= _named_in(op)
    return {name: found for name, found in calls.items() if name not in others}


def callee_of(call: ir.Operation) -> str:
    """Returns the name of the function that a `func.call` runs."""
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _named_in(op: ir.Operation) -> set[str]:
    """Returns the functions that an op which is no call names in its attributes; a name too many does no harm."""
    if op.name not in _WITH_FUNCTIONS:
        return set()
    text = " ".join(str(op.attributes[name]) for name in attribute_names(op.attributes))
    return {plain or quoted for plain, quoted in re.findall(r'@(?:([\w.$-]+)|"((?:[^"\\]|\\.)*)")', text)}


# Ops that run functions in another way than a call does.
_WITH_FUNCTIONS = frozenset({"stablehlo.composite", "stablehlo.custom_call", "func.constant"})


def signature(function: ir.Operation) -> ir.FunctionType:
    """Returns the types of the arguments and results of a function."""
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def has_discardable_symbols(module: ir.Operation) -> bool:
    """Returns whether a module has more at its top than meshes and public functions: `symbol-dce` may remove it."""
    ops = [each.operation for each in module.regions[0].blocks[0].operations]
    return not all(op.name == "sdy.mesh" or (op.name == FUNCTION and visibility(op) == "public") for op in ops)
