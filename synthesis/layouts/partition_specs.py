# SPDX-License-Identifier: Apache-2.0
"""Shardings in JAX's spelling: the text of a `PartitionSpec`, read and written without Python and without jax."""

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


def sharding_of(text: str, rank: int | None = None) -> Sharding:
    """Returns the sharding that a `PartitionSpec` gives an array of `rank`; dimensions without an entry are not split.

    Without a rank each entry is a dimension.

    Raises: ShardingError, with the column that cannot be read, or if there are more entries than dimensions.

    Example:
      >>> print(sharding_of("P('y', None, ('x', 'z'))", 4))
      [{"y"}, {}, {"x", "z"}, {}]
      >>> print(sharding_of("jax.P(None, unreduced={'x'})", 1))
      [{}], unreduced={"x"}
    """
    dims, unreduced = _Parser(text).spec()
    rank = len(dims) if rank is None else rank
    if len(dims) > rank:
        raise ShardingError(f"{' '.join(text.split())} has {len(dims)} entries, the array has rank {rank}")
    return Sharding((*dims, *[()] * (rank - len(dims))), unreduced=unreduced)


def text_of(sharding: Sharding) -> str | None:
    """Returns a sharding in JAX's spelling, with one entry for each dimension; None where a `PartitionSpec` says less.

    A `PartitionSpec` names whole axes only, so there is none with sub-axes. Advice to propagation is left out.

    Example:
      >>> print(text_of(Sharding.parse('[{"x"}, {}, {"y", "z"}]')))
      P('x', None, ('y', 'z'))
      >>> print(text_of(Sharding.parse('[{}], unreduced={"x"}')), text_of(Sharding.parse('[{"x":(1)2}]')))
      P(None, unreduced={'x'}) None
    """
    axes = [axis for group in (*sharding.dims, sharding.unreduced) for axis in group]
    if any(axis.size is not None or not _IS_NAME.fullmatch(axis.name) for axis in axes):
        return None
    entries = [_entry_text([f"'{axis.name}'" for axis in group]) for group in sharding.dims]
    if sharding.unreduced:
        entries.append("unreduced={" + ", ".join(f"'{axis.name}'" for axis in sharding.unreduced) + "}")
    return f"P({', '.join(entries)})"


_IS_NAME = re.compile(r"[^'\"\\]+")  # names that `sharding_of` reads back; others would need escapes


def _entry_text(names: list[str]) -> str:
    if len(names) > 1:
        return f"({', '.join(names)})"
    return names[0] if names else "None"


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
