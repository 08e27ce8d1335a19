# SPDX-License-Identifier: Apache-2.0
"""A redistribution problem in the terms of the search: factors, and for each factor the slots that it may own.

**Refinement.** Source and target cut each mesh axis and each dimension at some places. If a place of one side falls
inside a digit of the other, the digit is split, and so is the factor that owns it, on both sides, until nothing
changes. Then each digit of one side is a digit of the other, or its place in the dimension is *misaligned* (2·3 against
3·2). Axes are cut no further than that ("coarsest"); they are cut into primes if the coarsest factors have no plan.

**Slots.** A factor may own, in any dimension, the digits whose ends are places of the source, of the target, or, in a
misaligned dimension, of a completion of either to their least common multiple. It may also own a *spare* digit behind
all of these; there a factor that neither side needs can halve a tile for the length of a chain. Factors that stay where
they are and touch no misaligned place are *fixed*: each layout has them at the same place, and no step moves them.
Unreduced factors are never fixed: even if both sides have them, it may pay to reduce them for the length of a chain.

Source: own work; the paper (arXiv 2112.01075, section 3) has the leading digits alone.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from dataclasses import dataclass

from .layout import Factor, Layout, Slot, blocked, primes, unreduced_factors, whole_factors
from .mesh import Mesh
from .sharding import Sharding


class NoPlanError(ValueError):
    """Raised if no plan can be made for a request; the message says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One redistribution, refined.

    Attributes:
      source, target: the layouts, in refined factors.
      movable: factors that steps may move; each has its candidates in `slots`, at the same index.
      tile_limit: elements that a tile on the way may have though both ends' have fewer.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    source: Layout
    target: Layout
    movable: tuple[Factor, ...]
    slots: tuple[tuple[Slot, ...], ...]
    tile_limit: int = 0

    @property
    def largest_tile(self) -> int:
        """Returns the largest number of elements that a tile on the way may have (R2)."""
        return max(self.source.tile_elements, self.target.tile_elements, self.tile_limit)

    @property
    def is_misaligned(self) -> bool:
        """Returns whether the digits of the two sides have no common mixed radix, such as 2·3 and 3·2."""
        ends = {slot for layout in (self.source, self.target) for _, slot in layout.owners}
        pairs = itertools.combinations(ends, 2)
        return any([dim == other and start % last and first % end for (dim, first, last), (other, start, end) in pairs])


def refine(
    mesh: Mesh,
    shape: tuple[int, ...],
    source: Sharding,
    target: Sharding,
    *,
    into_primes: bool = False,
    with_detours: bool = False,
    largest_first: bool = False,
    tile_limit: int = 0,
    places: tuple[tuple[str, int], ...] = (),
) -> Problem:
    """Returns the problem of turning `source` into `target`.

    Args:
      places: (axis, product of the sizes before) at which axes are cut as well, where that suits their other cuts.
      into_primes: cut axes into primes and complete the places of every dimension; needed by some mixed radices.
      largest_first: cut 6 into 3 and 2, not into 2 and 3.
      tile_limit: see `Problem`.
      with_detours: offer spare digits to all factors, not just to those that one side leaves replicated.
    Raises: NoPlanError if a dimension does not divide, or an axis is used in two radices that have no common one.
    """
    before, after, movable = _ends(mesh, shape, source, target, into_primes, largest_first, places)
    slots = _candidate_slots(shape, before, after, movable, into_primes, with_detours)
    return Problem(mesh, shape, before, after, movable, slots, tile_limit)


@functools.lru_cache(maxsize=16)
def _ends(
    mesh: Mesh, shape, source: Sharding, target: Sharding, into_primes: bool, largest_first: bool, places
) -> tuple[Layout, Layout, tuple[Factor, ...]]:
    """Returns both layouts in refined factors, and the movable ones of these."""
    sides = (whole_factors(mesh, source), whole_factors(mesh, target))
    sums = (unreduced_factors(mesh, source), unreduced_factors(mesh, target))
    _check_divides(shape, source, sides[0])
    _check_divides(shape, target, sides[1])
    cuts = _AxisCuts(mesh, sides, sums)
    for place in places:
        cuts.add(*place)
    if into_primes:
        cuts.add_primes(largest_first)
    while cuts.split_where_sides_disagree():
        pass
    before, after = [
        blocked(shape, cuts.refined(side), cuts.refined((along,))[0] if along else ())
        for side, along in zip(sides, sums)
    ]
    return before, after, _movable(before, after, cuts.all_factors())


def _check_divides(shape, sharding: Sharding, pieces) -> None:
    for dim, factors in enumerate(pieces):
        shards = math.prod([f.size for f in factors])
        if shape[dim] % shards:
            raise NoPlanError(
                f"dimension {dim} of size {shape[dim]} does not divide into the {shards} shards of {sharding}"
            )


class _AxisCuts:
    """The places at which each mesh axis is cut; invariant: the cuts of an axis form a divisibility chain."""

    def __init__(self, mesh: Mesh, sides, sums):
        self.mesh = mesh
        self.sides = sides
        self.cuts: dict[str, list[int]] = {name: [1, size] for name, size in mesh.axes if size > 1}
        for axis, pre, size in [factor for side in (*sides, sums) for dim in side for factor in dim]:
            for cut in (pre, pre * size):
                if cut not in self.cuts[axis] and not self.add(axis, cut):
                    raise NoPlanError(
                        f'axis "{axis}" is cut at {cut} and at {self._clash(axis, cut)}, '
                        "which are places of different radices"
                    )

    def _clash(self, axis: str, cut: int) -> int:
        return next(c for c in self.cuts[axis] if c % cut and cut % c)

    def add(self, axis: str, cut: int) -> bool:
        """Cuts an axis; returns False, and changes nothing, if the cut breaks the divisibility chain."""
        cuts = self.cuts[axis]
        if cut in cuts:
            return True
        if any([c % cut and cut % c for c in cuts]):
            return False
        cuts.append(cut)
        cuts.sort()
        return True

    def add_primes(self, largest_first: bool) -> None:
        for axis, cuts in self.cuts.items():
            for start, end in zip(tuple(cuts), tuple(cuts[1:])):
                for piece in Factor(axis, start, end // start).primes(largest_first)[:-1]:
                    self.add(axis, piece.end)

    def pieces(self, factor: Factor) -> tuple[Factor, ...]:
        """Returns the factors that `factor` is cut into, major to minor."""
        cuts = self.cuts[factor.axis]
        return (factor,) if len(cuts) == 2 else tuple(factor.cut(cuts))

    def refined(self, side) -> tuple[tuple[Factor, ...], ...]:
        if max(map(len, self.cuts.values()), default=0) <= 2:
            return side  # no axis is cut
        return tuple([tuple([p for factor in dim for p in self.pieces(factor)]) for dim in side])

    def all_factors(self) -> tuple[Factor, ...]:
        whole = tuple([Factor(name, 1, size) for name, size in self.mesh.axes if size > 1])
        return self.refined((whole,))[0]

    def split_where_sides_disagree(self) -> bool:
        """Cuts factors of one side at the places of the other; returns whether anything changed."""
        count = sum(map(len, self.cuts.values()))
        refined = self.refined(self.sides[0]), self.refined(self.sides[1])
        for mine, other in (refined, refined[::-1]):
            for my_factors, other_factors in zip(mine, other):
                if not my_factors or not other_factors or my_factors == other_factors:
                    continue
                places = list(itertools.accumulate([size for _, _, size in other_factors], operator.mul))
                start = 1
                for axis, pre, size in my_factors:
                    end = start * size
                    for place in places:
                        if start < place < end and place % start == 0 and end % place == 0:
                            self.add(axis, pre * (place // start))
                    start = end
        return count != sum(map(len, self.cuts.values()))


def _movable(before: Layout, after: Layout, factors) -> tuple[Factor, ...]:
    """Returns the factors that are not fixed.

    A fixed factor owns the same slot on both sides, and no other slot clashes with it.
    """
    owned, wanted = dict(before.owners), dict(after.owners)
    others = {*owned.values(), *wanted.values()}

    def is_fixed(slot: Slot) -> bool:
        return all([slot == other or slot.agrees_with(other) for other in others])

    staying = {factor for factor, slot in owned.items() if slot == wanted.get(factor) and is_fixed(slot)}
    return tuple([factor for factor in factors if factor not in staying])


def _candidate_slots(
    shape, before: Layout, after: Layout, movable, complete: bool, detours: bool
) -> tuple[tuple[Slot, ...], ...]:
    """Returns the slots of each movable factor: the digits of its size, and spare ones if it may have some."""
    places = [_places(dim, before, after, complete) for dim in range(len(shape))]
    sizes = [1, *(f.size for f in movable)]
    spare_offsets = sorted({a * b for a, b in itertools.combinations(sizes, 2)} | {1}) if detours else [1]
    spare_starts = [
        (dim, math.lcm(*here) * offset) for dim, here in enumerate(places) if shape[dim] for offset in spare_offsets
    ]
    owned, wanted = dict(before.owners), dict(after.owners)
    of_kind: dict[tuple[int, bool], tuple[Slot, ...]] = {}
    found = []
    for factor in movable:
        kind = factor.size, detours or factor not in owned or factor not in wanted
        if kind not in of_kind:
            of_kind[kind] = _slots_of_size(shape, places, spare_starts, *kind)
        found.append(of_kind[kind])
    return tuple(found)


def _slots_of_size(shape, places, spare_starts, size: int, has_spares: bool) -> tuple[Slot, ...]:
    """Returns the digits of a size whose ends are places, and the spare digits of that size for which there is room."""
    slots = [
        Slot(dim, start, start * size)
        for dim, here in enumerate(places)
        if len(here) > 1
        for start in here
        if start * size in here
    ]
    if has_spares:
        known = set(slots)
        spares = [Slot(dim, start, start * size) for dim, start in spare_starts if not shape[dim] % (start * size)]
        slots += [spare for spare in spares if spare not in known]
    return tuple(slots)


def _is_misaligned(places) -> bool:
    return any(end % start for start, end in itertools.pairwise(sorted(places)))


def _places(dim: int, before: Layout, after: Layout, complete: bool) -> tuple[int, ...]:
    ends = [[1, *[end for _, (other, _, end) in layout.owners if other == dim]] for layout in (before, after)]
    places = {*ends[0], *ends[1]}
    if len(places) == 1:
        return (1,)
    if complete or _is_misaligned(places):
        last = ends[0][-1], ends[1][-1]
        places |= {last[0] * d for d in _divisors(math.lcm(*last) // last[0])}
        places |= {last[1] * d for d in _divisors(math.lcm(*last) // last[1])}
    return tuple(sorted(places))


def orders_of_primes(problem: Problem, source: Sharding, target: Sharding) -> int:
    """Returns the number of ways to cut the axes that move into primes, beyond the cuts of the shardings.

    Example:
      >>> from .mesh import Mesh
      >>> ends = Sharding.parse('[{"x"}]'), Sharding.parse('[{"y"}]')
      >>> meshes = map(Mesh.parse, ("x=4,y=9", "x=6,y=4", "x=12,y=6"))
      >>> [orders_of_primes(refine(mesh, (720,), *ends), *ends) for mesh in meshes]
      [1, 2, 6]
    """
    mesh = problem.mesh
    sides = whole_factors(mesh, source), whole_factors(mesh, target)
    cuts = _AxisCuts(mesh, sides, (unreduced_factors(mesh, source), unreduced_factors(mesh, target))).cuts
    moving = {factor.axis for factor in problem.movable}
    return math.prod(
        _arrangements(primes(b // a)) for axis in sorted(moving) for a, b in itertools.pairwise(cuts[axis])
    )


def _arrangements(items: list[int]) -> int:
    """Returns the number of different orders of items."""
    return math.factorial(len(items)) // math.prod(math.factorial(items.count(item)) for item in set(items))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
