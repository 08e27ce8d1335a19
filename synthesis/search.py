# SPDX-License-Identifier: Apache-2.0
"""The least-cost chain: A* over layouts.

**State.** The place of each movable factor, see `digits.py`. **Edges** are the steps of `steps.py` with their received
elements as cost, ties by the number of collectives, then by the elements of the tiles that the steps write: small tiles
first is less memory. With a `Pricing` their modelled time comes before all of these. R2 holds by construction: no edge
leads to a tile above max(source tile, target tile), or above the problem's tile limit.

**Costs** are one number each, time and received elements and collectives and written elements in its bits from the top,
so that sums and comparisons are those of whole numbers (`_Costs`).

**Heuristic.** `cost_to_go.py`; it never exceeds the cost to go (admissible), so A* returns the optimum, and the least
priority in the queue is at any moment a lower bound on every chain that has not been found.

**Pruning** that loses nothing, checked by `exhaustive=True` and by brute force in tests: a factor that owns its target
digit stays there; only factors that are unreduced in the target become so; permutes in a row are one. Unless it matters
who sends to whom, a replicated factor whose target digit is free takes it at once, for nothing. Where neither side has
unreduced factors, there are no edges for them. Where it matters who sends to whom, a permute is priced when its turn
comes; until then it counts as the cheapest one. The bound on what is to go behind an all_to_all is found when its turn comes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import copy
from dataclasses import dataclass
import functools
import heapq
import itertools
import math
import threading
from typing import Literal

from .cost_to_go import CostToGo, Made
from .digits import FIXED, REPLICATED, UNREDUCED, Digits, State
from .layout import Layout
from .pricing import PER_SECOND, Pricing
from .problem import Problem

STEPS_TO_PRICE = 5  # what pricing a collective device by device counts as
LOCAL = ("slice", "to_unreduced")  # steps without traffic
Kind = Literal["slice", "all_gather", "all_to_all", "permute", "reduce_scatter", "all_reduce", "to_unreduced"]
Allows = Callable[[Kind, int], bool]  # whether a step of a kind that moves so many factors may be taken


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


# A step: its kind, the state after it, elements that a device receives, its tile then, the factors that a group is made of,
# whether it is a gather along several dimensions, after which the large tile is copied, a lower bound on what is to go then, and
# what it costs; None if nothing is known that is worth having, or not yet. A plain tuple: there are very many.
_Edge = tuple[Kind, State, int, int, tuple[int, ...], bool, int | None, int | None]
_UNBOUNDED = "unbounded"  # of an entry in the queue: a better bound on what is to go is found when its turn comes


class _Tally(threading.local):
    """How many steps the searches of a thread have considered so far: the work that planning took, the same in every process."""

    edges = 0


tally = _Tally()


class _Spent(Exception):
    """All steps that a search may consider are."""


class SearchLimit(Exception):
    """The search stopped at its limit of steps with neither a chain nor a proof that there is none.

    Attributes:
      least_cost: what any chain costs at least, as `Chain.cost` has it.
      best: the cheapest chain so far, if one was found.
    """

    def __init__(self, least_cost: tuple[int, ...], best: Chain | None):
        super().__init__(f"no chain is known to cost {least_cost}")
        self.least_cost = least_cost
        self.best = best


def cheapest_chain(
    problem: Problem,
    *,
    pricing: Pricing | None = None,
    below: tuple[int, ...] | None = None,
    exhaustive: bool = False,
    max_edges: int = 20_000_000,
    greed: int = 1,
    allows: Allows | None = None,
) -> Chain | None:
    """Returns the cheapest chain that the problem's slots admit, or None if they admit none.

    Args:
      pricing: what steps take on a network; None counts elements alone.
      below: only chains that cost less than this, a cost as `Chain.cost` has it, count.
      exhaustive: without the pruning rules that the module's docstring names.
      max_edges: steps to consider before giving up, also such that leave no room; a few hundred thousand take a second.
      greed: weight of the heuristic; above 1 a chain is found sooner and need not be the cheapest.
      allows: whether a step of a kind that moves so many factors may be taken; None is all of them.
    Raises: SearchLimit after `max_edges` steps.
    """
    return Search(problem, pricing, exhaustive, allows).run(below, max_edges, greed)


class _Costs:
    """Costs as whole numbers: picoseconds, received elements, collectives, written elements, each wide enough for a sum.

    Chains have fewer than 2^8 steps.
    """

    def __init__(self, largest_tile: int):
        width = largest_tile.bit_length() + 10  # an all_reduce receives two tiles
        self.written, self.collectives, self.received = width, width + 10, 2 * width + 10

    def packed(self, picoseconds: int, received: int, collectives: int, written: int = 0) -> int:
        return (picoseconds << self.received) + (received << self.collectives) + (collectives << self.written) + written

    def unpacked(self, cost: int) -> tuple[int, int, int]:
        """Returns (picoseconds, received elements, collectives)."""
        received = (cost & (1 << self.received) - 1) >> self.collectives
        return cost >> self.received, received, (cost & (1 << self.collectives) - 1) >> self.written


class Search:
    """The search for one problem's chains; see `cheapest_chain`.

    Invariant: `best[state]` is the least cost at which `state` was reached so far, `came_from[state]` its last edge;
    `left` is how many steps may still be considered.
    """

    def __init__(self, problem: Problem, pricing: Pricing | None, exhaustive: bool = False, allows: Allows | None = None):
        self.problem = problem
        self.pricing = pricing
        self.exhaustive = exhaustive
        self.homeward = False
        self.allows = allows
        self.left = 0
        self.digits = Digits(problem)
        self.sizes = self.digits.sizes
        self.clash = self.digits.clash
        self.target = self.digits.target
        self.max_tile = self.digits.max_tile
        self.costs = _Costs(self.max_tile)
        self.a_picosecond = self.costs.packed(1, 0, 0) if pricing else 0  # which sums of the same times may be apart, rounded
        self.to_go_of = CostToGo(self.digits, pricing)
        self.to_go: dict[State, int] = {}
        self.coefficients: dict[tuple[Kind, tuple[int, ...]], tuple[float, float]] = {}
        self.steps_cost: dict[tuple, int] = {}
        self.least_steps: dict[tuple[int, int], int] = {}
        self.least_permutes: dict[tuple[float, int], int] = {}
        self.least_behind = _bounds_behind(self.to_go_of, self.costs)
        self.has_free_slices = pricing is None or pricing.has_free_slices
        self.prices_pairs = pricing is not None and not pricing.is_flat
        self.is_regular = pricing is None or all(map(pricing.shares, problem.movable))
        self.first_alike = self._first_alike()
        self.dim_of = [slot.dim for slot in self.digits.slots]
        self.spares = self.digits.spares
        self.spare_masks = [sum(1 << s for s in slots) for slots in self.spares]
        self.first_spares: dict[tuple[int, int], list[int]] = {}
        self.fitting: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}

    def anew(self, homeward: bool) -> Search:
        """Returns a search that knows the bounds of this one, but pays for its prices itself.

        Args:
          homeward: of the moves to digits and of the permutes, only a few, which bring factors to their target digits.
        """
        other = copy.copy(self)
        other.homeward, other.coefficients, other.steps_cost = homeward, {}, {}
        return other

    def least_cost(self) -> tuple[int, ...]:
        """Returns a lower bound on every chain of the problem, as `Chain.cost` has it, without a search."""
        return self._unpacked(self._cost_to_go(self.digits.source))

    def run(self, below: tuple[int, ...] | None, max_edges: int, greed: int = 1) -> Chain | None:
        """Returns what `cheapest_chain` says."""
        self.left = max_edges
        try:
            return self._run(below, greed)
        finally:
            tally.edges += max_edges - self.left

    def _run(self, below: tuple[int, ...] | None, greed: int) -> Chain | None:
        source, target = self.digits.source, self.target
        best = {source: 0}
        came_from: dict[State, tuple[State, Kind]] = {}
        limit = self._limit(below)
        order = itertools.count(1)
        queue = [(greed * self._cost_to_go(source), 0, 0, source, None)]
        to_go_of, costs_of, allows, prices_pairs, push = self.to_go, self.steps_cost, self.allows, self.prices_pairs, heapq.heappush
        expanded = 0
        while queue:
            priority, number, cost, state, unpriced = heapq.heappop(queue)
            if state == target and unpriced is None or priority >= limit - 1 and target in best:
                return self._chain(came_from, best[target], expanded)
            if unpriced is _UNBOUNDED:
                if cost <= best[state]:
                    to_go = to_go_of.get(state)
                    if to_go is None:
                        to_go = self._cost_to_go(state)
                    if cost + to_go < limit:
                        push(queue, (cost + greed * to_go, number, cost, state, None))
                continue
            if unpriced is not None:
                before, edge = unpriced
                if cost >= best.get(state, limit):
                    continue
                self.left -= STEPS_TO_PRICE
                cost += self._priced_permute(before, edge)
                if cost >= best.get(state, limit):
                    continue
                best[state] = cost
                came_from[state] = before, "permute"
                to_go = to_go_of[state]
                push(queue, (cost + greed * to_go, next(order), cost, state, None))
                continue
            if cost > best[state]:
                continue
            expanded += 1
            is_permuted = state in came_from and came_from[state][1] == "permute"
            try:
                for edge in self._edges(state, limit - cost, is_permuted and not self.exhaustive):
                    if edge is None:
                        continue
                    kind, after, received, tile, moved, is_joint, least, price = edge
                    if allows is not None and not allows(kind, len(moved)):
                        continue
                    if price is None:
                        price = costs_of.get((kind, received, tile, is_joint))
                        if price is None:
                            price = self._cost(state, edge)
                    total = cost + price
                    if total >= best.get(after, limit):
                        continue
                    to_go, unbounded = to_go_of.get(after), None
                    if to_go is None:
                        if least is None:
                            to_go = self._cost_to_go(after)
                        else:
                            to_go, unbounded = least, _UNBOUNDED
                    if total + to_go >= limit:
                        continue
                    if prices_pairs and kind == "permute":
                        push(queue, (total + greed * to_go, next(order), total, after, (state, edge)))
                        continue
                    best[after] = total
                    came_from[after] = state, kind
                    if after == target and greed == 1:
                        limit = total + 1
                    push(queue, (total + greed * to_go, next(order), total, after, unbounded))
            except _Spent:
                raise self._stopped(priority, best, came_from, expanded) from None
        return None

    def _spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _Spent

    def _limit(self, below: tuple[int, ...] | None) -> int:
        if below is None:
            return 1 << 4096
        return self.costs.packed(*below) if self.pricing else self.costs.packed(0, *below)

    def _stopped(self, priority: int, best, came_from, expanded: int) -> SearchLimit:
        found = self._chain(came_from, best[self.target], expanded) if self.target in best else None
        return SearchLimit(self._unpacked(priority), found)

    def _unpacked(self, cost: int) -> tuple[int, ...]:
        found = self.costs.unpacked(cost)
        return found if self.pricing else found[1:]

    def _cost_to_go(self, state: State) -> int:
        picoseconds, received, collectives = self.to_go_of(state)
        costs = self.costs
        found = (picoseconds << costs.received) + (received << costs.collectives) + (collectives << costs.written)
        self.to_go[state] = found
        return found

    # Costs of edges

    def _cost(self, state: State, edge: _Edge) -> int:
        kind, after, received, tile, moved, is_joint, _, _ = edge
        if kind in LOCAL:
            return tile
        if self.prices_pairs and kind == "permute":
            return self.costs.packed(self._least_permute(state, after, tile), received, 1, tile)
        if self.prices_pairs or kind == "all_reduce":
            key = kind, moved, received, tile, is_joint
        else:
            key = kind, received, tile, is_joint  # which say how many there are in a group: all that matters
        found = self.steps_cost.get(key)
        if found is None:
            time = self._picoseconds(state, edge) if self.pricing else 0
            found = self.steps_cost[key] = self.costs.packed(time, received, 1, tile)
        return found

    def _slice(self, tile: int) -> int:
        """Returns the cost of a slice that leaves such a tile; slices in a row are one step, and cost less than their sum."""
        return tile if self.has_free_slices else self.costs.packed(self.pricing.slice_picoseconds(tile), 0, 0, tile)

    def _picoseconds(self, state: State, edge: _Edge) -> int:
        kind, _, _, after_tile, moved, is_joint, _, _ = edge
        key = kind, moved
        if key not in self.coefficients:
            factors = tuple([self.problem.movable[i] for i in moved])
            if self.prices_pairs and not self.is_regular:
                self._spend(STEPS_TO_PRICE)
            self.coefficients[key] = self.pricing.coefficients(kind, factors)
        tile = self.digits.tile(state) if kind in ("all_gather", "reduce_scatter") else after_tile
        found = self.pricing.whole(*self.coefficients[key], tile)
        if is_joint:
            found += math.ceil(self.pricing.relayout_seconds(after_tile) * PER_SECOND)
        return found

    def _least_permute(self, before: State, after: State, tile: int) -> int:
        """Returns the picoseconds that a permute takes at least."""
        hops_s = self.to_go_of.hops_s
        hop_s = max([hop_s for a, b, hop_s in zip(before, after, hops_s) if a != b and a >= 0], default=0.0)
        key = hop_s, tile
        if key not in self.least_permutes:
            self.least_permutes[key] = self.pricing.least_picoseconds_of_one(1, tile, hop_s)
        return self.least_permutes[key]

    def _priced_permute(self, before: State, edge: _Edge) -> int:
        """Returns by how much a permute costs more than it does at least."""
        _, after, _, tile, _, _, _, _ = edge
        time = self.pricing.permute_picoseconds(self.digits.layout(before), self.digits.layout(after), tile)
        return self.costs.packed(time - self._least_permute(before, after, tile), 0, 0)

    def _chain(self, came_from, cost: int, expanded: int) -> Chain:
        states, kinds = [self.target], []
        while states[-1] != self.digits.source:
            state, kind = came_from[states[-1]]
            states.append(state)
            kinds.append(kind)
        layouts = tuple(self.digits.layout(state) for state in reversed(states))
        return Chain(layouts, tuple(reversed(kinds)), self._unpacked(cost), expanded)

    # Edges

    def _edges(self, state: State, room: int, is_permuted: bool) -> Iterator[_Edge | None]:
        """Returns every step that is worth considering, None for ways that leave no room; each counts when it is considered.

        Args:
          room: what the rest of the chain has to stay below.
        Raises: _Spent, on the way, if no more may be considered.
        """
        return itertools.chain.from_iterable(map(self._counted, self._edges_by_kind(state, room, is_permuted)))

    def _counted(self, edges: Iterable[_Edge | None]) -> Iterable[_Edge | None]:
        """Returns the edges; a list that may be considered as a whole, with nothing else to pay for on the way, is counted at once."""
        if not isinstance(edges, list) or len(edges) > self.left or not self.is_regular:
            return self._counted_one_by_one(edges)
        self.left -= len(edges)
        return edges

    def _counted_one_by_one(self, edges: Iterable[_Edge | None]) -> Iterator[_Edge | None]:
        for edge in edges:
            self._spend(1)
            yield edge

    def _edges_by_kind(self, state: State, room: int, is_permuted: bool) -> Iterator[Iterable[_Edge | None]]:
        """Yields the edges of one kind after the other, when those before have been considered."""
        blocked = 0
        for slot in state:
            if slot >= 0:
                blocked |= self.clash[slot]
        free = [[s for s in slots if not blocked >> s & 1] for slots in self.digits.candidates]
        tile = self.digits.tile(state)
        if not self.exhaustive and not self.prices_pairs:
            for i, goal in enumerate(self.target):
                if state[i] == REPLICATED and goal != REPLICATED and goal in free[i]:
                    left = tile // self.sizes[i]
                    yield [("slice", _with(state, i, goal), 0, left, (), False, None, self._slice(left))]
                    return
        yield self._slices(state, free, blocked, tile)
        yield self._gathers(state, tile)
        yield self._all_to_alls(state, free, blocked, tile, room)
        if not is_permuted:
            yield self._permutes(state, tile, room)
        if self.digits.has_sums:
            yield self._reductions(state, free, blocked, tile, room)
            yield self._to_unreduced(state, tile)

    def _moves_away(self, state: State, i: int) -> bool:
        return state[i] >= 0 and (self.exhaustive or state[i] != self.target[i])

    def _spares(self, i: int, blocked: int) -> list[int]:
        """Returns the first free spare slot of a factor in each dimension that has one."""
        mask = self.spare_masks[i]  # who has the same spares has the same mask
        key = mask, blocked & mask
        found = self.first_spares.get(key)
        if found is None:
            free = {}
            for s in self.spares[i]:
                if not blocked >> s & 1:
                    free.setdefault(self.dim_of[s], s)
            found = self.first_spares[key] = list(free.values())
        return found

    def _slices(self, state: State, free, blocked: int, tile: int) -> list[_Edge]:
        found: list[_Edge] = []
        for i, slot in enumerate(state):
            if slot == REPLICATED and (self.first_alike[i] == i or state[self.first_alike[i]] != REPLICATED):
                left = tile // self.sizes[i]
                for goal in (*free[i], *self._spares(i, blocked)):
                    found.append(("slice", _with(state, i, goal), 0, left, (), False, None, self._slice(left)))
        return found

    def _first_alike(self) -> list[int]:
        """Returns per factor the one before it in its class: replicated on both sides, of equal size and reach; else itself."""
        last: dict[tuple, int] = {}
        found = []
        for i, factor in enumerate(self.problem.movable):
            found.append(i)
            if self.exhaustive or self.digits.source[i] != REPLICATED or self.target[i] != REPLICATED:
                continue
            reach = () if self.pricing is None or self.pricing.is_flat else self.pricing.shares(factor) or (i,)
            found[i] = last.get((factor.size, reach), i)
            last[factor.size, reach] = i
        return found

    def _gathers(self, state: State, tile: int) -> list[_Edge]:
        """Gathers along one dimension each, or by time along several: one start more against a copy of the large tile."""
        owned = [i for i in range(len(state)) if self._moves_away(state, i)]
        dims = {i: self.dim_of[state[i]] for i in owned}
        if self.pricing:
            return self._gathers_of(owned, dims, state, tile)
        by_dim = (self._gathers_of([i for i in owned if dims[i] == dim], dims, state, tile) for dim in sorted(set(dims.values())))
        return list(itertools.chain.from_iterable(by_dim))

    def _gathers_of(self, owned: list[int], dims: dict[int, int], state: State, tile: int) -> list[_Edge]:
        found: list[_Edge] = []
        most, sizes = self.max_tile // tile, self.sizes
        for count in range(1, len(owned) + 1):
            for chosen in itertools.combinations(owned, count):
                n = 1
                for i in chosen:
                    n *= sizes[i]
                if n > most:
                    continue
                after, is_joint = list(state), False
                for i in chosen:
                    after[i] = REPLICATED
                    is_joint = is_joint or dims[i] != dims[chosen[0]]
                found.append(("all_gather", tuple(after), tile * (n - 1), tile * n, chosen, is_joint, None, None))
        return found

    def _all_to_alls(self, state: State, free, blocked: int, tile: int, room: int) -> list[_Edge | None]:
        is_spare, spares = self.digits.is_spare, self.spares
        owned = [
            i for i in range(len(state)) if self._moves_away(state, i) and (free[i] or spares[i] and not is_spare[state[i]])
        ]
        if self.homeward:
            return self._moves_home(owned, state, free, tile)
        return self._moves_to_digits("all_to_all", owned, state, free, blocked, tile, room)

    def _moves_home(self, factors: list[int], state: State, free, tile: int) -> list[_Edge]:
        """Returns the all_to_all that brings all factors home that may go there, and those with one factor moved elsewhere."""
        home = {i: self.target[i] for i in factors if self.target[i] in free[i]}
        ways = [home]
        for i in factors:
            for s in free[i]:
                if s != self.target[i]:
                    ways.append({**{j: goal for j, goal in home.items() if not self.clash[s] >> goal & 1}, i: s})
        found: list[_Edge] = []
        for moves in filter(None, ways):
            n = math.prod([self.sizes[i] for i in moves])
            after = tuple([moves.get(i, slot) for i, slot in enumerate(state)])
            found.append(("all_to_all", after, tile // n * (n - 1), tile, tuple(sorted(moves)), False, None, None))
        return found

    def _moves_to_digits(
        self, kind: Kind, factors: list[int], state: State, free, blocked: int, tile: int, room: int
    ) -> list[_Edge | None]:
        """Returns a collective for each way to give free digits to some of the factors.

        A branch, None in the list, ends where the step and the collective that has to follow leave no room: each factor is in
        the group, or divides what a device has of its target tile (`divisor`, see `CostToGo`).
        """
        clash, common, target, hops_s = self.clash, self.to_go_of.common, self.target, self.to_go_of.hops_s
        found: list[_Edge | None] = []
        has_bound, slack = not self.digits.has_sums, self.a_picosecond
        groups: dict[int, tuple[int, int, int, int | None]] = {}
        is_spare, behinds, last, most = self.digits.is_spare, self.least_behind, len(factors), self.left
        divisor, hop_s = 1, 0.0
        for i, slot in enumerate(state):
            if slot >= 0 and slot != target[i] and i not in factors:
                divisor *= common[i][slot]
                hop_s = max(hop_s, hops_s[i])
        rows = []
        for i in factors:
            slot = state[i]
            has_spares = bool(self.spares[i]) and (slot < 0 or not is_spare[slot])
            rows.append((i, slot, target[i], common[i], self.sizes[i], hops_s[i], free[i], has_spares))

        def group_of(n: int, moved: tuple[int, ...]) -> tuple[int, int, int, int | None]:
            """Returns what a step in groups of n costs at least, the elements received, the tile then, what it costs if that is known."""
            received, kept = tile // n * (n - 1), tile if kind == "all_to_all" else tile // n
            edge = kind, state, received, kept, moved, False, None, None
            groups[n] = found = self._least_step(n, tile), received, kept, None if self.prices_pairs else self._cost(state, edge)
            return found

        def choose(
            at: int, after: list[int], taken: int, n: int, step: int, moved: tuple[int, ...], divisor: int, hop_s: float, rest: int
        ) -> None:
            if len(found) > most:
                return  # more than may be considered
            i, slot, goal, row, size, far_s, slots, has_spares = rows[at]
            if far_s < hop_s:
                far_s = hop_s
            behind = behinds[far_s]
            at += 1
            if slot >= 0 and slot != goal:
                left, further_s = divisor * row[slot], far_s
                further = behind[left]
            else:
                left, further_s, further = divisor, hop_s, rest
            if step + further >= room:
                found.append(None)
            elif at < last:
                choose(at, after, taken, n, step, moved, left, further_s, further)
            elif n > 1:
                _, received, kept, price = groups[n]
                found.append((kind, tuple(after), received, kept, moved, False, further - slack if has_bound else None, price))
            if has_spares:
                slots = slots + self._spares(i, taken)
            if not slots:
                return
            n *= size
            moved = (*moved, i)
            step, received, kept, price = groups.get(n) or group_of(n, moved)
            for s in slots:
                if taken >> s & 1:
                    continue
                if s == goal:
                    left, further_s, further = divisor, hop_s, rest
                else:
                    left, further_s = divisor * row[s], far_s
                    further = behind[left]
                if step + further >= room:
                    found.append(None)
                    continue
                after[i] = s
                if at < last:
                    choose(at, after, taken | clash[s], n, step, moved, left, further_s, further)
                else:
                    found.append((kind, tuple(after), received, kept, moved, False, further - slack if has_bound else None, price))
            after[i] = slot

        rest = behinds[hop_s][divisor]
        if rest >= room:
            found.append(None)
        elif factors:
            choose(0, list(state), blocked, 1, 0, (), divisor, hop_s, rest)
        del choose  # which knows itself: nothing is left to the collector of cycles
        return found

    def _least_step(self, n: int, tile: int) -> int:
        """Returns what an all_to_all or a reduce_scatter in groups of n costs at least."""
        found = self.least_steps.get((n, tile))
        if found is None:
            received = tile // n * (n - 1)
            time = self.pricing.least_picoseconds_of_one(n, received) if self.pricing else 0
            found = self.least_steps[n, tile] = self.costs.packed(time, received, 1)
        return found

    def _reductions(self, state: State, free, blocked: int, tile: int, room: int):
        unreduced = [i for i, place in enumerate(state) if place == UNREDUCED]
        yield from self._moves_to_digits("reduce_scatter", unreduced, state, free, blocked, tile, room)
        for count in range(1, len(unreduced) + 1):
            for chosen in itertools.combinations(unreduced, count):
                n = math.prod(self.sizes[i] for i in chosen)
                after = tuple(REPLICATED if i in chosen else place for i, place in enumerate(state))
                yield "all_reduce", after, -(-2 * tile * (n - 1) // n), tile, chosen, False, None, None

    def _to_unreduced(self, state: State, tile: int):
        for i, place in enumerate(state):
            if place == UNREDUCED or self.target[i] != UNREDUCED and not self.exhaustive:
                continue
            if place == REPLICATED or tile * self.sizes[i] <= self.max_tile:
                grown = tile if place == REPLICATED else tile * self.sizes[i]
                yield "to_unreduced", _with(state, i, UNREDUCED), 0, grown, (), False, None, None

    def _permutes(self, state: State, tile: int, room: int) -> Iterator[_Edge]:
        """All ways to fill the owned runs with factors, target owners first where their digit fits."""
        sums = self.digits.sums(state) if self.digits.has_sums else 1
        room -= self._cost(state, ("permute", state, tile, tile, (), False, None, None))
        if self._least_behind_permute(state) >= room:
            return
        runs = self.digits.runs(state)
        if not runs and sums == 1:
            return
        for after in self._fill(state, runs, room):
            if sums > 1:
                yield from (("permute", each, tile, tile, (), False, None, None) for each in self._with_sums(after, sums) if each != state)
            elif after != state:
                yield "permute", after, tile, tile, (), False, None, None

    def _least_behind_permute(self, state: State) -> int:
        """Returns what is left at least whatever permute comes now: what has to be vacated still is."""
        vacated = 1 if self.digits.has_sums else self.to_go_of.vacated(state)
        if vacated == 1:
            return 0
        time = math.floor(self.pricing.least_latency_s(vacated, vacated, 0.0, 1) * PER_SECOND) if self.pricing else 0
        return self.costs.packed(time, 1, 1)

    def _fill(self, owned: State, runs, room: int) -> Iterator[State]:
        """Yields the states in which factors fill the runs; see `_moves_to_digits` for what leaves no room."""
        target, common, hops_s, behinds = self.target, self.to_go_of.common, self.to_go_of.hops_s, self.least_behind
        nobody = (REPLICATED,) * len(owned)
        ways = [(0, runs[0][1] if runs else 0, nobody, 1, 0.0)]  # a run, a place in it, who owns digits before that, `divisor`, `hop_s`
        while ways:
            at, place, owners, divisor, hop_s = ways.pop()
            self.left -= 1
            if self.left < 0:
                raise _Spent
            if at == len(runs):
                yield owners
                continue
            dim, _, end = runs[at]
            if place == end:
                start = runs[at + 1][1] if at + 1 < len(runs) else 0
                ways.append((at + 1, start, owners, divisor, hop_s))
                continue
            for i, s, stop in self._preferred(dim, place, end, owners, owned):
                if i == FIXED:
                    ways.append((at, stop, owners, divisor, hop_s))
                    continue
                left, far_s = divisor, hop_s
                if target[i] != s:
                    left *= common[i][s]
                    if far_s < hops_s[i]:
                        far_s = hops_s[i]
                if behinds[far_s][left] < room:
                    ways.append((at, stop, (*owners[:i], s, *owners[i + 1 :]), left, far_s))

    def _preferred(self, dim: int, place: int, end: int, owners: State, owned: State) -> list[tuple[int, int, int]]:
        """Returns the factors to try in a place, the last one first: the target's owner if it fits; homeward, else one that is there already."""
        found = self.fitting.get((dim, place, end))
        if found is None:
            found = self.fitting[dim, place, end] = self._fitting(dim, place, end)
        here, at_home = found
        if not self.exhaustive:
            home = [each for each in at_home if each[0] == FIXED or owners[each[0]] == REPLICATED]
            if home:
                return home
        here = [each for each in here if each[0] == FIXED or owners[each[0]] == REPLICATED]
        if self.exhaustive or not self.homeward:
            return here
        return [each for each in here if owned[each[0]] == each[1]] or here[-1:]

    def _fitting(self, dim: int, place: int, end: int) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """Returns what `Digits.by_start` has at a place, as far as it fits before the end of a run, the last one first; and what is at home."""
        here = [each for each in reversed(self.digits.by_start.get((dim, place), ())) if end % each[2] == 0]
        return here, [each for each in here if each[0] == FIXED or self.target[each[0]] == each[1]]

    def _with_sums(self, state: State, sums: int):
        """Yields the state with replicated factors made unreduced, in all ways that make as many partial sums."""
        replicated = [i for i, place in enumerate(state) if place == REPLICATED]
        for count in range(1, len(replicated) + 1):
            for chosen in itertools.combinations(replicated, count):
                if math.prod(self.sizes[i] for i in chosen) == sums:
                    yield tuple(UNREDUCED if i in chosen else place for i, place in enumerate(state))


def _bounds_behind(to_go_of: CostToGo, costs: _Costs) -> Made:
    """Returns by hop_s, by divisor what is left at least where devices hold 1/divisor of their target tiles, and a given step has to come."""

    def bound(hop_s: float, divisor: int) -> int:
        received = 0 if to_go_of.digits.has_sums else to_go_of.lacks(divisor)
        time = to_go_of.pricing.least_picoseconds_of_one(1, received, hop_s) if to_go_of.pricing and received else 0
        return costs.packed(time, received, int(received > 0))

    return Made(lambda hop_s: Made(functools.partial(bound, hop_s)))


def _with(state: State, i: int, slot: int) -> State:
    return (*state[:i], slot, *state[i + 1 :])
