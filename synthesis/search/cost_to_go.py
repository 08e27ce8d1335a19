# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on the cost of a chain from a layout to the target: the heuristic of the search.

**Elements.** From a layout X the busiest device still has to receive |T \\ X| elements of its target tile T. If two
different factors own the same digit in X and in the target, some device has nothing in common with its tile and the
bound is |T|; else each digit that is owned in X but local in T leaves 1/radix of T in place. Steps cost at least what
their busiest device receives, so the bound never exceeds the cost to go.

**Seconds.** The same count for a unit of any level of the network, whose tile is the union of its devices' tiles: only
the coordinates that tell units apart own digits. What a unit lacks enters through its ports.

**Collectives.** Zero if all factors that own a digit own their target digit. One only if all the others move to their
target digits at once, which are free; or they are gathered at once, within R2; or devices just swap whole tiles.
Otherwise two.

**Latency.** Digits that are owned in X and local in T have to be vacated, by an all_to_all or a gather of the factor
that owns each: a permute leaves the runs of owned digits as they are. So the product of the groups' sizes of the
collectives to come is at least the product V of these digits' radices. And either a permute is among them, or each
factor that owns another digit than in T is moved in a group: then the product is at least that of their sizes. Where
such a factor tells units of a level apart, some unit lacks elements that others have, so a step at that level or
further out comes.

**Partial sums.** Let n be the number of partial sums of each element in X, m in T, N the number of devices, and r of
them the ones whose target tile has a given element. Count, for each element, the transfers of values that belong to it,
one sender to one receiver; T and r are the same everywhere, so a total of k per element is k·|T|/r per device on
average, and no less for the busiest. A collective that costs c elements can be done by c transfers per device.
- n > 1, m = 1. Until some device has the whole sum, the transfers must have joined it with a holder of each of the
  n sums: n - 1 of them at least, n if it holds none itself. Each transfer completes one device at most, so the other
  ones of the r need r - 1 more. This is n + r - 2, and one more for an element that no device of its r holds in X: at
  least 1 - r·(the part of T in common, on average) of all elements are such.
- m > 1. Each of the n sums ends up in one of m: n - m transfers. And the m cannot all be zero: r/m devices of one have
  the value, of which no more than h hold any of the element in X, h the product of the factors that own no digit in X
  and are not unreduced in T: r/m - h transfers.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable

from ..network.pricing import PER_SECOND, Pricing
from .digits import UNREDUCED, Digits, State, local_part


class Made(dict):
    """Values by key, made when they are first asked for, because a search sees only a few of the slots."""

    def __init__(self, make: Callable):
        self.make = make

    def __missing__(self, key):
        found = self[key] = self.make(key)
        return found


class CostToGo:
    """Lower bounds on the cost from any state of one problem to its target.

    State: `common[i][s]` is a divisor: if factor i owns slot s, a device holds so much less of its target tile; 0 means
    that it holds nothing of it. `_levels` has the same for the units of the network. `_rows[i][s]` is None if factor i
    is at home or owns nothing, and otherwise: size, common, the part of slot s that is local in the target, the latency
    of a step that brings factor i home, its size if it has a home and 0 else, slot s as a mask, and a mask of the slots
    that clash with its target digit.
    """

    def __init__(self, digits: Digits, pricing: Pricing | None):
        self.digits = digits
        self.pricing = pricing
        self.target_sums = digits.sums(digits.target)
        self.common = self._table(digits.sizes)
        self._vacated = Made(functools.partial(_local_in_target, digits))
        self._levels = self._outer_levels(pricing) if pricing else []
        self.hops_s = [pricing.hop_s(factor) if pricing else 0.0 for factor in digits.problem.movable]
        self._seconds_per_element = pricing.least_seconds_per_element if pricing else 0.0
        rows = enumerate(zip(self.common, self.hops_s))
        self._rows = [Made(functools.partial(_entry, digits, i, *row, self._vacated)) for i, row in rows]
        numbers: dict[tuple[int, int, int, float, bool], int] = {}
        self._kinds = [Made(functools.partial(_kind, row, numbers, len(self._rows).bit_length())) for row in self._rows]
        self._bounds: dict[int, tuple[tuple[int, int, int], tuple[int, int, int] | None]] = {}
        kinds: dict[tuple, int] = {}
        width = len(self._rows).bit_length()
        ends = enumerate(self.common)
        self._sum_kinds = [Made(functools.partial(_kind_with_sums, digits, i, row, kinds, width)) for i, row in ends]
        self._bounds_with_sums: dict[int, tuple[int, int, int]] = {}
        self._is_told_by_kinds = not digits.has_sums and not self._levels and not self.is_misaligned
        self._target_size = math.prod(size for size, goal in zip(digits.sizes, digits.target) if goal >= 0)
        self._least_owned = digits.elements // digits.max_tile

    def _table(self, sizes) -> list[list[int]]:
        return [self._divisors(i, sizes) for i in range(len(sizes))]

    def _divisors(self, i: int, sizes) -> list[int]:
        digits, goal, size = self.digits, self.digits.target[i], sizes[i]
        row = [size] * len(digits.slots)
        clash = digits.clash[goal] if goal >= 0 else 0
        while clash:
            low = clash & -clash
            row[low.bit_length() - 1] = (
                1  # the same factor on overlapping digits: its two coordinates are not independent
            )
            clash ^= low
        if size > 1:
            for s, owner in digits.target_owner.items():
                if owner != i and sizes[owner] > 1:
                    row[s] = 0
        if goal >= 0:
            row[goal] = 1
        return row

    def _outer_levels(self, pricing: Pricing) -> list[tuple[float, int, list[list[int]]]]:
        """Returns (seconds per element, elements that a unit wants, divisors) of each level except single devices."""
        if pricing.is_flat or self.is_misaligned:
            return []
        owners, movable = dict(self.digits.problem.target.owners), self.digits.problem.movable
        factors = (*movable, *(factor for factor in owners if factor not in movable))
        found = []
        for seconds_per_element, units in pricing.cuts(factors):
            wanted = math.prod(self.digits.problem.shape) // math.prod(n for n, f in zip(units, factors) if f in owners)
            found.append((seconds_per_element, wanted, self._table(units[: len(movable)])))
        return found

    @functools.cached_property
    def is_misaligned(self) -> bool:
        """Returns whether some slots have no common mixed radix; a permute may then change which digits are vacated."""
        places: dict[int, set[int]] = {}
        for dim, start, end in self.digits.slots:
            places.setdefault(dim, set()).update((start, end))
        return any(end % start for here in places.values() for start, end in itertools.pairwise(sorted(here)))

    def __call__(self, state: State) -> tuple[int, int, int]:
        """Returns lower bounds on picoseconds (0 without a pricing), received elements, and collectives."""
        if self.digits.has_sums:
            key = sum(map(operator.getitem, self._sum_kinds, state))
            bound = self._bounds_with_sums.get(key)
            if bound is None:
                bound = self._bounds_with_sums[key] = self._with_sums(state)
            return bound
        if not self._is_told_by_kinds:
            return self._of_layout(state)
        key = sum(map(operator.getitem, self._kinds, state))
        found = self._bounds.get(key)
        if found is None:
            found = self._bounds[key] = self._bounds_of_kinds(state)
        at_once, else_ = found
        return at_once if else_ is None or self._may_all_move_home(state) else else_

    def _bounds_of_kinds(self, state: State) -> tuple[tuple[int, int, int], tuple[int, int, int] | None]:
        """Returns the bounds if all factors may move home at once, and those if not; None if that does not matter."""
        divisor, vacated, displaced, hop_s, is_gather, has_goals = self._counted(state)
        if divisor == 1:
            return (0, 0, 0), None
        if vacated == 1 or is_gather:
            return self._bound(divisor, vacated, displaced, hop_s, 1), None
        two = self._bound(divisor, vacated, displaced, hop_s, 2)
        return (self._bound(divisor, vacated, displaced, hop_s, 1), two) if has_goals else (two, None)

    def _counted(self, state: State) -> tuple[int, int, int, float, bool, bool]:
        """Returns `divisor`, `vacated`, `displaced`, `hop_s`, whether one gather frees all, whether all have a home."""
        divisor, vacated, displaced, hop_s, moved, has_goals = 1, 1, 1, 0.0, 1, True
        for slot, row in zip(state, self._rows):
            entry = row[slot]
            if entry is not None:
                size, common, vacates, factor_hop_s, homed, _, _ = entry
                divisor *= common
                vacated *= vacates
                displaced *= size
                hop_s = max(hop_s, factor_hop_s)
                moved *= homed or 1
                has_goals = has_goals and homed > 0
        return divisor, vacated, displaced, hop_s, self._target_size // moved >= self._least_owned, has_goals

    def _may_all_move_home(self, state: State) -> bool:
        """Returns whether the homes of all factors that are away are free of other such factors."""
        owned, wanted = 0, 0
        for slot, row in zip(state, self._rows):
            entry = row[slot]
            if entry is not None:
                owned |= entry[5]  # a factor at home is in no other factor's way
                wanted |= entry[6]
        return not wanted & owned

    def _of_layout(self, state: State) -> tuple[int, int, int]:
        """Returns the bounds for problems in which more than the kinds of places matters."""
        divisor, vacated, displaced, hop_s, is_gather, has_goals = self._counted(state)
        received = self.lacks(divisor)
        if not received:
            return 0, 0, 0
        if self.is_misaligned:
            collectives, vacated = 1, self._lost(state)
        else:
            may_be_one = vacated == 1 or is_gather or has_goals and self._may_all_move_home(state)
            collectives = 1 if may_be_one else 2
        if self.pricing is None:
            return 0, received, collectives
        seconds = received * self._seconds_per_element
        for per_element, wanted, table in self._levels:
            seconds = max(seconds, per_element * self._lacks_of_unit(state, wanted, table))
        seconds += self.pricing.least_latency_s(vacated, displaced, hop_s, collectives)
        return math.floor(seconds * PER_SECOND), received, collectives

    def _bound(
        self, divisor: int, vacated: int, displaced: int, hop_s: float, collectives: int
    ) -> tuple[int, int, int]:
        """Returns the bounds on picoseconds, from single devices only, on elements, and on collectives."""
        received = self.lacks(divisor)
        if not received or self.pricing is None:
            return 0, received, collectives if received else 0
        seconds = received * self._seconds_per_element + self.pricing.least_latency_s(
            vacated, displaced, hop_s, collectives
        )
        return math.floor(seconds * PER_SECOND), received, collectives

    def vacated(self, state: State) -> int:
        """Returns the product of the radices of owned digits that have to become local; at most that if misaligned."""
        if self.is_misaligned:
            return self._lost(state)
        return math.prod([self._vacated[slot] for slot in state if slot >= 0])

    def lacks(self, divisor: int) -> int:
        """Returns the elements that a device lacks of its target tile if it holds 1/divisor of it, or nothing for 0."""
        tile = self.digits.target_tile
        return tile + tile // -divisor if divisor else tile

    def _lacks_of_unit(self, state: State, wanted: int, table: list[list[int]]) -> int:
        divisor = 1
        for slot, goal, common in zip(state, self.digits.target, table):
            if slot != goal and slot >= 0:
                divisor *= common[slot]
        return wanted + wanted // -divisor if divisor else wanted

    def _lost(self, state: State) -> int:
        """Returns the factor by which the shards of all dimensions together have to become fewer."""
        shards = [1] * len(self.digits.problem.shape)
        for size, slot in zip(self.digits.sizes, state):
            if slot >= 0:
                shards[self.digits.slots[slot].dim] *= size
        return math.prod(n // math.gcd(n, wanted) for n, wanted in zip(shards, self._target_shards))

    @functools.cached_property
    def _target_shards(self) -> list[int]:
        shards = [1] * len(self.digits.problem.shape)
        for size, slot in zip(self.digits.sizes, self.digits.target):
            if slot >= 0:
                shards[self.digits.slots[slot].dim] *= size
        return shards

    # Partial sums

    def _received(self, state: State) -> int:
        divisor = 1
        for slot, goal, common in zip(state, self.digits.target, self.common):
            if slot != goal and slot >= 0:
                divisor *= common[slot]
        return self.lacks(divisor)

    def _with_sums(self, state: State) -> tuple[int, int, int]:
        sums = self.digits.sums(state)
        received = self._received_with_sums(state, sums) if sums > 1 or self.target_sums > 1 else self._received(state)
        time = self.pricing.least_picoseconds(received) if self.pricing else 0
        return time, received, int(received > 0)

    def _received_with_sums(self, state: State, sums: int) -> int:
        digits = self.digits
        elements, devices = math.prod(digits.problem.shape), digits.problem.mesh.size
        copies = devices * digits.target_tile // elements  # r
        if self.target_sums == 1:
            lacking = max(0, digits.target_tile - copies * self._in_common_on_average(state))
            return -(-(digits.target_tile * (sums + copies - 2) + lacking) // copies)
        free = devices * digits.tile(state) // elements  # product of the factors that own no digit in X
        no_digit = (n for n, s, goal in zip(digits.sizes, state, digits.target) if s < 0 and goal == UNREDUCED)
        transfers = max(0, sums - self.target_sums, copies // self.target_sums - free // math.prod(no_digit))
        return -(-digits.target_tile * transfers // copies)

    def _in_common_on_average(self, state: State) -> int:
        """Returns an upper bound on the mean over devices of |T & X|.

        If another factor owns a digit, 1/radix of the devices agree in it.
        """
        in_common, clash = self.digits.target_tile, 1
        for size, slot, goal, common in zip(self.digits.sizes, state, self.digits.target, self.common):
            if slot == goal or slot < 0:
                continue
            if not common[slot]:
                clash = max(clash, size)
            else:
                in_common = -(-in_common // common[slot])
        return -(-in_common // clash)


def _entry(
    digits: Digits, i: int, common, hop_s: float, vacated, s: int
) -> tuple[int, int, int, float, int, int, int] | None:
    """Returns the entry of `_rows[i]` for a slot, REPLICATED or UNREDUCED."""
    goal = digits.target[i]
    if s < 0 or s == goal:
        return None
    size = digits.sizes[i]
    clash, homed = (digits.clash[goal], size) if goal >= 0 else (0, 0)
    return size, common[s], vacated[s], hop_s, homed, 1 << s, clash


def _kind(row, numbers: dict[tuple[int, int, int, float, bool], int], width: int, s: int) -> int:
    """Returns a number for the entry of `_rows` without its masks, 0 for no entry; sums of such numbers are distinct.

    So the sum over a state's factors says all except which factor is in another one's way. `width` bits count the
    factors of a kind.
    """
    entry = row[s]
    if entry is None:
        return 0
    return 1 << width * numbers.setdefault((*entry[:4], entry[4] > 0), len(numbers))


def _kind_with_sums(digits: Digits, i: int, common, numbers: dict[tuple, int], width: int, s: int) -> int:
    """Returns a number for what the bound of a state with partial sums takes from one factor, as `_kind` does."""
    goal = digits.target[i]
    away = common[s] if s >= 0 and s != goal else None
    kind = digits.sizes[i], s >= 0, s == UNREDUCED, goal == UNREDUCED, away
    return 1 << width * numbers.setdefault(kind, len(numbers))


def _local_in_target(digits: Digits, s: int) -> int:
    return local_part(digits.slots[s], digits.problem.target)
