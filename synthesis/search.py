# SPDX-License-Identifier: Apache-2.0
"""The least-cost chain: A* over layouts.

**State.** The place of each movable factor: an index into the problem's slots, or replicated, or unreduced. **Edges** are the
steps of `steps.py` with their received elements as cost, ties by the number of collectives, then by the elements of
the tiles that the steps write: small tiles first is less memory. With a `Pricing` their modelled time comes before all
of these. R2 holds by construction: no edge leads to a tile above max(source tile, target tile).

**Heuristic.** From a layout X the busiest device still has to receive |T \\ X| elements of its target tile T. If two
different factors own the same digit in X and in the target, some device has nothing in common with its tile and the
bound is |T|; else each digit that is owned in X but local in T leaves 1/radix of T in place. Steps cost at least what
their busiest device receives, so the bound never exceeds the cost to go (admissible), and A* returns the optimum. Its
time is at least that of a single cheapest collective that brings these elements in through all ports of a device.

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

**Pruning** that loses nothing, checked by `exhaustive=True` in tests: a factor that owns its target digit stays there,
and a replicated factor whose target digit is free takes it at once, for nothing; only factors that are unreduced in the
target become so. Where neither side has unreduced factors, there are no edges for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import heapq
import itertools
import math
import operator
import threading
from typing import Literal, NamedTuple

from .layout import UNREDUCED as UNREDUCED_PLACE
from .layout import Layout
from .pricing import Pricing
from .problem import Problem

REPLICATED = -1
FIXED = -2
UNREDUCED = -3
LOCAL = ("slice", "to_unreduced")  # steps without traffic
Kind = Literal["slice", "all_gather", "all_to_all", "permute", "reduce_scatter", "all_reduce", "to_unreduced"]


@dataclass(frozen=True, slots=True)
class Chain:
    """Layouts of a cheapest chain: `layouts[0]` is the source, `kinds[i]` leads from layout i to layout i + 1.

    `cost` is (received elements, collectives), the sum over steps of each step's busiest device; with a pricing the time
    in picoseconds comes before them.
    """

    layouts: tuple[Layout, ...]
    kinds: tuple[Kind, ...]
    cost: tuple[int, ...]
    states_expanded: int


class _Edge(NamedTuple):
    """A step: the state after it, elements that a device receives, its tile then, and the factors that a group is made of."""

    kind: Kind
    after: tuple[int, ...]
    received: int
    tile: int
    moved: tuple[int, ...] = ()


class _Tally(threading.local):
    """How many steps the searches of a thread have considered so far: the work that planning took, the same in every process."""

    edges = 0


tally = _Tally()


class SearchLimit(Exception):
    """The search stopped at its limit of steps with neither a chain nor a proof that there is none."""


def cheapest_chain(
    problem: Problem,
    *,
    pricing: Pricing | None = None,
    below: tuple[int, ...] | None = None,
    exhaustive: bool = False,
    max_edges: int = 20_000_000,
    greed: int = 1,
    allows: Callable[[Kind, int], bool] | None = None,
) -> Chain | None:
    """Returns the cheapest chain that the problem's slots admit, or None if they admit none.

    Args:
      pricing: what steps take on a network; None counts elements alone.
      below: only chains that cost less than this, a cost as `Chain.cost` has it, count.
      exhaustive: without the pruning rules that the module's docstring names.
      max_edges: steps to consider before giving up; a few hundred thousand take a second.
      greed: weight of the heuristic; above 1 a chain is found sooner and need not be the cheapest.
      allows: whether a step of a kind that moves so many factors may be taken; None is all of them.
    Raises: SearchLimit after `max_edges` steps.
    """
    return _Search(problem, exhaustive, pricing).run(below, max_edges, greed, allows)


class _Search:
    """One A* run. Slots are numbered over all factors; bit i of a mask stands for slot i.

    Invariant: `best[state]` is the least cost at which `state` was reached so far, `came_from[state]` its last edge.
    """

    def __init__(self, problem: Problem, exhaustive: bool, pricing: Pricing | None):
        self.problem = problem
        self.pricing = pricing
        self.exhaustive = exhaustive
        self.sizes = [factor.size for factor in problem.movable]
        fixed = [slot for factor, slot in problem.source.owners if factor not in problem.movable]
        self.slots = sorted({slot for slots in problem.slots for slot in slots})
        number = {slot: i for i, slot in enumerate(self.slots)}
        self.fixed = fixed
        self.clash = [sum(1 << j for j, b in enumerate(self.slots) if not a.agrees_with(b)) for a in self.slots]
        usable = {i for i, slot in enumerate(self.slots) if all(slot.agrees_with(other) for other in fixed)}
        self.candidates = [[number[s] for s in slots if number[s] in usable] for slots in problem.slots]
        self.source = self._state(problem.source, number)
        self.target = self._state(problem.target, number)
        self.elements = problem.source.tile_elements * self._owned_size(self.source)
        self.target_tile = problem.target.tile_elements
        self.max_tile = max(problem.source.tile_elements, self.target_tile)
        self.target_owner = {slot: i for i, slot in enumerate(self.target) if slot >= 0}
        self.has_sums = UNREDUCED in self.source or UNREDUCED in self.target
        self.target_sums = self._sums(self.target)
        self.coefficients: dict[tuple[Kind, tuple[int, ...]], tuple[float, float]] = {}
        self.slots_by_start: dict[tuple[int, int], list[tuple[int, int]]] | None = None

    def _state(self, layout: Layout, number) -> tuple[int, ...]:
        slots = [layout.slot_of(factor) for factor in self.problem.movable]
        places = tuple(REPLICATED if slot is None else number[slot] for slot in slots)
        if not layout.unreduced:
            return places
        return tuple(UNREDUCED if f in layout.unreduced else place for f, place in zip(self.problem.movable, places))

    def _owned_size(self, state) -> int:
        return math.prod(size for size, slot in zip(self.sizes, state) if slot >= 0)

    def _sums(self, state) -> int:
        return math.prod(size for size, slot in zip(self.sizes, state) if slot == UNREDUCED)

    def tile(self, state) -> int:
        return self.elements // self._owned_size(state)

    def run(self, below: tuple[int, ...] | None, max_edges: int, greed: int, allows=None) -> Chain | None:
        nothing = (0,) * (3 if self.pricing is None else 4)  # [time,] received elements, collectives, written elements
        best = {self.source: nothing}
        came_from: dict[tuple, tuple[tuple, Kind]] = {}
        order = itertools.count()
        queue = [(nothing, next(order), nothing, self.source)]
        expanded = considered = 0
        while queue:
            _, _, cost, state = heapq.heappop(queue)
            if cost > best[state]:
                continue
            if state == self.target:
                return self._chain(came_from, cost[:-1], expanded)
            expanded += 1
            for edge in self.edges(state):
                considered += 1
                tally.edges += 1
                if considered > max_edges:
                    raise SearchLimit
                kind, after = edge.kind, edge.after
                if allows is not None and not allows(kind, len(edge.moved)):
                    continue
                total = _sum(cost, self._cost(state, edge))
                if after in best and best[after] <= total:
                    continue
                to_go = self._cost_to_go(after)
                if below is not None and _sum(total, to_go)[:-1] >= below:
                    continue
                best[after] = total
                came_from[after] = (state, kind)
                priority = _sum(total, to_go if greed == 1 else tuple(greed * each for each in to_go))
                heapq.heappush(queue, (priority, next(order), total, after))
        return None

    def _cost(self, state, edge: _Edge) -> tuple[int, ...]:
        cost = edge.received, int(edge.kind not in LOCAL), edge.tile
        return cost if self.pricing is None else (self._picoseconds(state, edge), *cost)

    def _cost_to_go(self, state) -> tuple[int, ...]:
        received = self.to_go(state)
        cost = received, int(received > 0), 0
        return cost if self.pricing is None else (self.pricing.least_picoseconds(received), *cost)

    def _picoseconds(self, state, edge: _Edge) -> int:
        if edge.kind in LOCAL:
            return 0
        if edge.kind == "permute" and not self.pricing.is_flat:
            return self.pricing.permute_picoseconds(self._layout(state), self._layout(edge.after), edge.tile)
        key = edge.kind, edge.moved
        if key not in self.coefficients:
            factors = tuple(self.problem.movable[i] for i in edge.moved)
            self.coefficients[key] = self.pricing.coefficients(edge.kind, factors)
        tile = self.tile(state) if edge.kind in ("all_gather", "reduce_scatter") else edge.tile
        return self.pricing.whole(*self.coefficients[key], tile)

    def _chain(self, came_from, cost, expanded: int) -> Chain:
        states, kinds = [self.target], []
        while states[-1] != self.source:
            state, kind = came_from[states[-1]]
            states.append(state)
            kinds.append(kind)
        layouts = tuple(self._layout(state) for state in reversed(states))
        return Chain(layouts, tuple(reversed(kinds)), cost, expanded)

    def _layout(self, state) -> Layout:
        places = {REPLICATED: None, UNREDUCED: UNREDUCED_PLACE}
        moves = {f: self.slots[s] if s >= 0 else places[s] for f, s in zip(self.problem.movable, state)}
        return self.problem.source.with_moved(moves)

    def to_go(self, state) -> int:
        """Returns a lower bound, in elements, on what the busiest device still has to receive."""
        if self.has_sums:
            sums = self._sums(state)
            if sums > 1 or self.target_sums > 1:
                return self._to_go_with_sums(state, sums)
        in_common = self.target_tile
        for mine, (size, slot, goal) in enumerate(zip(self.sizes, state, self.target)):
            if slot == goal or slot < 0:
                continue
            owner = self.target_owner.get(slot)
            if owner is not None and owner != mine:
                return self.target_tile
            if goal >= 0 and self.slots[goal].dim == self.slots[slot].dim and self.clash[slot] >> goal & 1:
                continue  # the same factor on overlapping digits: its two coordinates are not independent
            in_common = -(-in_common // size)
        return self.target_tile - in_common

    def _to_go_with_sums(self, state, sums: int) -> int:
        elements, devices = math.prod(self.problem.shape), self.problem.mesh.size
        copies = devices * self.target_tile // elements  # r
        if self.target_sums == 1:
            lacking = max(0, self.target_tile - copies * self._in_common_on_average(state))
            return -(-(self.target_tile * (sums + copies - 2) + lacking) // copies)
        free = devices * self.tile(state) // elements  # product of the factors that own no digit in X
        holders = free // math.prod(n for n, s, goal in zip(self.sizes, state, self.target) if s < 0 and goal == UNREDUCED)
        transfers = max(0, sums - self.target_sums, copies // self.target_sums - holders)
        return -(-self.target_tile * transfers // copies)

    def _in_common_on_average(self, state) -> int:
        """Returns an upper bound on the mean over devices of |T & X|: where another factor owns a digit, 1/radix agree."""
        in_common, clash = self.target_tile, 1
        for mine, (size, slot, goal) in enumerate(zip(self.sizes, state, self.target)):
            if slot == goal or slot < 0:
                continue
            if self.target_owner.get(slot, mine) != mine:
                clash = max(clash, size)
            elif not (goal >= 0 and self.slots[goal].dim == self.slots[slot].dim and self.clash[slot] >> goal & 1):
                in_common = -(-in_common // size)
        return -(-in_common // clash)

    def edges(self, state):
        """Yields every step that is worth considering."""
        blocked = 0
        for slot in state:
            if slot >= 0:
                blocked |= self.clash[slot]
        free = [[s for s in slots if not blocked >> s & 1] for slots in self.candidates]
        if not self.exhaustive:
            for i, goal in enumerate(self.target):
                if state[i] == REPLICATED and goal != REPLICATED and goal in free[i]:
                    yield _Edge("slice", _with(state, i, goal), 0, self.tile(state) // self.sizes[i])
                    return
        tile = self.tile(state)
        yield from self._slices(state, free, tile)
        yield from self._gathers(state, tile)
        yield from self._all_to_alls(state, free, tile)
        yield from self._permutes(state, tile)
        if self.has_sums:
            yield from self._reductions(state, free, tile)
            yield from self._to_unreduced(state, tile)

    def _moves_away(self, state, i: int) -> bool:
        return state[i] >= 0 and (self.exhaustive or state[i] != self.target[i])

    def _slices(self, state, free, tile: int):
        for i, slot in enumerate(state):
            if slot == REPLICATED:
                for goal in free[i]:
                    yield _Edge("slice", _with(state, i, goal), 0, tile // self.sizes[i])

    def _gathers(self, state, tile: int):
        """Gathers of one dimension each: together they move as much as one of all, and only the last copies no large tile."""
        owned = [i for i in range(len(state)) if self._moves_away(state, i)]
        for dim in sorted({self.slots[state[i]].dim for i in owned}):
            yield from self._gathers_of([i for i in owned if self.slots[state[i]].dim == dim], state, tile)

    def _gathers_of(self, owned: list[int], state, tile: int):
        for count in range(1, len(owned) + 1):
            for chosen in itertools.combinations(owned, count):
                n = math.prod(self.sizes[i] for i in chosen)
                if tile * n > self.max_tile:
                    continue
                after = tuple(REPLICATED if i in chosen else slot for i, slot in enumerate(state))
                yield _Edge("all_gather", after, tile * (n - 1), tile * n, chosen)

    def _all_to_alls(self, state, free, tile: int):
        owned = [i for i in range(len(state)) if free[i] and self._moves_away(state, i)]
        yield from self._moves_to_digits("all_to_all", owned, state, free, tile)

    def _moves_to_digits(self, kind: Kind, factors: list[int], state, free, tile: int):
        """Yields a collective for each way to give free digits to some of the factors."""

        def choose(at: int, after: list[int], taken: int, n: int):
            if at == len(factors):
                if n > 1:
                    moved = tuple(i for i in factors if after[i] != state[i])
                    kept = tile if kind == "all_to_all" else tile // n
                    yield _Edge(kind, tuple(after), tile // n * (n - 1), kept, moved)
                return
            i = factors[at]
            yield from choose(at + 1, after, taken, n)
            for goal in free[i]:
                if not taken >> goal & 1:
                    moved = after.copy()
                    moved[i] = goal
                    yield from choose(at + 1, moved, taken | self.clash[goal], n * self.sizes[i])

        yield from choose(0, list(state), 0, 1)

    def _reductions(self, state, free, tile: int):
        unreduced = [i for i, place in enumerate(state) if place == UNREDUCED]
        yield from self._moves_to_digits("reduce_scatter", unreduced, state, free, tile)
        for count in range(1, len(unreduced) + 1):
            for chosen in itertools.combinations(unreduced, count):
                n = math.prod(self.sizes[i] for i in chosen)
                after = tuple(REPLICATED if i in chosen else place for i, place in enumerate(state))
                yield _Edge("all_reduce", after, -(-2 * tile * (n - 1) // n), tile, chosen)

    def _to_unreduced(self, state, tile: int):
        for i, place in enumerate(state):
            if place == UNREDUCED or self.target[i] != UNREDUCED and not self.exhaustive:
                continue
            if place == REPLICATED or tile * self.sizes[i] <= self.max_tile:
                grown = tile if place == REPLICATED else tile * self.sizes[i]
                yield _Edge("to_unreduced", _with(state, i, UNREDUCED), 0, grown)

    def _slots_by_start(self):
        """Returns (factor index, slot number) by (dim, start); fixed slots are numbered behind all others."""
        if self.slots_by_start is None:
            self.slots_by_start = {}
            for i, slots in enumerate(self.candidates):
                for s in slots:
                    self.slots_by_start.setdefault((self.slots[s].dim, self.slots[s].start), []).append((i, s))
            for s, slot in enumerate(self.fixed, len(self.slots)):
                self.slots_by_start[slot.dim, slot.start] = [(FIXED, s)]
        return self.slots_by_start

    def _end(self, s: int) -> int:
        return self.slots[s].end if s < len(self.slots) else self.fixed[s - len(self.slots)].end

    def _permutes(self, state, tile: int):
        """All ways to fill the owned runs with factors, target owners first where their digit fits."""
        runs = self._runs(state)
        by_start = self._slots_by_start()

        def fill(at: int, place: int, after: dict[int, int]):
            if at == len(runs):
                yield after
                return
            dim, _, end = runs[at]
            if place == end:
                yield from fill(at + 1, runs[at + 1][1] if at + 1 < len(runs) else 0, after)
                return
            here = [(i, s) for i, s in by_start.get((dim, place), ()) if i not in after and end % self._end(s) == 0]
            for i, s in self._preferred(here):
                yield from fill(at, self._end(s), {**after, i: s} if i != FIXED else after)

        sums = self._sums(state) if self.has_sums else 1
        if not runs and sums == 1:
            return
        for owners in fill(0, runs[0][1] if runs else 0, {}):
            after = tuple(owners.get(i, REPLICATED) for i in range(len(state)))
            if sums > 1:
                yield from (_Edge("permute", each, tile, tile) for each in self._with_sums(after, sums) if each != state)
            elif after != state:
                yield _Edge("permute", after, tile, tile)

    def _with_sums(self, state, sums: int):
        """Yields the state with replicated factors made unreduced, in all ways that make as many partial sums."""
        replicated = [i for i, place in enumerate(state) if place == REPLICATED]
        for count in range(1, len(replicated) + 1):
            for chosen in itertools.combinations(replicated, count):
                if math.prod(self.sizes[i] for i in chosen) == sums:
                    yield tuple(UNREDUCED if i in chosen else place for i, place in enumerate(state))

    def _preferred(self, here):
        if self.exhaustive:
            return here
        return [(i, s) for i, s in here if i == FIXED or self.target[i] == s] or here

    def _runs(self, state) -> list[tuple[int, int, int]]:
        owned = sorted([self.slots[s] for s in state if s >= 0] + self.fixed)
        runs: list[tuple[int, int, int]] = []
        for slot in owned:
            if runs and runs[-1][0] == slot.dim and runs[-1][2] == slot.start:
                runs[-1] = (slot.dim, runs[-1][1], slot.end)
            else:
                runs.append((slot.dim, slot.start, slot.end))
        return runs


def _sum(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(operator.add, a, b))


def _with(state, i: int, slot: int):
    return (*state[:i], slot, *state[i + 1 :])
