# SPDX-License-Identifier: Apache-2.0
"""Routes between any two placements, including padded tiles, two meshes, and single devices.

A route is *legs*, chains of steps on one mesh over whole tiles, and *joints* between them: an exchange, or one permute
of whole tiles to another device order. If a leg needs it, tiles are padded, or the padding is cut off. Kinds of
route, all priced in the same way:

- one leg on the padded shape (`padding.py`), if there is one. A target on another mesh is written in axes of the
  source's mesh if both are digits of the same devices (`two_meshes.py`); else there is a permute at one place of the
  leg;
- the same, with an exchange in place of its middle;
- if no padded shape has the tiles of both ends, one leg on a shape with nearly these tiles, and exchanges of the other
  elements at its ends;
- the exchange alone; or an exchange to a layout that splits the target's tiles along factors that the target
  replicates, padded if they do not divide, and then an all_gather. This pays if links between some of the devices are
  slow, if only a few devices hold the whole array, or if the gather copies less than another one;
- partial sums of the source are reduced first; those of the target are made last, with zeros on all devices but one;
- chains on meshes that are made for them (`relabelled.py`). These pay if the links or the radices differ.

R2 on padded tiles: no tile is larger than the larger tile of both ends, padded as the first and the last leg need them,
unless the tile limit allows it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..layouts.blocks import Blocks, both_ends
from ..layouts.layout import (
    Factor,
    Layout,
    LayoutError,
    Slot,
    blocked,
    layout_of,
    unreduced_factors,
    whole_factors,
)
from ..layouts.mesh import Mesh
from ..layouts.padding import nearly_padded_shapes, padded_shape, whole_shape
from ..layouts.refinement import NoPlanError
from ..layouts.sharding import Sharding
from ..network.bounds import received_elements_bound
from ..network.pricing import Pricing
from ..plans.costing import Costing
from ..plans.plan import Plan, PlannedStep
from ..plans.request import Request
from ..programs import steps
from ..programs.chain import Chain
from ..programs.exchange import Exchange, TooManyPieces
from ..programs.steps import AllGather, Exchanged, Reorder, Step
from ..programs.tile_program import On, Operation, Relayout, Reshape, Resize, Rounds, Send, TileProgram, lower
from ..programs.two_meshes import expressed, in_another_order, reorder_pairs
from ..search.find_chain import find_chain
from ..search.relabelled import block_mesh, chains_by_counts, matched_along, replicated_from


@dataclass(frozen=True, slots=True)
class Leg:
    """A chain on one mesh. `pricing` prices steps on that mesh, and `note` follows the texts of its collectives."""

    pricing: Pricing
    chain: Chain
    note: str = ""


Part = Leg | Exchanged | Reorder

NEAREST = ", nearest replicas"  # the note of a leg whose groups are made of nearest replicas


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
        self.is_settled = False

    @functools.cached_property
    def ends(self) -> tuple[Blocks, Blocks]:
        """Returns the placements of source and target."""
        asked = self.request
        return both_ends(asked.mesh, asked.shape, asked.source, asked.target, asked.target_mesh)

    @property
    def held(self) -> Blocks:
        return self.ends[0]

    @property
    def wanted(self) -> Blocks:
        return self.ends[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of the array; a scalar that only some devices hold is an array of one element here."""
        return self.request.shape or self.held.shape

    @property
    def source(self) -> Sharding:
        return self._side(self.request.source)

    @property
    def target(self) -> Sharding:
        return self._side(self.request.target)

    def _side(self, side: Sharding) -> Sharding:
        return side if self.shape == self.request.shape else Sharding(((),), unreduced=side.unreduced)

    def plans(self) -> Iterator[Plan]:
        """Yields at least one plan. Raises: NoPlanError if there is none, with the reason."""
        if not self.request.with_exchange:
            yield from self._by_chain()
            return
        is_empty, refusal = True, None
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
            assert refusal is not None  # a kind of route that has no plan says why
            raise refusal

    # One leg, whole or cut in two

    def _by_chain(self) -> Iterator[Plan]:
        mesh, goal = self.request.mesh, self.request.goal_mesh
        if mesh.size < self.request.devices or (goal.axes and goal.size < self.request.devices):
            raise NoPlanError(
                f"no chain of steps leads from the {mesh.size} devices of {mesh} to the {goal.size} of {goal}"
            )
        target = expressed(self.target, goal, mesh) if goal.axes and goal != mesh else self.target
        if target is not None:  # replicas serve a target on one device too
            yield from self._on_one_mesh(target)
            return
        alike = expressed(self.target, Mesh(goal.axes), Mesh(mesh.axes))
        if alike is None:
            raise NoPlanError(
                f"{mesh} and {goal} share no digits in which both {self.source} and {self.target} are written"
            )
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
        is_by_bytes = not self.costing.objective.is_by_time
        is_packed = is_by_bytes and self.request.bits % 8 != 0  # the search counts parts of bytes
        is_proved = not is_packed and (found.is_unbeatable or found.is_optimal and inner.shape == self.request.shape)
        yield self._assembled([self._leg(mesh, found.chain)], is_proved)
        if self.request.with_exchange and not self.is_settled:
            yield from self._with_middle(found.chain)

    def _with_shifts(self, target: Sharding, shapes: Sequence[tuple[int, ...]]) -> Iterator[Plan]:
        """Yields chains on arrays with nearly the tiles of both ends, and exchanges of the elements in other tiles."""
        mesh = self.request.mesh
        if not self.costing.objective.is_by_time and not self.request.has_sums:
            return  # an exchange alone receives no more than it must
        for shape in shapes:
            inner = replace(self.request, mesh=mesh, shape=shape, source=self.source, target=target, target_mesh=None)
            found = find_chain(inner, self.pricing_of(mesh), self.costing.bound)
            leg, ends = self._leg(mesh, found.chain), (found.chain.source, found.chain.target)
            held, wanted = (self._blocks(mesh, layout) for layout in ends)
            try:
                parts = [*self._shift(self.held, held, ends[0]), leg, *self._shift(wanted, self.wanted, ends[1])]
            except TooManyPieces:
                continue
            yield self._assembled(parts, ends=[layout.tile_elements for layout in ends])

    def _shift(self, before: Blocks, after: Blocks, layout: Layout) -> tuple[Exchanged, ...]:
        if np.array_equal(before.starts, after.starts) and np.array_equal(before.stops, after.stops):
            return ()
        if layout.unreduced:
            raise TooManyPieces("partial sums are not exchanged")
        return (Exchanged(self.exchange(before, after), None),)

    def _inner(self, target: Sharding, mesh: Mesh) -> Request:
        """Returns the even request on one mesh, to a sharding that places the array as the target does."""
        shape = padded_shape(self.shape, self.source.shards(mesh), target.shards(mesh))
        if shape is None:
            raise NoPlanError(f"no padded array has both the tiles of {self.source} and those of {self.target}")
        if shape != self.shape and not self.request.with_exchange:
            raise NoPlanError(
                f"shape {list(self.shape)} does not divide into the shards of {self.source} and {self.target}"
            )
        return replace(self.request, mesh=mesh, shape=shape, source=self.source, target=target, target_mesh=None)

    def _with_permute(self, target: Sharding) -> Iterator[Plan]:
        """Yields chains with one permute to the target's devices: first, last, or where the tile is smallest.

        Args:
          target: on the axes of the source's mesh, in the order of the target's devices.
        """
        there = in_another_order(self.request.mesh, self.request.goal_mesh)
        for mesh in (self.request.mesh,) if self.costing.pricing.is_flat else (self.request.mesh, there):
            inner = self._inner(target, mesh)
            bound = received_elements_bound(mesh, inner.shape, inner.source, target)
            found = find_chain(inner, self.pricing_of(mesh), bound)
            chain = found.chain
            tiles = [layout.tile_elements for layout in chain.layouts]
            for at in sorted({0, tiles.index(min(tiles)), len(chain)}):
                pairs = reorder_pairs(self.request.mesh, there, chain.layouts[at])
                before, after = self._leg(self.request.mesh, chain[:at]), self._leg(there, chain[at:])
                yield self._assembled([before, Reorder(pairs), after])

    def _leg(self, mesh: Mesh, chain: Chain, note: str = "") -> Leg:
        return Leg(self.pricing_of(mesh), chain, note)

    def _with_middle(self, chain: Chain) -> Iterator[Plan]:
        """Yields chains whose middle is replaced by an exchange, which does not move the padding."""
        mesh, last = self.request.mesh, len(chain)
        for start, stop in middles(chain):
            if (start, stop) == (0, last):
                continue  # `plans_by_exchange` yields the exchange alone
            ahead, behind = chain[:start], chain[stop:]
            try:
                before = self._blocks(mesh, ahead.target) if start else self.held
                after = self._blocks(mesh, behind.source) if stop < last else self.wanted
                joint = Exchanged(self.exchange(before, after), None)
                yield self._assembled([self._leg(mesh, ahead), joint, self._leg(mesh, behind)])
            except (LayoutError, TooManyPieces):
                continue

    def _blocks(self, mesh: Mesh, layout: Layout) -> Blocks:
        """Returns the blocks of a layout of a padded array, cut to the array itself."""
        return Blocks.of_layout(mesh, layout).cropped(self.shape)

    # Exchanges

    def plans_by_exchange(self) -> Iterator[Plan]:
        """Yields plans that consist of an exchange and need no search. Raises: NoPlanError if there are none."""
        refusal, is_empty = "", True
        for (held, reduces), (wanted, completes) in itertools.product(self._starts(), self._goals()):
            try:
                joint = () if held.places_like(wanted) else (Exchanged(self.exchange(held, wanted), None),)
            except TooManyPieces as error:
                refusal = str(error)
                continue
            is_empty = False
            yield self._assembled([*reduces, *joint, *completes])
            if not self.costing.objective.is_by_time and not self.request.has_sums:
                return  # the first is the exchange alone, at the bound
        if is_empty:
            raise NoPlanError(refusal)

    def through_parts_of_target(
        self, may_gather: Callable[[tuple[Factor, ...]], bool], may_gain: Callable[[Leg], bool]
    ) -> Iterator[Plan]:
        """Yields plans of an exchange that divides the target's tiles among their replicas, and a gather of the parts.

        Args:
          may_gather: whether a plan that ends in a gather along these factors may be worth making.
          may_gain: whether a plan that ends in this leg, the gather, may be worth the schedule of its exchange.
        """
        mesh = self.request.mesh
        for gathered in filter(may_gather, self._replicas(mesh) if self.shape else []):
            leg, tile = self._gathered_parts(mesh, (), gathered)
            if may_gain(leg):
                parts = self._parts_of_target(mesh, leg.chain.source, tile)
                with contextlib.suppress(TooManyPieces):
                    yield self._assembled([Exchanged(self.exchange(self.held, parts), None), leg])

    def _starts(self) -> Iterator[tuple[Blocks, tuple[Leg, ...]]]:
        """Yields placements without partial sums, and the leg that reduces the source to each of them."""
        mesh = self.request.mesh
        sums = unreduced_factors(mesh, self.source)
        if not sums:
            yield self.held, ()
            return
        self._check_holds_all(mesh)
        before = self._whole_layout(mesh, self.source, _primes(sums))
        spare = _spare_digits(before, before.unreduced)
        for moves in (spare, {}) if spare else ({},):
            rest = tuple(factor for factor in before.unreduced if factor not in moves)
            typed = [steps.ReduceScatter(tuple(moves.items()))] if moves else []
            typed += [steps.AllReduce(rest)] if rest else []
            chain = Chain(before, tuple(typed))
            yield self._blocks(mesh, chain.target), (self._leg(mesh, chain),)

    def _goals(self) -> Iterator[tuple[Blocks, tuple[Leg, ...]]]:
        """Yields placements without partial sums, and the leg that leads from each of them to the target."""
        mesh = self.request.goal_mesh
        sums = _primes(unreduced_factors(mesh, self.target))
        if not sums:
            yield self.wanted, ()
            if mesh.size < self.request.devices:
                return
        self._check_holds_all(mesh)
        replicas = self._replicas(mesh) if self.shape else []  # a scalar has no parts
        for gathered in [(), *replicas] if sums else replicas:
            leg, tile = self._gathered_parts(mesh, sums, gathered)
            yield self._parts_of_target(mesh, leg.chain.source, tile), (leg,)

    def _gathered_parts(
        self, mesh: Mesh, sums: tuple[Factor, ...], gathered: tuple[Factor, ...]
    ) -> tuple[Leg, tuple[int, ...]]:
        """Returns the leg that makes the target of its tiles' parts, which are divided among the factors, and its tile.

        If the factors do not divide the tile, its longest dimension is padded; the padding at the leg's end is cut off.
        """
        factors, blocks = (*sums, *gathered), whole_factors(mesh, self.target)
        tile = self.target.tile_shape(mesh, self.shape)
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
        typed = (steps.AllGather(gathered),) if gathered else ()
        typed += (steps.ToUnreduced(sums),) if sums else ()
        return self._leg(mesh, Chain(before, typed)), tile

    def _parts_of_target(self, mesh: Mesh, layout: Layout, tile: tuple[int, ...]) -> Blocks:
        """Returns the boxes of a layout that divides the target's tiles, padded to `tile`, in indices of the array."""
        offset = Blocks.of_layout(mesh, layout).starts % np.array(tile, np.int64)
        limits = self.wanted.starts, self.wanted.stops
        starts = np.minimum(limits[0] + offset, limits[1])
        stops = np.minimum(starts + np.array(layout.tile_shape, np.int64), limits[1])
        return Blocks(self.shape, layout.tile_shape, starts, stops)

    def _replicas(self, mesh: Mesh) -> list[tuple[Factor, ...]]:
        """Returns groups of factors along which the target is replicated: all, and those of each axis if not flat."""
        used = [*itertools.chain(*whole_factors(mesh, self.target)), *unreduced_factors(mesh, self.target)]
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
                f"partial sums on {mesh.size} of {self.request.devices} devices are not moved; "
                f"reduce them on {mesh} first"
            )

    # Other meshes of the same devices, for requests on one mesh whose dimensions divide, without partial sums

    def on_block_meshes(self) -> Iterator[Plan]:
        """Yields chains on the mesh of the source's blocks before a permute, or on that of the target's behind one."""
        mesh = self.request.mesh
        before, after = (layout_of(mesh, self.shape, side) for side in (self.source, self.target))
        for here, there in ((before, after), (after, before)):
            on = block_mesh(mesh, here, self._places())
            replicas = mesh.size * here.tile_elements // math.prod(self.shape)
            for chain in chains_by_counts(here, there, replicas):
                with contextlib.suppress(steps.RuleError):
                    chain = chain.inverted() if here is after else chain
                    apart = [chain.with_gathers_apart()] if chain.has_joint_gather else []
                    for each in (chain, *apart):
                        yield from self._on_block_mesh(on, each, here is after)

    def _on_block_mesh(self, on: Mesh, chain: Chain, is_behind: bool) -> Iterator[Plan]:
        """Yields a chain on a mesh of blocks with a permute of whole tiles, also with groups of nearest replicas.

        The chain comes behind the permute if `is_behind`, else in front of it.
        """
        mesh = self.request.mesh
        before, after = (layout_of(mesh, self.shape, side) for side in (self.request.source, self.request.target))
        for legs in ([self._leg(on, chain)], *self._matched(on, chain)):
            if is_behind:
                yield self._assembled([*self._reordered(mesh, before, on, chain.source), *legs])
            else:
                yield self._assembled([*legs, *self._reordered(legs[-1].pricing.mesh, chain.target, mesh, after)])

    def _reordered(self, before: Mesh, held: Layout, after: Mesh, wanted: Layout) -> tuple[Reorder, ...]:
        """Returns the permute of whole tiles to their places; empty if all tiles are there already.

        It may be faster if a device that has its own tile already still sends it to another device.
        """
        ways = [Reorder(reorder_pairs(before, after, held, wanted, keeps=keeps)) for keeps in (True, False)]
        if all([a == b for a, b in ways[0].pairs]):
            return ()
        if self.costing.pricing.is_flat:
            return (ways[0],)
        return (min(ways, key=lambda way: self.costing.priced_reorder(way, held.tile_elements).time_s),)

    def matched_along_replicas(self, chain: Chain) -> Iterator[Plan]:
        """Yields the chain with groups of nearest replicas in the steps behind which factors stay replicated."""
        for legs in self._matched(self.request.mesh, chain):
            yield self._assembled(legs)

    def _matched(self, on: Mesh, chain: Chain) -> Iterator[list[Leg]]:
        """Yields the legs of a chain on a mesh; from some step on, replicas that last to its end are matched."""
        free = replicated_from(on, chain.layouts)
        starts = [at for at in range(len(chain)) if free[at] and (at == 0 or free[at] != free[at - 1])]
        for cuts in {(start,) for start in starts} | {tuple(starts)} if starts else ():
            legs, mesh = [], on
            for a, b in itertools.pairwise((0, *cuts, len(chain))):
                mesh = matched_along(on, free[a], self._places()) if a in cuts else mesh
                note = NEAREST if mesh != on else ""
                legs.append(self._leg(mesh, chain[a:b], note))
            if mesh != on:
                yield legs

    def gathered_among_nearest(self, chain: Chain) -> Iterator[Plan]:
        """Yields a chain of gathers, and then slices, with the groups of the gathers made of the nearest replicas.

        After the gathers, devices that differ only along a factor without a digit hold equal tiles, whatever the groups
        were.
        """
        on, count = self.request.mesh, sum(isinstance(step, AllGather) for step in chain)
        free = replicated_from(on, chain.layouts[: count + 1])[0]
        mesh = matched_along(on, free, self._places()) if free else on
        if mesh != on:
            yield self._assembled([self._leg(mesh, chain[:count], NEAREST), self._leg(on, chain[count:])])

    def _places(self) -> np.ndarray:
        """Returns the place of each device id in the network."""
        return self.request.topology.fitted(self.request.devices).positions()

    # Plans

    def _assembled(self, parts: Sequence[Part], is_proved: bool = False, ends: Sequence[int] | None = None) -> Plan:
        """Returns the plan of a route; tiles are padded or cut for a part that takes other tiles than the part before.

        Args:
          ends: elements of the tiles at both ends as the legs want them; None: before a first and behind a last leg.
        Raises: RuleError if another tile is larger than these, those of the request and its tile limit (R2).
        """
        route = _Assembly(self.request, self.costing)
        for part in parts:
            route.add(part)
        found = route.finished(is_proved)
        if ends is None:
            ends = [leg.chain.source.tile_elements for leg in parts[:1] if isinstance(leg, Leg)]
            ends += [leg.chain.target.tile_elements for leg in parts[-1:] if isinstance(leg, Leg)]
        if route.largest > max(*ends, *map(math.prod, self.request.tile_shapes), self.request.tile_limit_elements):
            raise steps.RuleError(
                f"R2: a tile of {route.largest} elements, the ends have {ends} and {self.request.tile_shapes}"
            )
        return found


class _Assembly:
    """Joins the parts of a route.

    State: `tile` is the shape of the tile after the parts so far; `mesh` is the mesh of the factors there.
    """

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
        chain = leg.chain
        if not chain:
            return
        mesh = leg.pricing.mesh
        self._resize(chain.source.tile_shape)
        program = lower(mesh, chain.source, chain.steps, self.request.reduction, chain.layouts)
        filed = list(program.steps)
        if mesh != self.mesh:
            filed[0] = filed[0][0], (On(mesh), *filed[0][1])
            self.mesh = mesh
        self.filed += filed
        priced = self.costing.priced_steps(leg.pricing, program, chain)
        self.priced += [
            replace(each, text=each.text + leg.note) if steps.collectives(each.step) else each for each in priced
        ]
        self.largest = max(self.largest, chain.largest_tile)
        self.tile = chain.target.tile_shape

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
    """Returns the operations that change the shape of a tile; a scalar is treated as an array of one element."""
    if not before:
        return Reshape((1,) * len(after)), Resize(after)
    if not after:
        return Resize((1,) * len(before)), Reshape(after)
    return (Resize(after),)


def middles(chain: Chain) -> list[tuple[int, int]]:
    """Returns (start, stop) of the runs of steps that an exchange may replace.

    A run is all steps between layouts without partial sums, with or without the leading slices and the trailing
    gathers.
    """
    layouts = chain.layouts
    plain = [at for at, layout in enumerate(layouts) if not layout.unreduced]
    if not plain:
        return []
    first = start = plain[0]
    last = stop = next(at for at in itertools.count(first) if at == len(chain) or layouts[at + 1].unreduced)
    if first < last and isinstance(chain[first], steps.Slice):
        first += 1
    while last > first and isinstance(chain[last - 1], steps.AllGather):
        last -= 1
    return sorted({(a, b) for a in (start, first) for b in (last, stop) if b > a})


# Digits


def _primes(factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """Returns the factors in pieces of prime size, which fit into more places than whole factors."""
    return tuple(piece for factor in factors for piece in factor.primes())


def _spare_digits(layout: Layout, factors: Sequence[Factor]) -> dict[Factor, Slot]:
    """Returns a digit for each factor, after all owned digits of a dimension; factors that do not fit are left out."""
    ends = [
        max((slot.end for _, slot in layout.owners if slot.dim == dim), default=1) for dim in range(len(layout.shape))
    ]
    found = {}
    for factor in factors:
        for dim, size in enumerate(layout.shape):
            if size and size % (ends[dim] * factor.size) == 0:
                found[factor] = Slot(dim, ends[dim], ends[dim] * factor.size)
                ends[dim] *= factor.size
                break
    return found


def _unused(axis: str, size: int, used: Sequence[Factor]) -> tuple[Factor, ...]:
    """Returns the pieces of prime size of an axis that belong to none of the factors.

    Example:
      >>> [(piece.pre, piece.size) for piece in _unused("x", 12, [Factor("x", 2, 2)])]
      [(1, 2), (4, 3)]
    """
    here = sorted([(factor.pre, factor.end) for factor in used if factor.axis == axis])
    if here == [(1, size)]:
        return ()
    ends = [1, *itertools.chain(*here), size]
    gaps = [Factor(axis, a, b // a) for a, b in zip(ends[::2], ends[1::2]) if b % a == 0 and b > a]
    return _primes(gaps)
