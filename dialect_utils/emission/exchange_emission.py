# SPDX-License-Identifier: Apache-2.0
"""Exchanges as StableHLO, and islands (`sdy.manual_computation`) between any two placements.

For each round of an exchange, on local tiles:

    %piece   = stablehlo.dynamic_slice %source_tile, read offsets      the piece that this device sends
    %arrived = stablehlo.collective_permute %piece, pairs
    %window  = stablehlo.dynamic_slice %target_tile, write offsets     only where elements must be kept: on devices
    %kept    = stablehlo.select valid, %arrived, %window               that get nothing, or get a shorter piece
    %next    = stablehlo.dynamic_update_slice %target_tile, %kept, write offsets

Windows stay inside the tiles, so that no offset is clamped. If the windows of sender and receiver cannot have the valid
part at the same place, the receiver shifts the piece (pad, dynamic_slice). An offset is computed from the partition id,
as `partition / a mod b · c + d`, if it has this form on all devices that take part. The other offsets share one
constant table, in which each device looks up its row once.

**Dimensions that do not divide.** The types of the island are in whole tiles. A `stablehlo.pad` before the island and a
`stablehlo.slice` after it convert between the array and a whole number of tiles. XLA stores such arrays in whole tiles,
so neither op moves data.

**Two meshes.** An `sdy.manual_computation` has one mesh. If the target is on another mesh, a second island on that mesh
takes the tiles unchanged. If both meshes list the devices in the same order, the tiles between the islands are one
array: the stack of all tiles along a new dimension 0, which every axis splits. Otherwise the type between the islands
is replicated, although each device has its own tile there. XLA inserts nothing there, but an interpreter of global
semantics would compute something else. A target on a single device is written in the same way. For a source on a single
device, XLA accepts no form but `emit_on_stacks`: an `sdy.manual_computation` on a maximal mesh kills the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.programs.exchange import Exchange, Round

from ..ir.ops import dense_elements, int32_constant
from ..platform.bindings import DEVICE_TO_DEVICE, ir, sdy, stablehlo
from ..platform.typed import present
from ..shardings.sdy_shardings import sharding_from_attr, sharding_to_attr
from .per_device import PerDevice


class UnsupportedExchange(ValueError):
    """An exchange that no module can express; the message says why, and names an alternative."""


@dataclass(frozen=True, slots=True)
class Side:
    """One end of an exchange, in the form of a module.

    Attributes:
      attr: the `#sdy.sharding` attribute.
      mesh, sharding: the same, as plain values; both None for a sharding on a single device.
    """

    attr: ir.Attribute
    mesh: Mesh | None
    sharding: Sharding | None

    def rewritten(self, sharding: Sharding) -> ir.Attribute:
        """Returns the attribute of another sharding on the mesh of this side."""
        return sharding_to_attr(sharding, sdy.TensorShardingAttr(self.attr).mesh_or_ref)


@dataclass(frozen=True, slots=True)
class OnTiles:
    """A computation that every device does on its tile.

    Attributes:
      before, after: the tile's shape. devices: how many there are.
      write: inserts the computation, inside an island; returns the tile after it.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    devices: int
    write: Callable[[ir.Value], ir.Value]


def emit_between(
    body: OnTiles, value: ir.Value, source: Side, target: Side, name: str, location: ir.Location
) -> ir.Value:
    """Inserts, at the current insertion point, the islands in which `body` turns `value` from `source` into `target`.

    Args:
      body: works on tiles as XLA stores them: ceil division.
      value: a ranked tensor of static shape that is sharded as `source`, or will be.
      name: the name of the site in profiles. location: the location in the user's program.
    Returns: `value` in the target sharding.
    Raises: UnsupportedExchange if the source is on a single device.
    """
    if source.mesh is None:
        raise UnsupportedExchange(
            f"{source.attr} puts the whole tensor on one device; XLA compiles no manual computation there; "
            "move it outside of the module, with reshard.redistribute"
        )
    shape = _shape(value)
    with ir.Location.name(f"{name}/pad", location):
        whole = resized(value, _whole_tiles(source, body.before))
    with ir.Location.name(name, location):
        if target.mesh == source.mesh:
            out = source.rewritten(present(target.sharding).closed())
            result = _island(source, whole, out, _whole_tiles(target, body.after), body.write)
        else:
            result = _over_two_meshes(body, whole, source, target)
    with ir.Location.name(f"{name}/pad", location):
        return resized(result, shape)


def emit_on_stacks(
    body: OnTiles, stack: ir.Value, mesh: Mesh, mesh_name: str, name: str, location: ir.Location
) -> ir.Value:
    """Inserts an island between stacks: arrays (devices, *tile) of which each device holds its own tile.

    This form works for every placement, also on single devices. Live arrays become stacks of their shards without a
    copy.

    Args:
      stack: the source tiles, sharded along dimension 0 over all axes of `mesh`.
      mesh_name: the symbol of `mesh`, over the devices of the body.
    Returns: the target tiles, sharded alike.
    """
    before, after = stacked(mesh, 1 + len(body.before)), stacked(mesh, 1 + len(body.after))
    side = Side(sharding_to_attr(before, mesh_name), mesh, before)

    def on_stack(argument: ir.Value) -> ir.Value:
        return _reshaped(body.write(_reshaped(argument, body.before)), (1, *body.after))

    with ir.Location.name(name, location):
        return _island(side, stack, side.rewritten(after), (body.devices, *body.after), on_stack)


def write_rounds(exchange: Exchange, tile: ir.Value, channels: Iterator[int], into: ir.Value | None = None) -> ir.Value:
    """Inserts the rounds of an exchange inside an island over all axes of a mesh, and returns the target tile.

    Args:
      into: a target tile that keeps its elements where the exchange brings none; without it they are not defined.
    """
    return _TileWriter(exchange, channels).write(tile, into)


# ---------------------------------------------------------------------------------------------------------------------
# Islands
# ---------------------------------------------------------------------------------------------------------------------


def _island(side: Side, value: ir.Value, out: ir.Attribute, out_shape: tuple[int, ...], write_body) -> ir.Value:
    """Inserts a manual computation on the mesh of `side`; the local shapes follow from the global ones."""
    island = sdy.ManualComputationOp(
        [_type_like(value, out_shape)],
        [value],
        sdy.TensorShardingPerValueAttr.get([side.attr]),
        sdy.TensorShardingPerValueAttr.get([out]),
        sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in present(side.mesh).axis_names]),
    )
    local = _local_shape(side, value)
    body = island.operation.regions[0].blocks.append(_type_like(value, local), arg_locs=[ir.Location.current])
    with ir.InsertionPoint(body):
        sdy.ReturnOp([write_body(body.arguments[0])])
    return island.operation.results[0]


def _local_shape(side: Side, value: ir.Value) -> tuple[int, ...]:
    return sharding_from_attr(side.attr).tile_shape(present(side.mesh), _shape(value))


def _over_two_meshes(body: OnTiles, value: ir.Value, source: Side, target: Side) -> ir.Value:
    tile = body.after
    replicated = Sharding(((),) * len(tile))
    if target.mesh is None:
        found = _island(source, value, source.rewritten(replicated), tile, body.write)
        return sdy.ShardingConstraintOp(found, target.attr).result
    out_shape = _whole_tiles(target, tile)
    if present(source.mesh).device_ids != target.mesh.device_ids:
        found = _island(source, value, source.rewritten(replicated), tile, body.write)
        side = Side(target.rewritten(replicated), target.mesh, replicated)
        return _island(side, found, target.rewritten(present(target.sharding).closed()), out_shape, lambda each: each)
    stacks = [stacked(present(side.mesh), 1 + len(tile)) for side in (source, target)]
    found = _island(
        source,
        value,
        source.rewritten(stacks[0]),
        (body.devices, *tile),
        lambda each: _reshaped(body.write(each), (1, *tile)),
    )
    side = Side(target.rewritten(stacks[1]), target.mesh, stacks[1])
    return _island(
        side, found, target.rewritten(present(target.sharding).closed()), out_shape, lambda each: _reshaped(each, tile)
    )


def stacked(mesh: Mesh, rank: int) -> Sharding:
    """Returns the sharding of a stack: all axes along dimension 0."""
    return Sharding((tuple(AxisRef(axis) for axis in mesh.axis_names), *((),) * (rank - 1)))


def _whole_tiles(side: Side, tile: tuple[int, ...]) -> tuple[int, ...]:
    if side.sharding is None:
        return tile
    return tuple(size * shards for size, shards in zip(tile, side.sharding.shards(present(side.mesh)), strict=True))


def _type_like(value: ir.Value, shape) -> ir.Type:
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(value.type).element_type)


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape)


def resized(value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Returns a value with another shape: cut to its leading part, and padded with zeros at the end, as needed."""
    kept = tuple(map(min, shape, _shape(value)))
    if kept != _shape(value):
        value = stablehlo.SliceOp(value, int64s([0] * len(kept)), int64s(kept), int64s([1] * len(kept))).result
    high = [new - old for new, old in zip(shape, kept, strict=True)]
    return _pad(value, [0] * len(high), high) if any(high) else value


def _pad(value: ir.Value, low, high) -> ir.Value:
    return stablehlo.PadOp(value, zeros(value, ()), int64s(low), int64s(high), int64s([0] * len(low))).result


def _reshaped(value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return stablehlo.ReshapeOp(_type_like(value, shape), value).result


def zeros(like: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Returns zeros with the element type of `like`."""
    element = ir.RankedTensorType(like.type).element_type
    if isinstance(element, ir.ComplexType):  # the bindings cannot read complex constants
        part = _constant("0.0", ir.RankedTensorType.get(shape, ir.ComplexType(element).element_type))
        return stablehlo.ComplexOp(part, part).result
    zero = "0.0" if isinstance(element, ir.FloatType) else "false" if ir.IntegerType(element).width == 1 else "0"
    return _constant(zero, ir.RankedTensorType.get(shape, element))


def _constant(text: str, tensor_type: ir.Type) -> ir.Value:
    return stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{text}> : {tensor_type}")).result


def int64s(values) -> ir.DenseI64ArrayAttr:
    """Returns numbers as an attribute."""
    return ir.DenseI64ArrayAttr.get([int(value) for value in values])


# ---------------------------------------------------------------------------------------------------------------------
# The body
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _TileWriter:
    """Writes the body of an island. All its values belong to the current device."""

    exchange: Exchange
    channels: Iterator[int]
    numbers: PerDevice = field(init=False)

    def __post_init__(self):
        self.numbers = PerDevice(self.exchange.source.devices)

    def write(self, tile: ir.Value, into: ir.Value | None = None) -> ir.Value:
        """Writes all rounds and returns the target tile of a source tile; its other elements are those of `into`."""
        rounds = [each for each in (self.exchange.local, *self.exchange.rounds) if each is not None]
        self.numbers.prepare(vector for each in rounds for vector in self._vectors(each))
        result = into
        for each in rounds:
            result = self._write_round(each, tile, result)
        return zeros(tile, self.exchange.target.tile_shape) if result is None else result

    def _write_round(self, each: Round, tile: ir.Value, result: ir.Value | None) -> ir.Value:
        piece = self._window(tile, each.senders, each.read, each.piece_shape)
        if each is not self.exchange.local:
            pairs = dense_elements(np.array(each.pairs, dtype=np.int64))
            channel = stablehlo.ChannelHandle.get(next(self.channels), DEVICE_TO_DEVICE)
            piece = stablehlo.CollectivePermuteOp(piece, pairs, channel_handle=channel).result
        piece = self._shifted(each, piece)
        valid = self._valid(each, piece)
        target_shape = self.exchange.target.tile_shape
        if result is None and valid is None and each.piece_shape == target_shape:
            return piece
        if result is None:
            result = zeros(tile, target_shape)
        if valid is not None:
            window = self._window(result, each.receivers, each.write, each.piece_shape)
            piece = stablehlo.SelectOp(valid, piece, window).result
        if each.piece_shape == target_shape:
            return piece
        return stablehlo.DynamicUpdateSliceOp(result, piece, self._starts(each.receivers, each.write)).result

    def _window(self, tile: ir.Value, devices, first, shape: tuple[int, ...]) -> ir.Value:
        if shape == _shape(tile):
            return tile
        return stablehlo.DynamicSliceOp(tile, self._starts(devices, first), int64s(shape)).result

    def _starts(self, devices, first) -> list[ir.Value]:
        return [self.numbers.value(devices, first[:, dim]) for dim in range(first.shape[1])]

    def _shifted(self, each: Round, piece: ir.Value) -> ir.Value:
        """Returns the piece, shifted so that its valid part has the same place as in the window."""
        if not each.is_shifted:
            return piece
        by = each.found_at - each.placed_at
        low, high = np.maximum(0, -by.min(axis=0)), np.maximum(0, by.max(axis=0))
        wide = _pad(piece, low, high)
        return stablehlo.DynamicSliceOp(wide, self._starts(each.receivers, by + low), int64s(each.piece_shape)).result

    def _valid(self, each: Round, piece: ir.Value) -> ir.Value | None:
        """Returns the mask of the window's elements that the piece fills; None if it fills all on every device."""
        if each.is_exact:
            return self._receives(each)
        is_valid = None
        for dim in self._short_dims(each):
            index_type = ir.RankedTensorType.get(each.piece_shape, ir.IntegerType.get_signless(32))
            index = stablehlo.IotaOp(index_type, dim).result
            for offset, direction in ((0, "GE"), (each.extent, "LT")):
                bound = self.numbers.value(each.receivers, (each.placed_at + offset)[:, dim], others=0)
                bound = stablehlo.BroadcastInDimOp(index_type, bound, int64s([])).result
                inside = _compared(index, bound, direction)
                is_valid = inside if is_valid is None else stablehlo.AndOp(is_valid, inside).result
        return is_valid

    @staticmethod
    def _short_dims(each: Round) -> list[int]:
        return [dim for dim, size in enumerate(each.piece_shape) if (each.extent[:, dim] != size).any()]

    def _receives(self, each: Round) -> ir.Value | None:
        if len(each.receivers) == self.exchange.source.devices:
            return None
        ones = np.ones(len(each.receivers), np.int64)
        return _compared(self.numbers.value(each.receivers, ones, others=0), int32_constant(0), "NE")

    def _vectors(self, each: Round) -> Iterator[tuple]:
        """Yields all numbers that `_write_round` needs, as the arguments of `numbers.value`."""
        for dim in range(len(each.piece_shape)):
            by = (each.found_at - each.placed_at)[:, dim]
            yield each.senders, each.read[:, dim], None
            yield each.receivers, each.write[:, dim], None
            yield each.receivers, by + max(0, -int(by.min())), None
        for dim in self._short_dims(each):
            yield each.receivers, each.placed_at[:, dim], 0
            yield each.receivers, (each.placed_at + each.extent)[:, dim], 0
        yield each.receivers, np.ones(len(each.receivers), np.int64), 0


def _compared(left: ir.Value, right: ir.Value, direction: str) -> ir.Value:
    return stablehlo.CompareOp(left, right, stablehlo.ComparisonDirectionAttr.get(direction)).result
