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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .layout import Layout, LayoutError, coordinates, whole_factors
from .mesh import Mesh
from .sharding import Sharding, ShardingError


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The box [start, stop) of a global array that each device holds, in a tile of one static shape.

    Attributes:
      shape: the global shape, in elements.
      tile_shape: the local shape, the same on every device. The entries around a device's box are padding.
      starts, stops: read-only int64 arrays (devices, rank), by device id. A device that holds nothing has stop = start
        in some dimension.
      at: where in its tile each device's box begins, an array like `starts`; None: all at the beginning.
    Raises: ValueError if a box is larger than the tile or leaves the array.
    """

    shape: tuple[int, ...]
    tile_shape: tuple[int, ...]
    starts: np.ndarray
    stops: np.ndarray
    at: np.ndarray | None = None

    def __post_init__(self):
        if self.at is not None and not self.at.any():
            object.__setattr__(self, "at", None)
        for name in ("starts", "stops") if self.at is None else ("starts", "stops", "at"):
            bounds = np.array(getattr(self, name), dtype=np.int64)
            assert bounds.ndim == 2 and bounds.shape[1] == len(self.shape), f"{name} of shape {bounds.shape}"
            bounds.setflags(write=False)
            object.__setattr__(self, name, bounds)
        sizes = self.stops - self.starts
        if len(self.starts) != len(self.stops) or (self.starts < 0).any() or (sizes < 0).any():
            raise ValueError("a block stops before it starts")
        ends = sizes + self.places
        if (self.stops > np.array(self.shape, np.int64)).any() or (ends > np.array(self.tile_shape, np.int64)).any():
            raise ValueError(f"a block is larger than tile {list(self.tile_shape)} of array {list(self.shape)}")

    @property
    def places(self) -> np.ndarray:
        """Returns where in its tile each device's box begins."""
        return np.zeros_like(self.starts) if self.at is None else self.at

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
        alike = ((self.starts, other.starts), (self.stops, other.stops), (self.places, other.places))
        return all(np.array_equal(*each) for each in alike)

    def over(self, devices: int) -> Blocks:
        """Returns the same placement over more devices; the new ones hold nothing.

        Raises: ValueError for a scalar, because it has no empty box. Give it the shape (1,) instead.
        """
        if devices == self.devices:
            return self
        if not self.shape:
            raise ValueError("a scalar has no box that is empty elsewhere; give it the shape (1,)")
        starts, stops, at = (np.zeros((devices, len(self.shape)), np.int64) for _ in range(3))
        starts[: self.devices], stops[: self.devices], at[: self.devices] = self.starts, self.stops, self.places
        return Blocks(self.shape, self.tile_shape, starts, stops, at)

    def cropped(self, shape: tuple[int, ...]) -> Blocks:
        """Returns the blocks of the leading part of the array, which has `shape`; the tiles keep their size."""
        return self.part((0,) * len(shape), shape)

    def part(self, start: Sequence[int], stop: Sequence[int]) -> Blocks:
        """Returns the blocks of the part [start, stop) of the array, an array of its own; the tiles keep their size.

        Example: the second half of an array of 8 elements on 2 devices.
          >>> halves = Blocks.of_sharding(Mesh.parse("x=2"), (8,), Sharding.parse('[{"x"}]')).part((2,), (7,))
          >>> halves.shape, halves.starts[:, 0].tolist(), halves.stops[:, 0].tolist(), halves.places[:, 0].tolist()
          ((5,), [0, 2], [2, 5], [2, 0])
        """
        low, high = np.array(start, np.int64), np.array(stop, np.int64)
        starts, stops = (np.clip(each, low, high) for each in (self.starts, self.stops))
        at = np.where(stops > starts, self.places + starts - self.starts, 0)
        shape = tuple((high - low).tolist())
        return Blocks(shape, self.tile_shape, starts - low, stops - low, at)

    def mirrored(self, dims: Sequence[int]) -> Blocks:
        """Returns the blocks of the array with some dimensions turned round, whose tiles are turned round as well."""
        is_mirrored = np.isin(np.arange(len(self.shape)), list(dims))
        shape, tile = np.array(self.shape, np.int64), np.array(self.tile_shape, np.int64)
        starts = np.where(is_mirrored, shape - self.stops, self.starts)
        stops = np.where(is_mirrored, shape - self.starts, self.stops)
        at = np.where(is_mirrored, tile - self.places - (self.stops - self.starts), self.places)
        return Blocks(self.shape, self.tile_shape, starts, stops, at)

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
    tiles, places = {}, blocks.places
    for device in range(blocks.devices):
        box = tuple(slice(a, b) for a, b in zip(blocks.starts[device].tolist(), blocks.stops[device].tolist()))
        held = array[box]
        tile = np.full(blocks.tile_shape, padding, dtype=array.dtype)
        tile[tuple(slice(at, at + size) for at, size in zip(places[device].tolist(), held.shape))] = held
        tiles[device] = tile
    return tiles
