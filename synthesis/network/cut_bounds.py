# SPDX-License-Identifier: Apache-2.0
"""Bounds by cuts: the bytes that must enter each unit of each level of a topology, and the time that its ports need.

A chain of collectives on `cost.py`'s model is a flow into every unit. No flow is faster than the unit's ports together,
so the elements that a unit needs and does not hold give a lower bound on the time of any chain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .cost import Network, network_of
from .topology import Level, Topology


@dataclass(frozen=True, slots=True)
class LevelBound:
    """The bound of one level: the bytes of the unit that needs most, and the seconds of the unit that needs longest."""

    name: str
    bytes_into_unit: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CutBound:
    """A lower bound on any way to get from source to target placements.

    Attributes:
      levels: one entry per level of more than one unit, outer to inner; the units of the last level are devices.
      latency_s: the least time until the first bytes have crossed the outermost level that bytes must cross.
    """

    levels: tuple[LevelBound, ...]
    latency_s: float

    @property
    def seconds(self) -> float:
        """Returns the bound on the time of the bytes.

        For each chain, the sum of seconds_per_byte times tile is at least this.
        """
        return max((level.seconds for level in self.levels), default=0.0)

    @property
    def time_s(self) -> float:
        return self.latency_s + self.seconds


def cut_bytes_bound(
    topology: Topology,
    source: tuple[np.ndarray, np.ndarray],
    target: tuple[np.ndarray, np.ndarray],
    bits: int,
) -> CutBound:
    """Returns the bytes that have to enter each unit of each level, and the time that its ports need for them.

    A unit needs the union of the target boxes of its devices, less the union of their source boxes. These bytes enter
    through its ports at this level and through the ports of its devices at outer levels. A bus also has to carry the
    bytes of all its units together.

    Args:
      source, target: (start, stop), int arrays of shape (devices, rank), the box of each device id; the box is empty if
        a device holds nothing. Along each dimension, two boxes of one side are equal, empty or disjoint.
      bits: the bits of one element.
    Raises: TopologyError if the topology does not fit, ValueError for boxes that overlap.

    Example: 2 nodes of 2; each device has a quarter and wants all of it, so half of the 16 bytes enter each node.
      >>> start = np.arange(4)[:, None] * 4
      >>> wanted = np.zeros((4, 1), int), np.full((4, 1), 16)
      >>> bound = cut_bytes_bound(Topology.parse("h100:2x2"), (start, start + 4), wanted, 8)
      >>> [(level.name, level.bytes_into_unit) for level in bound.levels]
      [('node', 8), ('gpu', 12)]
    """
    network = network_of(topology, len(source[0]))
    positions = network.positions_of(np.arange(network.size))
    held, wanted = _Blocks(*source), _Blocks(*target)
    levels, latency_s, least_step_s = [], 0.0, math.inf
    for depth, view in enumerate(network.views):
        elements = _entering(positions // view.unit, network.size // view.unit, held, wanted)
        needed = elements * bits / 8  # fractions of bytes count, since steps pay for them
        seconds = float((needed / _into_units(network, depth, view.unit)).max())
        if view.level.kind == "bus":
            ports = _into_units(network, depth - 1, view.unit * view.level.size) if depth else 0.0
            together = needed.reshape(-1, view.level.size).sum(axis=1)
            seconds = max(seconds, float((together / (view.level.bandwidth_bytes_per_s + ports)).max()))
        least_step_s = min(least_step_s, view.level.latency_s)
        if elements.any():
            latency_s = max(latency_s, network.topology.launch_latency_s + least_step_s)
        levels.append(LevelBound(view.level.name, math.ceil(needed.max()), seconds))
    return CutBound(tuple(levels), latency_s)


def _into_units(network: Network, depth: int, unit: int) -> np.ndarray:
    """Returns the bandwidth into each unit of `unit` devices, through the ports of all levels down to `depth`."""
    total = np.zeros(network.size // unit)
    for view in network.views[: depth + 1]:
        level = view.level
        if view.is_grid:
            per_node = _links(level) * level.bandwidth_bytes_per_s
            total += np.tile(np.repeat(per_node, view.unit // unit), network.size // (view.unit * level.size))
        elif level.kind == "bus":
            total += level.bandwidth_bytes_per_s
        else:
            total += min(unit * level.bandwidth_bytes_per_s, level.shared_bandwidth_bytes_per_s or math.inf)
    return total


def most_bytes_per_s_into_unit(network: Network, depth: int) -> float:
    """Returns the largest bandwidth into a unit of level `depth`, through all its ports at this and at outer levels."""
    return float(_into_units(network, depth, network.views[depth].unit).max())


def _links(level: Level) -> np.ndarray:
    """Returns the number of links into each node: two per dimension, but one at an end that does not wrap."""
    links = np.zeros(level.dims, np.int64)
    for dim, (size, wraps) in enumerate(zip(level.dims, level.wraps)):
        at = np.arange(size)
        along = np.full(size, 2) if wraps and size > 1 else (at > 0).astype(int) + (at < size - 1)
        links += along.reshape([-1 if other == dim else 1 for other in range(len(level.dims))])
    return links.ravel()


class _Blocks:
    """The boxes of one side, as numbers of the distinct intervals of each dimension.

    State: `starts[d]` and `stops[d]` are the intervals of dimension d, sorted. `at[d]` is the interval of each device.
    `is_full` says which devices hold any element, `volume` how many elements each device holds.
    """

    def __init__(self, start: np.ndarray, stop: np.ndarray):
        start, stop = np.asarray(start, np.int64), np.asarray(stop, np.int64)
        self.volume = np.prod(np.maximum(stop - start, 0), axis=1, dtype=np.int64)
        self.is_full = self.volume > 0
        self.starts, self.stops, self.at = [], [], []
        for dim in range(start.shape[1]):
            full = start[self.is_full, dim]
            first, where = np.unique(full, return_index=True)
            ends = stop[self.is_full, dim][where]
            at = np.searchsorted(first, start[:, dim])
            at[~self.is_full] = 0
            if (ends[:-1] > first[1:]).any() or (ends[at] != stop[:, dim])[self.is_full].any():
                raise ValueError(f"boxes overlap along dimension {dim}")
            self.starts.append(first)
            self.stops.append(ends)
            self.at.append(at)
        self.shape = tuple(len(first) for first in self.starts)
        self.number = np.zeros(len(start), np.int64)
        for at, size in zip(self.at, self.shape):
            self.number = self.number * size + at

    def distinct(self, unit_of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (unit, one device that holds the block) for each distinct block that a unit holds."""
        devices = np.flatnonzero(self.is_full)
        key = unit_of[devices] * max(1, math.prod(self.shape)) + self.number[devices]
        _, first = np.unique(key, return_index=True)
        return unit_of[devices[first]], devices[first]


def _entering(unit_of: np.ndarray, num_units: int, held: _Blocks, wanted: _Blocks) -> np.ndarray:
    """Returns the number of elements that each unit needs and does not hold."""
    units, devices = wanted.distinct(unit_of)
    needed = np.zeros(num_units, np.int64)
    np.add.at(needed, units, wanted.volume[devices])
    held_units, held_devices = held.distinct(unit_of)
    of_unit = np.bincount(held_units, minlength=num_units)
    if of_unit[units].sum() > num_units * (math.prod(held.shape) + math.prod(wanted.shape)):
        present = _present_on_grid(num_units, held, held_units, held_devices, wanted, units, devices)
    else:
        present = _present_by_pairs(of_unit, held, held_devices, wanted, units, devices)
    np.subtract.at(needed, units, present)
    return needed


def _present_by_pairs(of_unit, held: _Blocks, held_devices, wanted: _Blocks, units, devices) -> np.ndarray:
    """Returns how much of each wanted block its unit holds, by comparing it with each block that the unit holds."""
    counts = of_unit[units]
    one = np.repeat(np.arange(len(units)), counts)
    first = (np.cumsum(of_unit) - of_unit)[units]
    other = held_devices[np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(len(one))]
    mine = devices[one]
    common = np.ones(len(one), np.int64)
    for dim in range(len(held.shape)):
        start = np.maximum(held.starts[dim][held.at[dim][other]], wanted.starts[dim][wanted.at[dim][mine]])
        stop = np.minimum(held.stops[dim][held.at[dim][other]], wanted.stops[dim][wanted.at[dim][mine]])
        common *= np.maximum(stop - start, 0)
    present = np.zeros(len(units), np.int64)
    np.add.at(present, one, common)
    return present


def _present_on_grid(num_units, held: _Blocks, held_units, held_devices, wanted: _Blocks, units, devices) -> np.ndarray:
    """Returns the same for units of many blocks, by sums of the held elements along one dimension after the other."""
    elements = np.zeros((num_units, *held.shape), np.int64)
    elements[(held_units, *(at[held_devices] for at in held.at))] = 1
    for dim in range(len(held.shape)):
        elements = np.moveaxis(elements, dim + 1, -1)
        before = [_held_before(elements, held, dim, at) for at in (wanted.starts[dim], wanted.stops[dim])]
        elements = np.moveaxis(before[1] - before[0], -1, dim + 1)
    return elements[(units, *(at[devices] for at in wanted.at))]


def _held_before(elements: np.ndarray, held: _Blocks, dim: int, places: np.ndarray) -> np.ndarray:
    """Returns the elements held before each place along the last axis, whose intervals are those of `dim`."""
    starts, stops = held.starts[dim], held.stops[dim]
    sums = np.zeros((*elements.shape[:-1], len(starts) + 1), np.int64)
    np.cumsum(elements * (stops - starts), axis=-1, out=sums[..., 1:])
    whole = np.searchsorted(stops, places, side="right")
    partly = np.minimum(whole, len(starts) - 1)
    inside = np.where(whole < len(starts), np.maximum(places - starts[partly], 0), 0)
    return sums[..., whole] + elements[..., partly] * inside
