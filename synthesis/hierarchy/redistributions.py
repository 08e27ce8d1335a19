# SPDX-License-Identifier: Apache-2.0
"""A collective of a program is a redistribution of one array, so the planner finds the cheapest program for it.

A device has a tile before the collective and one after it. Along the factors F of the groups these are tiles of one
array of larger rank, whose layouts say what the collective does:

| collective      | before                               | after                              |
|-----------------|--------------------------------------|------------------------------------|
| all_reduce      | partial sums along F                 | replicated along F                 |
| reduce_scatter  | partial sums along F                 | F owns the scattered dimension     |
| all_gather      | F owns the gathered dimension        | replicated along F                 |
| all_to_all      | F owns a dimension of senders        | F owns a dimension of receivers    |

In an all_to_all of n devices, the split dimension is two dimensions, receivers and the rest, and a dimension of n
senders, of size 1 on a tile, stands before the dimension along which the parts are put together.

*Other factors.* Along a factor G outside of F the tiles of a program are different arrays, unless the program computes
the same on all devices along G. If they differ, G owns one more dimension in front, before and after, and never moves.
If they do not, the array is replicated along G: a plan may send a part of it through each of these devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from ..layouts.layout import Factor, leftover_axes
from ..layouts.mesh import Mesh
from ..layouts.sharding import AxisRef, Sharding
from ..programs.traffic import Collective

Shape = tuple[int, ...]
Axes = tuple[AxisRef, ...]
REDUCING = ("all_reduce", "reduce_scatter")
KINDS = (*REDUCING, "all_gather", "all_to_all")


@dataclass(frozen=True, slots=True)
class InGroups:
    """A collective among devices that differ along some factors.

    Attributes:
      kind: one of KINDS. tile: the shape of the tile before it, in elements.
      factors: major to minor, in the order in which groups list their members.
      dim: the gathered or scattered dimension; of an all_to_all, the one that is split.
      joined: of an all_to_all, the dimension along which the parts are put together.
    """

    kind: str
    tile: Shape
    factors: tuple[Factor, ...]
    dim: int = 0
    joined: int = 0

    @property
    def members(self) -> int:
        """Returns the number of devices in a group."""
        return math.prod(factor.size for factor in self.factors)

    @property
    def result(self) -> Shape:
        """Returns the shape of the tile after the collective."""
        change = {"all_reduce": (1, 1), "reduce_scatter": (1, self.members), "all_gather": (self.members, 1)}
        tile = list(self.tile)
        if self.kind == "all_to_all":
            tile[self.dim] //= self.members
            tile[self.joined] *= self.members
            return tuple(tile)
        times, parts = change[self.kind]
        tile[self.dim : self.dim + 1] = [size * times // parts for size in tile[self.dim : self.dim + 1]]
        return tuple(tile)

    def flat(self, device_groups: tuple[tuple[int, ...], ...], bits: int) -> Collective:
        """Returns the collective as it is, one for all levels, with the bytes that it moves."""
        before, after = (-(-math.prod(tile) * bits // 8) for tile in (self.tile, self.result))
        return Collective(self.kind, before, after, groups=device_groups)


@dataclass(frozen=True, slots=True)
class Redistribution:
    """A change of layout that does what a collective does.

    Attributes:
      shape: of the array, in elements. source, target: its layouts on the mesh.
    """

    shape: Shape
    source: Sharding
    target: Sharding


def redistribution_of(mesh: Mesh, collective: InGroups, varying: Collection[str]) -> Redistribution:
    """Returns the redistribution that does what a collective does.

    Args:
      varying: the axes along which the tiles that the collective takes may be different arrays.

    Example: a sum over x of tiles that differ along y, too.
      >>> summed = redistribution_of(Mesh.parse("x=2,y=4"), InGroups("all_reduce", (8,), (Factor("x", 1, 2),)), {"y"})
      >>> print(summed.shape, summed.source, summed.target)
      (4, 8) [{"y"}, {}], unreduced={"x"} [{"y"}, {}]
    """
    axes = tuple(_reference(mesh, factor) for factor in collective.factors)
    others = tuple(each for each in leftover_axes(mesh, Sharding((axes,))) if each.name in varying)
    shape, before, after = _inside(collective, axes)
    unreduced = axes if collective.kind in REDUCING else ()
    if not others:
        return Redistribution(shape, Sharding(before, unreduced=unreduced), Sharding(after))
    count = math.prod(axis.resolve(mesh)[1] for axis in others)
    return Redistribution((count, *shape), Sharding((others, *before), unreduced=unreduced), Sharding((others, *after)))


def _inside(collective: InGroups, axes: Axes) -> tuple[Shape, tuple[Axes, ...], tuple[Axes, ...]]:
    """Returns the shape of the array, without the dimension of other factors, and its axes before and after."""
    if collective.kind == "all_to_all":
        return _all_to_all(collective, axes)
    local: tuple[Axes, ...] = ((),) * len(collective.tile)
    owned = tuple(axes if dim == collective.dim else () for dim in range(len(collective.tile)))
    match collective.kind:
        case "all_reduce":
            return collective.tile, local, local
        case "reduce_scatter":
            return collective.tile, local, owned
    return collective.result, owned, local


def _all_to_all(collective: InGroups, axes: Axes) -> tuple[Shape, tuple[Axes, ...], tuple[Axes, ...]]:
    count = collective.members
    dims: list[tuple[int, Axes, Axes]] = []  # size, owners before, owners after
    for dim, size in enumerate(collective.tile):
        if dim == collective.joined:
            dims.append((count, axes, ()))
        if dim == collective.dim:
            dims += [(count, (), axes), (size // count, (), ())]
        else:
            dims.append((size, (), ()))
    shape, before, after = zip(*dims)
    return shape, before, after


def _reference(mesh: Mesh, factor: Factor) -> AxisRef:
    is_whole = factor.size == mesh.axis_size(factor.axis)
    return AxisRef(factor.axis) if is_whole else AxisRef(factor.axis, factor.pre, factor.size)
