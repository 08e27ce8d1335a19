# SPDX-License-Identifier: Apache-2.0
"""What a collective costs on a topology: latency plus bytes over the slowest level it crosses, sharing included.

A collective on tiles of L bytes takes `latency_s + seconds_per_byte * L`. All groups of it run at once. Levels have
ports of their own and work at once, pipelined, so the bytes' time is the maximum over levels. At each level:

- **gathering** (all_gather; reduce_scatter is its mirror image on 1/n of the tile, all_reduce both): bandwidth-optimal
  phases per level, as libraries run them. Of a group of n, a unit that has k members, in a surrounding unit that has
  K, receives n·L·(1 - k/K) bytes here, spread over its k members: first the slow level with the data of the own
  column, then the fast one with everything.
  What the topology calls `rings` goes around instead: each member passes everything on to the next one of its group, a
  tile or 1/n of it at a time, in n - 1 steps.
- **all_to_all**: each member exchanges L/n with every member that it meets at this level.
- **collective_permute**: each pair moves L at the level where it meets.

A switch limits what a port takes, and what a unit's shared ports take of all groups together; a bus the sum of
everything. Some libraries use a connection one way at a time: a level's slowdown of `SWAP` says so, and counts where two
devices send to each other and no one else. Within one memory (`copies_own`) nothing stays where it is: of a unit's K tiles
all are copied, not K - k. On rings and tori the load of every link is counted: gathering goes around each dimension in both
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

from .layout import Factor, coordinates, whole_factors
from .mesh import Mesh
from .sharding import Sharding
from .topology import SWAP, Level, Topology, TopologyError
from .traffic import KINDS, Collective

MOST_ROUTED_PAIRS = 1 << 18  # of an all_to_all in groups that are no sub-grids; more are priced along a ring

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
    network = network_of(topology, mesh if isinstance(mesh, int) else mesh.size)
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


def crossed_level(topology: Topology, num_devices: int, collective: Collective) -> Level | None:
    """Returns the outermost level at which devices of a group, or of a pair, meet; None if nothing leaves its device.

    Example:
      >>> both = Collective("all_gather", 1, 4, groups=((0, 1, 8, 9),))
      >>> crossed_level(Topology.parse("h100:2"), 16, both).name
      'node'
    """
    network = network_of(topology, num_devices)
    if collective.kind == "collective_permute":
        ends = network.positions_of(collective.pairs).reshape(-1, 2)
        here, there = ends[:, 0], ends[:, 1]
    else:
        there, group, sizes = network.members_of(collective.groups or None)
        here = there[(np.cumsum(sizes) - sizes)[group]]  # the first member of each one's group
    return next((v.level for v in network.views if (here // v.unit != there // v.unit).any()), None)


def relayout_time_s(topology: Topology, num_bytes: int) -> float:
    """Returns the time of a local reshape and transpose: every byte is read once and written once.

    Example:
      >>> relayout_time_s(Topology.parse("v4"), 600_000_000_000)
      1.0
    """
    return 2 * num_bytes / topology.memory_bandwidth_bytes_per_s


def slice_time_s(topology: Topology, num_bytes: int) -> float:
    """Returns the time of a slice that keeps so many bytes: each is read once and written once; 0 where slices are free.

    Example:
      >>> slice_time_s(Topology.parse("v4"), 600_000_000_000)
      0.0
    """
    bandwidth = topology.slice_bandwidth_bytes_per_s
    return 2 * num_bytes / bandwidth if bandwidth else 0.0


# The network as arrays


@dataclass(frozen=True, slots=True)
class _View:
    """A level with the number of devices in one of its units."""

    level: Level
    unit: int

    @property
    def is_grid(self) -> bool:
        return self.level.kind in ("ring", "torus")

    def nodes(self, units: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the coordinate along each dimension of units, which are numbered over the whole topology."""
        return np.unravel_index(units % self.level.size, self.level.dims)

    def lines(self, dim: int, units: np.ndarray, nodes) -> np.ndarray:
        """Returns the number of the line along `dim` on which `nodes` lie, numbered over the whole topology."""
        line = units // self.level.size
        for other, size in enumerate(self.level.dims):
            if other != dim:
                line = line * size + nodes[other]
        return line


class Network:
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

    def goes_around(self, kind: str) -> bool:
        """Returns whether the library's ring is another way than level by level."""
        return len(self.views) > 1 and kind in self.topology.rings

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
def network_of(topology: Topology, num_devices: int) -> Network:
    return Network(topology.fitted(num_devices))


# Collectives in groups


@dataclass(slots=True)
class _Parts:
    """The members of each group in each unit of a level, where a group has several units to bring together.

    Fields, arrays over parts: `units`; `members` (k); `around`, the group's members in the surrounding unit (K); `set`,
    the number of the set of parts that meet, from 0; `group_size` (n). And over sets: `meeting`, the number of parts.
    """

    units: np.ndarray
    members: np.ndarray
    around: np.ndarray
    set: np.ndarray
    group_size: np.ndarray
    meeting: np.ndarray


def _grouped(network: Network, kind: str, positions, group, sizes) -> tuple[float, float]:
    if network.goes_around(kind):
        return _around_rings(network, kind, positions, group, sizes)
    seconds_per_byte, latency_s = 0.0, 0.0
    inside, counts = group, sizes  # the part of each member at the level before, the number of members of each part
    for view in network.views:
        units = positions // view.unit
        if view.unit == 1:
            first, here = np.arange(len(units)), np.ones(len(units), np.int64)
        else:
            key = inside * (network.size // view.unit) + units
            _, first, index, here = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        outer = inside[first]
        meeting = np.bincount(outer, minlength=len(counts))
        crosses = meeting[outer] > 1
        if crosses.any():
            rows, busy = first[crosses], outer[crosses]
            _, in_set = np.unique(busy, return_inverse=True)
            parts = _Parts(
                units[rows], here[crosses], counts[busy], in_set, sizes[group[rows]], meeting=np.bincount(in_set)
            )
            level_s, steps = _at_level(view, kind, parts)
            seconds_per_byte = max(seconds_per_byte, level_s * view.level.slowdown_of(kind))
            latency_s += steps * view.level.latency_s
        if view.unit > 1:
            inside, counts = index, here
    if not latency_s and not seconds_per_byte:
        return 0.0, 0.0
    return network.topology.launch_latency_s + latency_s, seconds_per_byte


def _around_rings(network: Network, kind: str, positions, group, sizes) -> tuple[float, float]:
    """Prices groups whose members, by position, pass everything on to the next one, the last one to the first."""
    in_order = np.lexsort((positions, group))
    members, stops = positions[in_order], np.cumsum(sizes)
    following = np.arange(1, len(members) + 1)
    following[stops - 1] = stops - sizes
    latency_s, seconds_per_byte = _permute(network, np.column_stack([members, members[following]]), kind)
    size, launch_s = int(sizes.max()), network.topology.launch_latency_s
    if size == 1:
        return 0.0, 0.0
    passed = _GATHERS[kind] * (size - 1)
    share = 1 if kind == "all_gather" else 1 / size
    return launch_s + passed * (latency_s - launch_s), passed * share * seconds_per_byte


def regular_coefficients(network: Network, kind: str, shares: Sequence[int]) -> tuple[float, float] | None:
    """Returns `coefficients` where each group is a sub-grid with `shares[i]` members along level i, all groups alike.

    Levels are those of more than one unit, outer to inner. None where a ring or torus is crossed: there it matters
    where the members lie.
    """
    if network.goes_around(kind):
        return None
    size, seconds_per_byte, latency_s = math.prod(shares), 0.0, 0.0
    if size == 1:
        return 0.0, 0.0
    rounds, members = _GATHERS.get(kind, 1), 1
    for view, share in zip(reversed(network.views), reversed(shares)):
        if share == 1:
            continue
        level, around = view.level, members * share
        if view.is_grid or kind == "collective_broadcast":
            return None
        received = _received_of(kind, members, around, size)
        if level.copies_own:
            received *= around / (around - members)
        groups = view.unit // members  # that have a part in one unit
        if level.kind == "bus":
            level_s = received * groups * level.size / level.bandwidth_bytes_per_s
        else:
            level_s = received / members * level.slowdown_of_size(kind, size) / level.bandwidth_bytes_per_s
            if level.shared_bandwidth_bytes_per_s:
                level_s = max(level_s, received * groups / level.shared_bandwidth_bytes_per_s)
        seconds_per_byte = max(seconds_per_byte, rounds * level_s * level.slowdown_of(kind))
        latency_s += rounds * math.ceil(math.log2(share)) * level.latency_s
        members = around
    return network.topology.launch_latency_s + latency_s, seconds_per_byte


def stride(mesh: Mesh, factor: Factor) -> int:
    """Returns how far apart in the mesh's row-major order two neighbours along a factor are."""
    sizes = [size for _, size in mesh.axes]
    axis = mesh.axis_names.index(factor.axis)
    return math.prod(sizes[axis + 1 :]) * (sizes[axis] // (factor.pre * factor.size))


def _at_level(view: _View, kind: str, parts: _Parts) -> tuple[float, int]:
    """Returns (seconds per byte, steps of latency) at one level."""
    rounds = _GATHERS.get(kind, 1)
    if view.is_grid:
        seconds, hops = _on_grid(view, kind, parts)
        return rounds * seconds, rounds * hops
    received = _received(kind, parts)
    if view.level.copies_own and kind != "collective_broadcast":
        received = received * parts.around / (parts.around - parts.members)
    if view.level.kind == "bus":
        together = np.bincount(parts.units // view.level.size, weights=received)
        seconds = together.max() / view.level.bandwidth_bytes_per_s
    else:
        ports = 1 if kind == "collective_broadcast" else parts.members
        slower = _slower_by_size(view.level, kind, parts.group_size) if kind != "collective_broadcast" else 1
        seconds = (received / ports * slower).max() / view.level.bandwidth_bytes_per_s
        if view.level.shared_bandwidth_bytes_per_s:
            busiest = np.bincount(parts.units, weights=received).max()
            seconds = max(seconds, busiest / view.level.shared_bandwidth_bytes_per_s)
    return rounds * float(seconds), rounds * math.ceil(math.log2(int(parts.meeting.max())))


def _slower_by_size(level: Level, kind: str, sizes: np.ndarray) -> np.ndarray:
    different, which = np.unique(sizes, return_inverse=True)
    return np.array([level.slowdown_of_size(kind, int(size)) for size in different])[which]


def _received(kind: str, parts: _Parts) -> np.ndarray:
    """Returns the bytes that enter each part here in one round, for tiles of one byte."""
    if kind == "collective_broadcast":
        return np.ones(len(parts.units))
    return _received_of(kind, parts.members, parts.around, parts.group_size)


def _received_of(kind: str, members, around, group_size):
    if kind in _EXCHANGES:
        return members * (around - members) / group_size
    gathered = group_size if kind == "all_gather" else 1.0
    return gathered * (1 - members / around)


# Rings and tori


def _on_grid(view: _View, kind: str, parts: _Parts) -> tuple[float, int]:
    """Returns (seconds per byte, hops) of one round on a ring or torus."""
    gives = _max_per_set(_received(kind, parts) / (parts.meeting[parts.set] - 1), parts)  # one part to each other one
    nodes = view.nodes(parts.units)
    arcs = [_Arcs(view, dim, nodes, parts) for dim in range(len(nodes)) if nodes[dim].min() != nodes[dim].max()]
    arcs = [arc for arc in arcs if arc.count.max() > 1]
    hops = int(sum(arc.hops for arc in arcs).max())
    bandwidth = view.level.bandwidth_bytes_per_s
    if (np.prod([arc.count for arc in arcs], axis=0) != parts.meeting).any():
        return _along_members(view, kind, parts, gives) / bandwidth, hops
    if kind in _EXCHANGES:
        return max(arc.busiest_link(arc.exchanged(), gives * parts.meeting) for arc in arcs) / bandwidth, hops
    if kind == "collective_broadcast":
        return max(arc.busiest_link(arc.is_used, np.ones(len(gives))) for arc in arcs) / bandwidth, hops
    return _gather_on_grid(parts, gives, arcs) / bandwidth, hops


def _gather_on_grid(parts: _Parts, tile: np.ndarray, arcs: list[_Arcs]) -> float:
    """Returns the bytes' time at a bandwidth of 1 when each dimension carries the share that its links allow.

    A dimension alone gathers the tiles of its line in the time of its busiest link. Pieces of the tile that go through
    the dimensions in different orders balance them; no dimension can carry less than its own line needs.
    """
    rates, least = np.zeros(len(tile)), np.zeros(len(tile))
    for arc in arcs:
        busiest = arc.busiest_link(arc.gathered(), tile)
        line = tile * (arc.count - 1)
        rates += line / busiest
        least = np.maximum(least, np.where(line > 0, busiest, 0.0))
    return float(np.maximum(tile * (parts.meeting - 1) / rates, least).max())


class _Arcs:
    """How the parts of each set lie along one dimension: their distinct coordinates, and the arcs between neighbours.

    State: rows are the distinct (set, coordinate), sorted; `row_of` gives the row of each part. The arc of a row leads
    to the set's next coordinate, around the end. Sets that are spread evenly over a dimension that wraps use all of
    the circle (`is_round`); others leave out their longest arc, or the one around the end, and the `rank` of the arcs
    counts from there: the coordinates 6, 7, 0 of a circle of 8 have arcs of 1, 1 and 6, the last unused, ranks 1, 2, 3.
    """

    def __init__(self, view: _View, dim: int, nodes, parts: _Parts):
        self.size = view.level.dims[dim]
        self.lines = view.lines(dim, parts.units, nodes)
        key, self.row_of = np.unique(parts.set * self.size + nodes[dim], return_inverse=True)
        self.set, self.at = np.divmod(key, self.size)
        self.count = np.bincount(self.set)
        last = np.cumsum(self.count) - 1
        first = last - self.count + 1
        self.length = np.append(self.at[1:], 0) - self.at
        self.length[last] = self.at[first] + self.size - self.at[last]
        unused, is_round = last, np.zeros(len(last), bool)
        if view.level.wraps[dim]:
            longest = np.maximum.reduceat(self.length, first)
            is_round = (longest == np.minimum.reduceat(self.length, first)) & (self.count > 1)
            unused = np.full(len(last), len(key))
            is_longest = self.length == longest[self.set]
            np.minimum.at(unused, self.set[is_longest], np.flatnonzero(is_longest))
        self.n = self.count[self.set]
        self.rank = (np.arange(len(key)) - unused[self.set] - 1) % self.n + 1
        self.is_round = is_round[self.set]
        self.is_used = (self.rank < self.n).astype(float)
        self.hops = np.where(is_round, self.length[last] * (self.count // 2), self.size - self.length[unused])

    def gathered(self) -> np.ndarray:
        """Returns the tiles on each arc, per direction: around a circle half each way, else all of the longer side."""
        return np.where(self.is_round, (self.n - 1) / 2, self.is_used * np.maximum(self.rank, self.n - self.rank))

    def exchanged(self) -> np.ndarray:
        """Returns the tiles on each arc, per direction, when all exchange with all by shortest paths."""
        return np.where(self.is_round, self.n**2 // 4 / (2 * self.n), self.rank * (self.n - self.rank) / self.n)

    def busiest_link(self, tiles_on_arc: np.ndarray, tile_of_set: np.ndarray) -> float:
        """Returns the bytes on the dimension's busiest link, all sets together."""
        bytes_on_arc = tiles_on_arc * tile_of_set[self.set]
        of = self.row_of
        return _busiest(self.lines, self.at[of], self.length[of], bytes_on_arc[of], self.size)


def _along_members(view: _View, kind: str, parts: _Parts, gives: np.ndarray) -> float:
    """Returns the busiest link's bytes for sets that are no sub-grid: all pairs routed, or a ring of the members."""
    order = np.lexsort((parts.units, parts.set))
    units, sets = parts.units[order], parts.set[order]
    n = parts.meeting[sets]
    last = np.cumsum(parts.meeting) - 1
    first = (last - parts.meeting + 1)[sets]
    if kind in _EXCHANGES and n.sum() <= MOST_ROUTED_PAIRS:
        one = np.repeat(np.arange(len(units)), n)
        other = first[one] + np.arange(len(one)) - np.repeat(np.cumsum(n) - n, n)
        return _routed(view, units[one], units[other], gives[sets[one]])
    following = np.arange(1, len(units) + 1)
    following[last] = first[last]
    if kind == "collective_broadcast":
        return _routed(view, units, units[following], np.ones(len(units)))
    tiles = n**2 // 4 / 2 if kind in _EXCHANGES else (n - 1) / 2
    both = np.concatenate([units, units[following]]), np.concatenate([units[following], units])
    return _routed(view, *both, np.tile(tiles * gives[sets], 2))


def _routed(view: _View, source: np.ndarray, target: np.ndarray, num_bytes: np.ndarray) -> float:
    """Returns the busiest link's bytes when each unit of `source` sends to that of `target`, shortest paths."""
    here, there, most = list(view.nodes(source)), view.nodes(target), 0.0
    for dim, size in enumerate(view.level.dims):
        lines = view.lines(dim, source, here)
        up, down, share = _ways(here[dim], there[dim], size, view.level.wraps[dim])
        most = max(most, _busiest(lines, here[dim], up, num_bytes * share, size))
        most = max(most, _busiest(lines, there[dim], down, num_bytes * (1 - share), size))
        here[dim] = there[dim]
    return most


def _ways(here: np.ndarray, there: np.ndarray, size: int, wraps: bool):
    """Returns the hops upwards, the hops downwards, and which share goes upwards."""
    if wraps:
        up = (there - here) % size
        down = (here - there) % size
        return up, down, np.where(up == down, 0.5, (up < down).astype(float))
    return np.maximum(there - here, 0), np.maximum(here - there, 0), (there > here).astype(float)


def _busiest(lines: np.ndarray, start: np.ndarray, length: np.ndarray, num_bytes: np.ndarray, size: int) -> float:
    """Returns the most bytes on one link, where each row loads `length` links from `start` on, around the end.

    Loads are differences along each line: + where a path starts, - where it ends, summed up.
    """
    base = lines * (size + 1)
    stop = start + length
    over = np.maximum(stop - size, 0)
    at = np.concatenate([base + start, base + np.minimum(stop, size), base, base + over])
    wrapped = np.where(over > 0, num_bytes, 0.0)
    weights = np.concatenate([num_bytes, -num_bytes, wrapped, -wrapped])
    change = np.bincount(at, weights, minlength=int(base.max()) + size + 1)
    return float(np.cumsum(change.reshape(-1, size + 1), axis=1).max())


def _max_per_set(values: np.ndarray, parts: _Parts) -> np.ndarray:
    found = np.zeros(len(parts.meeting))
    np.maximum.at(found, parts.set, values)
    return found


# collective_permute


def _permute(network: Network, pairs: np.ndarray, kind: str = "collective_permute") -> tuple[float, float]:
    """Returns the coefficients of pairs of positions; kind: of which collective they are a part."""
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    seconds_per_byte, latency_s = 0.0, 0.0
    for view in network.views:
        units = pairs // view.unit
        around = units // view.level.size
        meets = (around[:, 0] == around[:, 1]) & (units[:, 0] != units[:, 1])
        if not meets.any():
            continue
        level_s, hops = _permute_at_level(view, pairs[meets], units[meets])
        seconds_per_byte = max(seconds_per_byte, level_s * view.level.slowdown_of(kind))
        latency_s = max(latency_s, hops * view.level.latency_s)
    if not len(pairs):
        return 0.0, 0.0
    return network.topology.launch_latency_s + latency_s, seconds_per_byte


def _permute_at_level(view: _View, pairs: np.ndarray, units: np.ndarray) -> tuple[float, int]:
    level = view.level
    if view.is_grid:
        load = _routed(view, units[:, 0], units[:, 1], np.ones(len(units)))
        return load / level.bandwidth_bytes_per_s, _most_hops(view, units)
    if level.kind == "bus":
        return float(np.bincount(units[:, 0] // level.size).max()) / level.bandwidth_bytes_per_s, 1
    slower = level.slowdown_of(SWAP)
    seconds = max(_most_used(pairs), slower * _has_swaps(pairs) if slower > 1 else 0) / level.bandwidth_bytes_per_s
    if level.shared_bandwidth_bytes_per_s:
        seconds = max(seconds, _most_used(units) / level.shared_bandwidth_bytes_per_s)
    return seconds, 1


def _most_used(ends: np.ndarray) -> int:
    """Returns how often the busiest one sends or receives."""
    return int(max(np.bincount(ends[:, 0]).max(), np.bincount(ends[:, 1]).max()))


def _has_swaps(pairs: np.ndarray) -> bool:
    """Returns whether some two devices send to each other."""
    span = int(pairs.max()) + 1
    return bool(np.isin(pairs[:, 0] * span + pairs[:, 1], pairs[:, 1] * span + pairs[:, 0]).any())


def _most_hops(view: _View, units: np.ndarray) -> int:
    hops = np.zeros(len(units), np.int64)
    nodes = zip(view.nodes(units[:, 0]), view.nodes(units[:, 1]))
    for (here, there), size, wraps in zip(nodes, view.level.dims, view.level.wraps):
        away = np.abs(here - there)
        hops += np.minimum(away, size - away) if wraps else away
    return int(hops.max())


# The bound


@dataclass(frozen=True, slots=True)
class LevelBound:
    """What must cross one level: bytes into the unit that needs the most, seconds of the unit that needs longest."""

    name: str
    bytes_into_unit: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CutBound:
    """A lower bound on any way to get from source to target placements.

    Attributes:
      levels: one per level of more than one unit, outer to inner; the last one's units are single devices.
      latency_s: what the first bytes that have to cross the outermost level in question cost at least.
    """

    levels: tuple[LevelBound, ...]
    latency_s: float

    @property
    def seconds(self) -> float:
        """Returns the bytes' part: the sum over a chain of seconds_per_byte times its tile is at least this."""
        return max((level.seconds for level in self.levels), default=0.0)

    @property
    def time_s(self) -> float:
        return self.latency_s + self.seconds


def boxes(mesh: Mesh, shape: tuple[int, ...], sharding: Sharding) -> tuple[np.ndarray, np.ndarray]:
    """Returns (start, stop), each of shape (devices, rank): the box of each device id, tiles of ceil division.

    Example:
      >>> start, stop = boxes(Mesh.parse("x=4"), (9,), Sharding.parse('[{"x"}]'))
      >>> start.ravel().tolist(), stop.ravel().tolist()
      ([0, 3, 6, 9], [3, 6, 9, 9])
    """
    device_at = np.arange(mesh.size) if mesh.device_ids is None else np.asarray(mesh.device_ids)
    start = np.zeros((mesh.size, len(shape)), np.int64)
    stop = np.empty_like(start)
    for dim, factors in enumerate(whole_factors(mesh, sharding)):
        block = np.zeros(mesh.size, np.int64)
        for factor in factors:
            block = block * factor.size + coordinates(mesh, factor)
        width = -(-shape[dim] // math.prod(factor.size for factor in factors))
        start[device_at, dim] = np.minimum(block * width, shape[dim])
        stop[device_at, dim] = np.minimum((block + 1) * width, shape[dim])
    return start, stop


def cut_bytes_bound(
    topology: Topology,
    source: tuple[np.ndarray, np.ndarray],
    target: tuple[np.ndarray, np.ndarray],
    bits: int,
) -> CutBound:
    """Returns what has to enter each unit of each level, and how long its ports need for it.

    A unit needs the union of its devices' target boxes less the union of their source boxes. That comes in through its
    ports at this level and those of its devices further out. A bus also has to carry what all its units need.

    Args:
      source, target: (start, stop), int arrays of shape (devices, rank): each device's box, by device id; an empty
        box where a device holds nothing. Along a dimension two boxes of a side are equal, empty or apart.
      bits: of one element.
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
        needed = elements * bits / 8  # parts of bytes too, as steps pay for them
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
    """Returns the bandwidth into a unit of level `depth`, through all its ports there and further out: the best one's."""
    return float(_into_units(network, depth, network.views[depth].unit).max())


def _links(level: Level) -> np.ndarray:
    """Returns the number of links into each node: two per dimension, one at an end that does not wrap."""
    links = np.zeros(level.dims, np.int64)
    for dim, (size, wraps) in enumerate(zip(level.dims, level.wraps)):
        at = np.arange(size)
        along = np.full(size, 2) if wraps and size > 1 else (at > 0).astype(int) + (at < size - 1)
        links += along.reshape([-1 if other == dim else 1 for other in range(len(level.dims))])
    return links.ravel()


class _Blocks:
    """The boxes of one side as coordinates into the distinct intervals of each dimension.

    State: `starts[d]`, `stops[d]` are the intervals of dimension d, sorted; `at[d]` the interval of each device there;
    `is_full` says which devices hold anything; `volume` how much.
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
        """Returns (unit, a device) for each distinct block that some device of the unit holds."""
        devices = np.flatnonzero(self.is_full)
        key = unit_of[devices] * max(1, math.prod(self.shape)) + self.number[devices]
        _, first = np.unique(key, return_index=True)
        return unit_of[devices[first]], devices[first]


def _entering(unit_of: np.ndarray, num_units: int, held: _Blocks, wanted: _Blocks) -> np.ndarray:
    """Returns the elements that each unit needs and does not hold."""
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
    """Returns how much of each wanted block its unit holds: each wanted block against each held one of its unit."""
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
    """The same for units of many blocks: held elements summed up along one dimension after the other."""
    elements = np.zeros((num_units, *held.shape), np.int64)
    elements[(held_units, *(at[held_devices] for at in held.at))] = 1
    for dim in range(len(held.shape)):
        elements = np.moveaxis(elements, dim + 1, -1)
        before = [_held_before(elements, held, dim, at) for at in (wanted.starts[dim], wanted.stops[dim])]
        elements = np.moveaxis(before[1] - before[0], -1, dim + 1)
    return elements[(units, *(at[devices] for at in wanted.at))]


def _held_before(elements: np.ndarray, held: _Blocks, dim: int, places: np.ndarray) -> np.ndarray:
    """Returns what is held along the last axis, whose intervals are those of `dim`, before each place."""
    starts, stops = held.starts[dim], held.stops[dim]
    sums = np.zeros((*elements.shape[:-1], len(starts) + 1), np.int64)
    np.cumsum(elements * (stops - starts), axis=-1, out=sums[..., 1:])
    whole = np.searchsorted(stops, places, side="right")
    partly = np.minimum(whole, len(starts) - 1)
    inside = np.where(whole < len(starts), np.maximum(places - starts[partly], 0), 0)
    return sums[..., whole] + elements[..., partly] * inside
