# SPDX-License-Identifier: Apache-2.0
"""Routes: ways between any two placements, also where tiles are padded, between two meshes and to or from one device.

A route is *legs*, chains of steps on one mesh over whole tiles, and *joints* between them: an exchange, or one permute of
whole tiles to another device order. Tiles are padded, or what is behind the array's end cut off, where a leg wants them so.
Kinds of route, all priced alike:

- one leg on the padded shape (`padding.py`), if there is one; the target on another mesh is written in axes of the
  source's if both are digits of the same devices (`two_meshes.py`), else there is a permute at one place of the leg;
- likewise, with an exchange for its middle;
- if no padded shape has the tiles of both ends, one leg on a shape with nearly these, and exchanges of the rest at its ends;
- the exchange alone; or to a layout that splits what the target replicates, padded where it does not divide, and then an
  all_gather, which pays where links are slow between some of the devices, or where few devices have all there is;
- partial sums are reduced first, and made (zeros, but on one device) last;
- chains on meshes that are made for them (`block_meshes.py`), which pays where links differ or radices do.

R2 on padded tiles: none is larger than the tiles at both ends, padded as the first and the last leg want them, or than the tile limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, replace
import itertools
import math
import operator

import numpy as np

from . import steps
from .block_meshes import block_mesh, chains_by_counts, inverted, matched_along, replicated_from
from .blocks import Blocks, both_ends
from .bounds import received_elements_bound
from .chains import FoundChain, find_chain, gathers_apart, has_joint_gather
from .costing import Costing
from .exchange import Exchange, TooManyPieces
from .layout import UNREDUCED, Factor, Layout, LayoutError, Slot, blocked, layout_of, unreduced_factors, whole_factors
from .mesh import Mesh
from .padding import nearly_padded_shapes, padded_shape, whole_shape
from .planned import Plan, PlannedStep
from .pricing import Pricing
from .problem import NoPlanError, Problem, primes
from .request import Request
from .sharding import Sharding
from .steps import AllGather, Exchanged, Reorder, Step
from .tile_program import On, Operation, Relayout, Reshape, Resize, Rounds, Send, TileProgram, lower
from .two_meshes import expressed, in_another_order, reorder_pairs


@dataclass(frozen=True, slots=True)
class Leg:
    """Typed steps from one layout to another; pricing: on their mesh; note: what the texts of their collectives end with."""

    pricing: Pricing
    source: Layout
    target: Layout
    steps: tuple[Step, ...]
    note: str = ""


Part = Leg | Exchanged | Reorder

NEAREST = ", nearest replicas"  # among which a collective takes its groups


class Routes:
    """The routes of one request.

    Args:
      pricing_of: prices steps on a mesh. exchange: schedules one between two placements over all devices.
    """

    def __init__(
        self,
        request: Request,
        costing: Costing,
        pricing_of: Callable[[Mesh], Pricing],
        exchange: Callable[[Blocks, Blocks], Exchange],
    ):
        self.request = request
        self.costing = costing
        self.pricing_of = pricing_of
        self.exchange = exchange
        ends = both_ends(request.mesh, request.shape, request.source, request.target, request.target_mesh)
        self.held, self.wanted = ends
        self.shape = self.held.shape  # a scalar may be an array of one element here
        is_scalar = self.shape != request.shape
        sides = (request.source, request.target)
        self.source, self.target = (Sharding(((),), unreduced=s.unreduced) for s in sides) if is_scalar else sides
        self.is_settled = False

    def plans(self) -> Iterator[Plan]:
        """Yields at least one plan. Raises: NoPlanError if there is none, with the reason."""
        if not self.request.with_exchange:
            yield from self._by_chain()
            return
        is_empty = True
        for kind in (self._by_chain, self.plans_by_exchange):
            try:
                for plan in kind():
                    is_empty = False
                    yield plan
            except NoPlanError as error:
                refusal = error
            if self.is_settled:
                return
        if is_empty:
            raise refusal

    # One leg, whole or cut in two

    def _by_chain(self) -> Iterator[Plan]:
        mesh, goal = self.request.mesh, self.request.goal_mesh
        if mesh.size < self.request.devices or (goal.axes and goal.size < self.request.devices):
            raise NoPlanError(f"no chain of steps leads from the {mesh.size} devices of {mesh} to the {goal.size} of {goal}")
        target = expressed(self.target, goal, mesh) if goal.axes and goal != mesh else self.target
        if target is not None:  # replicas serve a target on one device too
            yield from self._on_one_mesh(target)
            return
        alike = expressed(self.target, Mesh(goal.axes), Mesh(mesh.axes))
        if alike is None:
            raise NoPlanError(f"{mesh} and {goal} share no digits in which both {self.source} and {self.target} are written")
        yield from self._with_permute(alike)

    def _on_one_mesh(self, target: Sharding) -> Iterator[Plan]:
        mesh = self.request.mesh
        shards = self.source.shards(mesh), target.shards(mesh)
        if padded_shape(self.shape, *shards) is None and self.request.with_exchange:
            yield from self._with_shifts(target, nearly_padded_shapes(self.shape, *shards))
            return
        inner = self._inner(target, mesh)
        found = find_chain(inner, self.pricing_of(inner.mesh), self.costing.bound)
        self.is_settled = found.is_unbeatable
        is_packed = self.request.objective == "bytes" and self.request.bits % 8 != 0  # the search counts parts of bytes
        is_proved = not is_packed and (found.is_unbeatable or found.is_optimal and inner.shape == self.request.shape)
        yield self._assembled([self._leg(found, 0, len(found.steps))], is_proved)
        if self.request.with_exchange and not self.is_settled:
            yield from self._with_middle(found)

    def _with_shifts(self, target: Sharding, shapes: Sequence[tuple[int, ...]]) -> Iterator[Plan]:
        """Yields chains on arrays whose tiles are nearly those of both ends, and exchanges of what lies in another tile there."""
        mesh = self.request.mesh
        if self.request.objective == "bytes" and not self.request.has_sums:
            return  # an exchange alone receives no more than it must
        for shape in shapes:
            inner = replace(self.request, mesh=mesh, shape=shape, source=self.source, target=target, target_mesh=None)
            found = find_chain(inner, self.pricing_of(mesh), self.costing.bound)
            leg = self._leg(found, 0, len(found.steps))
            held, wanted = (self._blocks(mesh, layout) for layout in (leg.source, leg.target))
            try:
                parts = [*self._shift(self.held, held, leg.source), leg, *self._shift(wanted, self.wanted, leg.target)]
            except TooManyPieces:
                continue
            yield self._assembled(parts, ends=(leg.source.tile_elements, leg.target.tile_elements))

    def _shift(self, before: Blocks, after: Blocks, layout: Layout) -> tuple[Exchanged, ...]:
        if np.array_equal(before.starts, after.starts) and np.array_equal(before.stops, after.stops):
            return ()
        if layout.unreduced:
            raise TooManyPieces("partial sums are not exchanged")
        return (Exchanged(self.exchange(before, after), None),)

    def _inner(self, target: Sharding, mesh: Mesh) -> Request:
        """Returns the even request on one mesh, to a sharding that places as the target does."""
        shape = padded_shape(self.shape, self.source.shards(mesh), target.shards(mesh))
        if shape is None:
            raise NoPlanError(f"no padded array has both the tiles of {self.source} and those of {self.target}")
        if shape != self.shape and not self.request.with_exchange:
            raise NoPlanError(f"shape {list(self.shape)} does not divide into the shards of {self.source} and {self.target}")
        return replace(self.request, mesh=mesh, shape=shape, source=self.source, target=target, target_mesh=None)

    def _with_permute(self, target: Sharding) -> Iterator[Plan]:
        """Yields chains with one permute to the devices of the target's mesh: first, last, or where the tile is smallest.

        Args:
          target: on the axes of the source's mesh, in the order of the target's devices.
        """
        there = in_another_order(self.request.mesh, self.request.goal_mesh)
        for mesh in (self.request.mesh,) if self.costing.pricing.is_flat else (self.request.mesh, there):
            inner = self._inner(target, mesh)
            bound = received_elements_bound(mesh, inner.shape, inner.source, target)
            found = find_chain(inner, self.pricing_of(mesh), bound)
            tiles = [layout_behind(found.problem.source, found.steps[:at]).tile_elements for at in range(len(found.steps) + 1)]
            for at in sorted({0, tiles.index(min(tiles)), len(found.steps)}):
                legs = self._leg(found, 0, at), self._leg(found, at, len(found.steps))
                pairs = reorder_pairs(self.request.mesh, there, legs[1].source)
                before, after = (replace(leg, pricing=self.pricing_of(on)) for leg, on in zip(legs, (self.request.mesh, there)))
                yield self._assembled([before, Reorder(pairs), after])

    def _leg(self, found: FoundChain, start: int, stop: int) -> Leg:
        ends = (layout_behind(found.problem.source, found.steps[:at]) for at in (start, stop))
        return Leg(self.pricing_of(found.problem.mesh), *ends, tuple(found.steps[start:stop]))

    def _with_middle(self, found: FoundChain) -> Iterator[Plan]:
        """Yields chains with an exchange of what is in the array, not of its padding, for their middle."""
        last = len(found.steps)
        layouts = list(itertools.accumulate(found.steps, steps.apply, initial=found.problem.source))
        for start, stop in middles(layouts, found.steps):
            if (start, stop) == (0, last):
                continue  # the exchange alone, which others see to
            legs = self._leg(found, 0, start), self._leg(found, stop, last)
            try:
                before = self._blocks(legs[0].pricing.mesh, legs[0].target) if start else self.held
                after = self._blocks(legs[1].pricing.mesh, legs[1].source) if stop < last else self.wanted
                yield self._assembled([legs[0], Exchanged(self.exchange(before, after), None), legs[1]])
            except (LayoutError, TooManyPieces):
                continue

    def _blocks(self, mesh: Mesh, layout: Layout) -> Blocks:
        """Returns what a layout of a padded array places of the array itself."""
        return Blocks.of_layout(mesh, layout).cropped(self.shape)

    # Exchanges

    def plans_by_exchange(self) -> Iterator[Plan]:
        """Yields plans whose joint is an exchange that needs no chain beside it. Raises: NoPlanError where none can."""
        refusal, is_empty = "", True
        for (held, reduces), (wanted, completes) in itertools.product(self._starts(), self._goals()):
            try:
                joint = () if held.places_like(wanted) else (Exchanged(self.exchange(held, wanted), None),)
            except TooManyPieces as error:
                refusal = str(error)
                continue
            is_empty = False
            yield self._assembled([*reduces, *joint, *completes])
            if self.request.objective == "bytes" and not self.request.has_sums:
                return  # the first is the exchange alone, at the bound
        if is_empty:
            raise NoPlanError(refusal)

    def _starts(self) -> Iterator[tuple[Blocks, tuple[Leg, ...]]]:
        """Yields placements without partial sums, and the leg that reduces the source's to each of them."""
        mesh = self.request.mesh
        sums = unreduced_factors(mesh, self.source)
        if not sums:
            yield self.held, ()
            return
        self._check_holds_all(mesh)
        before = self._whole_layout(mesh, self.source, _cut_into_primes(sums))
        spare = _spare_digits(before, before.unreduced)
        for moves in (spare, {}) if spare else ({},):
            rest = tuple(factor for factor in before.unreduced if factor not in moves)
            typed = [steps.ReduceScatter(tuple(moves.items()))] if moves else []
            typed += [steps.AllReduce(rest)] if rest else []
            after = layout_behind(before, typed)
            yield self._blocks(mesh, after), (Leg(self.pricing_of(mesh), before, after, tuple(typed)),)

    def _goals(self) -> Iterator[tuple[Blocks, tuple[Leg, ...]]]:
        """Yields placements without partial sums, and the leg that leads from each of them to the target."""
        mesh = self.request.goal_mesh
        sums = _cut_into_primes(unreduced_factors(mesh, self.target))
        if not sums:
            yield self.wanted, ()
            if mesh.size < self.request.devices:
                return
        self._check_holds_all(mesh)
        replicas = self._replicas(mesh) if self.shape else []  # a scalar has no parts
        for gathered in [(), *replicas] if sums else replicas:
            yield self._divided(mesh, sums, gathered)

    def _divided(self, mesh: Mesh, sums: tuple[Factor, ...], gathered: tuple[Factor, ...]) -> tuple[Blocks, tuple[Leg, ...]]:
        """Returns the target with its tiles divided among the factors, and the leg that makes them whole, and sums of them.

        If a dimension of the tile does not divide, the longest one is padded; the leg's end is cut off.
        """
        factors, blocks = (*sums, *gathered), whole_factors(mesh, self.target)
        tile = self.wanted.tile_shape
        after = self._whole_layout(mesh, self.target, ())
        spare = _spare_digits(after, factors)
        if tile and len(spare) < len(factors):
            longest, shards = tile.index(max(tile)), self.target.shards(mesh)
            n = math.prod(factor.size for factor in factors)
            tile = tuple(-(-size // n) * n if dim == longest else size for dim, size in enumerate(tile))
            after = blocked(tuple(size * s for size, s in zip(tile, shards)), blocks)
            ends = itertools.accumulate((factor.size for factor in factors), operator.mul, initial=shards[longest])
            spare = {factor: Slot(longest, *end) for factor, end in zip(factors, itertools.pairwise(ends))}
        before = after.with_moved(spare)
        end = after.with_moved(dict.fromkeys(sums, UNREDUCED))
        typed = (steps.AllGather(gathered),) if gathered else ()
        typed += (steps.ToUnreduced(sums),) if sums else ()
        return self._parts_of_target(mesh, before, tile), (Leg(self.pricing_of(mesh), before, end, typed),)

    def _parts_of_target(self, mesh: Mesh, layout: Layout, tile: tuple[int, ...]) -> Blocks:
        """Returns the boxes of a layout that divides the target's tiles, padded to `tile`, in indices of the array."""
        offset = Blocks.of_layout(mesh, layout).starts % np.array(tile, np.int64)
        limits = self.wanted.starts, self.wanted.stops
        starts = np.minimum(limits[0] + offset, limits[1])
        stops = np.minimum(starts + np.array(layout.tile_shape, np.int64), limits[1])
        return Blocks(self.shape, layout.tile_shape, starts, stops)

    def _replicas(self, mesh: Mesh) -> list[tuple[Factor, ...]]:
        """Returns groups of factors along which the target is replicated: all, and on deeper networks those of each axis."""
        used = [factor for dim in whole_factors(mesh, self.target) for factor in dim] + [*unreduced_factors(mesh, self.target)]
        free = {axis: _unused(axis, size, used) for axis, size in mesh.axes}
        found = [tuple(itertools.chain(*free.values()))]
        if not self.costing.pricing.is_flat:
            found += [pieces for pieces in free.values() if pieces not in found]
        return [each for each in found if each]

    def _whole_layout(self, mesh: Mesh, side: Sharding, sums: tuple[Factor, ...]) -> Layout:
        return blocked(whole_shape(self.shape, side.shards(mesh)), whole_factors(mesh, side), sums)

    def _check_holds_all(self, mesh: Mesh) -> None:
        if mesh.size < self.request.devices:
            raise NoPlanError(
                f"partial sums on {mesh.size} of {self.request.devices} devices are not moved; reduce them on {mesh} first"
            )

    # Other meshes of the same devices, for requests on one mesh whose dimensions divide, without partial sums

    def on_block_meshes(self) -> Iterator[Plan]:
        """Yields chains on the mesh of the source's blocks, then a permute to their devices; and those behind a permute to the target's."""
        mesh = self.request.mesh
        before, after = (layout_of(mesh, self.shape, side) for side in (self.source, self.target))
        for here, there in ((before, after), (after, before)):
            on = block_mesh(mesh, here, self._places())
            replicas = mesh.size * here.tile_elements // math.prod(self.shape)
            for start, typed in chains_by_counts(here, there, replicas):
                with contextlib.suppress(steps.RuleError):
                    if here is after:
                        start, typed = inverted(start, typed)
                    apart = [gathers_apart(start, typed)] if has_joint_gather(start, typed) else []
                    for each in (typed, *apart):
                        yield from self._on_block_mesh(on, start, each, here is after)

    def _on_block_mesh(self, on: Mesh, start: Layout, typed: Sequence[Step], is_behind: bool) -> Iterator[Plan]:
        """Yields a chain on a mesh of blocks with a permute of whole tiles in front of it, or else behind it; and with nearest replicas."""
        mesh = self.request.mesh
        before, after = (layout_of(mesh, self.shape, side) for side in (self.request.source, self.request.target))
        layouts = list(itertools.accumulate(typed, steps.apply, initial=start))
        leg = Leg(self.pricing_of(on), start, layouts[-1], tuple(typed))
        for legs in ([leg], *self._matched(on, layouts, typed)):
            if is_behind:
                yield self._assembled([*self._reordered(mesh, before, on, start), *legs])
            else:
                yield self._assembled([*legs, *self._reordered(legs[-1].pricing.mesh, layouts[-1], mesh, after)])

    def _reordered(self, before: Mesh, held: Layout, after: Mesh, wanted: Layout) -> tuple[Reorder, ...]:
        """Returns the permute of whole tiles to their places; nothing if all are there. It may be faster if who has its tile sends it on."""
        ways = [Reorder(reorder_pairs(before, after, held, wanted, keeps=keeps)) for keeps in (True, False)]
        if all([a == b for a, b in ways[0].pairs]):
            return ()
        if self.costing.pricing.is_flat:
            return (ways[0],)
        return (min(ways, key=lambda way: self.costing.priced_reorder(way, held.tile_elements).time_s),)

    def matched_along_replicas(self, found: Problem, typed: Sequence[Step]) -> Iterator[Plan]:
        """Yields the chain with the groups of some steps, behind which factors stay replicated, made of the nearest replicas."""
        layouts = list(itertools.accumulate(typed, steps.apply, initial=found.source))
        for legs in self._matched(found.mesh, layouts, typed):
            yield self._assembled(legs)

    def _matched(self, on: Mesh, layouts: Sequence[Layout], typed: Sequence[Step]) -> Iterator[list[Leg]]:
        """Yields the legs of a chain on a mesh, from some step on with the replicas matched that there are from there to its end."""
        free = replicated_from(on, layouts)
        starts = [at for at in range(len(typed)) if free[at] and (at == 0 or free[at] != free[at - 1])]
        for cuts in {(start,) for start in starts} | {tuple(starts)} if starts else ():
            legs, mesh = [], on
            for a, b in itertools.pairwise((0, *cuts, len(typed))):
                mesh = matched_along(on, free[a], self._places()) if a in cuts else mesh
                note = NEAREST if mesh != on else ""
                legs.append(Leg(self.pricing_of(mesh), layouts[a], layouts[b], tuple(typed[a:b]), note))
            if mesh != on:
                yield legs

    def gathered_among_nearest(self, found: Problem, typed: Sequence[Step]) -> Iterator[Plan]:
        """Yields a chain of gathers, and then slices, with the groups of the gathers made of the nearest replicas.

        Behind the gathers devices that differ along a factor that owns nothing hold the same, whoever gathered with whom.
        """
        layouts = list(itertools.accumulate(typed, steps.apply, initial=found.source))
        count = sum(isinstance(step, AllGather) for step in typed)
        free = replicated_from(found.mesh, layouts[: count + 1])[0]
        mesh = matched_along(found.mesh, free, self._places()) if free else found.mesh
        if mesh != found.mesh:
            gathers = Leg(self.pricing_of(mesh), layouts[0], layouts[count], tuple(typed[:count]), NEAREST)
            slices = Leg(self.pricing_of(found.mesh), layouts[count], layouts[-1], tuple(typed[count:]))
            yield self._assembled([gathers, slices])

    def _places(self) -> np.ndarray:
        """Returns the place of each device id in the network."""
        return self.request.topology.fitted(self.request.devices).positions()

    # Plans

    def _assembled(self, parts: Sequence[Part], is_proved: bool = False, ends: Sequence[int] | None = None) -> Plan:
        """Returns the plan of a route; where a part takes other tiles than those before it, they are padded or cut.

        Args:
          ends: elements of the tiles at both ends as the legs want them; None: before a first and behind a last leg.
        Raises: RuleError if another tile is larger than these, those of the request and its tile limit (R2).
        """
        route = _Assembly(self.request, self.costing)
        for part in parts:
            route.add(part)
        found = route.finished(is_proved)
        if ends is None:
            ends = [leg.source.tile_elements for leg in parts[:1] if isinstance(leg, Leg)]
            ends += [leg.target.tile_elements for leg in parts[-1:] if isinstance(leg, Leg)]
        if route.largest > max(*ends, *map(math.prod, self.request.tile_shapes), self.request.tile_limit_elements):
            raise steps.RuleError(f"R2: a tile of {route.largest} elements, the ends have {ends} and {self.request.tile_shapes}")
        return found


class _Assembly:
    """Joins parts. State: `tile`, the tile's shape after the parts so far; `mesh`, that of the factors there."""

    def __init__(self, request: Request, costing: Costing):
        self.request = request
        self.costing = costing
        self.mesh = request.mesh
        self.tile, self.goal = request.tile_shapes
        self.largest = max(map(math.prod, request.tile_shapes))
        self.filed: list[tuple[Step, tuple[Operation, ...]]] = []
        self.priced: list[PlannedStep] = []

    def add(self, part: Part) -> None:
        match part:
            case Leg():
                self._add_leg(part)
            case Exchanged(exchange):
                self._resize(exchange.source.tile_shape)
                self.filed.append((part, (Rounds(exchange),)))
                self.priced.append(self.costing.priced_exchange(part))
                self._pass(exchange.target.tile_shape)
            case Reorder(pairs):
                self.filed.append((part, (Send(pairs),)))
                self.priced.append(self.costing.priced_reorder(part, math.prod(self.tile)))

    def finished(self, is_proved: bool) -> Plan:
        self._resize(self.goal)
        asked = self.request
        program = TileProgram(asked.mesh, asked.tile_shapes[0], self.goal, tuple(self.filed), asked.reduction)
        priced = self.costing.with_joined_copies(program, self.priced)
        return self.costing.plan_of(program, priced, self.largest, is_proved)

    def _add_leg(self, leg: Leg) -> None:
        if not leg.steps:
            return
        mesh, tiles = leg.pricing.mesh, self.costing.checked_tiles(leg.source, leg.target, leg.steps)
        self._resize(leg.source.tile_shape)
        program = lower(mesh, leg.source, leg.steps, self.request.reduction)
        filed = list(program.steps)
        if mesh != self.mesh:
            filed[0] = filed[0][0], (On(mesh), *filed[0][1])
            self.mesh = mesh
        self.filed += filed
        priced = self.costing.priced_steps(leg.pricing, leg.source, program)
        self.priced += [replace(each, text=each.text + leg.note) if steps.collectives(each.step) else each for each in priced]
        self.largest = max(self.largest, *tiles)
        self.tile = leg.target.tile_shape

    def _resize(self, shape: tuple[int, ...]) -> None:
        if shape == self.tile:
            return
        step = Relayout(f"tile {list(self.tile)} to {list(shape)}")
        self.filed.append((step, _resizing(self.tile, shape)))
        self.priced.append(self.costing.priced_relayout(step, math.prod(self.tile), math.prod(shape)))
        self._pass(shape)

    def _pass(self, shape: tuple[int, ...]) -> None:
        self.tile = shape
        self.largest = max(self.largest, math.prod(shape))


def _resizing(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Operation, ...]:
    """Returns what makes a tile of one shape one of another; a scalar is an array of one element on the way."""
    if not before:
        return Reshape((1,) * len(after)), Resize(after)
    if not after:
        return Resize((1,) * len(before)), Reshape(after)
    return (Resize(after),)


def layout_behind(layout: Layout, typed: Sequence[Step]) -> Layout:
    """Returns the layout that steps lead to."""
    for step in typed:
        layout = steps.apply(layout, step)
    return layout


def middles(layouts: Sequence[Layout], typed: Sequence[Step]) -> list[tuple[int, int]]:
    """Returns (start, stop) of the runs of steps that an exchange may stand for: all of them, or all but the leading
    slices or the trailing gathers; no partial sums are there.

    Args:
      layouts: before, between and after the steps.
    """
    plain = [at for at, layout in enumerate(layouts) if not layout.unreduced]
    if not plain:
        return []
    first = start = plain[0]
    last = stop = next(at for at in itertools.count(first) if at == len(typed) or layouts[at + 1].unreduced)
    if first < last and isinstance(typed[first], steps.Slice):
        first += 1
    while last > first and isinstance(typed[last - 1], steps.AllGather):
        last -= 1
    return sorted({(a, b) for a in (start, first) for b in (last, stop) if b > a})


# Digits


def _cut_into_primes(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """Returns the factors in pieces of prime size, of which more find room.

    Example:
      >>> _cut_into_primes([Factor("x", 1, 6)])
      (Factor(axis='x', pre=1, size=2), Factor(axis='x', pre=2, size=3))
    """
    pieces = []
    for factor in factors:
        pre = factor.pre
        for prime in primes(factor.size):
            pieces.append(Factor(factor.axis, pre, prime))
            pre *= prime
    return tuple(pieces)


def _spare_digits(layout: Layout, factors: Sequence[Factor]) -> dict[Factor, Slot]:
    """Returns the digits behind all owned ones that the factors may take one after the other; those without room are left out."""
    ends = [max((slot.end for _, slot in layout.owners if slot.dim == dim), default=1) for dim in range(len(layout.shape))]
    found = {}
    for factor in factors:
        for dim, size in enumerate(layout.shape):
            if size and size % (ends[dim] * factor.size) == 0:
                found[factor] = Slot(dim, ends[dim], ends[dim] * factor.size)
                ends[dim] *= factor.size
                break
    return found


def _unused(axis: str, size: int, used: Sequence[Factor]) -> tuple[Factor, ...]:
    """Returns the pieces, of prime size, of an axis of which none of the factors is a part.

    Example:
      >>> [(piece.pre, piece.size) for piece in _unused("x", 12, [Factor("x", 2, 2)])]
      [(1, 2), (4, 3)]
    """
    here = sorted((factor.pre, factor.pre * factor.size) for factor in used if factor.axis == axis)
    ends = [1, *itertools.chain(*here), size]
    gaps = [Factor(axis, a, b // a) for a, b in zip(ends[::2], ends[1::2]) if b % a == 0 and b > a]
    return _cut_into_primes(gaps)
