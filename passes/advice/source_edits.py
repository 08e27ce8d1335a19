# SPDX-License-Identifier: Apache-2.0
"""Advice as an edit of the user's own source, where the line is plain enough: a call with a literal PartitionSpec.

`with_sharding_constraint(x, P("data"))` and `reshard(x, P("data"))` can be edited without knowing what their names
stand for: the call becomes `x`, or the call of `P` gets other arguments, as does that in
`einsum(..., out_sharding=P("data"))`. A constraint in a helper, or with a sharding that has a name, cannot. No edit is
believed: the new source is parsed, and has to be the old one but for the call.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re

from reshard.dialect_utils.ir.diagnostics import Place
from reshard.synthesis.layouts import partition_specs
from reshard.synthesis.layouts.sharding import Sharding

_CONSTRAINT, _RESHARD, _OUT_SHARDING = "with_sharding_constraint", "reshard", "out_sharding"
_SPECS = ("P", "PartitionSpec")


def diff_of(source: str, place: Place, before: Sharding, sharding: Sharding | None) -> tuple[str, ...]:
    """Returns the lines that leave, each behind `- `, and those that come, behind `+ `; empty for a line not plain
    enough.

    Args:
      source: the file as text. place: where it calls `with_sharding_constraint`, `reshard`, or what is given
        `out_sharding=`; JAX counts columns from 0.
      before: the sharding that the call asks for. sharding: what the value should have; None for no constraint.

    Example:
      >>> before = Sharding.parse('[{"a"}]')
      >>> diff_of('y = with_sharding_constraint(f(x), P("a"))', Place("f.py", 1, 4), before, None)
      ('- y = with_sharding_constraint(f(x), P("a"))', '+ y = f(x)')
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    call = next((each for each in ast.walk(tree) if isinstance(each, ast.Call) and _is_at(each, place)), None)
    if call is None or not call.args or isinstance(call.args[0], ast.Starred | ast.NamedExpr):
        return ()
    if sharding is None and _OUT_SHARDING in _keywords(call):
        return ()
    if len(call.args) + len(call.keywords) < 2:
        return ()
    edited = _without(source, tree, call) if sharding is None else _with_spec(source, tree, call, before, sharding)
    if edited is None:
        return ()
    lines = difflib.ndiff(_lines(source), _lines(edited))
    return tuple(
        f"{each[:2]}{each[2:].strip()}" for each in lines if each.startswith(("- ", "+ ")) and each[2:].strip()
    )


def says_out_sharding(source: str, place: Place) -> bool:
    """Returns whether a call at a place of a source is given `out_sharding=`; None states nothing.

    Example:
      >>> line = "y = dot(x, w, out_sharding=spec) + b"
      >>> [says_out_sharding(line, Place("f.py", 1, 4, end)) for end in (None, (1, 32), (1, 36))]
      [True, True, False]
    """
    ends = _stating(source).get((place.line, place.column), ())
    return bool(ends) if place.end is None else place.end in ends


@functools.lru_cache(8)
def _stating(source: str) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Returns where the calls begin that are given `out_sharding=`, and where those end that begin there."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and _is_stated(_keywords(each).get(_OUT_SHARDING)):
            found.setdefault((each.lineno, each.col_offset), []).append(_end(each))
    return found


def _is_stated(sharding: ast.expr | None) -> bool:
    return sharding is not None and not (isinstance(sharding, ast.Constant) and sharding.value is None)


def _end(node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None  # nodes of parsed text have both
    return node.end_lineno, node.end_col_offset


def added_to(source: str, place: Place, sharding: Sharding) -> tuple[str, ...]:
    """Returns the line that gives the value of a line a constraint, behind `+ `; empty for a line not plain enough.

    That is one which gives what it computes or calls, from its beginning on, to a single name, in a file that calls
    `with_sharding_constraint(x, P(...))` somewhere; the new line calls it in the same way.

    Args:
      source: the file as text. place: of the op that makes the value.

    Example:
      >>> added_to('w = with_sharding_constraint(v, P())\\ny = f(x)', Place("f.py", 2, 4), Sharding.parse('[{"a"}]'))
      ('+ y = with_sharding_constraint(y, P("a"))',)
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    statement = next((each for each in ast.walk(tree) if _gives(each, place)), None)
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and _name(each) == _CONSTRAINT]
    plain = (each for each in calls if len(each.args) == 2 and not each.keywords)
    called = next(((each, spec) for each in plain if _is_spec(spec := each.args[1])), None)
    text = partition_specs.text_of(sharding)
    if not isinstance(statement, ast.Assign) or called is None or text is None:
        return ()
    ((target,), (call, spec)) = statement.targets, called
    assert isinstance(target, ast.Name) and isinstance(spec, ast.Call)
    names = [ast.get_source_segment(source, each.func) for each in (call, spec)]
    new_spec = text.replace("'", '"').removeprefix("P")
    return (f"+ {target.id} = {names[0]}({target.id}, {names[1]}{new_spec})",)


def _gives(statement: ast.AST, place: Place) -> bool:
    """Returns whether a statement gives the value that begins at a place to a single name."""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call | ast.BinOp):
        return False
    begins = (statement.value.lineno, statement.value.col_offset) == (place.line, place.column)
    return begins and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)


def _is_spec(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _name(node) in _SPECS


def _is_at(call: ast.Call, place: Place) -> bool:
    is_there = (call.lineno, call.col_offset) == (place.line, place.column) and place.end in (None, _end(call))
    return is_there and (_name(call) in (_CONSTRAINT, _RESHARD) or _OUT_SHARDING in _keywords(call))


def _keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    return {each.arg: each.value for each in call.keywords}


def _name(call: ast.Call) -> str:
    called = call.func
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _without(source: str, tree: ast.Module, call: ast.Call) -> str | None:
    """Returns the source with the call's first argument in its place; `x = x` goes as a whole where it may."""
    value = call.args[0]
    statement = next((each for each in ast.walk(tree) if isinstance(each, ast.Assign) and each.value is call), None)
    if statement is not None and _is_to_itself(statement, value) and _stands_alone(source, tree, statement):
        return _replaced(source, statement, "")
    text = ast.get_source_segment(source, value)
    if text is None:
        return None
    is_atom = isinstance(value, ast.Name | ast.Attribute | ast.Subscript | ast.Call | ast.Constant)
    edited = _replaced(source, call, text if is_atom else f"({text})")
    return edited if _is_tree_with(edited, tree, call, value) else None


def _is_to_itself(statement: ast.Assign, value: ast.expr) -> bool:
    names = [to.id for to in statement.targets if isinstance(to, ast.Name)]
    return isinstance(value, ast.Name) and len(statement.targets) == 1 and names == [value.id]


def _stands_alone(source: str, tree: ast.Module, statement: ast.stmt) -> bool:
    """Returns whether a statement has its lines for itself, and its block has others."""
    lines = _lines(source)
    before = lines[statement.lineno - 1].encode()[: statement.col_offset].decode()
    behind = lines[(statement.end_lineno or 0) - 1].encode()[statement.end_col_offset :].decode()
    blocks = [
        block
        for each in ast.walk(tree)
        for _, block in ast.iter_fields(each)
        if isinstance(block, list) and any(inner is statement for inner in block)
    ]
    return not before.strip() and not behind.partition("#")[0].strip() and all(len(block) > 1 for block in blocks)


def _with_spec(source: str, tree: ast.Module, call: ast.Call, before: Sharding, sharding: Sharding) -> str | None:
    """Returns the source with another literal PartitionSpec in the call; None if there is not exactly one."""
    keywords = _keywords(call)
    given = [*call.args[1:2], *(keywords[each] for each in ("shardings", "out_shardings") if each in keywords)]
    if _OUT_SHARDING in keywords:
        given = [keywords[_OUT_SHARDING]]
    specs = [node for each in given for node in ast.walk(each) if isinstance(node, ast.Call) and _name(node) in _SPECS]
    text = partition_specs.text_of(sharding)
    if len(specs) != 1 or text is None or not _asks_for(specs[0], before):
        return None
    name = ast.get_source_segment(source, specs[0].func)
    if name is None:
        return None
    edited = _replaced(source, specs[0], name + text.removeprefix("P"))
    new = ast.parse(text, mode="eval").body
    assert isinstance(new, ast.Call)  # of P
    return edited if _is_tree_with(edited, tree, specs[0], ast.Call(specs[0].func, new.args, [])) else None


def _asks_for(spec: ast.Call, before: Sharding) -> bool:
    """Returns whether a call of `P` has literals alone, and they say what a sharding says."""
    if spec.keywords:
        return False
    try:
        entries = [ast.literal_eval(each) for each in spec.args]
        return Sharding.parse(f"P({', '.join(map(repr, entries))})", before.rank) == before
    except ValueError:
        return False


def _is_tree_with(edited: str, tree: ast.Module, old: ast.expr, new: ast.expr) -> bool:
    """Returns whether a source is that of a tree with one node replaced; the tree is not of use afterwards."""

    class Replacing(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    try:
        return ast.dump(ast.parse(edited)) == ast.dump(Replacing().visit(tree))
    except (SyntaxError, ValueError):
        return False


def _replaced(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """Returns the source with a text in place of a node. Columns of `ast` count bytes."""
    lines = [line.encode() for line in _lines(source)]
    assert node.end_lineno is not None and node.end_col_offset is not None  # nodes of parsed text have both
    head = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    tail = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (head + text.encode() + tail).decode()


def _lines(source: str) -> list[str]:
    """Returns the lines as Python counts them, with their ends; `str.splitlines` also cuts at a form feed."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source)
