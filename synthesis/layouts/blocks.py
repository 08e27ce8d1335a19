# SPDX-License-Identifier: Apache-2.0
"""Blocks: the box of a global array that each device holds, for every placement that cuts dimensions into runs.

A placement is *blocked* if each device holds one box. Every sharding is blocked, on any mesh and with any device order.
If a dimension does not divide, shards have the size of ceil division, so the last ones may be short or empty, as XLA
pads them. An array on one device is blocked too. Boxes are the common language of placements that share nothing else,
such as two meshes over the same devices, or radix 2 and radix 3.

    >>> mesh, sharding = Mesh.parse("x=2,y=2"), Sharding.parse('[{"x","y"}]')
    >>> held = Blocks.of_sharding(mesh, (5,), sharding)
    >>> held.starts[:, 0].tolist(), held.stops[:, 0].tolist(), held.tile_shape
    ([0, 2, 4, 5], [2, 4, 5, 5], (2,))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .layout import Layout, LayoutError, coordinates, whole_factors
from .mesh import Mesh
from .sharding import Sharding, ShardingError


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The box [start, stop) of a global array that each device holds, at the beginning of a tile of one static shape.

    Attributes:
      shape: the global shape, in elements.
      tile_shape: the local shape, the same on every device. The entries after a device's box are padding.
      starts, stops: read-only int64 arrays (devices, rank), by device id. A device that holds nothing has stop = start
        in some dimension.
    Raises: ValueError if a box is larger than the tile or leaves the array.
    """

    shape: tuple[int, ...]
    tile_shape: tuple[int, ...]
    starts: np.ndarray
    stops: np.ndarray

    def __post_init__(self):
        for name in ("starts", "stops"):
            bounds = np.array(getattr(self, name), dtype=np.int64)
            assert bounds.ndim == 2 and bounds.shape[1] == len(self.shape), f"{name} of shape {bounds.shape}"
            bounds.setflags(write=False)
            object.__setattr__(self, name, bounds)
        sizes = self.stops - self.starts
        if len(self.starts) != len(self.stops) or (self.starts < 0).any() or (sizes < 0).any():
            raise ValueError("a block stops before it starts")
        if (self.stops > np.array(self.shape, np.int64)).any() or (sizes > np.array(self.tile_shape, np.int64)).any():
            raise ValueError(f"a block is larger than tile {list(self.tile_shape)} of array {list(self.shape)}")

    @property
    def devices(self) -> int:
        """Returns the number of devices, including those that hold nothing."""
        return len(self.starts)

    @property
    def tile_elements(self) -> int:
        return math.prod(self.tile_shape)

    @property
    def elements(self) -> np.ndarray:
        """Returns the number of elements that each device holds, an int64 array (devices,)."""
        return (self.stops - self.starts).prod(axis=1)

    def places_like(self, other: Blocks) -> bool:
        """Returns whether every device holds the same elements, in tiles of the same shape."""
        if (self.shape, self.tile_shape, self.devices) != (other.shape, other.tile_shape, other.devices):
            return False
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.stops, other.stops)

    def over(self, devices: int) -> Blocks:
        """Returns the same placement over more devices; the new ones hold nothing.

        Raises: ValueError for a scalar, because it has no empty box. Give it the shape (1,) instead.
        """
        if devices == self.devices:
            return self
        if not self.shape:
            raise ValueError("a scalar has no box that is empty elsewhere; give it the shape (1,)")
        starts, stops = (np.zeros((devices, len(self.shape)), np.int64) for _ in range(2))
        starts[: self.devices], stops[: self.devices] = self.starts, self.stops
        return Blocks(self.shape, self.tile_shape, starts, stops)

    def cropped(self, shape: tuple[int, ...]) -> Blocks:
        """Returns the blocks of the leading part of the array, which has `shape`; the tiles keep their size."""
        end = np.array(shape, np.int64)
        return Blocks(tuple(shape), self.tile_shape, np.minimum(self.starts, end), np.minimum(self.stops, end))

    @classmethod
    def of_sharding(cls, mesh: Mesh, shape: tuple[int, ...], sharding: Sharding) -> Blocks:
        """Returns the blocks of a sharding. For a mesh of a single device ("maximal") they cover all ids up to its id.

        Raises: ShardingError, MeshError if the sharding does not fit the mesh or the rank, or is unreduced.
        """
        sharding.check(mesh, len(shape))
        if sharding.unreduced:
            raise ShardingError(f"{sharding} is unreduced: its tiles are partial sums, not blocks of the array")
        shards = [(dim, _block_numbers(mesh, factors), n) for dim, (factors, n) in _pieces(mesh, sharding)]
        return cls._cut(mesh, tuple(shape), shards)

    @classmethod
    def of_layout(cls, mesh: Mesh, layout: Layout) -> Blocks:
        """Returns the blocks of a digit layout.

        Raises: LayoutError if the owned digits of a dimension are not its leading ones, because a device then holds
        several boxes.
        """
        shards = []
        for dim in range(len(layout.shape)):
            owners = [(factor, slot) for factor, slot in layout.owners if slot.dim == dim]
            starts = [slot.start for _, slot in owners]
            if starts != [1, *(slot.end for _, slot in owners)][: len(starts)]:
                raise LayoutError(f"dimension {dim} of {layout.text(mesh)} is not blocked")
            factors = [factor for factor, _ in owners]
            shards.append((dim, _block_numbers(mesh, factors), math.prod(factor.size for factor in factors)))
        return cls._cut(mesh, layout.shape, shards)

    @classmethod
    def _cut(cls, mesh: Mesh, shape: tuple[int, ...], shards) -> Blocks:
        """Returns the blocks of evenly cut dimensions.

        Args:
          shards: for each dimension (dim, the number of the block at each mesh position, the number of blocks).
        """
        device = np.arange(mesh.size) if mesh.device_ids is None else np.array(mesh.device_ids)
        starts = np.zeros((1 + int(device.max()), len(shape)), np.int64)
        stops = np.zeros_like(starts)
        tile = list(shape)
        for dim, block, count in shards:
            tile[dim] = -(-shape[dim] // count)
            starts[device, dim] = np.minimum(block * tile[dim], shape[dim])
            stops[device, dim] = np.minimum((block + 1) * tile[dim], shape[dim])
        return cls(shape, tuple(tile), starts, stops)


def both_ends(
    mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding, target_mesh: Mesh | None = None
) -> tuple[Blocks, Blocks]:
    """Returns the placements of source and target over the devices of both meshes. A partial sum counts as its block.

    A scalar that only some devices hold is treated as an array of shape (1,).

    Args:
      target_mesh: the mesh of the target; None means `mesh`.
    """
    meshes = (mesh, target_mesh or mesh)
    devices = max(each.devices for each in meshes)
    sides = [Sharding(side.dims) for side in (source, target)]
    if not shape and any(each.size < devices for each in meshes):
        shape, sides = (1,), [Sharding(((),))] * 2
    held, wanted = (Blocks.of_sharding(on, shape, side).over(devices) for on, side in zip(meshes, sides))
    return held, wanted


def _pieces(mesh: Mesh, sharding: Sharding):
    """Returns (dim, (factors, number of shards)) for each dimension."""
    return list(enumerate(zip(whole_factors(mesh, sharding), sharding.shards(mesh))))


def _block_numbers(mesh: Mesh, factors) -> np.ndarray:
    """Returns the number of the block at each mesh position: the mixed-radix number of its coordinates."""
    block = np.zeros(mesh.size, dtype=np.int64)
    for factor in factors:
        block = block * factor.size + coordinates(mesh, factor)
    return block


def cut(array: np.ndarray, blocks: Blocks, padding=0) -> dict[int, np.ndarray]:
    """Returns the tile of each device id, cut from a global array and filled up to the tile's shape with `padding`."""
    tiles = {}
    for device in range(blocks.devices):
        box = tuple(slice(a, b) for a, b in zip(blocks.starts[device].tolist(), blocks.stops[device].tolist()))
        held = array[box]
        tile = np.full(blocks.tile_shape, padding, dtype=array.dtype)
        tile[tuple(slice(0, size) for size in held.shape)] = held
        tiles[device] = tile
    return tiles
