# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on what a chain still costs from a layout on: the heuristic of the search.

**Elements.** From a layout X the busiest device still has to receive |T \\ X| elements of its target tile T. If two
different factors own the same digit in X and in the target, some device has nothing in common with its tile and the
bound is |T|; else each digit that is owned in X but local in T leaves 1/radix of T in place. Steps cost at least what
their busiest device receives, so the bound never exceeds the cost to go.

**Seconds.** The same count for a unit of any level of the network, whose tile is the union of its devices' tiles: only
the coordinates that tell units apart own digits. What a unit lacks enters through its ports.

**Collectives.** None if all factors that own a digit own that of the target. One only if either all the others move to
their target digits at once, which are free; or they are gathered at once, within R2; or tiles just change hands.

**Latency.** Digits that are owned in X and local in T have to be vacated, by an all_to_all or a gather of the factor
that owns each: a permute leaves the runs of owned digits as they are. So the product of the groups' sizes of the
collectives to come is at least the product V of these digits' radices, and the latency at least that of such groups.

**Partial sums.** Let n be the number of partial sums of each element in X, m in T, N the number of devices, and r of them
the ones whose target tile has a given element. Count, for each element, the transfers of values that belong to it, one
sender to one receiver; T and r are the same everywhere, so a total of k per element is k·|T|/r per device on average,
and no less for the busiest. A collective that costs c elements can be done by c transfers per device.
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
import math

from .digits import UNREDUCED, Digits, State
from .pricing import PER_SECOND, Pricing


class CostToGo:
    """Lower bounds from any state of one problem.

    State: `_common[i][s]` is by what factor i, which owns slot s, divides what a device holds of its target tile; 0 is
    nothing in common. So is `_cuts` per level of the network. `_vacated[s]`: the part of slot s that is local in the target.
    """

    def __init__(self, digits: Digits, pricing: Pricing | None):
        self.digits = digits
        self.pricing = pricing
        self.target_sums = digits.sums(digits.target)
        self._common = self._table(digits.sizes)
        self._cuts = self._levels() if pricing else []
        self._vacated = [self._local_in_target(s) for s in range(len(digits.slots))]
        self._goal_clash = [digits.clash[goal] if goal >= 0 else 0 for goal in digits.target]
        kept = (size for size, goal in zip(digits.sizes, digits.target) if goal >= 0)
        self._target_size = math.prod(kept)
        self._least_owned = digits.elements // digits.max_tile

    def _table(self, sizes) -> list[list[int]]:
        return [[self._divisor(i, s, sizes) for s in range(len(self.digits.slots))] for i in range(len(sizes))]

    def _divisor(self, i: int, s: int, sizes) -> int:
        digits, goal = self.digits, self.digits.target[i]
        owner = digits.target_owner.get(s, i)
        if goal == s:
            return 1
        if owner != i and sizes[owner] > 1 and sizes[i] > 1:
            return 0
        if goal >= 0 and digits.overlap(s, goal):
            return 1  # the same factor on overlapping digits: its two coordinates are not independent
        return sizes[i]

    def _levels(self) -> list[tuple[float, int, list[list[int]]]]:
        """Returns (seconds per element, elements that a unit wants, divisors) of each level but that of single devices last."""
        owners, movable = self.digits.problem.target.owners, self.digits.problem.movable
        factors = (*movable, *(factor for factor, _ in owners if factor not in movable))
        wants = [factor in dict(owners) for factor in factors]
        found = []
        cuts = self.pricing.cuts(factors)
        for bytes_per_s, units in cuts[-1:] if self.is_misaligned else cuts:
            wanted = math.prod(self.digits.problem.shape) // math.prod(n for n, is_owner in zip(units, wants) if is_owner)
            found.append((self.pricing.bits / 8 / bytes_per_s, wanted, self._table(units[: len(movable)])))
        return found

    def _local_in_target(self, s: int) -> int:
        """Returns the radix of the part of a slot that is local in the target; 1 where radices are mixed."""
        slot = self.digits.slots[s]
        taken = [each for _, each in self.digits.problem.target.owners if each.dim == slot.dim and not each.agrees_with(slot)]
        ends = [(max(slot.start, each.start), min(slot.end, each.end)) for each in taken]
        overlap = math.prod(end // start if end % start == 0 else slot.size for start, end in ends)
        return max(1, slot.size // overlap) if slot.size % overlap == 0 else 1

    @functools.cached_property
    def is_misaligned(self) -> bool:
        """Returns whether some slots are digits of no common mixed radix, so that a permute may change which are vacated."""
        places: dict[int, set[int]] = {}
        for slot in self.digits.slots:
            places.setdefault(slot.dim, set()).update((slot.start, slot.end))
        return any(a % b and b % a for here in places.values() for a in here for b in here)

    def __call__(self, state: State) -> tuple[int, int, int]:
        """Returns lower bounds on picoseconds (0 without a pricing), received elements, and collectives."""
        digits = self.digits
        if digits.has_sums:
            return self._with_sums(state)
        received, displaced = self._received(state)
        if not received:
            return 0, 0, 0
        collectives = 1 if self._may_be_one(state, displaced) else 2
        if self.pricing is None:
            return 0, received, collectives
        return self._picoseconds(state, displaced, collectives), received, collectives

    def _received(self, state: State) -> tuple[int, int]:
        """Returns the elements that the busiest device lacks, and the product of the factors that own no target digit."""
        divisor = displaced = 1
        for size, slot, goal, common in zip(self.digits.sizes, state, self.digits.target, self._common):
            if slot != goal and slot >= 0:
                displaced *= size
                divisor *= common[slot]
        tile = self.digits.target_tile
        return (tile + tile // -divisor if divisor else tile), displaced

    def _may_be_one(self, state: State, displaced: int) -> bool:
        """Returns whether one collective may do, for all that this looks at; see the module's docstring."""
        owned = kept = 0
        vacated, is_move, kept = 1, True, self._target_size
        for slot in state:
            if slot >= 0:
                owned |= 1 << slot
                vacated *= self._vacated[slot]
        if vacated == 1 or self.is_misaligned:
            return True  # a permute
        for size, slot, goal, clash in zip(self.digits.sizes, state, self.digits.target, self._goal_clash):
            if slot != goal and slot >= 0:
                if goal < 0 or clash & owned:
                    is_move = False
                if goal >= 0:
                    kept //= size
        return is_move or kept >= self._least_owned

    def _picoseconds(self, state: State, displaced: int, collectives: int) -> int:
        seconds = 0.0
        for per_element, wanted, table in self._cuts:
            divisor = 1
            for slot, goal, common in zip(state, self.digits.target, table):
                if slot != goal and slot >= 0:
                    divisor *= common[slot]
            lacks = wanted + wanted // -divisor if divisor else wanted
            seconds = max(seconds, lacks * per_element)
        return math.floor((self._latency_s(state, displaced, collectives) + seconds) * PER_SECOND)

    def _latency_s(self, state: State, displaced: int, collectives: int) -> float:
        least = self.pricing.least_latency_s
        if self.is_misaligned:
            return least(self._lost(state), 1)
        vacated = 1
        for slot in state:
            if slot >= 0:
                vacated *= self._vacated[slot]
        of_many = least(vacated, 2)
        if collectives > 1:
            return of_many
        return min(of_many, least(displaced if vacated > 1 else 1, 1))

    def _lost(self, state: State) -> int:
        """Returns by how much the numbers of shards of all dimensions have to shrink in all."""
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

    def _with_sums(self, state: State) -> tuple[int, int, int]:
        sums = self.digits.sums(state)
        received = self._received_with_sums(state, sums) if sums > 1 or self.target_sums > 1 else self._received(state)[0]
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
        """Returns an upper bound on the mean over devices of |T & X|: where another factor owns a digit, 1/radix agree."""
        in_common, clash = self.digits.target_tile, 1
        for size, slot, goal, common in zip(self.digits.sizes, state, self.digits.target, self._common):
            if slot == goal or slot < 0:
                continue
            if not common[slot]:
                clash = max(clash, size)
            else:
                in_common = -(-in_common // common[slot])
        return -(-in_common // clash)
