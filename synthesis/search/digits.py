# SPDX-License-Identifier: Apache-2.0
"""A problem in whole numbers: the numbers that a search uses for factors, slots and layouts.

**State.** The place of each movable factor: the number of a slot, REPLICATED, or UNREDUCED. Bit s of a mask stands for
slot s. The **spare** slots of a factor are alike: they lie behind all slots of both sides, so that only other spare
slots can overlap them. So a search offers a factor only the first free one of each dimension.
"""

from __future__ import annotations

import functools
import math

from ..layouts.layout import UNREDUCED as UNREDUCED_PLACE
from ..layouts.layout import Layout, Slot
from ..layouts.refinement import Problem

REPLICATED = -1
FIXED = -2
UNREDUCED = -3

State = tuple[int, ...]


class Digits:
    """The numbers of one problem.

    Attributes:
      sizes: the sizes of the movable factors.
      slots: all slots that some movable factor may own. fixed: the slots of the factors that stay.
      clash: for each slot, the mask of the slots that cannot be owned at the same time.
      candidates, spares: for each factor, the slots that it may own; slots that overlap a fixed one are excluded.
      source, target: states. target_owner: the factor that owns a slot in the target.
      elements: the array's elements without the digits of fixed factors. max_tile, target_tile: in elements; see R2.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.sizes = [factor.size for factor in problem.movable]
        movable = frozenset(problem.movable)
        self.fixed = [slot for factor, slot in problem.source.owners if factor not in movable]
        kinds = set(problem.slots)  # factors of one size often have the same slots
        self.slots = sorted({slot for slots in kinds for slot in slots})
        number = {slot: i for i, slot in enumerate(self.slots)}
        self.clash = _clashes(self.slots)
        behind = _behind(problem)
        self.is_spare = [slot.start >= behind[slot.dim] for slot in self.slots]
        is_usable = [all([slot.agrees_with(other) for other in self.fixed]) for slot in self.slots]
        usable = {slots: [s for s in map(number.__getitem__, slots) if is_usable[s]] for slots in kinds}
        candidates = {slots: [s for s in numbers if not self.is_spare[s]] for slots, numbers in usable.items()}
        spares = {slots: [s for s in numbers if self.is_spare[s]] for slots, numbers in usable.items()}
        self.candidates = [candidates[slots] for slots in problem.slots]
        self.spares = [spares[slots] for slots in problem.slots]
        self.source = self.state(problem.source, number)
        self.target = self.state(problem.target, number)
        source_tile, self.target_tile = problem.source.tile_elements, problem.target.tile_elements
        self.elements = source_tile * self.owned_size(self.source)
        self.max_tile = problem.largest_tile
        self.target_owner = {slot: i for i, slot in enumerate(self.target) if slot >= 0}
        self.has_sums = UNREDUCED in self.source or UNREDUCED in self.target

    def state(self, layout: Layout, number: dict[Slot, int]) -> State:
        owned = dict(layout.owners)
        unreduced = frozenset(layout.unreduced)
        return tuple(
            number[owned[f]] if f in owned else UNREDUCED if f in unreduced else REPLICATED
            for f in self.problem.movable
        )

    def layout(self, state: State) -> Layout:
        places = {REPLICATED: None, UNREDUCED: UNREDUCED_PLACE}
        moves = {f: self.slots[s] if s >= 0 else places[s] for f, s in zip(self.problem.movable, state)}
        return self.problem.source.with_moved(moves)

    def owned_size(self, state: State) -> int:
        return math.prod([size for size, slot in zip(self.sizes, state) if slot >= 0])

    def sums(self, state: State) -> int:
        """Returns the number of partial sums that each element has."""
        return math.prod([size for size, slot in zip(self.sizes, state) if slot == UNREDUCED])

    def tile(self, state: State) -> int:
        return self.elements // self.owned_size(state)

    def overlap(self, slot: int, other: int) -> bool:
        """Returns whether two slots share a digit, or cut their dimension in different radices."""
        return bool(self.clash[slot] >> other & 1)

    @functools.cached_property
    def by_start(self) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
        """Returns (factor, slot, the slot's end) by (dimension, start); both are FIXED for a fixed factor."""
        found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for i, slots in enumerate(zip(self.candidates, self.spares)):
            for s in (*slots[0], *slots[1]):
                slot = self.slots[s]
                found.setdefault((slot.dim, slot.start), []).append((i, s, slot.end))
        for slot in self.fixed:
            found[slot.dim, slot.start] = [(FIXED, FIXED, slot.end)]
        return found

    def runs(self, state: State) -> tuple[tuple[int, int, int], ...]:
        """Returns (dimension, start, end) of the maximal runs of owned digits."""
        owned = sorted([*(self.slots[s] for s in state if s >= 0), *self.fixed])
        runs: list[tuple[int, int, int]] = []
        for dim, start, end in owned:
            if runs and runs[-1][0] == dim and runs[-1][2] == start:
                runs[-1] = (dim, runs[-1][1], end)
            else:
                runs.append((dim, start, end))
        return tuple(runs)


def _clashes(slots: list[Slot]) -> list[int]:
    masks = [0] * len(slots)
    for i, (dim, first, last) in enumerate(slots):
        for j in range(i, len(slots)):
            other, start, end = slots[j]
            if other != dim:
                break  # sorted by dimension
            if start % last and first % end:
                masks[i] |= 1 << j
                masks[j] |= 1 << i
    return masks


def _behind(problem: Problem) -> list[int]:
    """Returns for each dimension the place behind all digits of both sides, where spare digits begin."""
    behind = [1] * len(problem.shape)
    for layout in (problem.source, problem.target):
        for _, slot in layout.owners:
            behind[slot.dim] = math.lcm(behind[slot.dim], slot.end)
    return behind


def local_part(slot: Slot, layout: Layout) -> int:
    """Returns the radix of the part of a slot that is local in a layout; 1 if radices are mixed.

    Example:
      >>> from ..layouts.layout import Factor
      >>> local_part(Slot(0, 1, 8), Layout((8,), ((Factor("x", 1, 2), Slot(0, 2, 4)),)))
      4
    """
    dim, start, end = slot
    overlap, size = 1, end // start
    for _, (other, first, last) in layout.owners:
        if other == dim and first % end and start % last:
            low, high = max(start, first), min(end, last)
            overlap *= high // low if high % low == 0 else size
    return max(1, size // overlap) if size % overlap == 0 else 1
