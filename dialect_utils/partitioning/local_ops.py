# SPDX-License-Identifier: Apache-2.0
"""Ops on one device's tiles: each op of an analysed function is written in the layouts that `local_rules` allows.

If an operand has another layout than its op needs, a chain of collectives converts it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reshard.synthesis.layouts.layout import Factor
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import NoPlanError, Plan, plan
from reshard.synthesis.planner.moved import End, plan_move, plan_moves
from reshard.synthesis.plans.costing import least_costs
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.exchange import TooManyPieces
from reshard.synthesis.programs.tile_program import collectives

from ..analysis.module_analysis import Analysis
from ..conversions.unneeded import Ends
from ..emission.mini_modules import bits_of
from ..emission.tile_emission import Mark, write_exchange_into, write_program
from ..hierarchy.explicit_collectives import OPS, NotPlannable, read_collective
from ..hierarchy.faster_chains import InPlace, chain_in_place
from ..hierarchy.varying_axes import VaryingAxes, varying_axes
from ..ir.diagnostics import DiagnosedError, error_at
from ..ir.fusing import is_elementwise_of_one
from ..ir.loop_trips import ASSUMED_TRIPS, known_trips_of
from ..ir.ops import CONSTANTS, producer_of, terminator_of
from ..ir.reductions import is_neutral, neutral_element, reducing_op
from ..platform.bindings import ir, sdy, stablehlo
from ..platform.typed import present
from ..preparation.serials import own_location, serial_of
from ..shardings.value_layouts import layout
from ..tile_rules import local_rules
from ..tile_rules.indexed_rules import is_indexed, put_in_range, rules_of
from ..tile_rules.local_rules import Axes, Dims, NotLocal, Rule, Site
from ..tile_rules.moved_rules import Part, is_move, joined, joined_along, kept_split, moves_of, takes_part, write_joined
from ..tile_rules.partial_sums import (
    ADDS,
    UPDATE,
    Accumulation,
    accumulation,
    begins_with_nothing,
    is_unit_sum,
    linear_operand,
    scaled_operands,
    widens,
)
from ..tile_rules.partly_manual import COLLECTIVES, ManualAxes
from ..tile_rules.product_rules import is_product, products_of, takers
from ..tile_rules.staged_rules import reduced_in_stages, running_in_stages, top_k_in_stages
from ..tile_rules.tile_masks import filled, indices
from ..tile_rules.window_rules import has_window, windows_of
from .copied_ops import (
    EDGES,
    PASS_ON,
    body_as_it_came,
    constant_of,
    copied_attributes,
    copied_constant,
    copy_region,
    splat_text,
)
from .refusals import HINT, refusal
from .tiles import Scope, Tile, TilesAtHand, dims_of, grows, sharding_of, tile_type

_SUMS = frozenset({"sdy.all_reduce", "sdy.reduce_scatter"})
_SLICES = frozenset({"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"})  # the latter may read a slice, too

Cost = tuple[float, ...]  # seconds, or received bytes, work and collectives
_Changes = list[
    tuple[float, tuple[ir.Value, list[Tile], Dims, int]]
]  # changes of layout, each with a bound of its cost
_DEAREST: Cost = (math.inf, math.inf, math.inf)
_ROUNDING = 1e-9  # relative


@dataclass(frozen=True, slots=True)
class How:
    """How ops are written on tiles.

    Attributes:
      platform: one of `platforms.PLATFORMS`. planning: options of `plan` for the changes of layout.
      compares_products: whether the ways to split a matrix product are compared, where plans are made for time.
      release_bytes: how many bytes less are to be held at the fullest moment, by conversions that are written again.
      keeps_sums: whether sums that the program itself has, in manual computations, stay in their order.
    """

    platform: str
    planning: Mapping[str, Any]
    compares_products: bool = False
    release_bytes: float = 0.0
    keeps_sums: bool = False


@dataclass(frozen=True, slots=True)
class Conversion:
    """A change of layout that an op asks for, for reports.

    Attributes:
      number: of this conversion, by which its ops are named.
      op_name: the name of the op of the original module that needs it; empty for an op that the analysis made.
      whole: why the op needs a dimension whole, if that is the reason.
      is_move: whether the op itself moves elements between devices, and the change of layout is its effect.
      is_collective: whether the op is a collective of the program, and a faster chain takes its place.
      manual: the axes of the manual computations around it.
      is_needed: whether it is in the module; else no op takes its result.
      is_repeated: whether an earlier one is written once more, so that its result is not held until here.
    """

    number: int
    op_name: str
    location: ir.Location
    tensor: ir.Type
    plan: Plan
    whole: str
    is_move: bool = False
    is_needed: bool = True
    is_repeated: bool = False
    is_collective: bool = False
    manual: ManualAxes = ManualAxes()


@dataclass(frozen=True, slots=True)
class _Around:
    """A loop or branch around the ops that are being written: the new op if it is a loop, its body, and its trips."""

    loop: ir.Operation | None
    body: ir.Block
    trips: int


_Nested = Generator["_Nested", Any, Any]


def _run_nested(work: _Nested) -> Any:
    """Runs nested generators without recursion, to any depth, and returns the result of the outermost one.

    A generator yields another generator to call it, and then receives the result of that generator.
    """
    running, returned = [work], None
    try:
        while running:
            try:
                running.append(running[-1].send(returned))
                returned = None
            except StopIteration as end:
                running.pop()
                returned = end.value
    finally:
        while running:  # innermost first: each restores its location and its insertion point
            running.pop().close()
    return returned


class OpWriter:
    """Writes the ops of analysed functions on tiles, at the current insertion point.

    State: `conversions` has the changes of layout that are written so far, `ends` where each begins and
    ends; `_not_written` the slices of split dimensions that wait until the concatenations that take them are written.
    Tiles of values are in scopes, one per block. Values of a region are not visible outside of the region, so a scope
    is copied on entry.
    """

    def __init__(
        self,
        mesh: Mesh,
        meshes: dict[str, Mesh],
        analysis: Analysis,
        channels: Iterator[int],
        how: How,
        first: int = 0,
    ):
        self.mesh = mesh
        self.meshes = meshes
        self.analysis = analysis
        self.channels = channels
        self.platform = how.platform
        self.planning = how.planning
        self.compares_products = how.compares_products and how.planning.get("objective") == "time"
        self.keeps_sums = how.keeps_sums
        self._first = first
        self.conversions: list[Conversion] = []
        self.ends: list[Ends] = []
        self.at: ir.Operation | None = None
        self._around: list[_Around] = []  # loops and branches
        self._manual = ManualAxes()  # of the manual computations whose bodies are being written
        self._varying: list[VaryingAxes] = []  # of these
        self._not_written: dict[ir.Value, ir.Operation] = {}  # parts that are only joined, each with its slice
        self._accumulating: dict[ir.Operation, Accumulation] = {}  # ops whose results may be carried as partial sums
        self._accumulated: dict[ir.Value, Axes] = {}  # what is carried on, where it is partial sums
        self.at_hand = TilesAtHand()
        self._bounds: dict[tuple, float] = {}  # of changes of layout
        self._known_dims: dict[tuple[ir.Attribute | None, int | None], Dims] = {}  # few layouts are of many values

    def write_block(
        self, block: ir.Block, tiles: Sequence[Tile], outer: Scope, wanted: Sequence[Dims]
    ) -> list[ir.Value]:
        """Writes the ops of a block; returns its final values in the wanted layouts."""
        return _run_nested(self._block(block, tiles, outer, wanted))

    def write_ops(self, ops: Sequence[ir.Operation], scope: Scope) -> None:
        """Writes ops of one block, whose operands `scope` has; `at` is the op of these that is being written."""
        for op in ops:
            self.at = op
            _run_nested(self._write_op(op, scope))
        self.at = None

    def tile_of(self, user: ir.Operation, value: ir.Value, scope: Scope, dims: Dims | None = None) -> Tile:
        """Returns the tile of a value that was written, in a layout; in its own one if there is none to be had.

        A value whose tiles are partial sums, or have padding, gets the layout that propagation found for it, as far as
        that divides.
        """
        self._write_part(value, scope)
        tile = scope[value]
        if dims is None:
            shape = ir.RankedTensorType(value.type).shape
            dims = tile.dims if not tile.partial else self._dims(value)
            dims = tuple(local_rules.dividing(*each) for each in zip(shape, dims, strict=True))
        return Tile(self._in_layout(user, value, dims, scope), dims)

    def dims_found(self, value: ir.Value) -> Dims:
        """Returns the layout that propagation found for a value, as far as it divides; nothing for a token."""
        if not isinstance(value.type, ir.RankedTensorType):
            return ()
        shape = ir.RankedTensorType(value.type).shape
        return tuple(local_rules.dividing(*each) for each in zip(shape, self._dims(value), strict=True))

    def _block(self, block: ir.Block, tiles: Sequence[Tile], outer: Scope, wanted: Sequence[Dims]) -> _Nested:
        scope = dict(outer)
        scope.update(zip(block.arguments, tiles, strict=True))
        *ops, terminator = [op.operation for op in block.operations]
        for op in ops:
            yield self._write_op(op, scope)
        return [
            scope[value].value if value in self._accumulated else self._in_layout(terminator, value, dims, scope)
            for value, dims in zip(terminator.operands, wanted, strict=True)
        ]

    def _write_op(self, op: ir.Operation, scope: Scope) -> _Nested:
        self.at_hand.ops_written += 1
        with own_location(op):
            if op.name in PASS_ON:
                self._pass_on(op, scope)
            elif op.name in EDGES:
                scope[op.results[0]] = scope[op.operands[0]]
            elif op.name in ("sdy.sharding_group", "sdy.mesh"):
                return
            elif op.name in CONSTANTS:
                self._constant(op, scope)
            elif op.name == "stablehlo.iota":
                self._iota(op, scope)
            elif op.name == "stablehlo.while":
                yield self._while(op, scope)
            elif op.name in ("stablehlo.case", "stablehlo.if"):
                yield self._branches(op, scope)
            elif op.name == "sdy.manual_computation":
                yield self._island(op, scope)
            else:
                self._on_tiles(op, scope)

    # Layouts

    def _dims(self, value: ir.Value) -> Dims:
        """Returns the layout that propagation found for a value."""
        attr, kind = layout(value), value.type
        key = attr, ir.RankedTensorType(kind).rank if isinstance(kind, ir.RankedTensorType) else None
        if key not in self._known_dims:
            self._known_dims[key] = dims_of(attr, kind, self.mesh)
        return self._known_dims[key]

    def _in_layout(self, op: ir.Operation, value: ir.Value, dims: Dims, scope: Scope, whole: str = "") -> ir.Value:
        """Returns the tile of a value in the layout `dims`; writes a conversion if the value has another layout."""
        if (value, dims) not in scope:
            own = scope[value]
            if own.dims == dims and not own.partial:
                return own.value
            tile = self._nearest(op, value, dims, scope)
            self.at_hand.keep(value, tile)
            loop = None if grows(tile, dims) else self._loop_that_takes(tile.value)
            with ir.InsertionPoint(loop) if loop is not None else contextlib.nullcontext():
                scope[value, dims] = self._as_wanted(op, tile, value.type, dims, whole)
            self.at_hand.hold(value, (value, dims), scope)
        return scope[value, dims].value

    def _nearest(self, op: ir.Operation, value: ir.Value, dims: Dims, scope: Scope) -> Tile:
        """Returns the tile from which a value gets into a layout at the least cost.

        Beside its own tile these are what it was converted to before, and the tiles of values with the same elements.
        """
        found = self._at_hand(value, dims, scope)
        if len(found) == 1:
            return found[0]
        least = (_DEAREST, True, len(found)), found[0]
        for bound, number in sorted(
            (self._least_cost(value, [tile], dims), number) for number, tile in enumerate(found)
        ):
            if bound > least[0][0][0]:
                break
            tile = found[number]
            cost = self._cost_of_plan(op, value.type, tile, dims, self._share(value, tile, dims))
            least = min(least, ((cost, tile.dims != dims, number), tile), key=operator.itemgetter(0))
        return least[1]

    def _at_hand(self, value: ir.Value, dims: Dims, scope: Scope) -> list[Tile]:
        """Returns the tiles from which a value may get into a layout; its own one first, alone if it is in it."""
        own = scope[value]
        if own.dims == dims and not own.partial:
            return [own]
        return list(dict.fromkeys((own, *self.at_hand.others(value, scope))))

    def _loop_that_takes(self, tile: ir.Value) -> ir.Operation | None:
        """Returns the outermost loop that takes a tile from outside and runs what is written here in each turn.

        Before this loop a conversion of the tile is written once for all turns. If the result is larger than the tile,
        it is not worth the memory, which it would need as long as the loop runs.
        """
        block = tile.owner if isinstance(tile.owner, ir.Block) else tile.owner.operation.block
        first = None
        for each in self._around:
            first = None if each.loop is None or each.body == block else first or each.loop
        return first

    def _as_wanted(self, op: ir.Operation, tile: Tile, kind: ir.Type, dims: Dims, whole: str = "") -> Tile:
        if tile.dims == dims and not tile.partial:
            return tile
        chain = self._plan(op, tile, kind, dims)
        if not chain.steps:
            return Tile(tile.value, dims)
        mark = self._mark(op, kind, chain, whole if tile.partial or grows(tile, dims) else "")
        if _takes_own_part_first(chain):
            put_in_range(tile.value)
        made = self._manual.from_part(write_program(chain.tile_program, self._manual.as_part(tile.value), mark))
        return Tile(self._noted(made, tile.value), dims)

    def _mark(self, op: ir.Operation, kind: ir.Type, chain: Plan, whole: str, is_move: bool = False) -> Mark:
        """Notes a conversion that is written next, and returns the mark of its ops."""
        number, original = self._first + len(self.conversions), self._original(op)
        op_name = "" if original is None else original.name
        array = self._manual.tensor(kind)
        found = Conversion(number, op_name, own_location(op), array, chain, whole, is_move, manual=self._manual)
        self.conversions.append(found)
        return self._last_mark(op)

    def _last_mark(self, op: ir.Operation) -> Mark:
        number = self.conversions[-1].number
        return Mark(self.channels, f"reshard/{number}", own_location(op), self.platform)

    def _noted(self, result: ir.Value, *taken: ir.Value) -> ir.Value:
        """Notes and returns the result of the last conversion."""
        self.ends.append(Ends(self.conversions[-1].number, taken, result))
        return result

    def _original(self, op: ir.Operation) -> ir.Operation | None:
        serial = serial_of(op)
        index = None if serial is None else self.analysis.origin[serial]
        return None if index is None else self.analysis.originals[index]

    # Kinds of ops

    def _pass_on(self, op: ir.Operation, scope: Scope) -> None:
        """Writes an op that only changes a layout.

        Partial sums are added up where they are used: if their users change the layout again, directly in that layout.
        """
        if op.operands[0] in self._not_written and op.operands[0] not in scope:
            self._not_written[op.results[0]] = self._not_written[op.operands[0]]
            return
        if op.name in _SUMS and self._original(op) is not None:
            raise refusal(op, "what it sums up is no value of the whole module")
        scope[op.results[0]] = self._passed_on(op, scope)
        self.at_hand.hold_twin(op.operands[0], op.results[0], scope)

    def _passed_on(self, op: ir.Operation, scope: Scope) -> Tile:
        tile, dims = scope[op.operands[0]], self._dims(op.results[0])
        if not tile.partial and self._is_for_lookups(op):
            return tile
        if tile.partial:
            if tile.dims == dims and self._is_summed_where_used(op):
                return tile
            dims = self._last_layout(op)
        return Tile(self._in_layout(op, op.operands[0], dims, scope), dims)

    def _is_for_lookups(self, op: ir.Operation) -> bool:
        """Returns whether all users of a change of layout, which nobody asked for, look up, write, move or select
        elements, or work along whole dimensions.

        Such an op may do with the layout before; its rules decide.
        """
        users = [use.owner.operation for use in op.results[0].uses]
        return self._original(op) is None and all(
            (is_indexed(user) or _has_choice(user) or self._is_top_k(user) or self._is_compared(user))
            and user.block == op.block
            for user in users
        )

    def _is_compared(self, op: ir.Operation) -> bool:
        """Returns whether an op is a product whose ways on tiles are compared."""
        return is_product(op) and self.compares_products

    def _is_top_k(self, op: ir.Operation) -> bool:
        original = self._original(op)
        return original is not None and original.name == "chlo.top_k"

    def _is_summed_where_used(self, op: ir.Operation) -> bool:
        return self._is_wanted_once(op.results[0])

    def _is_wanted_once(self, value: ir.Value) -> bool:
        """Returns whether all users need partial sums in one layout, so that they are added up once, in that layout."""
        users = [use.owner.operation for use in value.uses]
        if not all(user.block == present(producer_of(value)).block for user in users):
            return False  # not once for each turn of a loop
        layouts = {self._last_layout(each) if each.name in PASS_ON else None for each in users}
        return len(users) == 1 or len(layouts) == 1 and None not in layouts

    def _last_layout(self, op: ir.Operation) -> Dims:
        """Returns the layout at the end of a chain of ops that only change the layout of what `op` makes.

        A value with several users is not the end if all of them want it in one layout.
        """
        dims = self._dims(op.results[0])
        while users := [use.owner.operation for use in op.results[0].uses]:
            if not all(user.name in PASS_ON for user in users):
                return dims
            wanted = {self._dims(user.results[0]) for user in users}
            if len(wanted) > 1:
                return dims
            op, dims = users[0], wanted.pop()
            if len(users) > 1:
                return dims
        return dims

    def _constant(self, op: ir.Operation, scope: Scope) -> None:
        dims, kind = self._dims(op.results[0]), op.results[0].type
        if any(dims) and (element := splat_text(op)) is not None:
            scope[op.results[0]] = Tile(constant_of(element, tile_type(kind, dims, op)), dims)
            return
        whole = Tile(copied_constant(op), ((),) * len(dims))
        scope[op.results[0]] = self._as_wanted(op, whole, kind, dims)

    def _iota(self, op: ir.Operation, scope: Scope) -> None:
        """Writes the numbers along one dimension, cuts out the tile's part, and repeats it along the others."""
        kind, dims = ir.RankedTensorType(op.results[0].type), self._dims(op.results[0])
        along = ir.IntegerAttr(op.attributes["iota_dimension"]).value
        numbers = self._own_numbers(op, ir.RankedTensorType.get([kind.shape[along]], kind.element_type), dims[along])
        scope[op.results[0]] = Tile(
            stablehlo.BroadcastInDimOp(tile_type(kind, dims, op), numbers, [along]).result, dims
        )

    def _own_numbers(self, op: ir.Operation, line: ir.Type, axes: Axes) -> ir.Value:
        """Returns this device's part of the numbers from 0 on, of which `line` is the type, split by the axes."""
        kind = ir.RankedTensorType(line)
        if not local_rules.is_even(kind.shape[0], axes):
            own = ir.RankedTensorType.get([local_rules.tile_size(kind.shape[0], axes)], ir.IntegerType.get_signless(32))
            found = indices(functools.partial(self.place, op), own, axes)
            return stablehlo.ConvertOp(ir.RankedTensorType.get(own.shape, kind.element_type), found).result
        numbers = Tile(stablehlo.IotaOp(line, 0).result, ((),))
        return self._as_wanted(op, numbers, line, (axes,)).value

    def _while(self, op: ir.Operation, scope: Scope) -> _Nested:
        layouts = [self._dims(each) for each in op.results]
        carried = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, layouts, strict=True)]
        loop = self._create(op, op.name, [each.type for each in carried], carried, op.attributes)
        accumulating = {number: accumulation(op, number, PASS_ON) for number in range(len(layouts))}
        self._accumulating |= {each.op: each for each in accumulating.values() if each is not None}
        for number, returned in enumerate(([()], layouts)):
            yield self._write_region(op, number, loop, layouts, returned, scope)
        self._bind(op, loop, layouts, scope)
        for number, each in accumulating.items():
            if each is not None and each.returned in self._accumulated:
                self._sum_behind(op, loop, number, self._accumulated[each.returned], scope)

    def _sum_behind(self, op: ir.Operation, loop: ir.Operation, number: int, partial: Axes, scope: Scope) -> None:
        """Makes a value that a loop carries be partial sums, which are added up behind the loop.

        What the loop begins with counts on the first device along the axes.
        """
        result = op.results[number]
        if not begins_with_nothing(op.operands[number]):
            with ir.InsertionPoint(loop):
                loop.operands[number] = self._on_first(op, loop.operands[number], partial)
        scope[result] = replace(scope[result], partial=partial)
        if not self._is_wanted_once(result):
            dims = scope[result].dims
            scope[result] = Tile(self._in_layout(op, result, dims, scope), dims)

    def _on_first(self, op: ir.Operation, tile: ir.Value, axes: Axes) -> ir.Value:
        """Returns a tile on the first device along the axes, and zeros on the others."""
        kind = ir.RankedTensorType(tile.type)
        place = self.place(op, axes)
        zero = neutral_element(place.type, "sum")
        is_first = stablehlo.CompareOp(place, zero, stablehlo.ComparisonDirectionAttr.get("EQ")).result
        scalar = stablehlo.ReshapeOp(ir.RankedTensorType.get([], ir.IntegerType.get_signless(1)), is_first).result
        return stablehlo.SelectOp(scalar, tile, neutral_element(kind, "sum")).result

    def _branches(self, op: ir.Operation, scope: Scope) -> _Nested:
        layouts = [self._dims(each) for each in op.results]
        chosen = self._in_layout(op, op.operands[0], (), scope)
        types = [tile_type(each.type, dims, op) for each, dims in zip(op.results, layouts, strict=True)]
        choice = self._create(op, op.name, types, [chosen], op.attributes)
        for number in range(len(op.regions)):
            yield self._write_region(op, number, choice, [], layouts, scope)
        self._bind(op, choice, layouts, scope)

    def _write_region(self, op: ir.Operation, number: int, new: ir.Operation, taken, given, scope: Scope) -> _Nested:
        """Writes a region of an op into a region of a new one.

        Args:
          taken, given: the layouts of the arguments of the region and of the values that it returns.
        """
        block = op.regions[number].blocks[0]
        types = [tile_type(each.type, dims, op) for each, dims in zip(block.arguments, taken, strict=True)]
        body = new.regions[number].blocks.append(*types, arg_locs=[own_location(op)] * len(types))
        is_loop = op.name == "stablehlo.while"
        trips = known_trips_of(op) or ASSUMED_TRIPS if is_loop else 1
        self._around.append(_Around(new if is_loop else None, body, max(1, trips)))
        try:
            with ir.InsertionPoint(body):
                tiles = [Tile(value, dims) for value, dims in zip(body.arguments, taken, strict=True)]
                stablehlo.ReturnOp((yield self._block(block, tiles, scope, given)))
        finally:
            self._around.pop()

    def _island(self, op: ir.Operation, scope: Scope) -> _Nested:
        """Writes the body of a manual computation: of one over all axes as it is, because it already works on tiles."""
        ends = [sdy.TensorShardingPerValueAttr(op.attributes[f"{side}_shardings"]).shardings for side in ("in", "out")]
        taken = [dims_of(attr, value.type, self.mesh) for attr, value in zip(ends[0], op.operands, strict=True)]
        given = [dims_of(attr, value.type, self.mesh) for attr, value in zip(ends[1], op.results, strict=True)]
        inner = ManualAxes.of(op, self.mesh)
        manual = self._manual.with_those_in(inner)
        if manual.are_all_of(self.mesh):
            values = self._copied_body(op, taken, scope)
        else:
            block = op.regions[0].blocks[0]
            taken, inside = inner.ends(block.arguments, taken)
            given, wanted = inner.ends(terminator_of(block).operands, given)
            tiles = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, taken, strict=True)]
            outside, self._manual = self._manual, manual
            around = self._varying[-1] if self._varying else None
            self._varying.append(varying_axes(op, self.mesh, meshes=self.meshes, outside=around))
            try:
                values = yield self._block(block, list(map(Tile, tiles, inside)), {}, wanted)
            finally:
                self._varying.pop()
                self._manual = outside
        for result, value, dims in zip(op.results, values, given, strict=True):
            scope[result] = Tile(value, dims)

    def _is_run_by_all(self, op: ir.Operation) -> bool:
        """Returns whether no loop or branch in a manual computation may be run by some of its devices alone.

        In one that may, a permute would wait for the others: all devices of a program take part in it.
        """
        apart = frozenset().union(*(each.around(op) for each in self._varying))
        return not any(each.axis in apart for each in self._manual.axes)

    def _copied_body(self, op: ir.Operation, taken: Sequence[Dims], scope: Scope) -> list[ir.Value]:
        tiles = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, taken, strict=True)]
        copy = body_as_it_came(self._original(op) or op)
        block = copy.regions[0].blocks[0]
        for argument, tile in zip(block.arguments, tiles, strict=True):
            argument.replace_all_uses_with(tile)
        *ops, terminator = [each.operation for each in block.operations]
        for each in ops:
            each.move_before(copy)
        values = list(terminator.operands)
        copy.erase()
        return values

    def _on_tiles(self, op: ir.Operation, scope: Scope) -> None:
        if self._is_only_joined(op, scope):
            self._not_written[op.results[0]] = op
            return
        if is_elementwise_of_one(op) and op.operands[0] in self._not_written and op.operands[0] not in scope:
            self._not_written[op.results[0]] = self._not_written[op.operands[0]]
            return
        if any(value in self._not_written for value in op.operands):
            if op.name == "stablehlo.concatenate" and self._join(op, scope):
                return
            for value in op.operands:
                self._write_part(value, scope)
        self._write_on_tiles(op, scope)

    def _write_on_tiles(self, op: ir.Operation, scope: Scope) -> None:
        if self._write_partial_sums(op, scope):
            return
        rule, meant = self._rule(op, scope)
        operands = [
            self._in_layout(op, value, dims, scope, rule.whole)
            for value, dims in zip(op.operands, rule.operands, strict=True)
        ]
        if op.name in _SLICES:
            put_in_range(operands[0])
        tiles = _OneOp(self, op, meant, rule)
        for number, along in rule.filled.items():
            whole = ir.RankedTensorType(op.operands[number].type).shape, rule.operands[number]
            operands[number] = filled(tiles.place, operands[number], *whole, along, rule.reduction)
        if op.name in COLLECTIVES and self._write_chain_in_place(op, rule, operands, scope):
            return
        if rule.write is not None:
            values = rule.write(tiles, operands)
            for result, value, dims in zip(op.results, values, rule.results, strict=True):
                scope[result] = Tile(value, dims, rule.partial, rule.reduction)
            return
        is_late = op.name == "stablehlo.reduce" and rule.partial and not is_neutral(op.operands[1], rule.reduction)
        init = operands[-1]
        if is_late:
            operands[-1] = neutral_element(init.type, rule.reduction)
        new = self.on_tiles(op, meant, rule, operands, rule.sizes)
        self._bind(op, new, rule.results, scope, rule)
        if is_late:
            self._add_init(op, init, rule.reduction, scope)

    def _write_chain_in_place(self, op: ir.Operation, rule: Rule, operands: Sequence[ir.Value], scope: Scope) -> bool:
        """Writes a chain for a collective of a manual computation, if one is faster on the network than it is."""
        found = self._chain_in_place(op, rule, operands)
        if found is None or not found.is_faster:
            return False
        number, chain = self._first + len(self.conversions), found.chain
        array = ir.RankedTensorType.get(chain.request.shape, ir.RankedTensorType(operands[0].type).element_type)
        self.conversions.append(Conversion(number, op.name, own_location(op), array, chain, "", is_collective=True))
        made = self._noted(found.collective.write(chain, operands[0], self._last_mark(op)), operands[0])
        scope[op.results[0]] = Tile(made, rule.results[0])
        return True

    def _chain_in_place(self, op: ir.Operation, rule: Rule, operands: Sequence[ir.Value]) -> InPlace | None:
        is_by_time = self.planning.get("objective") == "time"
        if not self._varying or not is_by_time or op.name not in OPS or not self._is_run_by_all(op):
            return None
        varying = {each.axis for each in self._manual.axes} & self._varying[-1].of(op.operands)
        varying |= {each.axis for each in _axes_of(rule.operands[0])}
        try:
            tile = tuple(ir.RankedTensorType(operands[0].type).shape)
            collective = read_collective(op, self.mesh, self.meshes, varying, tile)
            if self.keeps_sums and collective.may_round:
                return None
            return chain_in_place(collective, self.planning["topology"], self.planning.get("memory_limit"))
        except (NotPlannable, NoPlanError):
            return None

    def on_tiles(
        self, op: ir.Operation, meant: ir.Operation, rule: Rule, operands, sizes, without: Sequence[str] = ()
    ) -> ir.Operation:
        """Writes an op itself on tiles, with its computations on elements, and returns it.

        Args:
          sizes: attributes that are replaced. without: attributes that are left out.
        """
        types = [tile_type(each.type, dims, op) for each, dims in zip(op.results, rule.results, strict=True)]
        new = self._create(op, meant.name, types, operands, meant.attributes, sizes, without)
        original = self._original(op)
        came = op if original is None or original.name != op.name else original
        for before, after in zip(came.regions, new.regions, strict=True):
            copy_region(op, before, after)
        return new

    def place(self, op: ir.Operation, axes: Axes) -> ir.Value:
        """Returns the number of this device's shard along the axes, as tensor<1xi32>."""
        line = ir.RankedTensorType.get([local_rules.shards(axes)], ir.IntegerType.get_signless(32))
        return self._own_numbers(op, line, axes)

    # Partial sums

    def _write_partial_sums(self, op: ir.Operation, scope: Scope) -> bool:
        """Writes an op whose result is partial sums, because operands are; returns False if it is another op."""
        if self._accumulate(op, scope):
            return True
        if not self._is_summed_where_used(op):
            return False
        return self._add_partial_sums(op, scope) if op.name in ADDS else self._pass_partial_sums(op, scope)

    def _accumulate(self, op: ir.Operation, scope: Scope) -> bool:
        """Writes an op that adds partial sums to a value that its loop carries, or writes them to a part of it."""
        found = self._accumulating.get(op)
        if found is None or scope[found.held].value != scope[found.argument].value:
            return False
        added = op.operands[1 if op.operands[0] == found.held else 0]
        tile, kept = scope[added], scope[found.held]
        if not self._is_sum(tile) or not _only_user(added) or local_rules.overlap(tile.partial, _axes_of(kept.dims)):
            return False
        if any(self._dims(each.results[0]) != kept.dims for each in found.passed):
            return False
        site = Site(op, tuple(scope[each].dims for each in op.operands), (kept.dims,))
        rule = local_rules.rule_of(site) if op.name == UPDATE else Rule((kept.dims,) * 2, (kept.dims,))
        is_alike = all(scope[each].dims == dims for each, dims in zip(op.operands[:2], rule.operands))
        if not is_alike or any(scope[each].partial for each in op.operands if each != added):
            return False
        self._write_linear(op, tile, kept.dims, scope)
        self._accumulated[found.returned] = tile.partial
        return True

    def _pass_partial_sums(self, op: ir.Operation, scope: Scope) -> bool:
        """Writes a linear op of partial sums whose result is accumulated; others are not worth to keep tiles apart."""
        at = linear_operand(op)
        if at is None and (widens(op) or scaled_operands(op)):
            at = next((n for n in scaled_operands(op) or (0,) if self._is_sum(scope[op.operands[n]])), None)
        if at is not None and not self._is_accumulated_next(op):
            return False
        if at is None:
            return False
        value, tile = op.operands[at], scope[op.operands[at]]
        if not self._is_sum(tile) or not _only_user(value) or any(scope[v].partial for v in op.operands if v != value):
            return False
        wanted = self._dims(op.results[0])
        site = Site(op, tuple(tile.dims if each == value else scope[each].dims for each in op.operands), (wanted,))
        rule = local_rules.rule_of(site)
        axes = {*_axes_of(rule.results[0]), *(axis for dims in rule.operands for axis in _axes_of(dims))}
        if rule.operands[at] != tile.dims or rule.partial or local_rules.overlap(tile.partial, list(axes)):
            return False
        self._write_linear(op, tile, rule.results[0], scope, rule)
        return True

    def _is_accumulated_next(self, op: ir.Operation) -> bool:
        """Returns whether ops that are linear lead from an op to one that accumulates."""
        while (user := _only_user(op.results[0])) is not None:
            if user in self._accumulating:
                return True
            is_linear = linear_operand(user) is not None or widens(user) or scaled_operands(user)
            if user.name not in PASS_ON and not is_linear:
                return False
            op = user
        return False

    @staticmethod
    def _is_sum(tile: Tile) -> bool:
        return bool(tile.partial) and tile.reduction == "sum"

    def _write_linear(self, op: ir.Operation, tile: Tile, dims: Dims, scope: Scope, rule: Rule | None = None) -> None:
        """Writes an op with the tiles of its operands, some of which are partial sums as `tile` is."""
        layouts = rule.operands if rule else tuple(scope[each].dims for each in op.operands)
        tiles = [
            scope[each].value if scope[each].partial else self._in_layout(op, each, layout, scope)
            for each, layout in zip(op.operands, layouts, strict=True)
        ]
        kind = tile_type(op.results[0].type, dims, op)
        if is_unit_sum(op):
            new = stablehlo.ReshapeOp(kind, tiles[0]).operation
        else:
            new = self._create(op, op.name, [kind], tiles, op.attributes, rule.sizes if rule else None)
        scope[op.results[0]] = Tile(new.results[0], dims, tile.partial)

    def _add_partial_sums(self, op: ir.Operation, scope: Scope) -> bool:
        """Writes an addition of partial sums that are added up once, later; returns False if they are not alike."""
        lhs, rhs = (scope[operand] for operand in op.operands)
        if not self._is_sum(lhs) or replace(lhs, value=rhs.value) != rhs:
            return False
        if not all(_only_user(operand) for operand in op.operands):
            return False  # others need them, too
        self._write_linear(op, lhs, lhs.dims, scope)
        return True

    def _rule(self, op: ir.Operation, scope: Scope) -> tuple[Rule, ir.Operation]:
        """Returns the rule of an op and the op itself; for a stand-in, the CHLO op that it stands for."""
        for value in (*op.operands, *op.results):
            if not isinstance(value.type, ir.RankedTensorType):
                raise refusal(op, f"values of type {value.type} have no tiles")
        site = Site(op, tuple(scope[each].dims for each in op.operands), tuple(map(self._dims, op.results)))
        original = self._original(op)
        try:
            if self._is_compared(op):
                as_found = replace(site, operands=tuple(map(self._dims, op.operands)))
                return self._cheapest(site, products_of([as_found, site]), scope), op
            if original is None or not original.name.startswith("chlo."):
                return self._cheapest(site, self._rules(site), scope), op
            if original.name != "chlo.top_k":
                return local_rules.elementwise(site), original
            return self._cheapest(site, [local_rules.top_k(site), *top_k_in_stages(site, self)], scope), original
        except NotLocal as problem:
            raise refusal(op, str(problem)) from None

    def _rules(self, site: Site) -> list[Rule]:
        """Returns the rules of an op of StableHLO. Raises: NotLocal."""
        if site.op.name in COLLECTIVES:
            return self._manual.rules(site, self.mesh, self.meshes)
        sites, kept = [site], []
        if _has_choice(site.op) and self._is_run_by_all(site.op):
            if len(site.results) == 1 and (last := self._last_layout(site.op)) != site.results[0]:
                sites.append(replace(site, results=(last,)))
            kept = [rule for each in sites for rule in (*moves_of(each, self), *windows_of(each, self))]
        return [*self._wholes(site, sites), *kept, *reduced_in_stages(site, self), *running_in_stages(site, self)]

    def _wholes(self, site: Site, sites: Sequence[Site]) -> list[Rule]:
        """Returns the rules in which an op needs dimensions whole: in the layouts of its sites and of its operands, and
        with what splits such a dimension there in another dimension."""
        own = rules_of(site)
        if not own[0].whole:
            return own
        ranks = {len(dims) for dims in site.results}
        alike = [dims for dims in (*map(self._dims, site.op.operands), *site.operands) if ranks == {len(dims)}]
        sites = [*sites, *(replace(site, results=(dims,) * len(site.results)) for dims in alike)]
        sites += [beside for each in dict.fromkeys(sites) for beside in local_rules.split_elsewhere(each)]
        others = (rules_of(each)[0] for each in dict.fromkeys(sites) if each != site)
        return [*own, *{(rule.operands, rule.results): rule for rule in others}.values()]

    def _cheapest(self, site: Site, rules: Sequence[Rule], scope: Scope) -> Rule:
        """Returns the rule that costs least: its changes of layout, those of the operands and those of the results to
        the layouts that propagation found, and the op itself on tiles; the first one of several."""
        if len(rules) == 1:
            return rules[0]
        partial: list[tuple[float, Cost, int, _Changes]] = []
        for number, rule in enumerate(rules):
            known = functools.reduce(_added, map(self._planned_cost, rule.moves), self._work(site, rule))
            changes = [(self._least_cost(*each), each) for each in self._changes(site, rule, scope)]
            partial.append((known[0] + sum(bound for bound, _ in changes), known, number, changes))
        least = _DEAREST, len(rules)
        for bound, known, number, changes in sorted(partial, key=operator.itemgetter(0, 1, 2)):
            if bound > least[0][0]:
                break
            least = min(least, (self._with_changes(site, known, changes, scope, least[0][0]), number))
        return rules[least[1]]

    def _cost(self, site: Site, rule: Rule, scope: Scope) -> Cost:
        """Returns the cost of a rule."""
        known = functools.reduce(_added, map(self._planned_cost, rule.moves), self._work(site, rule))
        return self._with_changes(site, known, [(0.0, each) for each in self._changes(site, rule, scope)], scope)

    def _with_changes(self, site: Site, known: Cost, changes: _Changes, scope: Scope, most: float = math.inf) -> Cost:
        """Returns a cost with that of changes of layout; infinity if by their bounds it is more than `most`."""
        total, left = known, sum(bound for bound, _ in changes)
        for bound, (value, tiles, dims, share) in changes:
            if total[0] + left > most:
                return _DEAREST
            left -= bound
            tile = tiles[0] if len(tiles) == 1 else self._nearest(site.op, value, dims, scope)
            cost = self._cost_of_plan(site.op, value.type, tile, dims, self._share(value, tile, dims))
            total = _added(total, cost if share == 1 else tuple(each / share for each in cost))
        return total

    def _changes(self, site: Site, rule: Rule, scope: Scope) -> Iterator[tuple[ir.Value, list[Tile], Dims, int]]:
        """Yields the changes of layout that a rule asks for: a value, the tiles at hand, the layout, and how many share
        it."""
        is_compared = self._is_compared(site.op)
        for value, dims, wanted in zip(site.op.results, rule.results, self._wanted(site), strict=True):
            made = Tile(value, dims, rule.partial, rule.reduction)
            yield value, [made], wanted, self._summands(site.op) if is_compared else 1
        for value, dims in dict.fromkeys(zip(site.op.operands, rule.operands, strict=True)):
            if (value, dims) not in scope:
                yield value, self._at_hand(value, dims, scope), dims, takers(value) if is_compared else 1

    def _least_cost(self, value: ir.Value, tiles: Sequence[Tile], dims: Dims, share: int = 1) -> float:
        """Returns a bound on what a change of layout from one of some tiles costs: seconds, or received bytes."""
        least = min(self._bound(value.type, tile, dims) * self._share(value, tile, dims) for tile in tiles)
        return least / share * (1 - _ROUNDING)

    def _share(self, value: ir.Value, tile: Tile, dims: Dims) -> float:
        """Returns which part of a change of layout counts: of one that is written before a loop, that of one turn."""
        is_made_here = tile.value == value  # a result, which is not yet written
        loop = None if is_made_here or grows(tile, dims) else self._loop_that_takes(tile.value)
        turned = itertools.dropwhile(lambda each: loop is None or each.loop != loop, self._around)
        return 1 / math.prod(each.trips for each in turned)

    def _bound(self, kind: ir.Type, tile: Tile, dims: Dims) -> float:
        if tile.dims == dims and not tile.partial:
            return 0.0
        key = kind, tile.dims, tile.partial, tile.reduction, dims, self._manual
        if key not in self._bounds:
            self._bounds[key] = self._computed_bound(kind, tile, dims)
        return self._bounds[key]

    def _computed_bound(self, kind: ir.Type, tile: Tile, dims: Dims) -> float:
        try:
            request = Request.of(*self._problem(kind, tile, dims), reduction=tile.reduction, **self.planning)
        except NoPlanError:
            return 0.0
        received, seconds = least_costs(request)
        return seconds if self.planning.get("objective") == "time" else received

    def _summands(self, op: ir.Operation) -> int:
        """Returns how many values are added up with what an op makes: partial sums of all are reduced once."""
        value, count = op.results[0], 1
        while (user := _only_user(value)) is not None and user.block == op.block:
            if user.name in ADDS:
                count += 1
            elif user.name not in PASS_ON:
                break
            value = user.results[0]
        return count

    def _work(self, site: Site, rule: Rule) -> Cost:
        """Returns the cost of an op itself on one device: its time by a roofline, or the bytes of its tiles."""
        held = local_rules.bits_held(site, rule, bits_of) / 8
        if self.planning.get("objective") != "time":
            return 0, held, 0
        topology: Topology = self.planning["topology"]
        computing_s = local_rules.flops_of(site, rule) / topology.flops_per_s if topology.flops_per_s else 0.0
        return max(computing_s, held / topology.memory_bandwidth_bytes_per_s), 0, 0

    def _cost_of_plan(self, op: ir.Operation, kind: ir.Type, tile: Tile, dims: Dims, share: float = 1.0) -> Cost:
        """Returns the cost of a change of layout, or a share of it."""
        if tile.dims == dims and not tile.partial:
            return 0, 0, 0
        try:
            chain = self._plan(op, tile, kind, dims)
        except DiagnosedError:
            return _DEAREST
        return tuple(share * each for each in self._planned_cost(chain))

    def _planned_cost(self, chain: Plan) -> Cost:
        if self.planning.get("objective") == "time":
            return chain.time_s, 0, 0
        return chain.bytes_received, 0, chain.collectives

    # Moves of elements

    def _is_only_joined(self, op: ir.Operation, scope: Scope) -> bool:
        """Returns whether an op takes a part along a split dimension, and only concatenations of its block take it, or
        what elementwise ops make of it."""
        start = takes_part(op)
        if start is None or scope[op.operands[0]].partial or not self._is_run_by_all(op):
            return False
        shapes = zip(*(ir.RankedTensorType(each.type).shape for each in (op.operands[0], op.results[0])), strict=True)
        is_cut = [before != after for before, after in shapes]
        if not any(axes for axes, cut in zip(scope[op.operands[0]].dims, is_cut, strict=True) if cut):
            return False
        users = [use.owner.operation for use in op.results[0].uses]
        while users:
            user = users.pop()
            if user.block != op.block:
                return False
            if user.name in PASS_ON and self._original(user) is None or is_elementwise_of_one(user):
                users += [use.owner.operation for use in user.results[0].uses]
            elif user.name != "stablehlo.concatenate":
                return False
        return True

    def _join(self, op: ir.Operation, scope: Scope) -> bool:
        """Writes a concatenation that takes parts of arrays from where these are, if that costs no more than its slices
        and the concatenation of their results."""
        taken = [self._not_written.get(value) if value not in scope else None for value in op.operands]
        found = [value if each is None else each.operands[0] for value, each in zip(op.operands, taken, strict=True)]
        if any(scope[value].partial for value in found):
            return False
        starts = [
            (0,) * len(scope[value].dims) if each is None else takes_part(each) for value, each in zip(found, taken)
        ]
        is_as_it_is = [
            each is None or not self._elementwise_between(value) for value, each in zip(op.operands, taken, strict=True)
        ]
        parts = [
            Part(value, scope[value].dims, present(start), is_same)
            for value, start, is_same in zip(found, starts, is_as_it_is, strict=True)
        ]
        kind, wanted = op.results[0].type, self._last_layout(op)
        site = kept_split(Site(op, tuple(scope[value].dims for value in found), (wanted,)), joined_along(op))
        if not all(site.results[0][d] for d in joined_along(op)):
            return False
        with contextlib.suppress(TooManyPieces):
            moves = joined(site, self, parts)
            behind = self._cost_of_plan(op, kind, Tile(op.results[0], site.results[0]), wanted)
            costs = tuple(map(sum, zip(behind, *map(self._planned_cost, moves))))
            apart = self._cost_apart(replace(site, results=(self._dims(op.results[0]),)), taken, scope)
            if _received_first(costs) > _received_first(apart):
                return False
            tiles = [self._in_layout(op, part.value, part.dims, scope) for part in parts[: len(moves)]]
            tiles = [self._after_elementwise(*each) for each in zip(op.operands, tiles)]
            rule = Rule(site.operands, site.results, moves=moves)
            (value,) = write_joined(site, _OneOp(self, op, op, rule), tiles)
            scope[op.results[0]] = Tile(value, site.results[0])
            return True
        return False

    def _elementwise_between(self, value: ir.Value) -> list[ir.Operation]:
        """Returns the elementwise ops between a value and the slice that it comes from, the last one first."""
        between = []
        while value in self._not_written and value.owner != self._not_written[value]:
            between.append(present(producer_of(value)))
            value = between[-1].operands[0]
        return [each for each in between if each.name not in PASS_ON]

    def _after_elementwise(self, value: ir.Value, tile: ir.Value) -> ir.Value:
        """Returns what the elementwise ops between a slice that is not written and `value` make of a tile of what the
        slice takes a part of."""
        for op in reversed(self._elementwise_between(value)):
            element = ir.RankedTensorType(op.results[0].type).element_type
            kind = ir.RankedTensorType.get(ir.RankedTensorType(tile.type).shape, element)
            tile = self._create(op, op.name, [kind], [tile], op.attributes).results[0]
        return tile

    def _cost_apart(self, site: Site, taken: Sequence[ir.Operation | None], scope: Scope) -> Cost:
        """Returns the cost of slices and of the concatenation of their results."""
        costs, then = [], dict(scope)
        for value, each in zip(site.op.operands, taken, strict=True):
            if each is not None:
                slicing = Site(each, (scope[each.operands[0]].dims,), (self._dims(each.results[0]),))
                rule = self._cheapest(slicing, self._rules(slicing), scope)
                costs.append(self._cost(slicing, rule, scope))
                then[value] = Tile(value, rule.results[0])
        here = replace(site, operands=tuple(then[value].dims for value in site.op.operands))
        rule = self._cheapest(here, self._rules(here), then)
        return tuple(map(sum, zip(self._cost(here, rule, then), *costs)))

    def _write_part(self, value: ir.Value, scope: Scope) -> None:
        """Writes the slice that makes a value, and what stands behind it, if they are not yet written."""
        if value in scope or value not in self._not_written:
            return
        op = present(producer_of(value))
        self._write_part(op.operands[0], scope)
        with own_location(op):
            if op.name in PASS_ON:
                self._pass_on(op, scope)
            else:
                self._write_on_tiles(op, scope)

    def end(self, shape: Sequence[int], dims: Dims, start: Sequence[int], mirrored: Sequence[int] = ()) -> End:
        manual = self._manual
        layout = sharding_of(self.mesh, manual.dims(dims))
        return End(manual.shape(shape), layout, manual.start(start), manual.dimensions(mirrored))

    def planned(self, kind: ir.Type, size: Sequence[int], source: End, target: End) -> Plan:
        return plan_move(self.mesh, bits_of(kind), self._manual.shape(size), source, target, **self.planning)

    def planned_together(self, kind: ir.Type, parts: Sequence[tuple[Sequence[int], End, End]]) -> Plan | None:
        given = tuple((self._manual.shape(size), *ends) for size, *ends in parts)
        return plan_moves(self.mesh, bits_of(kind), given, **self.planning)

    def converted(self, site: Site, kind: ir.Type, before: Dims, after: Dims) -> Plan:
        """Returns the plan of a change of layout of a value that an op makes on its way."""
        return self._plan(site.op, Tile(site.op.results[0], before), kind, after)

    def moved(
        self, op: ir.Operation, move: Plan, tile: ir.Value, into: ir.Value | None = None
    ) -> tuple[ir.Value, bool]:
        """Writes a plan by which elements of an op get to other devices.

        Returns: the tile after it, and whether its other elements are those of `into`; else they are not defined.
        """
        manual, element = self._manual, ir.RankedTensorType(tile.type).element_type
        kind = ir.RankedTensorType.get(move.request.shape[bool(manual.axes) :], element)
        mark = self._mark(op, kind, move, "", is_move=True)
        put_in_range(tile)
        part = manual.as_part(tile)
        found = None if into is None else write_exchange_into(move.tile_program, part, manual.as_part(into), mark)
        if found is not None:
            return self._noted(manual.from_part(found), tile, present(into)), True
        return self._noted(manual.from_part(write_program(move.tile_program, part, mark)), tile), False

    def _wanted(self, site: Site) -> Sequence[Dims]:
        return [self._last_layout(site.op)] if len(site.results) == 1 else site.results

    def _plan(self, op: ir.Operation, tile: Tile, kind: ir.Type, dims: Dims) -> Plan:
        """Returns the plan that brings a tile into another layout. Raises: DiagnosedError if there is none."""
        problem = self._problem(kind, tile, dims)
        options = {"reduction": tile.reduction, **self.planning}
        try:
            chain = plan(*problem, with_exchange=True, **options)
            if not self._is_run_by_all(op) and _has_permutes(chain):
                chain = plan(*problem, **options)
                if _has_permutes(chain):
                    raise NoPlanError("some devices alone may run it, and a permute takes all")
        except NoPlanError as why:
            *_, source, target = self._problem(kind, tile, dims)
            raise error_at(op, f"emit=local finds no chain from {source} to {target}: {why}", HINT) from None
        return chain

    def _problem(self, kind: ir.Type, tile: Tile, dims: Dims) -> tuple[Mesh, tuple[int, ...], int, Sharding, Sharding]:
        """Returns what is to be planned: mesh, shape, bits of an element, source and target."""
        manual = self._manual
        source = sharding_of(self.mesh, manual.dims(tile.dims), tile.partial)
        target = sharding_of(self.mesh, manual.dims(dims))
        return self.mesh, manual.shape(ir.RankedTensorType(kind).shape), bits_of(kind), source, target

    def _create(
        self, op: ir.Operation, name: str, types, operands, attributes, sizes=None, without: Sequence[str] = ()
    ) -> ir.Operation:
        kept = copied_attributes(attributes, without)
        for each, value in (sizes or {}).items():
            kept[each] = value if isinstance(value, ir.Attribute) else ir.DenseI64ArrayAttr.get(list(value))
        return ir.Operation.create(
            name,
            results=types,
            operands=operands,
            attributes=kept,
            regions=len(op.regions),
            loc=own_location(op),
        )

    def _bind(
        self, op: ir.Operation, new: ir.Operation, layouts: Sequence[Dims], scope: Scope, rule: Rule | None = None
    ) -> None:
        partial, reduction = (rule.partial, rule.reduction) if rule else ((), "sum")
        for result, value, dims in zip(op.results, new.results, layouts, strict=True):
            scope[result] = Tile(value, dims, partial, reduction)

    def _add_init(self, op: ir.Operation, init: ir.Value, reduction: str, scope: Scope) -> None:
        """Adds the initial value of a reduction once, after the parts of all devices are combined."""
        result, dims = op.results[0], self._dims(op.results[0])
        tile = self._in_layout(op, result, dims, scope)
        start = stablehlo.BroadcastInDimOp(tile.type, init, []).result
        for key in [key for key in scope if isinstance(key, tuple) and key[0] == result]:
            del scope[key]
        scope[result] = Tile(ir.Operation.create(reducing_op(reduction), [tile.type], [tile, start]).results[0], dims)


@dataclass(frozen=True, slots=True)
class _OneOp:
    """The writer of one op for its rule: a `TileWriter`, a `TileMover` and a `StageWriter`."""

    writer: OpWriter
    op: ir.Operation
    meant: ir.Operation
    rule: Rule

    def place(self, axes: Axes) -> ir.Value:
        return self.writer.place(self.op, axes)

    def moved(self, number: int, tile: ir.Value) -> ir.Value:
        return self.writer.moved(self.op, self.rule.moves[number], tile)[0]

    def moved_into(self, number: int, tile: ir.Value, into: ir.Value) -> tuple[ir.Value, bool]:
        return self.writer.moved(self.op, self.rule.moves[number], tile, into)

    def same(
        self, operands: Sequence[ir.Value], sizes: Mapping[str, Sequence[int] | ir.Attribute] | None = None
    ) -> list[ir.Value]:
        without = ("indices_are_sorted",)  # others are
        return list(self.writer.on_tiles(self.op, self.meant, self.rule, operands, sizes, without).results)


def _added(one: Cost, other: Cost) -> Cost:
    return tuple(map(operator.add, one, other))


def _received_first(cost: Cost) -> Cost:
    """Returns a cost with the work on tiles last, to compare it with one that has none."""
    received, work, collectives = cost
    return received, collectives, work


def _has_choice(op: ir.Operation) -> bool:
    """Returns whether an op may have its result in several layouts at about the same cost."""
    return is_move(op) or has_window(op) or local_rules.is_along_dimensions(op)


def _has_permutes(chain: Plan) -> bool:
    return any(each.kind == "collective_permute" for each in collectives(chain.tile_program, chain.request.bits))


def _takes_own_part_first(chain: Plan) -> bool:
    """Returns whether a chain begins with a slice, or with an exchange, which slices parts to send."""
    first = next((each.step for each in chain.steps if not isinstance(each.step, steps.Relayout)), None)
    return isinstance(first, steps.Slice | steps.Exchanged)


def _axes_of(dims: Dims) -> list[Factor]:
    return [axis for axes in dims for axis in axes]


def _only_user(value: ir.Value) -> ir.Operation | None:
    users = list(value.uses)
    return users[0].owner.operation if len(users) == 1 else None
