# SPDX-License-Identifier: Apache-2.0
"""Shardings in JAX's spelling: the text of a `PartitionSpec`, read without Python and without jax."""

from __future__ import annotations

import re

from .sharding import AxisRef, Sharding, ShardingError

_START = re.compile(r"\s*((?:[A-Za-z_]\w*\.)*(?:P|PartitionSpec))\s*\(")
_TOKEN = re.compile(r"""\s*(?:(?P<name>'[^'"\\]*'|"[^'"\\]*")|(?P<word>[A-Za-z_][\w.]*)|(?P<mark>.))""", re.DOTALL)
_END = "the end"


def is_spec(text: str) -> bool:
    """Returns whether a text is meant as a `PartitionSpec`: it begins with `P(` or `PartitionSpec(`, in a module or not."""
    return _START.match(text) is not None


def sharding_of(text: str, rank: int) -> Sharding:
    """Returns the sharding of an array of `rank` that a `PartitionSpec` names; dimensions that it leaves out are not split.

    Raises: ShardingError at the column that cannot be read, and for more entries than the array has dimensions.

    Example:
      >>> print(sharding_of("P('y', None, ('x', 'z'))", 4))
      [{"y"}, {}, {"x", "z"}, {}]
      >>> print(sharding_of("jax.P(None, unreduced={'x'})", 1))
      [{}], unreduced={"x"}
    """
    dims, unreduced = _Parser(text).spec()
    if len(dims) > rank:
        raise ShardingError(f"{' '.join(text.split())} has {len(dims)} entries, the array has rank {rank}")
    return Sharding((*dims, *[()] * (rank - len(dims))), unreduced=unreduced)


_Axes = tuple[AxisRef, ...]


class _Parser:
    """A recursive-descent parser of `P('x', None, ('y', 'z'), unreduced={'w'})`; positions are columns, from 1.

    State: `at` is the next of `tokens`, each its kind, its text and where it begins.
    """

    def __init__(self, text: str):
        self.text = text.rstrip()
        opened = _START.match(text).end()
        self.tokens = [(m.lastgroup, m[m.lastgroup], m.start(m.lastgroup)) for m in _TOKEN.finditer(self.text, opened)]
        self.at = 0

    def spec(self) -> tuple[list[_Axes], _Axes]:
        dims: list[_Axes] = []
        unreduced: _Axes | None = None
        while not self.accept(")"):
            if self.accept("unreduced"):
                unreduced = self.unreduced(unreduced)
            elif unreduced is not None:
                self.fail('")"')
            else:
                dims.append(self.entry())
            if self.peek()[1] != ")":
                self.expect(",")
        if self.at < len(self.tokens):
            self.fail(_END)
        return dims, unreduced or ()

    def entry(self) -> _Axes:
        if self.accept("None"):
            return ()
        if self.accept("("):
            return self.names(")")
        return (self.name("None, an axis in quotes such as 'x', or axes such as ('x', 'y')"),)

    def unreduced(self, before: _Axes | None) -> _Axes:
        if before is not None:
            self.fail("unreduced once")
        self.expect("=")
        self.expect("{")
        return self.names("}")

    def names(self, end: str) -> _Axes:
        names: list[AxisRef] = []
        while not self.accept(end):
            names.append(self.name("an axis in quotes such as 'x'"))
            if self.peek()[1] != end:
                self.expect(",")
        return tuple(names)

    def name(self, wanted: str) -> AxisRef:
        kind, value, _ = self.peek()
        if kind != "name" or len(value) == 2:
            self.fail(wanted)
        self.at += 1
        return AxisRef(value[1:-1])

    def peek(self) -> tuple[str | None, str, int]:
        return self.tokens[self.at] if self.at < len(self.tokens) else (None, _END, len(self.text))

    def accept(self, value: str) -> bool:
        kind, found, _ = self.peek()
        if kind is None or found != value:
            return False
        self.at += 1
        return True

    def expect(self, value: str) -> None:
        if not self.accept(value):
            self.fail(f'"{value}"')

    def fail(self, wanted: str):
        _, found, column = self.peek()
        shown = found if found == _END else f'"{found}"'
        text = " ".join(self.text.split())
        raise ShardingError(f"cannot read sharding {text!r}: column {column + 1} has {shown}, expected {wanted}")
