# SPDX-License-Identifier: Apache-2.0
"""Digit layouts: they say which device holds which element of a global array.

**Digits.** A dimension of size D is a mixed-radix number. A *slot* `[start, end)` of it, with `start | end | D`, is the
digit of radix `end / start` whose place value is `D / end`: for D = 24 the slot [2, 6) is the digit of radix 3 below
the leading digit of radix 2, so an index i has there the value `(i // 4) % 3`. Two slots of one dimension can be digits
of the same mixed-radix number iff one ends at or before the start of the other in the divisibility order: `end |
start'`.

**Factors.** A factor is a mesh axis or the piece of one that a problem needs; a device has one coordinate along each.

**Layout.** A layout gives some factors a slot of the factor's size: the factor *owns* that digit, and a device holds
the elements whose digit equals its coordinate. All other digits are *local*. A factor without a slot is replicated, or
it is *unreduced*: the tiles of the devices that differ along it are partial sums, which add up to the array's elements.
A Shardy sharding is the *blocked* special case in which the slots of each dimension are its leading digits.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from .mesh import Mesh
from .sharding import AxisRef, Sharding


class Factor(NamedTuple):
    """The piece of mesh axis `axis` with place `pre` (product of the sizes before it in the axis) and `size`."""

    axis: str
    pre: int
    size: int

    def text(self, mesh: Mesh) -> str:
        """Returns the factor as Shardy prints a (sub-)axis, without quotes: `x` or `x:(2)4`."""
        if self.pre == 1 and self.size == mesh.axis_size(self.axis):
            return self.axis
        return f"{self.axis}:({self.pre}){self.size}"

    @property
    def end(self) -> int:
        """Returns the place in the axis behind the factor."""
        return self.pre * self.size

    def cut(self, places: Iterable[int]) -> list[Factor]:
        """Returns the pieces of the factor, major to minor, cut at the given places of its axis that lie inside it.

        Args:
          places: ascending; those that no piece of the factor can begin at are passed over.

        Example:
          >>> Factor("x", 1, 8).cut([2, 3])
          [Factor(axis='x', pre=1, size=2), Factor(axis='x', pre=2, size=4)]
        """
        axis, start, size = self
        pieces, end = [], start * size
        for place in places:
            if start < place < end and place % start == 0 and end % place == 0:
                pieces.append(Factor(axis, start, place // start))
                start = place
        return [*pieces, Factor(axis, start, end // start)]

    def primes(self, largest_first: bool = False) -> list[Factor]:
        """Returns the pieces of prime size that the factor consists of, major to minor, small primes first.

        Example:
          >>> Factor("x", 2, 6).primes()
          [Factor(axis='x', pre=2, size=2), Factor(axis='x', pre=4, size=3)]
        """
        sizes = sorted(primes(self.size), reverse=largest_first)
        places = itertools.accumulate(sizes, operator.mul, initial=self.pre)
        return [Factor(self.axis, place, size) for place, size in zip(places, sizes)]

    def split(self, size: int) -> tuple[Factor, Factor]:
        """Returns the major part of the factor, of the given size, and the rest."""
        return Factor(self.axis, self.pre, size), Factor(self.axis, self.pre * size, self.size // size)

    def joined(self, major: Factor) -> Factor | None:
        """Returns the factor that consists of `major` and this one, None if they are not neighbours in one axis."""
        if major.axis != self.axis or major.pre * major.size != self.pre:
            return None
        return Factor(self.axis, major.pre, major.size * self.size)


def primes(number: int) -> list[int]:
    """Returns the prime factors in ascending order, with repetitions."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found


def places_by_axis(factors: Iterable[Factor]) -> dict[str, list[int]]:
    """Returns for each axis the places at which some of the factors begin or end, ascending."""
    found: dict[str, set[int]] = {}
    for factor in factors:
        found.setdefault(factor.axis, set()).update((factor.pre, factor.end))
    return {axis: sorted(places) for axis, places in found.items()}


def joined(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """Returns the factors sorted; pieces of an axis that touch are joined into one."""
    found: list[Factor] = []
    for factor in sorted(factors):
        whole = factor.joined(found[-1]) if found else None
        found[-1:] = [whole] if whole else [*found[-1:], factor]
    return tuple(found)


class Slot(NamedTuple):
    """The digit [start, end) of dimension `dim`; see the module's docstring."""

    dim: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end // self.start

    def agrees_with(self, other: Slot) -> bool:
        """Returns whether both can be digits of one mixed-radix number without sharing a digit."""
        if self.dim != other.dim:
            return True
        return other.start % self.end == 0 or self.start % other.end == 0


class LayoutError(ValueError):
    """A layout that cannot exist."""


_SLOT = operator.itemgetter(1)
UNREDUCED: Final = "unreduced"
Place = Slot | Literal["unreduced"] | None  # a factor's place: the digit that it owns, or UNREDUCED; None is replicated


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout of an array: it says which factor owns which digit.

    Attributes:
      shape: the global shape, in elements.
      owners: (factor, slot) pairs sorted by slot; a factor that is named nowhere is replicated.
      unreduced: the factors along which tiles are partial sums, sorted.
      tile_elements: of the tile that a device holds; the other attributes say it.
    Invariant: slots agree pairwise, each has its factor's size, and its end divides its dimension; a factor owns one
    digit at most, and none if it is unreduced.
    """

    shape: tuple[int, ...]
    owners: tuple[tuple[Factor, Slot], ...]
    unreduced: tuple[Factor, ...] = ()
    tile_elements: int = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if not self._is_chain():
            object.__setattr__(self, "owners", tuple(sorted(self.owners, key=_SLOT)))
            if not self._is_chain():
                self._refuse()
        owners = self.owners
        if len(dict(owners)) < len(owners):
            self._refuse()
        if self.unreduced:
            self._check_unreduced()
        shards = math.prod([size for (_, _, size), _ in owners])
        object.__setattr__(self, "tile_elements", math.prod(self.shape) // shards)

    def _is_chain(self) -> bool:
        """Returns whether the slots are sorted, and each fits its factor, its dimension and the slot before.

        A slot begins at a multiple of the end of the slot before.
        """
        shape, last_dim, last_end = self.shape, -1, 1
        for (_, _, size), (dim, start, end) in self.owners:
            if end != start * size or shape[dim] % end or dim < last_dim or dim == last_dim and start % last_end:
                return False
            last_dim, last_end = dim, end
        return True

    def _refuse(self) -> None:
        """Raises: LayoutError that names the fault of the owners."""
        seen: list[tuple[Factor, Slot]] = []
        for factor, slot in self.owners:
            if slot.size != factor.size or slot.end % slot.start or self.shape[slot.dim] % slot.end:
                raise LayoutError(f"{factor} cannot own {slot} of shape {self.shape}")
            for other, taken in seen:
                if other == factor or not slot.agrees_with(taken):
                    raise LayoutError(f"{factor} at {slot} collides with {other} at {taken}")
            seen.append((factor, slot))

    def _check_unreduced(self) -> None:
        object.__setattr__(self, "unreduced", tuple(sorted(self.unreduced)))
        for i, factor in enumerate(self.unreduced):
            if self.slot_of(factor) is not None or factor in self.unreduced[:i]:
                raise LayoutError(f"{factor} is unreduced, and that once; it cannot own {self.slot_of(factor)} too")

    def slot_of(self, factor: Factor) -> Slot | None:
        """Returns the digit that `factor` owns, or None if it is replicated or unreduced."""
        for owner, slot in self.owners:
            if owner == factor:
                return slot
        return None

    def owned_slot(self, factor: Factor) -> Slot:
        """Returns the digit that `factor` owns. Raises: LayoutError if it owns none."""
        for owner, slot in self.owners:
            if owner == factor:
                return slot
        raise LayoutError(f"{factor} owns no digit")

    def with_moved(self, moves: Mapping[Factor, Place]) -> Layout:
        """Returns the layout with new places of some factors; None is replicated, and UNREDUCED is unreduced."""
        owners = [owner for owner in self.owners if owner[0] not in moves]
        unreduced = [f for f in self.unreduced if f not in moves]
        for factor, place in moves.items():
            if place == UNREDUCED:
                unreduced.append(factor)
            elif place is not None:
                owners.append((factor, place))
        return Layout(self.shape, tuple(owners), tuple(unreduced))

    @property
    def tile_shape(self) -> tuple[int, ...]:
        """Returns the local shape: each dimension without its owned digits."""
        tile = list(self.shape)
        for (_, _, size), (dim, _, _) in self.owners:
            tile[dim] //= size
        return tuple(tile)

    def slice_of(self, dim: int, count: int) -> Layout:
        """Returns the layout of one of the `count` slices into which a dimension's last digit is cut.

        A slice has one value of the leading part of this digit, and all values of the rest.

        Raises: LayoutError where the slices would cut an owned digit.

        Example:
          >>> x = Factor("x", 1, 2)
          >>> Layout((24,), ((x, Slot(0, 3, 6)),)).slice_of(0, 4)
          Layout(shape=(6,), owners=((Factor(axis='x', pre=1, size=2), Slot(dim=0, start=3, end=6)),), unreduced=())
        """
        if self.shape[dim] % count:
            raise LayoutError(f"dimension {dim} of size {self.shape[dim]} does not divide into {count} chunks")
        shape = tuple(size // count if i == dim else size for i, size in enumerate(self.shape))
        return Layout(shape, self.owners, self.unreduced)

    def with_factors_cut(self, places: dict[str, list[int]]) -> Layout:
        """Returns the layout with its factors cut at places of their axes; the elements stay where they are."""
        owners = []
        for factor, (dim, start, _) in self.owners:
            for piece in factor.cut(places.get(factor.axis, ())):
                owners.append((piece, Slot(dim, start, start * piece.size)))
                start *= piece.size
        unreduced = [piece for factor in self.unreduced for piece in factor.cut(places.get(factor.axis, ()))]
        return Layout(self.shape, tuple(owners), tuple(unreduced))

    def with_whole_factors(self) -> Layout:
        """Returns the layout with neighbouring pieces of an axis that own neighbouring digits as one factor each."""
        owners: list[tuple[Factor, Slot]] = []
        for factor, slot in self.owners:
            whole = factor.joined(owners[-1][0]) if owners else None
            if whole and owners[-1][1].dim == slot.dim and owners[-1][1].end == slot.start:
                owners[-1] = whole, Slot(slot.dim, owners[-1][1].start, slot.end)
            else:
                owners.append((factor, slot))
        return Layout(self.shape, tuple(owners), joined(self.unreduced))

    @property
    def owned_runs(self) -> tuple[Slot, ...]:
        """Returns the maximal runs of adjacent owned digits; layouts with equal runs have the same set of blocks."""
        runs: list[Slot] = []
        last_dim = last_start = last_end = -1
        for _, slot in self.owners:
            dim, start, end = slot
            if dim == last_dim and start == last_end:
                runs[-1] = Slot(dim, last_start, end)
            else:
                runs.append(slot)
                last_start = start
            last_dim, last_end = dim, end
        return tuple(runs)

    def digits(self, dim: int) -> tuple[tuple[int, Factor | None], ...]:
        """Returns dimension `dim` as (radix, owner) digits, major to minor; None is local; radix 1 is left out.

        Example:
          >>> x = Factor("x", 1, 2)
          >>> [(radix, owner and owner.axis) for radix, owner in Layout((24,), ((x, Slot(0, 3, 6)),)).digits(0)]
          [(3, None), (2, 'x'), (4, None)]
        """
        found, at = [], 1
        for factor, (other, start, end) in self.owners:
            if other != dim:
                continue
            found += [(start // at, None), (end // start, factor)]
            at = end
        found.append((self.shape[dim] // at, None))
        return tuple([digit for digit in found if digit[0] != 1])

    def text(self, mesh: Mesh) -> str:
        """Returns e.g. `[x*12, 4*y*2] unreduced z`: the digits of each dimension, and the factors that own them."""
        dims = []
        for dim in range(len(self.shape)):
            digits: list[Factor | int] = []
            for radix, owner in self.digits(dim):
                if owner and digits and isinstance(digits[-1], Factor) and (joined := owner.joined(digits[-1])):
                    digits[-1] = joined
                else:
                    digits.append(owner or radix)
            dims.append("*".join([d.text(mesh) if isinstance(d, Factor) else str(d) for d in digits]) or "1")
        sums = " unreduced " + ", ".join([f.text(mesh) for f in self.unreduced]) if self.unreduced else ""
        return "[" + ", ".join(dims) + "]" + sums


def blocked(
    shape: tuple[int, ...], pieces: tuple[tuple[Factor, ...], ...], unreduced: tuple[Factor, ...] = ()
) -> Layout:
    """Returns the layout in which the factors of each dimension own its leading digits, in the given order.

    Raises: LayoutError if the factors of a dimension do not divide it.
    """
    owners = []
    for dim, factors in enumerate(pieces):
        start = 1
        for factor in factors:
            owners.append((factor, Slot(dim, start, start * factor.size)))
            start *= factor.size
        if shape[dim] % start:
            raise LayoutError(f"dimension {dim} of size {shape[dim]} does not divide into {start} shards")
    return Layout(shape, tuple(owners), unreduced)


def whole_factors(mesh: Mesh, sharding: Sharding) -> tuple[tuple[Factor, ...], ...]:
    """Returns the axes of each dimension as factors, size-1 axes left out, adjacent pieces of an axis joined."""
    return tuple([_joined(mesh, axes) if axes else () for axes in sharding.dims])


def unreduced_factors(mesh: Mesh, sharding: Sharding) -> tuple[Factor, ...]:
    """Returns the unreduced axes as sorted factors; pieces of an axis that touch are joined."""
    if not sharding.unreduced:
        return ()
    return _joined(mesh, sorted(sharding.unreduced, key=lambda axis: (axis.name, axis.resolve(mesh))))


def _joined(mesh: Mesh, axes: Sequence[AxisRef]) -> tuple[Factor, ...]:
    if len(axes) == 1:  # most dimensions are split by one axis
        pre, size = axes[0].resolve(mesh)
        return (Factor(axes[0].name, pre, size),) if size > 1 else ()
    factors: list[Factor] = []
    for axis in axes:
        pre, size = axis.resolve(mesh)
        last = factors[-1] if factors else None
        if last and last.axis == axis.name and last.pre * last.size == pre:
            factors[-1] = Factor(last.axis, last.pre, last.size * size)
        elif size > 1:
            factors.append(Factor(axis.name, pre, size))
    return tuple(factors)


def leftover_axes(mesh: Mesh, sharding: Sharding) -> tuple[AxisRef, ...]:
    """Returns the axes, or pieces of axes, along which the array is replicated.

    Example:
      >>> print(*leftover_axes(Mesh.parse("x=8,y=2"), Sharding.parse('[{"x":(2)2}]')))
      "x":(1)2 "x":(4)2 "y"
    """
    found = []
    for name, size in mesh.axes:
        used = sorted(
            axis.resolve(mesh) for axes in (*sharding.dims, sharding.unreduced) for axis in axes if axis.name == name
        )
        start = 1
        for pre, piece in (*used, (size, 1)):
            if pre > start:
                found.append(AxisRef(name) if pre // start == size else AxisRef(name, start, pre // start))
            start = pre * piece
    return tuple(found)


def same_placement(mesh: Mesh, a: Sharding, b: Sharding) -> bool:
    """Returns whether two shardings put every element, or its partial sums, on the same devices."""
    return whole_factors(mesh, a) == whole_factors(mesh, b) and unreduced_factors(mesh, a) == unreduced_factors(mesh, b)


def layout_of(mesh: Mesh, shape: tuple[int, ...], sharding: Sharding) -> Layout:
    """Returns the layout of a sharding, in whole factors.

    Raises: LayoutError if a dimension does not divide into its shards.
    """
    return blocked(shape, whole_factors(mesh, sharding), unreduced_factors(mesh, sharding))


@functools.lru_cache(maxsize=512)  # an entry has 32 KB on 4,096 devices; one problem has some dozens
def coordinates(mesh: Mesh, factor: Factor) -> np.ndarray:
    """Returns the coordinate along `factor` at each row-major mesh position, an int array of shape (mesh.size,).

    Example:
      >>> coordinates(Mesh.parse("x=4,y=2"), Factor("x", 2, 2)).tolist()
      [0, 0, 1, 1, 0, 0, 1, 1]
    """
    axis = mesh.axis_names.index(factor.axis)
    sizes = [size for _, size in mesh.axes]
    minor = math.prod(sizes[axis + 1 :]) * (sizes[axis] // (factor.pre * factor.size))
    return np.arange(mesh.size) // minor % factor.size


def groups(mesh: Mesh, factors: tuple[Factor, ...]) -> np.ndarray:
    """Returns the device ids that differ only along `factors`: int array (groups, product of the factors' sizes).

    Member j of a group has the coordinates of j in the mixed radix of `factors`, the first the major one.
    """
    member = np.zeros(mesh.size, dtype=np.int64)
    rank = np.zeros(mesh.size, dtype=np.int64)
    for factor in factors:
        coordinate = coordinates(mesh, factor)
        rank = rank * factor.size + coordinate
    minor = {name: math.prod([s for _, s in mesh.axes][i + 1 :]) for i, name in enumerate(mesh.axis_names)}
    for factor in factors:
        place = minor[factor.axis] * (mesh.axis_size(factor.axis) // (factor.pre * factor.size))
        member = member + coordinates(mesh, factor) * place
    first = np.arange(mesh.size) - member  # the position in the same group whose coordinates along `factors` are all 0
    order = np.lexsort((rank, first))
    devices = np.array([mesh.device_at(int(position)) for position in order])
    return devices.reshape(-1, math.prod(factor.size for factor in factors))
