# SPDX-License-Identifier: Apache-2.0
"""Prices of conversions between layouts in which each mesh axis splits one dimension, or none, or leaves partial sums.

A *place* of an axis is the number of a dimension, `NOWHERE`, or `PARTIAL`; a layout is one place for each axis. A
conversion runs in this order, each step for all its axes at once, so that every step works on the smallest tiles:

    slice: nowhere -> dimension      reduce_scatter: partial -> dimension      all_to_all: dimension -> other dimension
    all_reduce: partial -> nowhere   all_gather: dimension -> nowhere

Within a dimension the axes are in the order of the mesh. So an axis that comes or goes in front of another one changes
the blocks of both; then both take part in the all_to_all.

The prices are estimates: the planner may know a better chain. They take microseconds, since the seconds and the seconds
per byte of each step depend on its axes alone.
"""

from __future__ import annotations

import math

import numpy as np

from ..layouts.mesh import Mesh
from ..layouts.sharding import AxisRef, Sharding
from ..network.cost import coefficients, messages_time_s
from ..network.topology import Topology
from ..planner.entry import plan

NOWHERE, PARTIAL = -1, -2
PASS_ON = "collective_permute"  # of each device to the one before it in its group, as borders of tiles are
_KINDS = ("reduce_scatter", "all_to_all", "all_reduce", "all_gather", PASS_ON)


class MovePrices:
    """Prices of conversions on one mesh. A set of axes is a bit mask, bit i for axis i."""

    def __init__(self, topology: Topology, mesh: Mesh):
        self.sizes = np.array([size for _, size in mesh.axes])
        self._copy_s_per_byte = 2 / topology.memory_bandwidth_bytes_per_s
        masks = range(1 << len(self.sizes))
        self._shards = np.array([math.prod(s for i, s in enumerate(self.sizes) if mask >> i & 1) for mask in masks])
        ids = np.array([mesh.device_at(position) for position in range(mesh.size)]).reshape(
            [size for _, size in mesh.axes]
        )
        self._steps = {kind: np.array([_step(topology, mesh, kind, ids, mask) for mask in masks]) for kind in _KINDS}

    def shards(self, layouts: np.ndarray) -> np.ndarray:
        """Returns the number of tiles in each layout; one row per layout, one column per axis."""
        return np.prod(np.where(layouts >= 0, self.sizes, 1), axis=1)

    def seconds(self, num_bytes: float, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns the seconds of each conversion, one row per source, one column per target.

        Args:
          num_bytes: of the whole tensor. sources, targets: the layouts, one row each. Partial sums may stay, but
            nothing becomes partial: such conversions cost infinitely much.
        """
        source, target = sources[:, None, :], targets[None, :, :]
        bits = 1 << np.arange(len(self.sizes))
        sliced = ((source == NOWHERE) & (target >= 0)) @ bits
        scattered = ((source == PARTIAL) & (target >= 0)) @ bits
        exchanged = ((source >= 0) & (target >= 0) & (source != target)) @ bits | _disturbed(source, target)
        reduced = ((source == PARTIAL) & (target == NOWHERE)) @ bits
        gathered = ((source >= 0) & (target == NOWHERE)) @ bits
        tile = num_bytes / self.shards(sources)[:, None] / self._shards[sliced]
        total = self.of_step("reduce_scatter", scattered, tile)
        tile = tile / self._shards[scattered]
        total = total + self.of_step("all_to_all", exchanged, tile)
        total = total + self.of_step("all_reduce", reduced, tile)
        total = total + self.of_step("all_gather", gathered, tile)
        copied = np.where(exchanged > 0, 2 * tile, 0.0) + np.where(gathered > 0, tile * self._shards[gathered], 0.0)
        impossible = ((target == PARTIAL) & (source != PARTIAL)).any(axis=2)
        return np.where(impossible, np.inf, total + copied * self._copy_s_per_byte)

    def of_step(self, kind: str, masks: np.ndarray, tile: np.ndarray) -> np.ndarray:
        """Returns the seconds of one kind of collective, over the axes of each mask, on tiles of so many bytes."""
        steps = self._steps[kind][masks]
        return np.maximum(steps[..., 0] + steps[..., 1] * tile, steps[..., 2])


def _disturbed(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Returns the axes of a dimension whose blocks change, since one comes or goes in front of one that stays."""
    found = np.zeros(np.broadcast_shapes(source.shape, target.shape)[:2], dtype=np.int64)
    for after in range(source.shape[-1]):
        stays = (source[..., after] == target[..., after]) & (source[..., after] >= 0)
        for before in range(after):
            was, is_ = source[..., before] == source[..., after], target[..., before] == source[..., after]
            found |= np.where(stays & (was != is_), 1 << before | 1 << after, 0)
    return found


def _step(topology: Topology, mesh: Mesh, kind: str, ids: np.ndarray, mask: int) -> tuple[float, ...]:
    """Returns the seconds, the seconds per byte of the tile before, and the least of a collective over some axes."""
    inside = [axis for axis in range(ids.ndim) if mask >> axis & 1]
    if math.prod(ids.shape[axis] for axis in inside) == 1:
        return 0.0, 0.0, 0.0
    outside = [axis for axis in range(ids.ndim) if axis not in inside]
    size = math.prod(ids.shape[axis] for axis in inside)
    groups = ids.transpose(outside + inside).reshape(-1, size)
    if kind == PASS_ON:
        pairs = np.stack([groups[:, 1:], groups[:, :-1]], axis=-1).reshape(-1, 2)
        return *coefficients(topology, mesh, kind, pairs=pairs), 0.0
    return *coefficients(topology, mesh, kind, groups), messages_time_s(topology, mesh, kind, groups)


_REFERENCE_BYTES = (2.0**14, 2.0**20, 2.0**26, 2.0**32)  # of whole tensors for which plans are made
_MOST_PLANNED_AXES = 2  # there are too many pairs with more


def prices_for(topology: Topology, mesh: Mesh) -> MovePrices:
    """Returns the best prices that take seconds at most: the planner's on meshes of up to two axes that count."""
    axes = [size for _, size in mesh.axes if size > 1]
    return (PlannedPrices if len(axes) <= _MOST_PLANNED_AXES else MovePrices)(topology, mesh)


class PlannedPrices(MovePrices):
    """Prices of the planner's own chains.

    A chain depends on the layouts, not on the shape; its time on the bytes, piece by piece linearly. So each pair of
    layouts is planned for a few sizes, once, and times between them are on the line between two of these. Which
    dimension is which does not count.
    """

    def __init__(self, topology: Topology, mesh: Mesh):
        super().__init__(topology, mesh)
        self._topology, self._mesh = topology, mesh
        self._planned = _tables.setdefault((topology, mesh), {})

    def seconds(self, num_bytes: float, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        found = np.empty((len(sources), len(targets)))
        rows = [tuple(map(int, row)) for row in sources]
        columns = [tuple(map(int, column)) for column in targets]
        for row, source in enumerate(rows):
            for column, target in enumerate(columns):
                found[row, column] = 0.0 if source == target else self._of_pair(source, target, num_bytes)
        return found

    def _of_pair(self, source: tuple[int, ...], target: tuple[int, ...], num_bytes: float) -> float:
        pair = _renumbered(source, target)
        if pair not in self._planned:
            self._planned[pair] = self._plans(*pair)
        sizes, times = self._planned[pair]
        if num_bytes >= sizes[-1]:
            return times[-1] * num_bytes / sizes[-1]
        return float(np.interp(num_bytes, sizes, times))

    def _plans(self, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns the bytes of whole tensors, rising, and the seconds of the conversion for each."""
        if any(there == PARTIAL != here for here, there in zip(source, target)):
            return (1.0,), (math.inf,)
        if any(here == there == PARTIAL for here, there in zip(source, target)):  # they stay, as if nobody had the axis
            source = tuple(NOWHERE if here == there == PARTIAL else here for here, there in zip(source, target))
            target = tuple(NOWHERE if there == PARTIAL else there for there in target)
        rank, devices = 1 + max((*source, *target, 0)), math.prod(int(each) for each in self.sizes)
        sizes, times = [], []
        for rest in dict.fromkeys(max(1, round(each / 4 / devices**rank)) for each in _REFERENCE_BYTES):
            shape = (*(devices,) * rank, rest)
            ends = (_sharding(places, len(shape), self._mesh) for places in (source, target))
            sizes.append(4.0 * math.prod(shape))
            times.append(plan(self._mesh, shape, 32, *ends, objective="time", topology=self._topology).time_s)
        return tuple(sizes), tuple(times)


_tables: dict[tuple[Topology, Mesh], dict] = {}


def _renumbered(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns a pair of layouts with the dimensions in the order in which it has them.

    Example:
      >>> _renumbered((4, -1), (2, 4))
      ((0, -1), (1, 0))
    """
    order: dict[int, int] = {}
    for place in (*source, *target):
        if place >= 0:
            order.setdefault(place, len(order))
    return tuple(order.get(each, each) for each in source), tuple(order.get(each, each) for each in target)


def _sharding(places: tuple[int, ...], rank: int, mesh: Mesh) -> Sharding:
    named = list(zip(mesh.axis_names, places))
    dims = tuple(tuple(AxisRef(name) for name, place in named if place == dim) for dim in range(rank))
    return Sharding(dims, unreduced=tuple(AxisRef(name) for name, place in named if place == PARTIAL))
