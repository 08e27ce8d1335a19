# SPDX-License-Identifier: Apache-2.0
"""The leaves of a tree: the source and the target of each leaf."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from reshard.live.ways import Placement
from reshard.planning.element_types import ElementTypeError, element_type
from reshard.planning.entry import _sharding as planned_sharding
from reshard.synthesis.layouts.sharding import Sharding, ShardingError

LEAST_BITS = 4  # XLA on CPU damages its memory when it computes with smaller elements, also in jax.device_put


class RedistributeError(ValueError):
    """Raised for a leaf, a sharding or a limit that cannot be used; the message is one line, and nothing has moved."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A leaf before planning. `target` is None if the leaf stays as it is."""

    path: str
    leaf: Any
    target: jax.sharding.Sharding | None

    @property
    def source(self) -> jax.sharding.Sharding | None:
        return self.leaf.sharding if is_placed(self.leaf) else None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(np.shape(self.leaf))

    @property
    def dtype(self):
        return (
            self.leaf.dtype
            if hasattr(self.leaf, "dtype")
            else jax.dtypes.canonicalize_dtype(np.asarray(self.leaf).dtype)
        )


def is_placed(leaf) -> bool:
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def flattened(tree) -> tuple[list[str], list, Any]:
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [jax.tree_util.keystr(path) or "the array" for path, _ in found], [leaf for _, leaf in found], structure


def targets_of(shardings, tree, leaves: Sequence) -> list:
    """Returns the entry of `shardings` for each leaf."""

    def is_leaf(entry) -> bool:
        return entry is None or isinstance(entry, (PartitionSpec, jax.sharding.Sharding, jax.Device))

    try:
        spread = jax.tree_util.tree_map(
            lambda entry, part: [entry] * len(jax.tree_util.tree_leaves(part)), shardings, tree, is_leaf=is_leaf
        )
    except ValueError as error:
        raise RedistributeError(f"shardings are no prefix of the tree: {str(error).splitlines()[0]}") from None
    entries = jax.tree_util.tree_leaves(spread, is_leaf=is_leaf)
    assert len(entries) == len(leaves)
    return entries


def ends_of(path: str, leaf, entry) -> Ends:
    if isinstance(leaf, Tracer):
        raise RedistributeError(f"{path} is traced; redistribute takes live arrays, inside jit use reshard.jit")
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise RedistributeError(f"{path} has been deleted or donated; pass a live array")
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding is None:
        raise RedistributeError(
            f"{path} is a shape without a sharding; pass jax.ShapeDtypeStruct(shape, dtype, sharding=...)"
        )
    if isinstance(leaf, jax.ShapeDtypeStruct) and isinstance(leaf.sharding, NamedSharding):
        _read(path, leaf.sharding, len(leaf.shape))
    target = _as_sharding(path, leaf, entry)
    found = Ends(path, leaf, target)
    if target is not None:
        _check_target(found, target)
    return found


def _as_sharding(path: str, leaf, entry) -> jax.sharding.Sharding | None:
    if entry is None:
        return None
    if isinstance(entry, jax.Device):
        return SingleDeviceSharding(entry)
    if isinstance(entry, PartitionSpec):
        return NamedSharding(_mesh_for(path, leaf, entry), entry)
    if not isinstance(entry, jax.sharding.Sharding):
        raise RedistributeError(f"{path}: {entry!r} is no sharding; pass a NamedSharding, a PartitionSpec or a device")
    if isinstance(entry, NamedSharding) and not isinstance(entry.mesh, jax.sharding.Mesh):
        raise RedistributeError(f"{path}: {entry.mesh} has no devices; pass a NamedSharding on a jax.sharding.Mesh")
    return entry


def _mesh_for(path: str, leaf, spec: PartitionSpec) -> jax.sharding.Mesh | jax.sharding.AbstractMesh:
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        return mesh
    source = leaf.sharding if is_placed(leaf) else None
    if not isinstance(source, NamedSharding):
        raise RedistributeError(f"{path}: {spec} is on no mesh; pass a NamedSharding, or call it under jax.set_mesh")
    return source.mesh


def _read(path: str, sharding: NamedSharding, rank: int) -> Sharding:
    try:
        return planned_sharding(sharding, rank)
    except ShardingError as error:
        raise RedistributeError(f"{path}: {error}") from None


def _check_target(ends: Ends, target: jax.sharding.Sharding) -> None:
    shape = list(ends.shape)
    if not isinstance(target, NamedSharding):
        target.shard_shape(ends.shape)
        return
    if len(target.spec) > len(shape):
        raise RedistributeError(
            f"{ends.path} of shape {shape} cannot be sharded as {target.spec}, which has {len(target.spec)} entries; "
            "write one for each dimension"
        )
    for dim, axes in enumerate(_read(ends.path, target, len(shape)).dims):
        shards = math.prod(target.mesh.shape[axis.name] for axis in axes)
        if shape[dim] % shards:
            raise RedistributeError(
                f"{ends.path}: dimension {dim} of size {shape[dim]} does not divide into the {shards} shards of "
                f"{target.spec}; jax holds no such array, pad it or shard another dimension"
            )


@functools.lru_cache(maxsize=256)
def bits_of(dtype) -> int | None:
    """Returns the bits of an element; None if the planner does not know the type."""
    try:
        return element_type(dtype).bits
    except ElementTypeError:
        return None


def is_default_memory(sharding) -> bool:
    kind = sharding.memory_kind
    return kind is None or kind == next(iter(sharding.device_set)).default_memory().kind


def devices_of(sharding: NamedSharding) -> Iterator[Any]:
    """Yields the devices of a sharding, in the order of its mesh, which is not abstract."""
    devices = sharding.mesh.devices
    assert devices is not None
    yield from devices.flat


@functools.lru_cache(maxsize=4096)
def placement_of(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> Placement:
    """Returns the placement of an array of this shape under a sharding."""
    box_of = {
        device.id: tuple(part.indices(size)[:2] for part, size in zip(index, shape))
        for device, index in sharding.devices_indices_map(shape).items()
    }
    if isinstance(sharding, NamedSharding):
        ids = tuple(device.id for device in devices_of(sharding))
        axes = tuple((str(name), int(size)) for name, size in sharding.mesh.shape.items())
        return Placement(ids, tuple(box_of[number] for number in ids), axes, planned_sharding(sharding, len(shape)))
    ids = tuple(sorted(box_of))
    if len(ids) == 1:
        return Placement(ids, (box_of[ids[0]],), (), Sharding(((),) * len(shape)))
    return Placement(ids, tuple(box_of[number] for number in ids))


@functools.lru_cache(maxsize=4096)
def tile_bytes(dtype, sharding, shape: tuple[int, ...]) -> int:
    bits = bits_of(dtype) or 8 * dtype.itemsize
    return -(-math.prod(sharding.shard_shape(shape)) * bits // 8)
