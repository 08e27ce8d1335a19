# SPDX-License-Identifier: Apache-2.0
"""The columns of a placement: the levels of a topology, and the dimensions of those that are rings and tori."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..network.topology import Topology


@dataclass(frozen=True, slots=True)
class Column:
    """A level, or one dimension of a torus. The units of a column are numbered as in the position of a device.

    Attributes:
      level: the name of the level.
      dim: the number of the dimension, if the level has several that are columns or were left out; else None.
      size: the number of units, at least 2.
      is_line: whether the units are neighbours on a ring or line, so that it matters which unit is where. The units of
        a switch or a bus may change places.
      wraps: whether the ends of a line are connected.
    """

    level: str
    dim: int | None
    size: int
    is_line: bool = False
    wraps: bool = False

    def is_like(self, other: Column) -> bool:
        """Returns whether the two are dimensions of one torus that the network does not tell apart.

        Example:
          >>> z, y, x = columns(Topology.parse("v5p:2x4x4"))
          >>> y.is_like(x), z.is_like(x)
          (True, False)
        """
        same_links = (self.size, self.is_line, self.wraps) == (other.size, other.is_line, other.wraps)
        return self.level == other.level and same_links

    @property
    def text(self) -> str:
        """Returns the name for people: the level, and the dimension in brackets, e.g. `gpu` or `chip[1]`."""
        return self.level if self.dim is None else f"{self.level}[{self.dim}]"


@functools.lru_cache(maxsize=256)
def columns(topology: Topology) -> tuple[Column, ...]:
    """Returns the columns of a topology without open levels, outer to inner; those of size 1 are left out.

    Example:
      >>> [(column.text, column.size) for column in columns(Topology.parse("v5e:4x4*2"))]
      [('slice', 2), ('chip[0]', 4), ('chip[1]', 4)]
    """
    found = []
    for level in topology.levels:
        if level.kind in ("ring", "torus"):
            several = len(level.dims) > 1
            found += [
                Column(level.name, dim if several else None, size, is_line=True, wraps=wraps)
                for dim, (size, wraps) in enumerate(zip(level.dims, level.wraps))
            ]
        else:
            found.append(Column(level.name, None, level.size))
    return tuple(column for column in found if column.size > 1)


def strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the distance of neighbours along each digit of a mixed-radix number, given the sizes, major to minor.

    Example:
      >>> strides((2, 4, 3))
      (12, 3, 1)
    """
    return tuple(math.prod(sizes[at + 1 :]) for at in range(len(sizes)))
