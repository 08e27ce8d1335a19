# SPDX-License-Identifier: Apache-2.0
"""Functions of a module: their names, visibility, types and bodies."""

from __future__ import annotations

from collections.abc import Iterable

from ..platform.bindings import ir


def functions_of(module: ir.Operation) -> list[ir.Operation]:
    """Returns the functions of a module."""
    return [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == "func.func"]


def public_functions(ops: Iterable[ir.Operation]) -> list[ir.Operation]:
    """Returns the public functions with a body that are among some ops."""
    return [op for op in ops if op.name == "func.func" and is_public(op) and has_body(op)]


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


def signature(function: ir.Operation) -> ir.FunctionType:
    """Returns the types of the arguments and results of a function."""
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def has_discardable_symbols(module: ir.Operation) -> bool:
    """Returns whether a module has more at its top than meshes and public functions: `symbol-dce` may remove it."""
    ops = [each.operation for each in module.regions[0].blocks[0].operations]
    return not all(op.name == "sdy.mesh" or (op.name == "func.func" and visibility(op) == "public") for op in ops)
