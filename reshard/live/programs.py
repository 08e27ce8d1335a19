# SPDX-License-Identifier: Apache-2.0
"""Ways as compiled programs over live arrays: one launch moves several arrays, and programs are kept for later.

A program sees each array as a *stack*: the tiles one behind the other along dimension 0, over one mesh axis of all
devices that take part, in the order of their ids. The shards of an array are the shards of its stack, so nothing is
copied on the way in or out. Inside a `shard_map` over that axis the tile program is one primitive, which is lowered as
everywhere else (`dialect_utils.emission`), so that jax compiles, caches, donates and runs it like any other program, in
one process or in many.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from reshard.dialect_utils.emission.tile_emission import Mark, write_program
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.live.ways import Stage
from reshard.synthesis.forms.platforms import CPU, platform_of
from reshard.synthesis.programs.tile_program import TileProgram

MOST_PROGRAMS = 256

_AXIS = "device"


@dataclass(frozen=True, slots=True)
class Move:
    """One array that is moved.

    Attributes:
      array: a live array. target: the jax sharding after the move. stages: the stages of its way.
      key: equal for moves of equal dtype, shape, ends and stages.
    """

    array: jax.Array
    target: jax.sharding.Sharding
    stages: tuple[Stage, ...]
    key: Hashable


@dataclass(frozen=True, eq=False)
class _Body:
    """A tile program as a parameter of the primitive: compared by identity."""

    program: TileProgram


def moved(moves: Sequence[Move]) -> list[jax.Array]:
    """Returns the arrays in their target shardings; all moves run at once, stage by stage.

    In each stage, all moves of one call that have such a stage are over the same devices.
    """
    with compat.wide_types(move.array.dtype for move in moves):
        tiles = [_Tiles.of_array(move.array) for move in moves]
        for number in range(max(len(move.stages) for move in moves)):
            running = [i for i, move in enumerate(moves) if number < len(move.stages)]
            stages = [moves[i].stages[number] for i in running]
            key = (number, *(moves[i].key for i in running))
            for i, after in zip(running, _run(key, stages, [tiles[i] for i in running])):
                tiles[i] = after
        return [tile.as_array(move.array.shape, move.target) for move, tile in zip(moves, tiles)]


def rewrapped(array: jax.Array, target: jax.sharding.Sharding) -> jax.Array:
    """Returns an array with the same buffers under another sharding, which places it in the same way."""
    with compat.wide_types([array.dtype]):
        return _Tiles.of_array(array).as_array(array.shape, target)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The tiles of one array that this process can address, by device id."""

    by_device: dict[int, jax.Array]
    dtype: np.dtype

    @classmethod
    def of_array(cls, array: jax.Array) -> _Tiles:
        return cls({shard.device.id: shard.data for shard in array.addressable_shards}, array.dtype)

    def as_array(self, shape: tuple[int, ...], sharding: jax.sharding.Sharding) -> jax.Array:
        devices = sorted(sharding.addressable_devices, key=lambda device: device.id)
        tiles = [self.by_device[device.id] for device in devices]
        return compat.array_of_tiles(shape, sharding, tiles, self.dtype)


def _run(key: Hashable, stages: Sequence[Stage], tiles: Sequence[_Tiles]) -> list[_Tiles]:
    """Runs one stage of several moves in one program."""
    mesh = _stack_mesh(stages[0].device_ids)
    sharding = NamedSharding(mesh, PartitionSpec(_AXIS))
    if not sharding.addressable_devices:  # other processes run it
        return [_Tiles({}, each.dtype) for each in tiles]
    program = _PROGRAMS.get((stages[0].device_ids, key), mesh, stages)
    stacks = [_stacked(stage.program.in_shape, each, sharding) for stage, each in zip(stages, tiles)]
    with jax.set_mesh(mesh):
        results = program(*stacks)
    return [_Tiles.of_array(result) for result in results]


@functools.lru_cache(maxsize=64)
def _stack_mesh(device_ids: tuple[int, ...]) -> Mesh:
    known = {device.id: device for device in jax.devices()}
    return Mesh(np.array([known[number] for number in device_ids]), (_AXIS,))


def _stacked(tile_shape: tuple[int, ...], tiles: _Tiles, sharding: NamedSharding) -> jax.Array:
    shape = (sharding.mesh.size * tile_shape[0], *tile_shape[1:])
    devices = sorted(sharding.addressable_devices, key=lambda device: device.id)
    own = [_tile_on(device, tile_shape, tiles) for device in devices]
    return compat.array_of_tiles(shape, sharding, own, tiles.dtype)


def _tile_on(
    device: jax.Device,  # pyright: ignore[reportInvalidTypeForm]  # jax assigns it
    tile_shape: tuple[int, ...],
    tiles: _Tiles,
) -> jax.Array:
    """Returns the device's tile; if it has none, a tile of zeros, which is never read."""
    if device.id in tiles.by_device:
        return tiles.by_device[device.id]
    return jnp.zeros(tile_shape, tiles.dtype, device=device)


# ---------------------------------------------------------------------------------------------------------------------
# Programs
# ---------------------------------------------------------------------------------------------------------------------


class _Programs:
    """The compiled programs that were used last, so that the next redistribution need not compile them again."""

    def __init__(self):
        self._known: OrderedDict[Hashable, Callable] = OrderedDict()

    def get(self, key: Hashable, mesh: Mesh, stages: Sequence[Stage]):
        if key not in self._known:
            self._known[key] = _program(mesh, stages)
            while len(self._known) > MOST_PROGRAMS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def clear(self) -> None:
        self._known.clear()

    def __len__(self) -> int:
        return len(self._known)


_PROGRAMS = _Programs()


def _program(mesh: Mesh, stages: Sequence[Stage]):
    """Returns the jitted function that runs the stages on stacks."""
    bodies = [_Body(stage.program) for stage in stages]

    def reshard(*tiles):
        return tuple(_after(tile, body) for tile, body in zip(tiles, bodies, strict=True))

    spec = PartitionSpec(_AXIS)
    return jax.jit(jax.shard_map(reshard, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def _after(tile, body: _Body):
    """Returns the tile after a program has run on it.

    Floats of up to 16 bits are moved as integers, because XLA on CPU widens floats and changes NaNs.
    """
    bits = _AS_INTEGER.get(jnp.finfo(tile.dtype).bits) if jnp.issubdtype(tile.dtype, jnp.floating) else None
    if bits is None:
        return _run_tile_program.bind(tile, body=body)
    moved_bits = _run_tile_program.bind(jax.lax.bitcast_convert_type(tile, bits), body=body)
    return jax.lax.bitcast_convert_type(moved_bits, tile.dtype)


_AS_INTEGER = {4: jnp.uint4, 8: jnp.uint8, 16: jnp.uint16}

_run_tile_program = Primitive("reshard_tile_program")


@_run_tile_program.def_abstract_eval
def _tile_after(tile, *, body: _Body):
    return ShapedArray(body.program.out_shape, tile.dtype)


def _lowered(context, tile: ir.Value, *, body: _Body):
    channels = (context.module_context.new_channel() for _ in itertools.count())
    here: ir.Location = ir.Location.current  # pyright: ignore[reportAssignmentType]  # the stub has the property's Final
    platform = platform_of(next(iter(context.module_context.platforms), CPU))
    return [write_program(body.program, tile, Mark(channels, "reshard", here, platform))]


mlir.register_lowering(_run_tile_program, _lowered)
