# SPDX-License-Identifier: Apache-2.0
"""What a collective costs on a topology: latency plus bytes over the slowest level it crosses, sharing included.

A collective on tiles of L bytes takes `latency_s + seconds_per_byte * L`. All groups of it run at once. Levels have
ports of their own and work at once, pipelined, so the bytes' time is the maximum over levels. At each level:

- **gathering** (all_gather; reduce_scatter is its mirror image on 1/n of the tile, all_reduce both): bandwidth-optimal
  phases per level, as libraries run them. Of a group of n, a unit that has k members, in a surrounding unit that has
  K, receives n·L·(1 - k/K) bytes here, spread over its k members: first the slow level with the data of the own
  column, then the fast one with everything.
- **all_to_all**: each member exchanges L/n with every member that it meets at this level.
- **collective_permute**: each pair moves L at the level where it meets.

A switch limits what a port takes, and what a unit's shared ports take of all groups together; a bus the sum of
everything. On rings and tori the load of every link is counted: gathering goes around each dimension in both
directions, dimensions at once; all_to_all and permute use shortest paths, one dimension after the other, ties split.
Groups that interleave share links. Groups that are no sub-grid of the torus run along a ring of their members.

**The bound.** Every model above is a flow that a schedule could have: what enters a unit enters through its ports, in
no more than the time that the model gives. So bytes that must enter a unit, over all its ports, are a lower bound
(`cut_bytes_bound`); the tests hold the model to it.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (2005); Chan et al.,
"Collective communication: theory, practice, and experience" (2007); dimension-ordered routing as in Dally and Towles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import functools
import math

import numpy as np

from .mesh import Mesh
from .topology import Level, Topology, TopologyError
from .traffic import KINDS, Collective

MOST_ROUTED_PAIRS = 1 << 20  # of an all_to_all in groups that are no sub-grids; more are priced along a ring

_GATHERS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
_EXCHANGES = ("all_to_all", "ragged_all_to_all")


def coefficients(
    topology: Topology,
    mesh: Mesh | int,
    kind: str,
    groups: Sequence[Sequence[int]] | np.ndarray | None = None,
    pairs: Sequence[tuple[int, int]] | np.ndarray | None = None,
) -> tuple[float, float]:
    """Returns (latency_s, seconds_per_byte): the time of a collective is latency_s + seconds_per_byte · L.

    L is the bytes of one device's tile before the collective (of ragged_all_to_all, the larger of operand and result).

    Args:
      mesh: the devices, or their number; the topology is fitted to it.
      kind: one of `traffic.KINDS`.
      groups: device ids that work together, e.g. from `layout.groups`; None is one group of all.
      pairs: (source, target) device ids, for collective_permute.
    Raises: TopologyError if the topology does not fit, or a device id is out of range.

    Example: 4 nodes of 8 GPUs; groups of one GPU per node meet at the network cards, 50 GB/s each.
      >>> groups = np.arange(32).reshape(4, 8).T
      >>> latency_s, seconds_per_byte = coefficients(Topology.parse("h100:4"), 32, "all_gather", groups)
      >>> round(latency_s * 1e6, 1), round(seconds_per_byte * 50e9, 6)
      (27.6, 3.0)
    """
    network = _network(topology, mesh if isinstance(mesh, int) else mesh.size)
    if kind == "collective_permute":
        return _permute(network, network.positions_of(pairs if pairs is not None else ()).reshape(-1, 2))
    if kind not in KINDS:
        raise ValueError(f"unknown kind of collective {kind!r}; known: {', '.join(KINDS)}")
    return _grouped(network, kind, *network.members_of(groups))


def collective_time_s(topology: Topology, num_devices: int, collective: Collective) -> float:
    """Returns the modelled time of all runs of a collective, trip count included: prices anybody's HLO alike.

    Example:
      >>> once = Collective("all_gather", 1000, 4000, groups=((0, 1, 2, 3),))
      >>> round(collective_time_s(Topology.parse("uniform"), 4, once) * 1e6, 2)  # 8.4 + 2 * 9.6 + 3000 / 25e3
      27.72
    """
    latency_s, seconds_per_byte = coefficients(
        topology, num_devices, collective.kind, collective.groups, collective.pairs
    )
    is_ragged = collective.kind == "ragged_all_to_all"
    tile_bytes = collective.largest_tile_bytes if is_ragged else collective.bytes_before
    return collective.trip_count * (latency_s + seconds_per_byte * tile_bytes)


def relayout_time_s(topology: Topology, num_bytes: int) -> float:
    """Returns the time of a local reshape and transpose: every byte is read once and written once.

    Example:
      >>> relayout_time_s(Topology.parse("v4"), 600_000_000_000)
      1.0
    """
    return 2 * num_bytes / topology.memory_bandwidth_bytes_per_s


# The network as arrays


@dataclass(frozen=True, slots=True)
class _View:
    """A level with the number of devices in one of its units; `dims` leaves out nothing, size-1 dimensions included."""

    level: Level
    unit: int

    @property
    def container(self) -> int:
        """Returns the number of devices in one group of the level's units."""
        return self.unit * self.level.size

    @property
    def is_grid(self) -> bool:
        return self.level.kind in ("ring", "torus")

    def nodes(self, units: np.ndarray) -> list[np.ndarray]:
        """Returns the coordinate along each dimension of units, which are numbered over the whole topology."""
        return list(np.unravel_index(units % self.level.size, self.level.dims))


class _Network:
    """A fitted topology, with the position of each device id. Levels of size 1 are left out."""

    def __init__(self, topology: Topology):
        self.topology = topology
        self.size = topology.size
        self.positions = topology.positions() if topology.device_order else None
        unit, views = 1, []
        for level in reversed(topology.levels):
            if level.size > 1:
                views.append(_View(level, unit))
            unit *= level.size
        self.views = tuple(reversed(views))

    def positions_of(self, ids) -> np.ndarray:
        ids = np.asarray(ids, dtype=np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self.size:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise TopologyError(f"device {wrong} is not in 0..{self.size - 1}")
        return ids if self.positions is None else self.positions[ids]

    def members_of(self, groups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the positions of all members, the group of each, and the size of each group."""
        if groups is None:
            return self.positions_of(np.arange(self.size)), np.zeros(self.size, np.int64), np.array([self.size])
        if isinstance(groups, np.ndarray) and groups.ndim == 2:
            sizes = np.full(len(groups), groups.shape[1], np.int64)
            ids = groups.ravel()
        else:
            sizes = np.array([len(group) for group in groups], np.int64)
            ids = np.array([member for group in groups for member in group], np.int64)
        return self.positions_of(ids), np.repeat(np.arange(len(sizes)), sizes), sizes


@functools.lru_cache(maxsize=64)
def _network(topology: Topology, num_devices: int) -> _Network:
    return _Network(topology.fitted(num_devices))


# Collectives in groups


@dataclass(slots=True)
class _Parts:
    """The members of each group in each unit of a level, one row per (group, unit) with members.

    Fields, arrays over parts: `units`; `members` (k); `around` (K: of the same group in the surrounding unit); `set`,
    which parts meet here, numbered from 0, sorted; `group_size` (n). `meeting`: the number of parts of each set.
    """

    units: np.ndarray
    members: np.ndarray
    around: np.ndarray
    set: np.ndarray
    group_size: np.ndarray
    meeting: np.ndarray


def _grouped(network: _Network, kind: str, positions, group, sizes) -> tuple[float, float]:
    seconds_per_byte, latency_s = 0.0, 0.0
    inside, counts = group, sizes  # the part of each member at the level before, the number of members of each part
    for view in network.views:
        units = positions // view.unit
        key = inside * (network.size // view.unit) + units
        if view.unit == 1:
            order = np.argsort(key, kind="stable")
            first, index, here = order, None, np.ones(len(order), np.int64)
        else:
            _, first, index, here = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        outer = inside[first]
        meeting = np.bincount(outer, minlength=len(counts))
        crosses = meeting[outer] > 1
        if crosses.any():
            rows, busy = first[crosses], outer[crosses]
            _, in_set = np.unique(busy, return_inverse=True)
            parts = _Parts(units[rows], here[crosses], counts[busy], in_set, sizes[group[rows]], np.bincount(in_set))
            level_s, steps = _at_level(view, kind, parts)
            seconds_per_byte = max(seconds_per_byte, level_s * view.level.slowdown_of(kind))
            latency_s += steps * view.level.latency_s
        if index is not None:
            inside, counts = index, here
    if not latency_s and not seconds_per_byte:
        return 0.0, 0.0
    return network.topology.launch_latency_s + latency_s, seconds_per_byte


def _at_level(view: _View, kind: str, parts: _Parts) -> tuple[float, int]:
    """Returns (seconds per byte, steps of latency) at one level."""
    rounds = _GATHERS.get(kind, 1)
    if view.is_grid:
        seconds, hops = _on_grid(view, kind, parts)
        return rounds * seconds, rounds * hops
    received = _received(kind, parts)
    if view.level.kind == "bus":
        seconds = np.bincount(parts.units // view.level.size, weights=received).max() / view.level.bandwidth_bytes_per_s
    else:
        ports = 1 if kind == "collective_broadcast" else parts.members
        seconds = (received / ports).max() / view.level.bandwidth_bytes_per_s
        if view.level.shared_bandwidth_bytes_per_s:
            seconds = max(seconds, np.bincount(parts.units, weights=received).max() / view.level.shared_bandwidth_bytes_per_s)
    return rounds * float(seconds), rounds * math.ceil(math.log2(int(parts.meeting.max())))


def _received(kind: str, parts: _Parts) -> np.ndarray:
    """Returns the bytes that enter each part here in one round, for tiles of one byte."""
    if kind in _EXCHANGES:
        return parts.members * (parts.around - parts.members) / parts.group_size
    if kind == "collective_broadcast":
        return np.ones(len(parts.units))
    gathered = parts.group_size if kind == "all_gather" else 1.0
    return gathered * (1 - parts.members / parts.around)


# Rings and tori


def _on_grid(view: _View, kind: str, parts: _Parts) -> tuple[float, int]:
    """Returns (seconds per byte, hops) of one round on a ring or torus."""
    others = parts.meeting[parts.set] - 1
    held = _per_set_max(_received(kind, parts) / others, parts)  # what a part gives to each other one
    nodes = view.nodes(parts.units)
    arcs = [
        _Arcs(view, dim, nodes[dim], parts.set)
        for dim, size in enumerate(view.level.dims)
        if size > 1 and (nodes[dim] != nodes[dim][0]).any()
    ]
    extent = np.prod([arc.count for arc in arcs], axis=0) if arcs else np.ones(len(parts.meeting))
    is_sub_grid = (extent == parts.meeting).all()
    hops = int(sum(arc.hops for arc in arcs).max())
    bandwidth = view.level.bandwidth_bytes_per_s
    if not is_sub_grid:
        return _on_ring_of_members(view, kind, parts, held, nodes) / bandwidth, hops
    if kind in _EXCHANGES:
        share = held * parts.meeting  # a part's bytes with those that it keeps
        return max(arc.busiest_link(view, nodes, arc.exchange_weights(), share) for arc in arcs) / bandwidth, hops
    if kind == "collective_broadcast":
        return max(arc.busiest_link(view, nodes, arc.covers, np.ones(len(held))) for arc in arcs) / bandwidth, hops
    return _gather_on_grid(view, parts, held, nodes, arcs) / bandwidth, hops


def _gather_on_grid(view: _View, parts: _Parts, held: np.ndarray, nodes, arcs) -> float:
    """Returns the busiest link's bytes when each dimension carries the share that its links allow.

    A dimension alone would gather its `count - 1` other parts in `busiest` bytes' time. Pieces of the tile that go
    through the dimensions in different orders balance these; a dimension cannot carry less than its own line needs.
    """
    rates, least = np.zeros(len(held)), np.zeros(len(held))
    for arc in arcs:
        busiest = arc.busiest_link(view, nodes, arc.gather_weights(), held)
        line = held * (arc.count - 1)
        rates += line / busiest
        least = np.maximum(least, np.where(line > 0, busiest, 0.0))
    return float(np.maximum(held * (parts.meeting - 1) / rates, least).max())


class _Arcs:
    """How the parts of each set lie along one dimension: their distinct coordinates, and the arcs between neighbours.

    State: rows are the distinct (set, coordinate), sorted; `row_of` gives the row of each part. The arc of a row leads
    to the set's next coordinate. Of a dimension that wraps, sets that are spread evenly use all of the circle
    (`is_round`); else the longest arc is left out, and the rank of the others counts from there.
    """

    def __init__(self, view: _View, dim: int, node: np.ndarray, in_set: np.ndarray):
        self.dim, self.size = dim, view.level.dims[dim]
        key, self.row_of = np.unique(in_set * self.size + node, return_inverse=True)
        sets, self.at = np.divmod(key, self.size)
        self.count = np.bincount(sets)
        last = np.cumsum(self.count) - 1
        first = last - self.count + 1
        following = np.append(self.at[1:], 0)
        following[last] = self.at[first] + self.size
        self.length = following - self.at
        cut = last
        round_sets = np.zeros(len(self.count), bool)
        if view.level.wraps[dim]:
            longest = np.maximum.reduceat(self.length, first)
            round_sets = (longest == np.minimum.reduceat(self.length, first)) & (self.count > 1)
            is_longest = self.length == longest[sets]
            cut = np.full(len(self.count), len(sets))
            np.minimum.at(cut, sets[is_longest], np.flatnonzero(is_longest))
        self.n = self.count[sets]
        self.rank = (np.arange(len(sets)) - cut[sets] - 1) % self.n + 1
        self.is_round = round_sets[sets]
        self.covers = (self.rank < self.n).astype(float)
        straight = self.size - self.length[cut]
        self.hops = np.where(round_sets, self.length[cut] * (self.count // 2), straight) * (self.count > 1)

    def gather_weights(self) -> np.ndarray:
        """Returns tiles per arc and direction: around a circle half each way, else everything from one side."""
        return np.where(self.is_round, (self.n - 1) / 2, self.covers * np.maximum(self.rank, self.n - self.rank))

    def exchange_weights(self) -> np.ndarray:
        """Returns, per arc and direction, the part of a tile that passes if all exchange with all."""
        return np.where(self.is_round, self.n**2 // 4 / (2 * self.n), self.rank * (self.n - self.rank) / self.n)

    def busiest_link(self, view: _View, nodes, weights: np.ndarray, scale_of_set: np.ndarray) -> float:
        """Returns the bytes on the busiest link of the dimension, all sets together."""
        sets_of_row = np.repeat(np.arange(len(self.count)), self.count)
        bytes_of_row = weights * scale_of_set[sets_of_row]
        lines = _line(view, self.dim, nodes, self.container_of_part)
        return _busiest(lines, self.at[self.row_of], self.length[self.row_of], bytes_of_row[self.row_of], self.size)

    container_of_part: np.ndarray | int = 0


def _per_set_max(values: np.ndarray, parts: _Parts) -> np.ndarray:
    found = np.zeros(len(parts.meeting))
    np.maximum.at(found, parts.set, values)
    return found
