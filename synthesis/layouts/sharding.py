# SPDX-License-Identifier: Apache-2.0
"""Shardings as the user writes them: for each array dimension, the mesh axes that split it, major to minor."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from .mesh import Mesh
from .token_reader import TokenReader


class ShardingError(ValueError):
    """Raised for a sharding that cannot exist; the message names the value and the rule that it breaks."""


# A sharding with the name of its mesh, as modules have it.
_IN_MODULE = re.compile(r'\s*(?:#sdy\.sharding\s*)?<\s*@(?:[\w$.-]+|"[^"]*")\s*,\s*(?P<sharding>\[.*)>\s*\Z', re.DOTALL)
_OF_GSPMD = re.compile(r"\s*\{[\s{]*(?:devices=|replicated\b|maximal\b|manual\b|unreduced\b)")


@dataclass(frozen=True, slots=True, order=True)
class AxisRef:
    """A mesh axis, or a sub-axis of a mesh axis.

    `AxisRef("x")` is the whole axis. `AxisRef("x", 2, 4)` is a sub-axis and prints as `"x":(2)4`. The axis is cut into
    three digits (pre_size, size, rest), major to minor; the sub-axis is the middle one.
    """

    name: str
    pre_size: int | None = None
    size: int | None = None

    def resolve(self, mesh: Mesh) -> tuple[int, int]:
        """Returns (pre_size, size) as numbers; (1, size of the axis) for a whole axis.

        Raises: ShardingError if they do not divide the axis; MeshError if the mesh has no such axis.
        """
        full = mesh.axis_size(self.name)
        if self.size is None and self.pre_size is None:
            return 1, full
        pre = 1 if self.pre_size is None else self.pre_size
        size = full if self.size is None else self.size
        if pre < 1 or size < 1 or full % (pre * size):
            raise ShardingError(f'sub-axis {self} does not divide axis "{self.name}" of size {full}')
        return pre, size

    def __str__(self) -> str:
        if self.size is None:
            return f'"{self.name}"'
        return f'"{self.name}":({self.pre_size}){self.size}'


@dataclass(frozen=True, slots=True)
class Sharding:
    """The axes that split each dimension of an array, in Shardy's terms, without the mesh.

    Attributes:
      dims: for each dimension the axes that split it, major to minor.
      open_dims: the dimensions that propagation may split further (printed `?`).
      replicated: the axes that propagation must not use.
      unreduced: the axes along which tiles are partial sums.
      priorities: (dimension, priority) pairs; propagation handles low numbers first.

    Only `dims` and `unreduced` determine where the data is. The other attributes are advice to propagation.
    """

    dims: tuple[tuple[AxisRef, ...], ...]
    open_dims: frozenset[int] = frozenset()
    replicated: tuple[AxisRef, ...] = ()
    unreduced: tuple[AxisRef, ...] = ()
    priorities: tuple[tuple[int, int], ...] = ()

    @property
    def rank(self) -> int:
        """Returns the number of dimensions."""
        return len(self.dims)

    def closed(self) -> Sharding:
        """Returns the sharding without the advice to propagation; it places the data in the same way."""
        return Sharding(self.dims, unreduced=self.unreduced)

    def shards(self, mesh: Mesh) -> tuple[int, ...]:
        """Returns the number of shards of each dimension on a mesh. Errors are those of `AxisRef.resolve`."""
        return tuple([math.prod([axis.resolve(mesh)[1] for axis in axes]) if axes else 1 for axes in self.dims])

    def tile_shape(self, mesh: Mesh, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of a tile in elements; a dimension that does not divide is padded (ceil division).

        Args:
          shape: the global shape, in elements, with `rank` dimensions.
        """
        return tuple([-(-size // shards) for size, shards in zip(shape, self.shards(mesh), strict=True)])

    def check(self, mesh: Mesh, rank: int) -> None:
        """Checks that the sharding fits a mesh and an array with `rank` dimensions.

        Raises: ShardingError or MeshError if the rank is wrong, an axis is unknown, or an axis is used twice.
        """
        if self.rank != rank:
            raise ShardingError(f"sharding {self} has rank {self.rank}, the array has rank {rank}")
        taken: list[tuple[AxisRef, int, int]] = []
        for axis in (*(a for axes in self.dims for a in axes), *self.replicated, *self.unreduced):
            pre, size = axis.resolve(mesh)
            for other, other_pre, other_end in taken:
                if other.name == axis.name and pre < other_end and other_pre < pre * size:
                    raise ShardingError(f"axis {axis} is used twice in {self}")
            taken.append((axis, pre, pre * size))

    @classmethod
    def parse(cls, text: str, rank: int | None = None) -> Sharding:
        """Returns the sharding that a text describes, in Shardy's syntax or as JAX's `PartitionSpec`.

        Shardy's may be as it stands in a module, `<@mesh, [{"x"}]>` or `#sdy.sharding<@mesh, [{"x"}]>`; the name of
        the mesh is not looked at.

        Args:
          rank: of the array; a `PartitionSpec` may have fewer entries. None is the number of entries.
        Raises: ShardingError if the text cannot be read, or a `PartitionSpec` has more entries than the rank.

        Example:
          >>> print(Sharding.parse('[{"x"}, {}, {"y", "z":(1)2}]'), Sharding.parse("P('x')", rank=2))
          [{"x"}, {}, {"y", "z":(1)2}] [{"x"}, {}]
          >>> print(Sharding.parse('#sdy.sharding<@mesh, [{"x"}, {?}]>'))
          [{"x"}, {?}]
        """
        from . import partition_specs  # it makes shardings

        if in_module := _IN_MODULE.match(text):
            text = in_module["sharding"]
        return partition_specs.sharding_of(text, rank) if partition_specs.is_spec(text) else _Parser(text).sharding()

    def __str__(self) -> str:
        priorities = dict(self.priorities)
        dims = []
        for i, axes in enumerate(self.dims):
            names = [str(axis) for axis in axes] + (["?"] if i in self.open_dims else [])
            dims.append("{" + ", ".join(names) + "}" + (f"p{priorities[i]}" if i in priorities else ""))
        text = "[" + ", ".join(dims) + "]"
        for word, axes in (("replicated", self.replicated), ("unreduced", self.unreduced)):
            if axes:
                text += f", {word}={{" + ", ".join(map(str, axes)) + "}"
        return text


class _Parser(TokenReader):
    """A recursive-descent parser of `[{"x", ?}p1, {}], replicated={"y"}`."""

    _TOKEN = re.compile(r'\s*(?:(?P<name>"[^"]*")|(?P<word>replicated|unreduced|p(?=\d))|(?P<number>\d+)|(?P<mark>.))')

    def __init__(self, text: str):
        super().__init__(text, self._TOKEN.finditer(text.rstrip()))

    def sharding(self) -> Sharding:
        dims, open_dims, priorities = [], set(), []
        if _OF_GSPMD.match(self.text):
            raise ShardingError(
                f"cannot read sharding {self.text.strip()!r}: it is GSPMD's, which names no axes; write it as in "
                '[{"x"}, {}]; reshard fix-warnings reads those of XLA\'s warnings, and reshard-opt those of modules'
            )
        if not self.accept("["):
            self.fail('"[", as in [{"x"}, {}], or JAX\'s P(\'x\', None)')
        while not self.accept("]"):
            if dims:
                self.expect(",")
            axes, is_open = self.axes()
            if is_open:
                open_dims.add(len(dims))
            if self.accept("p"):
                priorities.append((len(dims), self.number()))
            dims.append(axes)
        groups: dict[str, tuple[AxisRef, ...]] = {"replicated": (), "unreduced": ()}
        while self.accept(","):
            word = next((w for w in groups if self.accept(w)), None) or self.fail("replicated or unreduced")
            self.expect("=")
            groups[word] = self.axes()[0]
        self.expect_end()
        return Sharding(tuple(dims), frozenset(open_dims), groups["replicated"], groups["unreduced"], tuple(priorities))

    def axes(self) -> tuple[tuple[AxisRef, ...], bool]:
        axes, is_open = [], False
        self.expect("{")
        while not self.accept("}"):
            if axes or is_open:
                self.expect(",")
            if self.accept("?"):
                is_open = True
                continue
            axes.append(self.axis())
        return tuple(axes), is_open

    def axis(self) -> AxisRef:
        name = self.take("name", 'an axis such as "x"')[1:-1]
        if not self.accept(":"):
            return AxisRef(name)
        self.expect("(")
        pre = self.number()
        self.expect(")")
        return AxisRef(name, pre, self.number())

    def number(self) -> int:
        return int(self.take("number", "a number"))

    def fail(self, wanted: str) -> NoReturn:
        _, found, column = self.peek()
        raise ShardingError(
            f'cannot read sharding {self.text.strip()!r}: column {column + 1} has "{found}", expected {wanted}'
        )
