# SPDX-License-Identifier: Apache-2.0
"""The chain that a greedy pass makes without a search; the planner's chain never costs more.

Every layout on the way is blocked. The leading factors of a dimension that the target has there too, in the same order,
are *home*. The dimension's other factors are *misplaced*, and the target's other factors are *wanted* there. A round of
moves empties both lists:

1. slice replicated factors: behind a misplaced factor, if another dimension wants them next to it; else where they are
   wanted; else where there is *room*. A dimension has room as far as the target splits it into more shards;
2. permute, if that brings a wanted factor into its place, or makes two factors neighbours. Wanted factors take the
   places of misplaced ones in their dimension, then in any dimension. Factors that are to be gathered come in front of
   those that move on;
3. all_to_alls from one dimension to another, of factors at the minor end: first those that arrive in their place, then
   all;
4. gather the misplaced factors of each dimension whose last one is wanted nowhere.

Two rounds are enough; one is enough if all sizes are powers of two. If a factor is larger than the room, its major part
moves.

Source: the moves and their order are those of Shardy's `sdy-reshard-to-collectives` (openxla/shardy), so that no plan
takes longer than what that pass makes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from ..layouts.layout import Factor, Layout, LayoutError, blocked, places_by_axis, whole_factors
from ..layouts.mesh import Mesh
from ..layouts.sharding import Sharding
from ..programs.chain import Chain
from ..programs.steps import AllGather, AllToAll, Permute, RuleError, Slice, Step

Dims = tuple[tuple[Factor, ...], ...]

ROUNDS = 2


def greedy_chain(mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding) -> Chain | None:
    """Returns the greedy chain; None if the moves get stuck, or cut an axis in two radices.

    Args:
      shape: the shape, which source and target divide evenly. source, target: shardings without partial sums.

    Example:
      >>> mesh = Mesh.parse("x=4,y=2")
      >>> chain = greedy_chain(mesh, (16, 16), Sharding.parse('[{"y"}, {}]'), Sharding.parse('[{"x"}, {}]'))
      >>> [type(step).__name__ for step in chain]
      ['Slice', 'Permute']
    """
    greedy = _Greedy(shape, whole_factors(mesh, source), whole_factors(mesh, target))
    greedy.run()
    if not greedy.is_done:
        return None
    return typed_chain(shape, [kind for kind, _ in greedy.path], [greedy.start, *(dims for _, dims in greedy.path)])


def typed_chain(shape: tuple[int, ...], kinds: Sequence[type], path: Sequence[Dims]) -> Chain | None:
    """Returns the chain along a path; None if axes are cut in two radices, or a rule forbids a step.

    Args:
      kinds: one of Slice, AllGather, AllToAll, Permute for each step. path: the factors that split each dimension,
        major to minor, before, between and after the steps.
    """
    places = places_by_axis(f for dims in path for dim in dims for f in dim)
    if any(b % a for each in places.values() for a, b in itertools.pairwise(each)):
        return None
    try:
        layouts = [blocked(shape, tuple(tuple(_cut(dim, places)) for dim in dims)) for dims in path]
        chain = Chain(layouts[0], tuple(_step(*each) for each in zip(kinds, layouts, layouts[1:])))
        return chain if list(chain.layouts) == layouts else None
    except (LayoutError, RuleError):
        return None


def _step(kind: type, before: Layout, after: Layout) -> Step:
    if kind is Permute:
        return Permute(after)
    if kind is AllGather:
        return AllGather(tuple(factor for factor, _ in before.owners if after.slot_of(factor) is None))
    return kind(tuple((factor, slot) for factor, slot in after.owners if before.slot_of(factor) != slot))


class _Greedy:
    """The moves of one chain. State: for each dimension `home`, `misplaced` and `wanted`, see the module.

    `room` says by how much the step under way may still split each dimension, `path` has the steps so far. `away` has
    the factors that are misplaced somewhere; `goals` says where a factor is wanted: (dimension, place in its list).
    """

    def __init__(self, shape: tuple[int, ...], source: Dims, target: Dims):
        self.shape = shape
        places = places_by_axis(f for dims in (source, target) for dim in dims for f in dim)
        self.misplaced = [_cut(dim, places) for dim in source]
        self.wanted = [_cut(dim, places) for dim in target]
        self.home: list[list[Factor]] = [[] for _ in shape]
        for home, misplaced, wanted in zip(self.home, self.misplaced, self.wanted):
            while misplaced and wanted and misplaced[0] == wanted[0]:
                home.append(misplaced.pop(0))
                wanted.pop(0)
        self.away = {factor for dim in self.misplaced for factor in dim}
        self.room = [1] * len(shape)
        self.start = self._dims()
        self.path: list[tuple[type, Dims]] = []
        self._find_goals()

    @property
    def is_done(self) -> bool:
        return not any(self.misplaced) and not any(self.wanted)

    def run(self) -> None:
        for _ in range(ROUNDS):
            if self.is_done:
                return
            self._slice()
            if self._should_permute():
                self._permute()
            self._all_to_alls(in_place=True)
            self._all_to_alls(in_place=False)
            self._gather()

    def _dims(self) -> Dims:
        return tuple(tuple(home + misplaced) for home, misplaced in zip(self.home, self.misplaced))

    def _took(self, kind: type) -> None:
        dims = self._dims()
        if dims != (self.path[-1][1] if self.path else self.start):
            self.path.append((kind, dims))

    def _find_goals(self) -> None:
        self.goals = {factor: (dim, place) for dim, row in enumerate(self.wanted) for place, factor in enumerate(row)}

    # Slices

    def _slice(self) -> None:
        for dim, (misplaced, wanted) in enumerate(zip(self.misplaced, self.wanted)):
            has, needs = _size(misplaced), _size(wanted)
            self.room[dim] = needs // math.gcd(has, needs)
        for dim in range(len(self.shape)):
            along = self._to_move_on_with(dim)
            self.misplaced[dim] += along
            self.away.update(along)
        left: list[Factor] = []
        for dim in range(len(self.shape)):
            left += self._slice_where_wanted(dim)
        self._fill([left] * len(self.shape), in_front=False)
        self._find_goals()
        self._took(Slice)

    def _to_move_on_with(self, dim: int) -> list[Factor]:
        """Returns the replicated factors that the target wants right behind the last misplaced factor of a dimension.

        Empty if they cannot move on with it: another factor is in the way at one end, or they do not divide the
        dimension.
        """
        misplaced = self.misplaced[dim]
        if not misplaced or self.wanted[dim] or misplaced[-1] not in self.goals:
            return []
        goal, place = self.goals[misplaced[-1]]
        wanted = self.wanted[goal]
        if self.misplaced[goal] or place + 1 >= len(wanted) or wanted[place + 1] in self.away:
            return []
        count = 0
        for factor, other in zip(reversed(misplaced), reversed(wanted[: place + 1])):
            if factor != other:
                break
            count += 1
        if any(self.goals.get(factor, (None,))[0] == goal for factor in misplaced[: len(misplaced) - count]):
            return []
        along = list(itertools.takewhile(lambda factor: factor not in self.away, wanted[place + 1 :]))
        if self.shape[dim] % (_size(self.home[dim]) * _size(misplaced) * _size(along)):
            return []
        self.room[goal] //= _size(misplaced[len(misplaced) - count :]) * _size(along)
        return along

    def _slice_where_wanted(self, dim: int) -> list[Factor]:
        """Slices a dimension along its wanted factors, as far as it has room; returns the factors that are left."""
        misplaced, wanted, left = self.misplaced[dim], self.wanted[dim], []
        at = 0
        while at < len(wanted):
            factor = wanted[at]
            if factor in self.away:
                at += 1
                continue
            within, rest, self.room[dim] = _within(factor, self.room[dim])
            if within is None:
                left.append(factor)
                at += 1
                continue
            if not misplaced and at == 0:
                self.home[dim].append(wanted.pop(0))
                self.home[dim][-1] = within
            else:
                self.away.add(within)
                misplaced.append(within)
                wanted[at] = within
                at += 1
            if rest is not None:
                wanted.insert(at, rest)
                left.append(rest)
                at += 1
        return left

    # Permutes

    def _should_permute(self) -> bool:
        """Returns whether a permute helps: it puts wanted factors into place, or misplaced ones into a better order."""
        replicated = gathered = None
        for dim, (misplaced, wanted) in enumerate(zip(self.misplaced, self.wanted)):
            if misplaced and wanted and _divides(misplaced[0].size, wanted[0].size):
                return True
            replicated = next((factor for factor in reversed(wanted) if factor not in self.away), replicated)
            last, seen = None, set()
            for factor in misplaced:
                goal = self.goals.get(factor)
                if goal is not None:
                    is_next = last is not None and goal == (last[0], last[1] + 1)
                    if (goal[0] == dim or goal[0] in seen) and not is_next:
                        return True
                    seen.add(goal[0])
                elif last is not None and not wanted:
                    return True
                else:
                    gathered = factor
                last = goal
        return replicated is not None and gathered is not None and _divides(replicated.size, gathered.size)

    def _permute(self) -> None:
        coming: list[Factor] = []  # wanted factors that find no room in their own dimension
        staying: list[list[Factor]] = []  # for each dimension, the factors that are to be gathered
        self.away = set()
        for dim, (home, misplaced, wanted) in enumerate(zip(self.home, self.misplaced, self.wanted)):
            shards = self.room[dim] = _size(misplaced)
            while self.room[dim] > 1 and wanted:
                within, rest, self.room[dim] = _within(wanted[0], self.room[dim])
                if within is None:
                    break
                home.append(within)
                wanted[:1] = [] if rest is None else [rest]
            coming += wanted
            taken = shards // self.room[dim]
            unwanted, replaced = [factor for factor in misplaced if factor not in self.goals], []
            while taken > 1 and unwanted:
                within, rest, taken = _within(unwanted[0], taken)
                if within is None:
                    break
                replaced.append(within)
                unwanted[:1] = [] if rest is None else [rest]
            staying.append(unwanted + replaced)
            misplaced.clear()
        self._fill([coming] * len(self.shape), in_front=False)
        self._fill(staying, in_front=True)
        self._fill([list(itertools.chain(*staying))] * len(self.shape), in_front=True)
        self._find_goals()
        self._took(Permute)

    def _fill(self, available: Sequence[list[Factor]], in_front: bool) -> None:
        """Gives each dimension the first available factors that fit, while it has room; takes them from `available`."""
        cut: list[Factor] = []
        for dim, (misplaced, here) in enumerate(zip(self.misplaced, available)):
            place, at = (0 if in_front else len(misplaced)), 0
            while at < len(here) and self.room[dim] > 1:
                within, rest, self.room[dim] = _within(here[at], self.room[dim])
                if within is None:
                    at += 1
                    continue
                del here[at]
                misplaced.insert(place, within)
                place += 1
                self.away.add(within)
                if rest is not None:
                    cut.append(within)
                    here.insert(0, rest)
                    at += 1
        places = places_by_axis(cut)
        self.wanted = [_cut(row, places) for row in self.wanted]

    # All_to_alls and gathers

    def _all_to_alls(self, in_place: bool) -> None:
        """Takes all_to_alls while there are any; with `in_place`, only those whose factors come home."""
        for dim in range(len(self.shape)):
            while self._all_to_all(dim, in_place):
                self._took(AllToAll)

    def _all_to_all(self, dim: int, in_place: bool) -> bool:
        """Moves the last misplaced factors of a dimension that go to one other; returns whether there are any."""
        misplaced, goal, start = self.misplaced[dim], None, len(self.misplaced[dim])
        for factor in reversed(misplaced):
            there = self.goals.get(factor, (None,))[0]
            if there is None or there == dim or goal is not None and there != goal:
                break
            goal, start = there, start - 1
        if goal is None:
            return False
        movers, wanted = misplaced[start:], self.wanted[goal]
        if in_place and wanted[: len(movers)] != movers:
            return False
        del misplaced[start:]
        for factor in movers:
            self.away.discard(factor)
            if not self.misplaced[goal] and wanted and wanted[0] == factor:
                self.home[goal].append(wanted.pop(0))
            else:
                self.misplaced[goal].append(factor)
                self.away.add(factor)
        return True

    def _gather(self) -> None:
        for misplaced in self.misplaced:
            if misplaced and misplaced[-1] not in self.goals:
                self.away.discard(misplaced[-1])
                misplaced.clear()
        self._took(AllGather)


def _within(factor: Factor, room: int) -> tuple[Factor | None, Factor | None, int]:
    """Returns the major part of a factor that fits into a room, the rest of the factor, and the room that is left.

    Both parts are None if nothing fits; the rest is None if the whole factor fits.
    """
    if room <= 1 or not _divides(factor.size, room):
        return None, None, room
    if room >= factor.size:
        return factor, None, room // factor.size
    return *factor.split(room), 1


def _cut(factors: Iterable[Factor], places: dict[str, list[int]]) -> list[Factor]:
    """Returns the factors cut at places of their axes."""
    return [piece for factor in factors for piece in factor.cut(places.get(factor.axis, ()))]


def _divides(a: int, b: int) -> bool:
    """Returns whether one of two sizes divides the other."""
    return a % b == 0 or b % a == 0


def _size(factors: Iterable[Factor]) -> int:
    return math.prod([factor.size for factor in factors])
