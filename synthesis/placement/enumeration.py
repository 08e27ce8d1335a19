# SPDX-License-Identifier: Apache-2.0
"""All placements of the axes of a mesh on the levels of a topology, one of each class of symmetric ones.

The columns are filled from outer to inner with factors of the *rows*, the axes or the sub-axes that they are cut into.
Since the product of what is left of the rows is always that of the columns left, every choice for a column can be
completed: the search has no dead ends but those of the symmetry of equal columns.

What is the same to the network, and is met once:

- the order of the factors on a switch or a bus, whose units may change places: they stand in the order of the rows;
- the order of the factors of one row, for any group that has all of the row's members: the major factor is on the outer
  column. Cut a row into sub-axes to see all orders of these;
- the exchange of two dimensions of a torus with equal size and links: the one with the earlier rows comes first.

What differs, and is met in every form: which dimension of a torus, if they are unequal, and the order of the factors
along a line, where the minor one has neighbours next to each other. There a row may even be on both sides of another.

What is left out: orders that are no digits. On a ring of 4 a mesh of 2x2 in the reflected order 0, 1, 3, 2 has
neighbours along both axes, which no placement has. On switches and buses no order of up to 8 devices is cheaper than
the placements, neither for one set of axes nor for two together (tested).

The row-major order of the devices, if it is a placement at all, is one of the placements and never another of its
class: see `recognition.placement_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ..layouts.layout import Factor
from ..layouts.mesh import Mesh, MeshError
from ..network.topology import Topology
from .columns import Column, columns
from .placement import Placement

_Digits = tuple[tuple[int, int], ...]  # on one column, major to minor: (row, size)


def placements(
    topology: Topology, mesh: Mesh, sub_axes: Mapping[str, Sequence[int]] | None = None, with_orders: bool = True
) -> Iterator[Placement]:
    """Yields all placements up to symmetry, in an order that depends on the arguments only.

    Args:
      topology: the network; it is fitted to the number of devices of the mesh.
      mesh: its axes count, its device ids do not.
      sub_axes: for some axes the sizes of sub-axes, major to minor, each of which is placed on its own, so that the
        minor one may be on the outer level.
      with_orders: whether the placements with one matrix, which differ in the order of factors along lines, are all
        met. If not, there is one for each parallelism matrix of P².
    Raises:
      TopologyError: the topology does not fit the number of devices.
      MeshError: sub-axes do not multiply to their axis, or there is no such axis.

    Example:
      >>> for each in placements(Topology.parse("h100:2x4"), Mesh.parse("data=4,model=2")):
      ...     print(each)
      data: node 2 x gpu 2; model: gpu 2
      data: gpu 4; model: node 2
    """
    fitted = topology.fitted(mesh.size)
    filling = _Filling(columns(fitted), _rows(mesh, sub_axes or {}), with_orders)
    for digits in filling.all():
        yield Placement(fitted, mesh.axes, digits)


def _rows(mesh: Mesh, sub_axes: Mapping[str, Sequence[int]]) -> tuple[Factor, ...]:
    rows = []
    for name in sub_axes:
        mesh.axis_size(name)
    for name, size in mesh.axes:
        sizes = tuple(sub_axes.get(name, (size,)))
        if math.prod(sizes) != size or min(sizes, default=1) < 1:
            raise MeshError(
                f'axis "{name}" of size {size} is cut into sub-axes {list(sizes)}; they multiply to its size'
            )
        rows += [Factor(name, math.prod(sizes[:at]), each) for at, each in enumerate(sizes)]
    return tuple(rows)


class _Filling:
    """The search: `digits` are those of the columns filled so far, `left` is what is left of each row.

    Invariant: the product of `left` is that of the sizes of the columns not filled.
    """

    def __init__(self, targets: tuple[Column, ...], rows: tuple[Factor, ...], with_orders: bool):
        self.columns, self.rows, self.with_orders = targets, rows, with_orders
        self.twins = tuple(_last_like(targets, at) for at in range(len(targets)))
        self.digits: list[_Digits] = []

    def all(self) -> Iterator[tuple[tuple[Factor, ...], ...]]:
        for _ in self._fill([row.size for row in self.rows]):
            yield self._factors()

    def _fill(self, left: list[int]) -> Iterator[None]:
        at = len(self.digits)
        if at == len(self.columns):
            yield
            return
        column, twin = self.columns[at], self.twins[at]
        fillings = _sequences if column.is_line and self.with_orders else _subsets
        for digits in fillings(column.size, left):
            if twin is not None and _rank(digits) < _rank(self.digits[twin]):
                continue
            rest = left.copy()
            for row, size in digits:
                rest[row] //= size
            self.digits.append(digits)
            yield from self._fill(rest)
            self.digits.pop()

    def _factors(self) -> tuple[tuple[Factor, ...], ...]:
        """Returns the digits as pieces of the axes: the first one of a row is the major one."""
        pre, found = [row.pre for row in self.rows], []
        for digits in self.digits:
            found.append(tuple(Factor(self.rows[row].axis, pre[row], size) for row, size in self._taken(digits, pre)))
        return tuple(found)

    @staticmethod
    def _taken(digits: _Digits, pre: list[int]) -> Iterator[tuple[int, int]]:
        for row, size in digits:
            yield row, size
            pre[row] *= size


def _last_like(targets: tuple[Column, ...], at: int) -> int | None:
    """Returns the place of the last column before `at` that the network does not tell from that one."""
    return next((other for other in reversed(range(at)) if targets[other].is_like(targets[at])), None)


def _rank(digits: _Digits) -> tuple[tuple[int, int], ...]:
    """Returns the key by which equal columns are sorted: earlier rows first, larger factors first.

    In the row-major order the columns are sorted so already.
    """
    return tuple((row, -size) for row, size in digits)


def _subsets(size: int, left: Sequence[int], first: int = 0) -> Iterator[_Digits]:
    """Yields each way to write `size` as a product of one factor of each row, in the order of the rows.

    Example:
      >>> list(_subsets(4, [4, 2]))
      [((0, 4),), ((0, 2), (1, 2))]
    """
    if size == 1:
        yield ()
        return
    if first == len(left):
        return
    for factor in _common_divisors(size, left[first]):
        for rest in _subsets(size // factor, left, first + 1):
            yield ((first, factor), *rest) if factor > 1 else rest


def _sequences(size: int, left: Sequence[int], last: int | None = None) -> Iterator[_Digits]:
    """Yields each way to write `size` as a product of factors of the rows, in every order.

    Two factors of one row do not stand next to each other, because they would be one.

    Example:
      >>> list(_sequences(4, [4, 2]))
      [((0, 4),), ((0, 2), (1, 2)), ((1, 2), (0, 2))]
    """
    if size == 1:
        yield ()
        return
    for row, most in enumerate(left):
        if row == last:
            continue
        for factor in _common_divisors(size, most):
            if factor > 1:
                rest = [*left[:row], most // factor, *left[row + 1 :]]
                for others in _sequences(size // factor, rest, row):
                    yield ((row, factor), *others)


def _common_divisors(one: int, other: int) -> list[int]:
    """Returns the common divisors of two numbers, the largest first."""
    both = math.gcd(one, other)
    return [divisor for divisor in range(both, 0, -1) if both % divisor == 0]
