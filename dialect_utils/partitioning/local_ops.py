# SPDX-License-Identifier: Apache-2.0
"""Ops on one device's tiles: each op of an analysed function is written in the layouts that `local_rules` allows.

If an operand has another layout than its op needs, a chain of collectives converts it. `rule_choice` decides by which
rule an op is written, and `layout_changes` by which chain, and from which tile, a value changes its layout.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reshard.synthesis.layouts.layout import Factor
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.planner.entry import NoPlanError, Plan
from reshard.synthesis.programs.exchange import TooManyPieces

from ..analysis.module_analysis import Analysis
from ..carried.held_sums import Carried
from ..conversions.unneeded import Ends
from ..emission.slice_starts import MOVES, SLICE
from ..emission.tile_emission import Mark, write_exchange_into, write_program
from ..hierarchy.explicit_collectives import OPS, NotPlannable, read_collective
from ..hierarchy.faster_chains import InPlace, chain_in_place
from ..ir.diagnostics import DiagnosedError
from ..ir.fusing import ELEMENTWISE, is_elementwise_of_one
from ..ir.loop_trips import known_trips_of
from ..ir.ops import CONSTANTS, producer_of, terminator_of
from ..ir.reductions import is_neutral, neutral_element, reducing_op
from ..ir.source_lines import frames_of
from ..ir.whole_numbers import holds_up_to
from ..platform.bindings import ir, sdy, stablehlo
from ..platform.typed import present
from ..preparation.chlo_stand_ins import STANDS_IN
from ..preparation.serials import own_location, serial_of
from ..tile_rules import local_rules
from ..tile_rules.indexed_rules import is_indexed
from ..tile_rules.local_rules import Axes, Dims, Rule, Site
from ..tile_rules.moved_rules import Part, joined, joined_along, kept_split, takes_part, write_joined
from ..tile_rules.partial_sums import (
    ADDS,
    UPDATE,
    Accumulation,
    accumulation,
    begins_with_nothing,
    elements,
    is_unit_sum,
    linear_operand,
    scaled_operands,
    widens,
)
from ..tile_rules.partly_manual import COLLECTIVES, ManualAxes
from ..tile_rules.tile_masks import filled, indices
from ..tiles.copied_ops import (
    EDGES,
    PASS_ON,
    body_as_it_came,
    constant_of,
    copied_attributes,
    copied_constant,
    copy_region,
    only_user,
    splat_text,
)
from ..tiles.refusals import refusal
from ..tiles.tiles import Scope, Tile, dims_of, grows, is_broadcast_to, repeated_by, tile_type
from .found_layouts import FoundLayouts
from .layout_changes import Cost, LayoutChanges
from .rule_choice import RuleChoice, has_choice
from .sums_together import Together, sums_together
from .surroundings import Surroundings

_SUMS = frozenset({"sdy.all_reduce", "sdy.reduce_scatter"})
_DEEPEST = 8  # of additions and changes of layout through which partial sums are looked for


@dataclass(frozen=True, slots=True)
class How:
    """How ops are written on tiles.

    Attributes:
      platform: one of `platforms.PLATFORMS`. planning: options of `plan` for the changes of layout.
      compares_products: whether the ways to split a matrix product are compared, where plans are made for time.
      is_lean: whether the way to split an op is taken that needs the least memory, if it is not much slower.
      release_bytes: how many bytes less are to be held at the fullest moment, by conversions that are written again.
      hold_bytes: how many bytes may be held while loops run, for tiles that grow in a conversion before the loop.
      keeps_sums: whether sums that the program itself has, in manual computations, stay in their order.
    """

    platform: str
    planning: Mapping[str, Any]
    compares_products: bool = False
    is_lean: bool = False
    release_bytes: float = 0.0
    hold_bytes: float = 0.0
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
      is_broadcast: whether what a broadcast repeats is broadcast once more, in place of a chain.
      manual: the axes of the manual computations around it.
      is_needed: whether its chain is in the module; else no op takes its result, or it is a broadcast.
      is_repeated: whether an earlier one is written once more, so that its result is not held until here.
      runs: how often in a step it runs; None if nobody knows.
      could_be_held: whether it could run once for all turns of a loop, if there were memory for its result, or for the
        whole sum: what the loop takes does not change, or is added up.
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
    runs: int | None = 1
    could_be_held: bool = False
    is_broadcast: bool = False


_PARTS = MOVES | {SLICE}  # parts of what a loop takes are known before it as well
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

    State: `conversions` has the changes of layout that are written so far, `ends` where each begins and ends; `summed`
    what loops carry as partial sums; `_not_written` the slices of split dimensions that wait until the concatenations
    that take them are written; `_together` the additions that are written as one, with the last of them. Tiles of
    values are in scopes, one per block. Values of a region are not visible outside of the region, so a scope is copied
    on entry.
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
        self.channels = channels
        self.platform = how.platform
        self.keeps_sums = how.keeps_sums
        self._is_lean = how.is_lean
        self.found = FoundLayouts(mesh, analysis)
        self.around = Surroundings(mesh, meshes)
        self.changes = LayoutChanges(mesh, how.planning, self.around, how.hold_bytes)
        self.choice = RuleChoice(
            self.found, self.changes, how.compares_products, how.is_lean, self._is_accumulated_next
        )
        self._first = first
        self.conversions: list[Conversion] = []
        self.ends: list[Ends] = []
        self.at: ir.Operation | None = None
        self.summed: set[Carried] = set()
        self._not_written: dict[ir.Value, ir.Operation] = {}  # parts that are only joined, each with its slice
        self._accumulating: dict[ir.Operation, Accumulation] = {}  # ops whose results may be carried as partial sums
        self._accumulated: dict[ir.Value, Axes] = {}  # what is carried on, where it is partial sums
        self._together: dict[ir.Operation, Together] = {}
        self._before_loops: dict[tuple[ir.Block, ir.Value, Dims, ManualAxes], Tile] = {}  # converted there, by block

    def write_block(
        self, block: ir.Block, tiles: Sequence[Tile], outer: Scope, wanted: Sequence[Dims]
    ) -> list[ir.Value]:
        """Writes the ops of a block; returns its final values in the wanted layouts."""
        return _run_nested(self._block(block, tiles, outer, wanted))

    def write_ops(self, ops: Sequence[ir.Operation], scope: Scope) -> None:
        """Writes ops of one block, whose operands `scope` has; `at` is the op of these that is being written."""
        self._find_sums_together(ops)
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
            dims = tile.dims if not tile.partial else self.found.of(value)
            dims = tuple(local_rules.dividing(*each) for each in zip(shape, dims, strict=True))
        return Tile(self._in_layout(user, value, dims, scope), dims)

    def _block(self, block: ir.Block, tiles: Sequence[Tile], outer: Scope, wanted: Sequence[Dims]) -> _Nested:
        scope = dict(outer)
        scope.update(zip(block.arguments, tiles, strict=True))
        *ops, terminator = [op.operation for op in block.operations]
        self._find_sums_together(ops)
        for op in ops:
            yield self._write_op(op, scope)
        return [
            scope[value].value if value in self._accumulated else self._in_layout(terminator, value, dims, scope)
            for value, dims in zip(terminator.operands, wanted, strict=True)
        ]

    def _write_op(self, op: ir.Operation, scope: Scope) -> _Nested:
        self.changes.at_hand.ops_written += 1
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

    def _in_layout(self, op: ir.Operation, value: ir.Value, dims: Dims, scope: Scope, whole: str = "") -> ir.Value:
        """Returns the tile of a value in the layout `dims`; writes a conversion if the value has another layout."""
        if (value, dims) not in scope:
            own = scope[value]
            if own.dims == dims and not own.partial:
                return own.value
            tile = self.changes.nearest(op, value, dims, scope)
            self.changes.at_hand.keep(value, tile)
            scope[value, dims] = self._converted(op, tile, value.type, dims, whole)
        self.changes.at_hand.hold(value, (value, dims), scope)
        return scope[value, dims].value

    def _converted(self, op: ir.Operation, tile: Tile, kind: ir.Type, dims: Dims, whole: str) -> Tile:
        """Returns a tile in another layout: converted here, or once before a loop around this place."""
        loop = self.changes.loop_before(tile, kind, dims)
        if loop is None:
            return self._as_wanted(op, tile, kind, dims, whole)
        before = loop.block, tile.value, dims, self.around.manual
        if before not in self._before_loops:
            self.changes.hold(tile, kind, dims)
            with self.around.before(loop):
                self._before_loops[before] = self._as_wanted(op, tile, kind, dims, whole)
        return self._before_loops[before]

    def _as_wanted(self, op: ir.Operation, tile: Tile, kind: ir.Type, dims: Dims, whole: str = "") -> Tile:
        if tile.dims == dims and not tile.partial:
            return tile
        if is_broadcast_to(tile, dims):
            return self._broadcast_again(op, tile, kind, dims)
        chain = self.changes.plan(op, tile, kind, dims)
        if not chain.steps:
            return Tile(tile.value, dims)
        held = self._could_be_held(op, tile)
        mark = self._mark(op, kind, chain, whole if tile.partial or grows(tile, dims) else "", could_be_held=held)
        made = self.around.manual.from_part(
            write_program(chain.tile_program, self.around.manual.as_part(tile.value), mark)
        )
        return Tile(self._noted(made, tile.value), dims)

    def _broadcast_again(self, op: ir.Operation, tile: Tile, kind: ir.Type, dims: Dims) -> Tile:
        """Writes the broadcast of a tile once more, in another layout, in place of a chain."""
        first = present(producer_of(tile.value))
        with contextlib.suppress(DiagnosedError):  # it has a row if there is a chain, which nobody needs
            self._mark(op, kind, self.changes.plan(op, tile, kind, dims), "", is_broadcast=True, is_needed=False)
        along = ir.DenseI64ArrayAttr(first.attributes["broadcast_dimensions"])
        made = stablehlo.BroadcastInDimOp(tile_type(kind, dims, op), first.operands[0], along).result
        return Tile(made, dims, repeated=tile.repeated)

    def _could_be_held(self, op: ir.Operation, tile: Tile) -> bool:
        """Returns whether a conversion that is written now for an op could run once for all turns of a loop."""
        if tile.partial:
            return op in self._accumulating or len(op.results) == 1 and self._is_accumulated_next(op)
        value = tile.value
        while (producer := producer_of(value)) is not None and producer.name in _PARTS:
            value = producer.operands[0]
        return self.around.loop_that_takes(value) is not None

    def _mark(self, op: ir.Operation, kind: ir.Type, chain: Plan, whole: str, is_move: bool = False, **more) -> Mark:
        """Notes a conversion that is written next, and returns the mark of its ops; `more` is told of it."""
        number, original = self._first + len(self.conversions), self.found.original(op)
        op_name = "" if original is None else original.name
        array = self.around.manual.tensor(kind)
        more |= {"manual": self.around.manual, "runs": self.around.runs}
        self.conversions.append(Conversion(number, op_name, _asked_at(op), array, chain, whole, is_move, **more))
        return self._last_mark()

    def _last_mark(self) -> Mark:
        last = self.conversions[-1]
        return Mark(self.channels, f"reshard/{last.number}", last.location, self.platform)

    def _noted(self, result: ir.Value, *taken: ir.Value) -> ir.Value:
        """Notes and returns the result of the last conversion."""
        self.ends.append(Ends(self.conversions[-1].number, taken, result))
        return result

    # Kinds of ops

    def _pass_on(self, op: ir.Operation, scope: Scope) -> None:
        """Writes an op that only changes a layout.

        Partial sums are added up where they are used: if their users change the layout again, directly in that layout.
        """
        if op in self._together:
            return
        if op.operands[0] in self._not_written and op.operands[0] not in scope:
            self._not_written[op.results[0]] = self._not_written[op.operands[0]]
            return
        if op.name in _SUMS and self.found.original(op) is not None:
            raise refusal(op, "what it sums up is no value of the whole module")
        scope[op.results[0]] = self._passed_on(op, scope)
        self.changes.at_hand.hold_twin(op.operands[0], op.results[0], scope)

    def _passed_on(self, op: ir.Operation, scope: Scope) -> Tile:
        tile, dims = scope[op.operands[0]], self.found.of(op.results[0])
        if not tile.partial and self._is_for_lookups(op):
            return tile
        if tile.partial:
            if tile.dims == dims and self._is_summed_where_used(op) or self._is_added_to_sums(op, tile, scope):
                return tile
            dims = self.found.last(op)
        return Tile(self._in_layout(op, op.operands[0], dims, scope), dims)

    def _is_added_to_sums(self, op: ir.Operation, tile: Tile, scope: Scope) -> bool:
        """Returns whether what an op makes of partial sums is added to others, so that all of them are added up once.

        They are so if adding tiles before they are split takes no longer than what is saved.
        """
        value = op.results[0]
        while (user := only_user(value)) is not None and user.name in PASS_ON and user.block == op.block:
            value = user.results[0]
        if user is None or user.name not in ADDS or user.block != op.block or user in self._accumulating:
            return False
        if user in self._together and value in self._together[user].sums:
            return self.changes.is_worth_deferring(op, value.type, tile, self.found.of(value))
        other = user.operands[1 if user.operands[0] == value else 0]
        is_alike = self._will_be_sums(other) if other not in scope else replace(scope[other], value=tile.value) == tile
        return is_alike and self.changes.is_worth_deferring(op, value.type, tile, self.found.of(value))

    def _will_be_sums(self, value: ir.Value, depth: int = _DEEPEST) -> bool:
        """Returns whether a value that is not yet written comes from partial sums, or adds some."""
        producer = producer_of(value)
        if producer is None or only_user(value) is None or not depth:
            return False
        if producer.name in ADDS:
            return all(self._will_be_sums(each, depth - 1) for each in producer.operands)
        is_passed_on = producer.name in PASS_ON and self._will_be_sums(producer.operands[0], depth - 1)
        return producer.name in _SUMS or is_passed_on

    def _is_for_lookups(self, op: ir.Operation) -> bool:
        """Returns whether all users of a change of layout, which nobody asked for, look up, write, move or select
        elements, or work along whole dimensions.

        Such an op may do with the layout before; its rules decide.
        """
        users = [use.owner.operation for use in op.results[0].uses]
        return self.found.original(op) is None and all(
            (is_indexed(user) or has_choice(user) or self.found.is_top_k(user) or self.choice.is_compared(user))
            and user.block == op.block
            for user in users
        )

    def _is_summed_where_used(self, op: ir.Operation) -> bool:
        return self.found.is_wanted_once(op.results[0])

    def _constant(self, op: ir.Operation, scope: Scope) -> None:
        dims, kind = self.found.of(op.results[0]), op.results[0].type
        if any(dims) and (element := splat_text(op)) is not None:
            scope[op.results[0]] = Tile(constant_of(element, tile_type(kind, dims, op)), dims)
            return
        whole = Tile(copied_constant(op), ((),) * len(dims))
        scope[op.results[0]] = self._as_wanted(op, whole, kind, dims)

    def _iota(self, op: ir.Operation, scope: Scope) -> None:
        """Writes the numbers along one dimension, cuts out the tile's part, and repeats it along the others."""
        kind, dims = ir.RankedTensorType(op.results[0].type), self.found.of(op.results[0])
        along = ir.IntegerAttr(op.attributes["iota_dimension"]).value
        numbers = self._own_numbers(op, ir.RankedTensorType.get([kind.shape[along]], kind.element_type), dims[along])
        scope[op.results[0]] = Tile(
            stablehlo.BroadcastInDimOp(tile_type(kind, dims, op), numbers, [along]).result, dims
        )

    def _own_numbers(self, op: ir.Operation, line: ir.Type, axes: Axes) -> ir.Value:
        """Returns this device's part of the numbers from 0 on, of which `line` is the type, split by the axes."""
        kind = ir.RankedTensorType(line)
        # XLA makes a part of an iota by adding the part's start to its numbers, which would round twice
        if not local_rules.is_even(kind.shape[0], axes) or not holds_up_to(kind.element_type, kind.shape[0] - 1):
            own = ir.RankedTensorType.get([local_rules.tile_size(kind.shape[0], axes)], ir.IntegerType.get_signless(32))
            found = indices(functools.partial(self.place, op), own, axes)
            return stablehlo.ConvertOp(ir.RankedTensorType.get(own.shape, kind.element_type), found).result
        numbers = Tile(stablehlo.IotaOp(line, 0).result, ((),))
        return self._as_wanted(op, numbers, line, (axes,)).value

    def _while(self, op: ir.Operation, scope: Scope) -> _Nested:
        layouts = [self.found.of(each) for each in op.results]
        carried = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, layouts, strict=True)]
        loop = self._create(op, op.name, [each.type for each in carried], carried, op.attributes)
        accumulating = {number: accumulation(op, number, PASS_ON) for number in range(len(layouts))}
        self._accumulating |= {each.op: each for each in accumulating.values() if each is not None}
        for number, returned in enumerate(([()], layouts)):
            yield self._write_region(op, number, loop, layouts, returned, scope)
        self._bind(op, loop, layouts, scope)
        for number, each in accumulating.items():
            if each is not None and each.returned in self._accumulated:
                self.summed.add(Carried(serial_of(op), number))
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
        if not self.found.is_wanted_once(result):
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
        layouts = [self.found.of(each) for each in op.results]
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
        trips = known_trips_of(op) if is_loop else 1
        with self.around.inside_region(new if is_loop else None, body, trips), ir.InsertionPoint(body):
            tiles = [Tile(value, dims) for value, dims in zip(body.arguments, taken, strict=True)]
            stablehlo.ReturnOp((yield self._block(block, tiles, scope, given)))

    def _island(self, op: ir.Operation, scope: Scope) -> _Nested:
        """Writes the body of a manual computation: of one over all axes as it is, because it already works on tiles."""
        ends = [sdy.TensorShardingPerValueAttr(op.attributes[f"{side}_shardings"]).shardings for side in ("in", "out")]
        taken = [dims_of(attr, value.type, self.mesh) for attr, value in zip(ends[0], op.operands, strict=True)]
        given = [dims_of(attr, value.type, self.mesh) for attr, value in zip(ends[1], op.results, strict=True)]
        inner = ManualAxes.of(op, self.mesh)
        manual = self.around.manual.with_those_in(inner)
        if manual.are_all_of(self.mesh):
            values = self._copied_body(op, taken, scope)
        else:
            block = op.regions[0].blocks[0]
            taken, inside = inner.ends(block.arguments, taken)
            given, wanted = inner.ends(terminator_of(block).operands, given)
            tiles = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, taken, strict=True)]
            with self.around.inside_manual(op, manual):
                values = yield self._block(block, list(map(Tile, tiles, inside)), {}, wanted)
        for result, value, dims in zip(op.results, values, given, strict=True):
            scope[result] = Tile(value, dims)

    def _copied_body(self, op: ir.Operation, taken: Sequence[Dims], scope: Scope) -> list[ir.Value]:
        tiles = [self._in_layout(op, value, dims, scope) for value, dims in zip(op.operands, taken, strict=True)]
        copy = body_as_it_came(self.found.original(op) or op, own_location(op))
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
        if op in self._together:
            if op == self._together[op].ops[-1]:
                self._write_together(self._together[op], scope)
            return
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
        if self._write_alike(op, scope) or self._write_partial_sums(op, scope):
            return
        rule, meant = self.choice.rule(op, scope)
        operands = [
            self._in_layout(op, value, dims, scope, rule.whole)
            for value, dims in zip(op.operands, rule.operands, strict=True)
        ]
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

    def _write_alike(self, op: ir.Operation, scope: Scope) -> bool:
        """Writes an op on elements if its operands have the layout of its result, as most ops do; False for others."""
        name = op.name
        if name not in ELEMENTWISE or op in self._accumulating:
            return False
        result, tiles = op.results[0], [scope.get(each) for each in op.operands]
        dims = self.found.of(result)
        if any(each is None or each.partial or each.dims != dims for each in tiles):
            return False
        if name == STANDS_IN and (original := self.found.original(op)) is not None and original.name != name:
            return False
        new = self._create(
            op, name, [tile_type(result.type, dims, op)], [present(each).value for each in tiles], op.attributes
        )
        scope[result] = Tile(new.results[0], dims)
        return True

    def _write_chain_in_place(self, op: ir.Operation, rule: Rule, operands: Sequence[ir.Value], scope: Scope) -> bool:
        """Writes a chain for a collective of a manual computation, if one is faster on the network than it is."""
        found = self._chain_in_place(op, rule, operands)
        if found is None or not found.is_faster:
            return False
        number, chain = self._first + len(self.conversions), found.chain
        array = ir.RankedTensorType.get(chain.request.shape, ir.RankedTensorType(operands[0].type).element_type)
        how = {"is_collective": True, "runs": self.around.runs}
        self.conversions.append(Conversion(number, op.name, own_location(op), array, chain, "", **how))
        made = self._noted(found.collective.write(chain, operands[0], self._last_mark()), operands[0])
        scope[op.results[0]] = Tile(made, rule.results[0])
        return True

    def _chain_in_place(self, op: ir.Operation, rule: Rule, operands: Sequence[ir.Value]) -> InPlace | None:
        if not self.changes.is_by_time or op.name not in OPS or not self.around.is_run_by_all(op):
            return None
        varying = self.around.varying(op, rule.operands[0])
        if varying is None:
            return None
        planning = self.changes.planning
        try:
            tile = tuple(ir.RankedTensorType(operands[0].type).shape)
            collective = read_collective(op, self.mesh, self.around.meshes, varying, tile)
            if self.keeps_sums and collective.may_round:
                return None
            return chain_in_place(collective, planning["topology"], planning.get("memory_limit"), self.platform)
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
        original = self.found.original(op)
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
        if all(each in scope and not scope[each].partial for each in op.operands):
            return False
        if op.name in ADDS:
            return self._add_partial_sums(op, scope)
        return self._is_summed_where_used(op) and self._pass_partial_sums(op, scope)

    def _accumulate(self, op: ir.Operation, scope: Scope) -> bool:
        """Writes an op that adds partial sums to a value that its loop carries, or writes them to a part of it."""
        found = self._accumulating.get(op)
        if found is None or scope[found.held].value != scope[found.argument].value:
            return False
        added = op.operands[1 if op.operands[0] == found.held else 0]
        tile, kept = scope[added], scope[found.held]
        if not self._is_sum(tile) or not only_user(added) or local_rules.overlap(tile.partial, _axes_of(kept.dims)):
            return False
        if any(self.found.of(each.results[0]) != kept.dims for each in found.passed):
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
        if op.name == "stablehlo.pad" and self.around.turns * elements(value) < elements(op.results[0]):
            return False  # what is summed behind the loop would be larger than what its turns sum together
        if not self._is_sum(tile) or not only_user(value) or any(scope[v].partial for v in op.operands if v != value):
            return False
        wanted = self.found.of(op.results[0])
        site = Site(op, tuple(tile.dims if each == value else scope[each].dims for each in op.operands), (wanted,))
        rule = local_rules.rule_of(site)
        axes = {*_axes_of(rule.results[0]), *(axis for dims in rule.operands for axis in _axes_of(dims))}
        if rule.operands[at] != tile.dims or rule.partial or local_rules.overlap(tile.partial, list(axes)):
            return False
        self._write_linear(op, tile, rule.results[0], scope, rule)
        return True

    def _is_accumulated_next(self, op: ir.Operation) -> bool:
        """Returns whether ops that are linear lead from an op to one that accumulates."""
        while (user := only_user(op.results[0])) is not None:
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
        """Writes an addition of partial sums that are added up once; returns False if they are not alike.

        They are added up where the sum is used, or here, if users need it in several layouts, or in other blocks.
        """
        lhs, rhs = (scope[operand] for operand in op.operands)
        if not self._is_sum(lhs) or replace(lhs, value=rhs.value) != rhs:
            return False
        if not all(only_user(operand) for operand in op.operands):
            return False  # others need them, too
        result, dims = op.results[0], self.found.of(op.results[0])
        is_passed_on = all(use.owner.operation.name in PASS_ON for use in result.uses)
        is_later = self._is_summed_where_used(op) and (is_passed_on or dims == lhs.dims)
        if not is_later and dims != self.found.dividing(result):
            return False
        self._write_linear(op, lhs, lhs.dims, scope)
        if not is_later and not self._is_added_to_sums(op, lhs, scope):
            scope[result] = Tile(self._in_layout(op, result, dims, scope), dims)
        return True

    def _find_sums_together(self, ops: Sequence[ir.Operation]) -> None:
        """Notes the additions of a block that are written as one; until then their summands stay in memory."""
        if self._is_lean:
            return
        for found in sums_together(ops, self._will_be_sums, self._changes_nothing):
            if self._accumulating.keys().isdisjoint(found.ops):
                self._together |= dict.fromkeys(found.ops, found)

    def _changes_nothing(self, op: ir.Operation) -> bool:
        return self.found.of(op.results[0]) == self.found.of(op.operands[0])

    def _write_together(self, found: Together, scope: Scope) -> None:
        """Writes additions with the partial sums first, which are added up once; one by one if these are not alike."""
        for value in found.summands:
            self._write_part(value, scope)
        op = found.ops[-1]
        result, dims = op.results[0], self.found.of(op.results[0])
        alike: dict[Tile, list[ir.Value]] = {}
        for value in found.sums:
            if self._is_sum(scope[value]):
                alike.setdefault(replace(scope[value], value=result), []).append(value)
        most = max(alike.values(), key=len, default=[])
        if len(most) < 2 or dims != self.found.dividing(result):
            for each in found.ops:
                del self._together[each]
                with own_location(each):
                    if each.name in PASS_ON:
                        self._pass_on(each, scope)
                    else:
                        self._write_on_tiles(each, scope)
            return
        others = [self._in_layout(op, each, dims, scope) for each in found.summands if each not in most]
        partial = _added([scope[each].value for each in most])
        summed = self._as_wanted(op, replace(scope[most[0]], value=partial), result.type, dims)
        scope[result] = Tile(_added((*others, summed.value)), dims)

    # Moves of elements

    def _is_only_joined(self, op: ir.Operation, scope: Scope) -> bool:
        """Returns whether an op takes a part along a split dimension, and only concatenations of its block take it, or
        what elementwise ops make of it."""
        start = takes_part(op)
        if start is None or scope[op.operands[0]].partial or not self.around.is_run_by_all(op):
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
            if user.name in PASS_ON and self.found.original(user) is None or is_elementwise_of_one(user):
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
        kind, wanted = op.results[0].type, self.found.last(op)
        site = kept_split(Site(op, tuple(scope[value].dims for value in found), (wanted,)), joined_along(op))
        if not all(site.results[0][d] for d in joined_along(op)):
            return False
        with contextlib.suppress(TooManyPieces):
            moves = joined(site, self.changes, parts)
            behind = self.changes.cost(op, kind, Tile(op.results[0], site.results[0]), wanted)
            costs = tuple(map(sum, zip(behind, *map(self.changes.cost_of, moves))))
            apart = self.choice.cost_apart(replace(site, results=(self.found.of(op.results[0]),)), taken, scope)
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

    def moved(
        self, op: ir.Operation, move: Plan, tile: ir.Value, into: ir.Value | None = None
    ) -> tuple[ir.Value, bool]:
        """Writes a plan by which elements of an op get to other devices.

        Returns: the tile after it, and whether its other elements are those of `into`; else they are not defined.
        """
        manual, element = self.around.manual, ir.RankedTensorType(tile.type).element_type
        kind = ir.RankedTensorType.get(move.request.shape[bool(manual.axes) :], element)
        mark = self._mark(op, kind, move, "", is_move=True)
        part = manual.as_part(tile)
        found = None if into is None else write_exchange_into(move.tile_program, part, manual.as_part(into), mark)
        if found is not None:
            return self._noted(manual.from_part(found), tile, present(into)), True
        return self._noted(manual.from_part(write_program(move.tile_program, part, mark)), tile), False

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
        repeated = repeated_by(op) if new.name == op.name else ()
        for result, value, dims in zip(op.results, new.results, layouts, strict=True):
            scope[result] = Tile(value, dims, partial, reduction, repeated)

    def _add_init(self, op: ir.Operation, init: ir.Value, reduction: str, scope: Scope) -> None:
        """Adds the initial value of a reduction once, after the parts of all devices are combined."""
        result, dims = op.results[0], self.found.of(op.results[0])
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


def _added(values: Sequence[ir.Value]) -> ir.Value:
    """Writes the additions of values, from left to right, and returns their sum."""
    total, *others = values
    for value in others:
        total = stablehlo.AddOp(total, value).result
    return total


def _asked_at(op: ir.Operation) -> ir.Location:
    """Returns the location of what asks for a change of layout: of an op that only changes one, and has no place of the
    program since it takes an argument, that of its user."""
    location = own_location(op)
    if op.name in PASS_ON and (user := next(iter(op.results[0].uses), None)) and not frames_of(location):
        return own_location(user.owner.operation)
    return location


def _received_first(cost: Cost) -> Cost:
    """Returns a cost with the work on tiles last, to compare it with one that has none."""
    received, work, collectives = cost
    return received, collectives, work


def _axes_of(dims: Dims) -> list[Factor]:
    return [axis for axes in dims for axis in axes]
