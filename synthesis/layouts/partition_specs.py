# SPDX-License-Identifier: Apache-2.0
"""Shardings in JAX's spelling: the text of a `PartitionSpec`, read without Python and without jax."""

from __future__ import annotations

import re
from typing import NoReturn

from .sharding import AxisRef, Sharding, ShardingError
from .token_reader import TokenReader

_START = re.compile(r"\s*((?:[A-Za-z_]\w*\.)*(?:P|PartitionSpec))\s*\(")
_TOKEN = re.compile(r"""\s*(?:(?P<name>'[^'"\\]*'|"[^'"\\]*")|(?P<word>[A-Za-z_][\w.]*)|(?P<mark>.))""", re.DOTALL)


def is_spec(text: str) -> bool:
    """Returns whether a text begins like a `PartitionSpec`: `P(` or `PartitionSpec(`, perhaps after a module name."""
    return _START.match(text) is not None


def sharding_of(text: str, rank: int) -> Sharding:
    """Returns the sharding that a `PartitionSpec` gives an array of `rank`; dimensions without an entry are not split.

    Raises: ShardingError, with the column that cannot be read, or if there are more entries than dimensions.

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


class _Parser(TokenReader):
    """A recursive-descent parser of `P('x', None, ('y', 'z'), unreduced={'w'})`."""

    def __init__(self, text: str):
        text = text.rstrip()
        start = _START.match(text)
        assert start is not None, text  # `is_spec` holds for every text that is read here
        super().__init__(text, _TOKEN.finditer(text, start.end()))

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
        self.expect_end()
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
        if self.peek()[1] in ("''", '""'):
            self.fail(wanted)
        return AxisRef(self.take("name", wanted)[1:-1])

    def fail(self, wanted: str) -> NoReturn:
        kind, found, column = self.peek()
        shown = found if kind is None else f'"{found}"'
        text = " ".join(self.text.split())
        raise ShardingError(f"cannot read sharding {text!r}: column {column + 1} has {shown}, expected {wanted}")
