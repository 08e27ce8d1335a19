# SPDX-License-Identifier: Apache-2.0
"""The least-cost chain: A* over layouts.

**State.** The place of each movable factor, see `digits.py`. **Edges** are the steps of `steps.py` with their received
elements as cost, ties by the number of collectives, then by the elements of the tiles that the steps write: small tiles
first is less memory. With a `Pricing` their modelled time comes before all of these. R2 holds by construction: no edge
leads to a tile above max(source tile, target tile), or above the problem's tile limit.

**Costs** are whole numbers. The bits of a cost hold, from the top, time, received elements, collectives and written
elements, so that costs are added and compared as whole numbers (`_Costs`).

**Heuristic.** `cost_to_go.py`; it never exceeds the cost to go (admissible), so A* returns the optimum, and the least
priority in the queue is at any moment a lower bound on every chain that has not been found.

**Pruning** loses no cheapest cost; tests check it against `exhaustive=True` and brute force. A factor that owns its
target digit stays there; only factors that are unreduced in the target become unreduced; permutes in a row are one.
Unless it matters which devices send to which, a replicated factor whose target digit is free takes it at once, for
nothing. If neither side has unreduced factors, there are no edges for them. If it matters which devices send to which,
a permute is priced when its turn comes; until then it counts as the cheapest permute. The bound on the cost to go
behind an all_to_all is found when its turn comes, too.
"""

from __future__ import annotations

import copy
import functools
import heapq
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

from ..layouts.refinement import Problem
from ..network.pricing import PER_SECOND, Pricing
from .cost_to_go import CostToGo, Made
from .digits import FIXED, REPLICATED, UNREDUCED, Digits, State
from .found import Found, Kind, chain_through, with_fewest_copies

STEPS_TO_PRICE = 5  # pricing a collective device by device counts as so many steps
LOCAL = ("slice", "to_unreduced")  # steps without traffic
Allows = Callable[[Kind, int], bool]  # whether a step of a kind that moves so many factors may be taken


# A step: its kind, the state after it, the elements that a device receives, its tile then, the factors of a group,
# whether it is a gather along several dimensions (the large tile is copied then), a lower bound on the cost to go, and
# its cost. The last two are None while they are not known. It is a plain tuple, because there are very many.
_Edge = tuple[Kind, State, int, int, tuple[int, ...], bool, int | None, int | None]
_UNBOUNDED: Final = True  # marks an entry of the queue: a better bound on its cost to go is found when its turn comes
_Owner = tuple[int, int, int]  # a factor, its slot, and where the slot ends; see `Digits.by_start`
_Entry = tuple[int, int, int, State, Literal[True] | tuple[State, _Edge] | None]  # of the queue, see `_Run`


class _Tally(threading.local):
    """The number of steps that a thread's searches have considered: the work of planning, equal in every process."""

    edges = 0


tally = _Tally()


class _Spent(Exception):
    """The search has considered all the steps that it may."""


class SearchLimit(Exception):
    """The search stopped at its limit of steps before it had proved a chain cheapest, or proved that there is none.

    Attributes:
      least_cost: a lower bound on the cost of any chain, in the unit of `Found.cost`.
      best: the cheapest chain so far, if one was found.
    """

    def __init__(self, least_cost: tuple[int, ...], best: Found | None):
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
) -> Found | None:
    """Returns the cheapest chain that the problem's slots admit, or None if they admit none.

    Args:
      pricing: the prices of steps on a network; None means that only elements are counted.
      below: only chains that cost less than this, a cost as `Found.cost` has it, count.
      exhaustive: without the pruning rules that the module's docstring names.
      max_edges: steps to consider before giving up, also such that leave no room; a few hundred thousand take a second.
      greed: weight of the heuristic; above 1 a chain is found sooner and need not be the cheapest.
      allows: whether a step of a kind that moves so many factors may be taken; None is all of them.
    Raises: SearchLimit after `max_edges` steps.
    """
    return Search(problem, pricing, exhaustive, allows).run(below, max_edges, greed)


class _Costs:
    """Costs as whole numbers: picoseconds, received elements, collectives and written elements, from the top bits.

    Each field is wide enough for the sum over a chain, which has fewer than 2^8 steps.
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

    Invariant: `left` is how many steps the run under way may still consider. All other state is computed once and holds
    for every run: `to_go[state]` is the bound on the cost to go from there, and `steps_cost`, `coefficients`,
    `least_steps` and `least_permutes` are prices. `_Run` has the state of one run, and `_Moves` that of one state's
    all_to_alls.

    `pricing` is None if only elements count. The branches on it are here and not in an objective, because an
    objective judges whole plans with their copies, and the search adds up the prices of edges, which have no copies.
    `pricing_of_pairs` is the pricing where it matters which devices send to which, else None.
    """

    def __init__(
        self, problem: Problem, pricing: Pricing | None, exhaustive: bool = False, allows: Allows | None = None
    ):
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
        self.a_picosecond = (
            self.costs.packed(1, 0, 0) if pricing else 0
        )  # sums of the same times may differ by so much, once rounded
        self.to_go_of = CostToGo(self.digits, pricing)
        self.to_go: dict[State, int] = {}
        self.coefficients: dict[tuple[Kind, tuple[int, ...]], tuple[float, float]] = {}
        self.messages: dict[tuple[Kind, tuple[int, ...]], int] = {}  # least picoseconds of a step
        self.steps_cost: dict[tuple, int] = {}
        self.least_steps: dict[tuple[int, int], int] = {}
        self.least_permutes: dict[tuple[float, int], int] = {}
        self.least_behind = _bounds_behind(self.to_go_of, self.costs)
        self.has_free_slices = pricing is None or pricing.has_free_slices
        self.pricing_of_pairs = None if pricing is None or pricing.is_flat else pricing
        self.is_regular = pricing is None or all(map(pricing.shares, problem.movable))
        self.first_alike = self._first_alike()
        self.dim_of = [slot.dim for slot in self.digits.slots]
        self.spares = self.digits.spares
        self.spare_masks = [sum(1 << s for s in slots) for slots in self.spares]
        self.first_spares: dict[tuple[int, int], list[int]] = {}
        self.fitting: dict[tuple[int, int, int], tuple[list[_Owner], list[_Owner]]] = {}
        self.ways_of_sums: dict[tuple[tuple[int, ...], int], list[tuple[int, ...]]] = {}

    def anew(self, homeward: bool) -> Search:
        """Returns a search that shares the bounds of this one, but pays for its prices itself.

        Args:
          homeward: of the moves to digits and of the permutes, only a few, which bring factors to their target digits.
        """
        other = copy.copy(self)
        other.homeward, other.coefficients, other.steps_cost = homeward, {}, {}
        return other

    def least_cost(self) -> tuple[int, ...]:
        """Returns a lower bound on every chain of the problem, as `Found.cost` has it, without a search."""
        return self._unpacked(self._cost_to_go(self.digits.source))

    def run(self, below: tuple[int, ...] | None, max_edges: int, greed: int = 1) -> Found | None:
        """Returns the cheapest chain, or None; see `cheapest_chain`."""
        self.left = max_edges
        try:
            return _Run(self, self._limit(below), greed).chain()
        finally:
            tally.edges += max_edges - self.left

    def _spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise _Spent

    def _limit(self, below: tuple[int, ...] | None) -> int:
        if below is None:
            return 1 << 4096
        return self.costs.packed(*below) if self.pricing else self.costs.packed(0, *below)

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
        pairs = self.pricing_of_pairs
        if pairs and kind == "permute":
            return self.costs.packed(self._least_permute(pairs, state, after, tile), received, 1, tile)
        if pairs or kind == "all_reduce":
            key = kind, moved, received, tile, is_joint
        else:
            key = kind, received, tile, is_joint  # these give the size of a group, which is all that matters
        found = self.steps_cost.get(key)
        if found is None:
            time = self._picoseconds(self.pricing, state, edge) if self.pricing else 0
            found = self.steps_cost[key] = self.costs.packed(time, received, 1, tile)
        return found

    def _slice(self, tile: int) -> int:
        """Returns the cost of a slice after which a device has a tile of this size.

        Slices in a row are one step, which costs less than the sum of theirs.
        """
        if self.has_free_slices or self.pricing is None:
            return tile
        return self.costs.packed(self.pricing.slice_picoseconds(tile), 0, 0, tile)

    def _picoseconds(self, pricing: Pricing, state: State, edge: _Edge) -> int:
        kind, _, _, after_tile, moved, is_joint, _, _ = edge
        key = kind, moved
        if key not in self.coefficients:
            factors = tuple([self.problem.movable[i] for i in moved])
            if self.pricing_of_pairs and not self.is_regular:
                self._spend(STEPS_TO_PRICE)
            self.coefficients[key] = pricing.coefficients(kind, factors)
            self.messages[key] = pricing.messages_picoseconds(kind, factors)
        tile = self.digits.tile(state) if kind in ("all_gather", "reduce_scatter") else after_tile
        found = max(pricing.whole(*self.coefficients[key], tile), self.messages[key])
        if is_joint:
            found += math.ceil(pricing.relayout_seconds(after_tile) * PER_SECOND)
        return found

    def _least_permute(self, pricing: Pricing, before: State, after: State, tile: int) -> int:
        """Returns a lower bound on the picoseconds of a permute."""
        hops_s = self.to_go_of.hops_s
        hop_s = max([hop_s for a, b, hop_s in zip(before, after, hops_s) if a != b and a >= 0], default=0.0)
        key = hop_s, tile
        if key not in self.least_permutes:
            self.least_permutes[key] = pricing.least_picoseconds_of_one(1, tile, hop_s)
        return self.least_permutes[key]

    def _priced_permute(self, before: State, edge: _Edge) -> int:
        """Returns the cost of a permute beyond its lower bound."""
        pricing, (_, after, _, tile, _, _, _, _) = self.pricing_of_pairs, edge
        assert pricing is not None  # else no permute waits for its price
        time = pricing.permute_picoseconds(self.digits.layout(before), self.digits.layout(after), tile)
        return self.costs.packed(time - self._least_permute(pricing, before, after, tile), 0, 0)

    def _found(self, came_from, cost: int) -> Found:
        states, kinds = [self.target], []
        while states[-1] != self.digits.source:
            state, kind = came_from[states[-1]]
            states.append(state)
            kinds.append(kind)
        layouts = [self.digits.layout(state) for state in reversed(states)]
        chain = with_fewest_copies(chain_through(layouts, kinds[::-1]), self.pricing_of_pairs)
        return Found(self.problem, chain, self._unpacked(cost))

    # Edges

    def _edges(self, state: State, room: int, is_permuted: bool) -> Iterator[_Edge | None]:
        """Returns every step that is worth considering, None for ways without room; each counts when it is considered.

        Args:
          room: the cost of the rest of the chain has to stay below this.
        Raises: _Spent, on the way, if no more may be considered.
        """
        edges = itertools.chain.from_iterable(map(self._counted, self._edges_by_kind(state, room, is_permuted)))
        allows = self.allows
        if allows is None:
            return edges
        return (edge for edge in edges if edge is None or allows(edge[0], len(edge[4])))

    def _counted(self, edges: Iterable[_Edge | None]) -> Iterable[_Edge | None]:
        """Returns the edges, and counts them: a list at once if the budget has room for it, others one by one.

        A list is counted one by one, too, if there are prices to pay for on the way.
        """
        if not isinstance(edges, list) or len(edges) > self.left or not self.is_regular:
            return self._counted_one_by_one(edges)
        self.left -= len(edges)
        return edges

    def _counted_one_by_one(self, edges: Iterable[_Edge | None]) -> Iterator[_Edge | None]:
        for edge in edges:
            self._spend(1)
            yield edge

    def _edges_by_kind(self, state: State, room: int, is_permuted: bool) -> Iterator[Iterable[_Edge | None]]:
        """Yields the edges kind by kind; a kind is made when the edges before it have been considered."""
        blocked = 0
        for slot in state:
            if slot >= 0:
                blocked |= self.clash[slot]
        free = [[s for s in slots if not blocked >> s & 1] for slots in self.digits.candidates]
        tile = self.digits.tile(state)
        if not self.exhaustive and not self.pricing_of_pairs:
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
        mask = self.spare_masks[i]  # factors with the same spares have the same mask
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
        """Returns for each factor the factor before it in its class, or itself if there is none.

        The factors of a class are replicated on both sides, and have the same size and reach.
        """
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
        """Returns the gathers along one dimension each; by time, also those along several dimensions.

        A gather along several dimensions saves the start of a collective, and copies the large tile.
        """
        owned = [i for i in range(len(state)) if self._moves_away(state, i)]
        dims = {i: self.dim_of[state[i]] for i in owned}
        if self.pricing:
            return self._gathers_of(owned, dims, state, tile)
        by_dim = (
            self._gathers_of([i for i in owned if dims[i] == dim], dims, state, tile)
            for dim in sorted(set(dims.values()))
        )
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
            i
            for i in range(len(state))
            if self._moves_away(state, i) and (free[i] or spares[i] and not is_spare[state[i]])
        ]
        if self.homeward:
            return self._moves_home(owned, state, free, tile)
        return self._moves_to_digits("all_to_all", owned, state, free, blocked, tile, room)

    def _moves_home(self, factors: list[int], state: State, free, tile: int) -> list[_Edge | None]:
        """Returns the all_to_all that brings home all factors it can, and those that move one factor elsewhere."""
        home = {i: self.target[i] for i in factors if self.target[i] in free[i]}
        ways = [home]
        for i in factors:
            for s in free[i]:
                if s != self.target[i]:
                    ways.append({**{j: goal for j, goal in home.items() if not self.clash[s] >> goal & 1}, i: s})
        found: list[_Edge | None] = []
        for moves in filter(None, ways):
            n = math.prod([self.sizes[i] for i in moves])
            after = tuple([moves.get(i, slot) for i, slot in enumerate(state)])
            found.append(("all_to_all", after, tile // n * (n - 1), tile, tuple(sorted(moves)), False, None, None))
        return found

    def _moves_to_digits(
        self, kind: Kind, factors: list[int], state: State, free, blocked: int, tile: int, room: int
    ) -> list[_Edge | None]:
        """Returns a collective for each way to give free digits to some of the factors, None for ways without room."""
        return _Moves(self, kind, state, tile, room).of(factors, free, blocked)

    def _least_step(self, n: int, tile: int) -> int:
        """Returns a lower bound on the cost of an all_to_all or a reduce_scatter in groups of n."""
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
        """Yields the permutes: all ways to fill the owned runs, with target owners first if their digits fit."""
        sums = self.digits.sums(state) if self.digits.has_sums else 1
        room -= self._cost(state, ("permute", state, tile, tile, (), False, None, None))
        if self._least_behind_permute(state) >= room:
            return
        runs = self.digits.runs(state)
        if not runs and sums == 1:
            return
        for after in self._fill(state, runs, room):
            if sums > 1:
                for each in self._with_sums(after, sums):
                    if each != state:
                        yield "permute", each, tile, tile, (), False, None, None
            elif after != state:
                yield "permute", after, tile, tile, (), False, None, None

    def _least_behind_permute(self, state: State) -> int:
        """Returns a lower bound on the cost behind any permute from this state: a permute vacates no digit."""
        vacated = 1 if self.digits.has_sums else self.to_go_of.vacated(state)
        if vacated == 1:
            return 0
        time = math.floor(self.pricing.least_latency_s(vacated, vacated, 0.0, 1) * PER_SECOND) if self.pricing else 0
        return self.costs.packed(time, 1, 1)

    def _fill(self, owned: State, runs, room: int) -> Iterator[State]:
        """Yields the states in which factors fill the runs; `_Moves` explains which ways leave no room."""
        target, common, hops_s, behinds = self.target, self.to_go_of.common, self.to_go_of.hops_s, self.least_behind
        nobody = (REPLICATED,) * len(owned)
        # a run, a place in it, the owners of digits before that place, `divisor`, `hop_s`
        ways: list[tuple[int, int, State, int, float]] = [(0, runs[0][1] if runs else 0, nobody, 1, 0.0)]
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

    def _preferred(self, dim: int, place: int, end: int, owners: State, owned: State) -> list[_Owner]:
        """Returns the factors to try in a place, the last one first.

        If the target's owner fits, it is the only one, unless the search is exhaustive. Otherwise a homeward search
        tries the factors that are there already, or just one.
        """
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

    def _fitting(self, dim: int, place: int, end: int) -> tuple[list[_Owner], list[_Owner]]:
        """Returns the entries of `Digits.by_start` at a place that fit into a run, last one first; those at home."""
        here = [each for each in reversed(self.digits.by_start.get((dim, place), ())) if end % each[2] == 0]
        return here, [each for each in here if each[0] == FIXED or self.target[each[0]] == each[1]]

    def _with_sums(self, state: State, sums: int):
        """Yields the state with replicated factors made unreduced, in all ways that give `sums` partial sums."""
        replicated = tuple([i for i, place in enumerate(state) if place == REPLICATED])
        ways = self.ways_of_sums.get((replicated, sums))
        if ways is None:
            ways = self.ways_of_sums[replicated, sums] = self._ways_of_sums(replicated, sums)
        for chosen in ways:
            after = list(state)
            for i in chosen:
                after[i] = UNREDUCED
            yield tuple(after)

    def _ways_of_sums(self, factors: tuple[int, ...], sums: int) -> list[tuple[int, ...]]:
        """Returns the sets of factors whose sizes have the product `sums`."""
        sets = itertools.chain.from_iterable(
            itertools.combinations(factors, count) for count in range(1, len(factors) + 1)
        )
        return [chosen for chosen in sets if math.prod([self.sizes[i] for i in chosen]) == sums]


class _Run:
    """One run of a search: the queue, and the cheapest way so far to each state that was reached.

    Invariant: `best[state]` is the least cost at which `state` was reached so far, `came_from[state]` the last edge on
    that way. Each entry of `queue` is (priority, number, cost, state, open): a way to `state` at `cost`, where
    `priority` is at most the cost of each chain that goes on from there, if `greed` is 1. `number` puts entries of
    equal priority into the order in which they came. `open` is None for a way that is known; `_UNBOUNDED` if a better
    bound on the cost to go is still to be found; (state before, edge) if a permute is still to be priced. All chains
    that count cost less than `limit`.
    """

    def __init__(self, search: Search, limit: int, greed: int):
        self.search = search
        self.limit = limit
        self.greed = greed
        source = search.digits.source
        self.best = {source: 0}
        self.came_from: dict[State, tuple[State, Kind]] = {}
        self.order = itertools.count(1)
        self.queue: list[_Entry] = [(greed * search._cost_to_go(source), 0, 0, source, None)]

    def chain(self) -> Found | None:
        """Returns the first chain that no entry of the queue can improve; None if there is no chain below the limit.

        Raises: SearchLimit if the search has spent its steps before.
        """
        target, best = self.search.target, self.best
        while self.queue:
            priority, number, cost, state, open_ = heapq.heappop(self.queue)
            if state == target and open_ is None or priority >= self.limit - 1 and target in best:
                return self._best_chain()
            if open_ is _UNBOUNDED:
                self._bound(number, cost, state)
            elif open_ is not None:
                self._price(cost, state, *open_)
            elif cost <= best[state]:
                try:
                    self._expand(cost, state)
                except _Spent:
                    found = self._best_chain() if target in best else None
                    raise SearchLimit(self.search._unpacked(priority), found) from None
        return None

    def _best_chain(self) -> Found:
        return self.search._found(self.came_from, self.best[self.search.target])

    def _bound(self, number: int, cost: int, state: State) -> None:
        """Puts a way back into the queue with the bound of its state, if it is still the cheapest way there."""
        if cost > self.best[state]:
            return
        to_go = self.search.to_go.get(state)
        if to_go is None:
            to_go = self.search._cost_to_go(state)
        if cost + to_go < self.limit:
            heapq.heappush(self.queue, (cost + self.greed * to_go, number, cost, state, None))

    def _price(self, cost: int, state: State, before: State, edge: _Edge) -> None:
        """Puts the way over a permute back into the queue with the permute's price, if it is the cheapest way there."""
        if cost >= self.best.get(state, self.limit):
            return
        self.search.left -= STEPS_TO_PRICE
        cost += self.search._priced_permute(before, edge)
        if cost >= self.best.get(state, self.limit):
            return
        self.best[state] = cost
        self.came_from[state] = before, "permute"
        priority = cost + self.greed * self.search.to_go[state]
        heapq.heappush(self.queue, (priority, next(self.order), cost, state, None))

    def _expand(self, cost: int, state: State) -> None:
        """Puts each state that one edge reaches into the queue, if this is the cheapest way there and leaves room.

        This is the inner loop of all planning, so it has local names for all values that it needs, and calls few
        functions.
        """
        search, best, came_from, queue, greed, order = (
            self.search,
            self.best,
            self.came_from,
            self.queue,
            self.greed,
            self.order,
        )
        limit, target, to_go_of, costs_of = self.limit, search.target, search.to_go, search.steps_cost
        prices_pairs, push = search.pricing_of_pairs is not None, heapq.heappush
        is_permuted = not search.exhaustive and state in came_from and came_from[state][1] == "permute"
        for edge in search._edges(state, limit - cost, is_permuted):
            if edge is None:
                continue
            kind, after, received, tile, _, is_joint, least, price = edge
            if price is None:
                price = costs_of.get((kind, received, tile, is_joint))
                if price is None:
                    price = search._cost(state, edge)
            total = cost + price
            if total >= best.get(after, limit):
                continue
            to_go, open_ = to_go_of.get(after), None
            if to_go is None:
                if least is None:
                    to_go = search._cost_to_go(after)
                else:
                    to_go, open_ = least, _UNBOUNDED
            if total + to_go >= limit:
                continue
            if prices_pairs and kind == "permute":
                push(queue, (total + greed * to_go, next(order), total, after, (state, edge)))
                continue
            best[after] = total
            came_from[after] = state, kind
            if after == target and greed == 1:
                limit = self.limit = total + 1
            push(queue, (total + greed * to_go, next(order), total, after, open_))


class _Moves:
    """The all_to_alls, or the reduce_scatters, from one state: one for each way to give free digits to some factors.

    Ways branch at each factor: it stays where it is, or it moves to one of the digits that are still free. A branch
    ends where the step and the collective that has to follow leave no room: each factor is in the group, or divides the
    part of its target tile that a device holds (`divisor`, see `CostToGo`).

    Invariant, when the factor number `at` chooses: `after` is the state with the choices of the factors before it;
    `found` has the edges of all ways before this one in their order, and None for each branch that ended. What a branch
    carries: `taken`, the digits that are not free, as a mask; `moved`, the factors that move, and `n`, the product of
    their sizes; `step`, the least cost of a step in groups of `n`; `divisor` and `hop_s` of the factors that are away
    from home, and `rest`, the least cost that is left with these.
    """

    def __init__(self, search: Search, kind: Kind, state: State, tile: int, room: int):
        self.search = search
        self.kind: Kind = kind
        self.state = state
        self.tile = tile
        self.room = room
        self.most = search.left  # the number of edges that may still be considered
        self.has_bound = not search.digits.has_sums
        self.slack = search.a_picosecond
        self.behinds = search.least_behind
        self.clash = search.clash
        self.after = list(state)
        self.found: list[_Edge | None] = []
        self.groups: dict[int, tuple[int, int, int, int | None]] = {}  # by n, see `_group_of`

    def of(self, factors: list[int], free, blocked: int) -> list[_Edge | None]:
        """Returns the edges that move some of the factors, None for each branch that leaves no room."""
        self.rows = [self._row(i, free[i]) for i in factors]
        self.last = len(factors)
        divisor, hop_s = self._of_others(factors)
        rest = self.behinds[hop_s][divisor]
        if rest >= self.room:
            return [None]
        if factors:
            self._choose(0, blocked, 1, 0, (), divisor, hop_s, rest)
        return self.found

    def _row(self, i: int, free: list[int]):
        """Returns the values that the choice for a factor needs.

        They are its number, place, target, `common`, size, latency, free digits, and whether it may go to spare digits.
        """
        search, slot = self.search, self.state[i]
        has_spares = bool(search.spares[i]) and (slot < 0 or not search.digits.is_spare[slot])
        to_go_of = search.to_go_of
        return i, slot, search.target[i], to_go_of.common[i], search.sizes[i], to_go_of.hops_s[i], free, has_spares

    def _of_others(self, factors: list[int]) -> tuple[int, float]:
        """Returns `divisor` and `hop_s` of the factors that have no choice and are away from home."""
        divisor, hop_s, target, to_go_of = 1, 0.0, self.search.target, self.search.to_go_of
        for i, slot in enumerate(self.state):
            if slot >= 0 and slot != target[i] and i not in factors:
                divisor *= to_go_of.common[i][slot]
                hop_s = max(hop_s, to_go_of.hops_s[i])
        return divisor, hop_s

    def _choose(
        self, at: int, taken: int, n: int, step: int, moved: tuple[int, ...], divisor: int, hop_s: float, rest: int
    ) -> None:
        """Finds the ways in which the factor stays, then those in which it moves."""
        found = self.found
        if len(found) > self.most:
            return
        row = i, slot, goal, common, _, far_s, slots, has_spares = self.rows[at]
        at += 1
        left, further_s, further = divisor, hop_s, rest
        if slot >= 0 and slot != goal:
            left, further_s = divisor * common[slot], (hop_s if far_s < hop_s else far_s)
            further = self.behinds[further_s][left]
        if step + further >= self.room:
            found.append(None)
        elif at < self.last:
            self._choose(at, taken, n, step, moved, left, further_s, further)
        elif n > 1:
            _, received, kept, price = self.groups[n]
            least = further - self.slack if self.has_bound else None
            found.append((self.kind, tuple(self.after), received, kept, moved, False, least, price))
        if has_spares:
            slots = slots + self.search._spares(i, taken)
        if slots:
            self._move(row, slots, at, taken, n, moved, divisor, hop_s, rest)

    def _move(
        self, row, slots: list[int], at: int, taken: int, n: int, moved, divisor: int, hop_s: float, rest: int
    ) -> None:
        """Finds the ways in which the factor of a row moves to one of the slots; factor number `at` is the next."""
        i, slot, goal, common, size, far_s, _, _ = row
        if far_s < hop_s:
            far_s = hop_s
        behind, clash, found, after, room, is_last = (
            self.behinds[far_s],
            self.clash,
            self.found,
            self.after,
            self.room,
            at == self.last,
        )
        n *= size
        moved = (*moved, i)
        step, received, kept, price = self.groups.get(n) or self._group_of(n, moved)
        for s in slots:
            if taken >> s & 1:
                continue
            left, further_s, further = divisor, hop_s, rest
            if s != goal:
                left, further_s = divisor * common[s], far_s
                further = behind[left]
            if step + further >= room:
                found.append(None)
                continue
            after[i] = s
            if is_last:
                least = further - self.slack if self.has_bound else None
                found.append((self.kind, tuple(after), received, kept, moved, False, least, price))
            else:
                self._choose(at, taken | clash[s], n, step, moved, left, further_s, further)
        after[i] = slot

    def _group_of(self, n: int, moved: tuple[int, ...]) -> tuple[int, int, int, int | None]:
        """Returns a step in groups of n: a bound on its cost, received elements, the tile then, its cost if known."""
        search, tile = self.search, self.tile
        received, kept = tile // n * (n - 1), tile if self.kind == "all_to_all" else tile // n
        edge = self.kind, self.state, received, kept, moved, False, None, None
        price = None if search.pricing_of_pairs else search._cost(self.state, edge)
        self.groups[n] = found = search._least_step(n, tile), received, kept, price
        return found


def _bounds_behind(to_go_of: CostToGo, costs: _Costs) -> Made:
    """Returns lower bounds on the cost to go, by `hop_s` and then by `divisor`.

    They hold for states in which devices hold 1/divisor of their target tiles, and a step with the latency `hop_s` has
    to come.
    """

    def bound(hop_s: float, divisor: int) -> int:
        received = 0 if to_go_of.digits.has_sums else to_go_of.lacks(divisor)
        time = to_go_of.pricing.least_picoseconds_of_one(1, received, hop_s) if to_go_of.pricing and received else 0
        return costs.packed(time, received, int(received > 0))

    return Made(lambda hop_s: Made(functools.partial(bound, hop_s)))


def _with(state: State, i: int, slot: int) -> State:
    return (*state[:i], slot, *state[i + 1 :])
