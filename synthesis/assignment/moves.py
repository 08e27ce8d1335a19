# SPDX-License-Identifier: Apache-2.0
"""Prices of conversions between layouts in which each mesh axis splits one dimension, or none, or leaves partial sums.

A *place* of an axis is the number of a dimension, `NOWHERE`, or `PARTIAL`; a layout is one place for each axis. A
conversion runs in this order, each step for all its axes at once, so that every step works on the smallest tiles:

    slice: nowhere -> dimension      reduce_scatter: partial -> dimension      all_to_all: dimension -> other dimension
    all_reduce: partial -> nowhere   all_gather: dimension -> nowhere

The planner may know a better chain, so the prices are from above. They take microseconds, since the seconds and the
seconds per byte of each step depend on its axes alone.
"""

from __future__ import annotations

import math

import numpy as np

from ..layouts.mesh import Mesh
from ..network.cost import coefficients
from ..network.topology import Topology

NOWHERE, PARTIAL = -1, -2
_KINDS = ("reduce_scatter", "all_to_all", "all_reduce", "all_gather")


class MovePrices:
    """Prices of conversions on one mesh. A set of axes is a bit mask, bit i for axis i."""

    def __init__(self, topology: Topology, mesh: Mesh):
        self.sizes = np.array([size for _, size in mesh.axes])
        self._copy_s_per_byte = 2 / topology.memory_bandwidth_bytes_per_s
        masks = range(1 << len(self.sizes))
        self._shards = np.array([math.prod(s for i, s in enumerate(self.sizes) if mask >> i & 1) for mask in masks])
        ids = np.array([mesh.device_at(position) for position in range(mesh.size)]).reshape([size for _, size in mesh.axes])
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
        exchanged = ((source >= 0) & (target >= 0) & (source != target)) @ bits
        reduced = ((source == PARTIAL) & (target == NOWHERE)) @ bits
        gathered = ((source >= 0) & (target == NOWHERE)) @ bits
        tile = num_bytes / self.shards(sources)[:, None] / self._shards[sliced]
        total = self._priced("reduce_scatter", scattered, tile)
        tile = tile / self._shards[scattered]
        total = total + self._priced("all_to_all", exchanged, tile)
        total = total + self._priced("all_reduce", reduced, tile)
        total = total + self._priced("all_gather", gathered, tile)
        copied = np.where(exchanged > 0, 2 * tile, 0.0) + np.where(gathered > 0, tile * self._shards[gathered], 0.0)
        impossible = ((target == PARTIAL) & (source != PARTIAL)).any(axis=2)
        return np.where(impossible, np.inf, total + copied * self._copy_s_per_byte)

    def _priced(self, kind: str, masks: np.ndarray, tile: np.ndarray) -> np.ndarray:
        steps = self._steps[kind][masks]
        return steps[..., 0] + steps[..., 1] * tile


def _step(topology: Topology, mesh: Mesh, kind: str, ids: np.ndarray, mask: int) -> tuple[float, float]:
    """Returns the seconds, and the seconds per byte of the tile before, of a collective over some axes."""
    inside = [axis for axis in range(ids.ndim) if mask >> axis & 1]
    if math.prod(ids.shape[axis] for axis in inside) == 1:
        return 0.0, 0.0
    outside = [axis for axis in range(ids.ndim) if axis not in inside]
    size = math.prod(ids.shape[axis] for axis in inside)
    groups = ids.transpose(outside + inside).reshape(-1, size)
    return coefficients(topology, mesh, kind, groups)
