# SPDX-License-Identifier: Apache-2.0
"""Advice as an edit of the user's own source, where the line is plain enough: a call with a literal PartitionSpec.

`with_sharding_constraint(x, P("data"))` can be edited without knowing what its names stand for: the call becomes `x`,
or the call of `P` gets other arguments. A constraint in a helper, or with a sharding that has a name, cannot.
"""

from __future__ import annotations

import ast
import difflib

from reshard.dialect_utils.ir.diagnostics import Place
from reshard.synthesis.layouts import partition_specs
from reshard.synthesis.layouts.sharding import Sharding

_CONSTRAINT = "with_sharding_constraint"
_SPECS = ("P", "PartitionSpec")


def diff_of(source: str, place: Place, sharding: Sharding | None) -> tuple[str, ...]:
    """Returns the lines that leave, each behind `- `, and those that come, behind `+ `; empty for a line not plain
    enough.

    Args:
      source: the file as text. place: where it calls `with_sharding_constraint`.
      sharding: what the value should have; None for no constraint.

    Example:
      >>> diff_of('y = with_sharding_constraint(f(x), P("a"))', Place("f.py", 1, 5), None)
      ('- y = with_sharding_constraint(f(x), P("a"))', '+ y = f(x)')
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    call = next((each for each in ast.walk(tree) if isinstance(each, ast.Call) and _is_at(each, place)), None)
    if call is None or not call.args:
        return ()
    edited = _without(source, tree, call) if sharding is None else _with_spec(source, call, sharding)
    if edited is None:
        return ()
    lines = difflib.ndiff(source.splitlines(), edited.splitlines())
    return tuple(
        f"{each[:2]}{each[2:].strip()}" for each in lines if each.startswith(("- ", "+ ")) and each[2:].strip()
    )


def _is_at(call: ast.Call, place: Place) -> bool:
    return (call.lineno, call.col_offset + 1) == (place.line, place.column) and _name(call) == _CONSTRAINT


def _name(call: ast.Call) -> str:
    called = call.func
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _without(source: str, tree: ast.Module, call: ast.Call) -> str | None:
    """Returns the source with the call's first argument in its place; `x = x` goes as a whole."""
    value = call.args[0]
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and each.value is call and isinstance(value, ast.Name):
            if [isinstance(to, ast.Name) and to.id == value.id for to in each.targets] == [True]:
                return _replaced(source, each, "")
    text = ast.get_source_segment(source, value)
    return None if text is None else _replaced(source, call, text)


def _with_spec(source: str, call: ast.Call, sharding: Sharding) -> str | None:
    """Returns the source with another literal PartitionSpec in the call; None if there is not exactly one."""
    given = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "shardings")]
    specs = [node for each in given for node in ast.walk(each) if isinstance(node, ast.Call) and _name(node) in _SPECS]
    text = partition_specs.text_of(sharding)
    if len(specs) != 1 or text is None or not all(_is_literal(each) for each in specs[0].args):
        return None
    name = ast.get_source_segment(source, specs[0].func)
    return None if name is None else _replaced(source, specs[0], name + text.removeprefix("P"))


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _replaced(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """Returns the source with a text in place of a node. Columns of `ast` count bytes."""
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    assert node.end_lineno is not None and node.end_col_offset is not None  # nodes of parsed text have both
    head = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    tail = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (head + text.encode() + tail).decode()
