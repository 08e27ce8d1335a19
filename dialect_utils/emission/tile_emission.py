# SPDX-License-Identifier: Apache-2.0
"""Tile programs as StableHLO inside `sdy.manual_computation`: an *island*. XLA partitions the module around it.

    %1 = sdy.manual_computation(%0) in_shardings=[source] out_shardings=[target] manual_axes={every axis} (%tile) {
      one StableHLO op per operation of the tile program
    }

The operations of each step have the user's location under the name `reshard/<site>/<step>`, so that a profile shows the
step and an error points at the user's line.

Source: the StableHLO specification, for the meaning of the operations.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from reshard.synthesis.forms.in_place import for_platform
from reshard.synthesis.forms.platforms import CPU, FORMS, Forms
from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.padding import whole_shape
from reshard.synthesis.plans.plan import Plan
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.submesh import lifted
from reshard.synthesis.programs.tile_program import (
    Gather,
    Join,
    KeepFirst,
    KeepOwn,
    Loop,
    On,
    Operation,
    PutOwn,
    Reduce,
    ReduceOwn,
    Reshape,
    Resize,
    Rounds,
    Send,
    Swap,
    TakeOwn,
    TileProgram,
    Transpose,
    shape_after,
)

from ..ir.ops import bits_of, dense_elements, int32_constant, ops_in
from ..ir.reductions import neutral_element, reducing_op, write_reducer
from ..platform.bindings import DEVICE_TO_DEVICE, ir, sdy, stablehlo
from ..platform.typed import present
from .exchange_emission import OnTiles, Side, emit_between, emit_on_stacks, int64s, resized, write_rounds, zeros


def unused_channels(module: ir.Module) -> Iterator[int]:
    """Returns an endless iterator of channel handles that no collective of `module` uses."""
    handles = (op.attributes["channel_handle"] for op in ops_in(module.operation) if "channel_handle" in op.attributes)
    used = [stablehlo.ChannelHandle(each).handle for each in handles]
    return itertools.count(max(used, default=0) + 1)


@dataclass(frozen=True, slots=True)
class Mark:
    """The channel handles, the name and the location for the operations of a site.

    Attributes:
      channels: unused channel handles. name: the name of the site in profiles.
      location: the location in the user's program.
      platform: one of `platforms.PLATFORMS`, for whose compiler the operations are written.
    """

    channels: Iterator[int]
    name: str
    location: ir.Location
    platform: str = CPU


def emit_plan(
    plan: Plan, value: ir.Value, source: ir.Attribute, target: ir.Attribute, mark: Mark, around: Mesh | None = None
) -> ir.Value:
    """Inserts the islands that carry out `plan`. They work on whole tiles if dimensions do not divide.

    Args:
      around: inside a manual computation the whole mesh, of which the plan's has the axes that are left; see
        `submesh.lifted`.
      other arguments: see `emit_island`.
    Returns: `value` in the target sharding.
    """
    if around is not None:
        program = lifted(plan.tile_program, around)
        return emit_island(program, value, source, target, mark, manual_axes=plan.mesh.axis_names).results[0]
    if plan.goal_mesh == plan.mesh and all(
        whole_shape(plan.shape, side.shards(plan.mesh)) == plan.shape for side in (plan.source, plan.target)
    ):
        return emit_island(plan.tile_program, value, source, target, mark).results[0]
    sides = Side(source, plan.mesh, plan.source), Side(target, plan.goal_mesh, plan.target)
    return emit_conversion(plan.tile_program, value, *sides, mark)


def emit_island(
    program: TileProgram,
    value: ir.Value,
    source: ir.Attribute,
    target: ir.Attribute,
    mark: Mark,
    manual_axes: Sequence[str] | None = None,
) -> ir.Operation:
    """Inserts, at the current insertion point, the island that turns `value` from `source` into `target`.

    Args:
      program: the tile program of a plan between the two shardings, on their mesh.
      value: a ranked tensor of static shape that is sharded as `source`, an `#sdy.sharding` attribute, or will be.
      manual_axes: the axes of the island, if another manual computation around it has the rest; None is every axis.
    Returns: the `sdy.manual_computation`; its one result is `value` in the target sharding.
    """
    island = sdy.ManualComputationOp(
        [value.type],
        [value],
        sdy.TensorShardingPerValueAttr.get([source]),
        sdy.TensorShardingPerValueAttr.get([target]),
        sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in manual_axes or program.mesh.axis_names]),
        loc=ir.Location.name(mark.name, mark.location),
    )
    element_type = ir.RankedTensorType(value.type).element_type
    tile_type = ir.RankedTensorType.get(program.in_shape, element_type)
    body = island.operation.regions[0].blocks.append(tile_type, arg_locs=[mark.location])
    with ir.InsertionPoint(body):
        sdy.ReturnOp([write_program(program, body.arguments[0], mark)], loc=mark.location)
    return island.operation


def emit_conversion(program: TileProgram, value: ir.Value, source: Side, target: Side, mark: Mark) -> ir.Value:
    """Inserts the islands that turn `value` from `source` into `target`, also if dimensions do not divide.

    The two sides may be on two meshes.

    Args:
      program: the tile program of a plan between the two sides, over all devices.
    Returns: `value` in the target sharding.
    Raises: UnsupportedExchange if the source is on a single device.
    """
    body = _on_tiles(program, present(source.mesh).size, mark)
    return emit_between(body, value, source, target, mark.name, mark.location)


def emit_conversion_on_stacks(
    program: TileProgram, stack: ir.Value, mesh: Mesh, mesh_name: str, mark: Mark
) -> ir.Value:
    """Inserts a tile program between stacks of tiles on `mesh`, which has all devices; see `emit_on_stacks`."""
    return emit_on_stacks(_on_tiles(program, mesh.size, mark), stack, mesh, mesh_name, mark.name, mark.location)


def _on_tiles(program: TileProgram, devices: int, mark: Mark) -> OnTiles:
    return OnTiles(program.in_shape, program.out_shape, devices, lambda tile: write_program(program, tile, mark))


def write_program(program: TileProgram, tile: ir.Value, mark: Mark) -> ir.Value:
    """Inserts, inside an island, the operations of a tile program on `tile`; returns the tile after them."""
    return _write(for_platform(program, mark.platform, bits_of(tile.type)), tile, mark)


def _write(program: TileProgram, tile: ir.Value, mark: Mark) -> ir.Value:
    """Inserts the operations of a tile program that is in the form for the platform, with the bodies of its loops.

    A form is made of what `tile_program.lower` writes, not of another form.
    """
    writer = _TileWriter(program.mesh, tile, mark.channels, program.reduction, FORMS[mark.platform])
    for step, operations in program.steps:
        here = replace(mark, name=f"{mark.name}/{steps.name(step)}")
        with ir.Location.name(here.name, here.location):
            for operation in operations:
                if isinstance(operation, Loop):
                    body = functools.partial(_write, operation.body, mark=here)
                    writer.write_loop(operation, body)
                else:
                    writer.write(operation)
    return writer.tile


def write_exchange_into(program: TileProgram, tile: ir.Value, into: ir.Value, mark: Mark) -> ir.Value | None:
    """Inserts the exchange that is a whole tile program, and returns the tile `into` with what it brings.

    None, and nothing is inserted, for another program.
    """
    operations = [(step, each) for step, some in program.steps for each in some]
    step, rounds = operations[0]
    if len(operations) > 1 or not isinstance(rounds, Rounds):
        return None
    with ir.Location.name(f"{mark.name}/{steps.name(step)}", mark.location):
        return write_rounds(rounds.exchange, tile, mark.channels, into)


def _widened(value: ir.Value) -> ir.Value:
    """Returns a tensor of floating-point numbers narrower than float32 as one of float32, any other as it is."""
    kind = ir.RankedTensorType(value.type)
    if not isinstance(kind.element_type, ir.FloatType) or kind.element_type.width >= 32:
        return value
    return stablehlo.ConvertOp(ir.RankedTensorType.get(kind.shape, ir.F32Type.get()), value).result


def _reduced(reduction: str, one: ir.Value, other: ir.Value) -> ir.Value:
    return ir.Operation.create(reducing_op(reduction), results=[one.type], operands=[one, other]).results[0]


@dataclass(slots=True)
class _TileWriter:
    """Writes operations one after the other. State: `tile` is the result of the last operation."""

    mesh: Mesh
    tile: ir.Value
    channels: Iterator[int]
    reduction: str
    forms: Forms = FORMS[CPU]
    coordinate_of: dict[Factor, ir.Value] = field(default_factory=dict)

    def write(self, operation: Operation) -> None:
        """Writes one operation that is not a loop."""
        match operation:
            case Reshape(shape):
                self.tile = stablehlo.ReshapeOp(self._type(shape), self.tile).result
            case Transpose(axes):
                self.tile = stablehlo.TransposeOp(self.tile, axes).result
            case Join(axis):
                self._join(axis)
            case TakeOwn(picks):
                self._take_own(dict(picks))
            case KeepOwn(picks):
                self._keep_own(dict(picks))
            case Resize(shape):
                self.tile = resized(self.tile, shape)
            case On(mesh):
                self.mesh, self.coordinate_of = mesh, {}
            case PutOwn(factors):
                self._put_own(factors)
            case KeepFirst(factors):
                self._keep_first(factors)
            case _:
                self._write_collective(operation)

    def _write_collective(self, operation: Operation) -> None:
        match operation:
            case Gather(factors, axis):
                self._gather(factors, axis)
            case Swap(factors, axis):
                self._swap(groups(self.mesh, factors), axis)
            case Rounds(exchange):
                self.tile = write_rounds(exchange, self.tile, self.channels)
            case Reduce(factors):
                self._reduce(factors)
            case ReduceOwn(factors, axis):
                self._reduce_own(factors, axis)
            case Send(pairs):
                pairs_attr = _integers(np.array(pairs))
                self.tile = stablehlo.CollectivePermuteOp(self.tile, pairs_attr, channel_handle=self._channel()).result

    def write_loop(self, loop: Loop, write_body: Callable[[ir.Value], ir.Value]) -> None:
        """Inserts a `stablehlo.while` over a counter, the tile, and the new tile, which XLA updates in place."""
        counter = int32_constant(0)
        state = [counter, self.tile, zeros(self.tile, loop.out_shape)]
        types = [each.type for each in state]
        done = stablehlo.WhileOp(types, state)
        condition, body = (region.blocks.append(*types) for region in done.operation.regions)
        with ir.InsertionPoint(condition):
            goes_on = stablehlo.CompareOp(
                condition.arguments[0], int32_constant(loop.count), stablehlo.ComparisonDirectionAttr.get("LT")
            )
            stablehlo.ReturnOp([goes_on.result])
        with ir.InsertionPoint(body):
            i, tile, result = body.arguments
            part = _part(self.shape, loop.taken, loop.count)
            entry = stablehlo.DynamicSliceOp(tile, _part_start(i, part, loop.taken), part).result
            entry = write_body(stablehlo.ReshapeOp(self._type(loop.body.in_shape), entry).result)
            part = _part(loop.out_shape, loop.put, loop.count)
            entry = stablehlo.ReshapeOp(self._type(part), entry).result
            result = stablehlo.DynamicUpdateSliceOp(result, entry, _part_start(i, part, loop.put)).result
            stablehlo.ReturnOp([stablehlo.AddOp(i, int32_constant(1)).result, tile, result])
        self.tile = done.results[2]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(ir.RankedTensorType(self.tile.type).shape)

    @property
    def _element_type(self) -> ir.Type:
        return ir.RankedTensorType(self.tile.type).element_type

    def _type(self, shape) -> ir.Type:
        return ir.RankedTensorType.get(shape, self._element_type)

    def _channel(self) -> ir.Attribute:
        return stablehlo.ChannelHandle.get(next(self.channels), DEVICE_TO_DEVICE)

    def _gather(self, factors, axis: int) -> None:
        members = groups(self.mesh, factors)
        result = self._type(shape_after(Gather(factors, axis), self.shape))
        gather = stablehlo.AllGatherOp(
            [result], [self.tile], axis, _integers(members), channel_handle=self._channel(), use_global_device_ids=True
        )
        self.tile = gather.results[0]

    def _swap(self, members: np.ndarray, axis: int) -> None:
        if self.forms.has_barriers and _is_as_it_came(self.tile):
            self.tile = stablehlo.OptimizationBarrierOp([self.tile]).results[0]
        swap = stablehlo.AllToAllOp(
            [self.tile], axis, axis, members.shape[1], _integers(members), channel_handle=self._channel()
        )
        self.tile = swap.results[0]

    def _reduce(self, factors) -> None:
        members = groups(self.mesh, factors)
        reduce = stablehlo.AllReduceOp(
            [self.tile.type],
            [self.tile],
            _integers(members),
            channel_handle=self._channel(),
            use_global_device_ids=True,
        )
        write_reducer(reduce.operation, self._element_type, self.reduction)
        self.tile = reduce.results[0]

    def _reduce_own(self, factors, axis: int) -> None:
        members = groups(self.mesh, factors)
        if not self.forms.has_reduce_scatter:
            self._swap_and_sum(members, axis)
            return
        result = self._type(shape_after(ReduceOwn(factors, axis), self.shape))
        scatter = stablehlo.ReduceScatterOp(
            result, self.tile, axis, _integers(members), channel_handle=self._channel(), use_global_device_ids=True
        )
        write_reducer(scatter.operation, self._element_type, self.reduction)
        self.tile = scatter.result

    def _swap_and_sum(self, members: np.ndarray, axis: int) -> None:
        """Inserts what a reduce_scatter does: a device gets its part of all tiles, and reduces them in their order.

        Narrow floating-point numbers are reduced as float32, as XLA does it for CPU devices.
        """
        count, shape = members.shape[1], self.shape
        part = (shape[axis] // count, *shape[axis + 1 :])
        parts, one, own = ((*shape[:axis], *rest) for rest in ((count, *part), (1, *part), part))
        self.tile = stablehlo.ReshapeOp(self._type(parts), self.tile).result
        self._swap(members, axis)
        starts, strides = [0] * len(parts), [1] * len(parts)
        terms = []
        for member in range(count):
            starts[axis], ends = member, [*parts]
            ends[axis] = member + 1
            terms.append(_widened(stablehlo.SliceOp(self.tile, *map(int64s, (starts, ends, strides))).result))
        total = functools.reduce(functools.partial(_reduced, self.reduction), terms)
        if total.type != self._type(one):
            total = stablehlo.ConvertOp(self._type(one), total).result
        self.tile = stablehlo.ReshapeOp(self._type(own), total).result

    def _put_own(self, factors) -> None:
        sizes = tuple(factor.size for factor in factors)
        wide, one = (self._type((*leading, *self.shape)) for leading in (sizes, (1,) * len(sizes)))
        starts = [self._coordinate(factor) for factor in factors] + [self._number(0)] * len(self.shape)
        tile = stablehlo.ReshapeOp(one, self.tile).result
        self.tile = stablehlo.DynamicUpdateSliceOp(neutral_element(wide, self.reduction), tile, starts).result

    def _keep_first(self, factors) -> None:
        rest = self._number(0)
        for factor in factors:
            rest = stablehlo.OrOp(rest, self._coordinate(factor)).result
        is_first = stablehlo.CompareOp(rest, self._number(0), stablehlo.ComparisonDirectionAttr.get("EQ")).result
        self.tile = stablehlo.SelectOp(is_first, self.tile, neutral_element(self.tile.type, self.reduction)).result

    def _join(self, axis: int) -> None:
        shape, strides = self.shape, [1] * len(self.shape)
        starts, ends, entry = [0] * len(shape), list(shape), self._type((*shape[:axis], *shape[axis + 1 :]))
        entries = []
        for number in range(shape[axis]):
            starts[axis], ends[axis] = number, number + 1
            part = stablehlo.SliceOp(self.tile, *map(int64s, (starts, ends, strides))).result
            entries.append(stablehlo.ReshapeOp(entry, part).result)
        self.tile = stablehlo.concatenate(entries, len(shape) - 2)

    def _take_own(self, factor_at: dict[int, Factor]) -> None:
        before = self.shape
        starts = [
            self._coordinate(factor_at[axis]) if axis in factor_at else self._number(0) for axis in range(len(before))
        ]
        sizes = [1 if axis in factor_at else size for axis, size in enumerate(before)]
        part = stablehlo.DynamicSliceOp(self.tile, starts, sizes).result
        kept = tuple(size for axis, size in enumerate(before) if axis not in factor_at)
        self.tile = stablehlo.ReshapeOp(self._type(kept), part).result

    def _keep_own(self, factor_at: dict[int, Factor]) -> None:
        sizes = shape_after(KeepOwn(tuple(factor_at.items())), self.shape)
        starts = [self._number(0)] * len(sizes)
        for axis, factor in factor_at.items():
            place = self._coordinate(factor)
            starts[axis] = stablehlo.MulOp(place, self._number(sizes[axis])).result if sizes[axis] > 1 else place
        self.tile = stablehlo.DynamicSliceOp(self.tile, starts, sizes).result

    def _coordinate(self, factor: Factor) -> ir.Value:
        """Returns the device's coordinate along a factor as tensor<ui32>: (position / minor) mod size."""
        if factor not in self.coordinate_of:
            names = self.mesh.axis_names
            behind = math.prod(size for _, size in self.mesh.axes[names.index(factor.axis) + 1 :])
            minor = behind * (self.mesh.axis_size(factor.axis) // (factor.pre * factor.size))
            digit = self._position()
            if minor > 1:
                digit = stablehlo.DivOp(digit, self._number(minor)).result
            if minor * factor.size < self.mesh.size:
                digit = stablehlo.RemOp(digit, self._number(factor.size)).result
            self.coordinate_of[factor] = digit
        return self.coordinate_of[factor]

    def _position(self) -> ir.Value:
        """Returns the device's row-major mesh position: its partition id, or its place in the mesh's device ids."""
        partition = stablehlo.PartitionIdOp().result
        if self.mesh.device_ids is None:
            return partition
        position_of = np.argsort(np.array(self.mesh.device_ids)).astype(np.uint32)
        table_type = ir.RankedTensorType.get([self.mesh.size], ir.IntegerType.get_unsigned(32))
        table = stablehlo.ConstantOp(dense_elements(position_of, table_type)).result
        entry = stablehlo.DynamicSliceOp(table, [partition], [1]).result
        return stablehlo.ReshapeOp(ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32)), entry).result

    def _number(self, value: int) -> ir.Value:
        number_type = ir.RankedTensorType.get([], ir.IntegerType.get_unsigned(32))
        return stablehlo.ConstantOp(dense_elements(np.array(value, np.uint32), number_type)).result


_CUTS = frozenset({"stablehlo.reshape", "stablehlo.slice", "stablehlo.pad"})


def _is_as_it_came(tile: ir.Value) -> bool:
    """Returns whether a tile is the input of the island or the result of an all_to_all, or one of them reshaped, cut or
    padded.

    Then the parts that the next all_to_all takes may be the parts of another one, and XLA must not join the two: see
    `island_barriers`. A barrier costs nothing here, because the parts are copied out of the tile anyway, and it often
    saves temporaries.
    """
    while not isinstance(tile.owner, ir.Block) and tile.owner.name in _CUTS:
        tile = tile.owner.operands[0]
    return isinstance(tile.owner, ir.Block) or tile.owner.name == "stablehlo.all_to_all"


def _integers(array: np.ndarray) -> ir.Attribute:
    return dense_elements(np.ascontiguousarray(array, dtype=np.int64))


def _part(shape: tuple[int, ...], axis: int, count: int) -> tuple[int, ...]:
    return tuple(size // count if each == axis else size for each, size in enumerate(shape))


def _part_start(i: ir.Value, part: tuple[int, ...], axis: int) -> list[ir.Value]:
    """Returns the start indices of part i along an axis."""
    zero = int32_constant(0)
    start = stablehlo.MulOp(i, int32_constant(part[axis])).result if part[axis] > 1 else i
    return [start if each == axis else zero for each in range(len(part))]
