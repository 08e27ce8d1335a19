# SPDX-License-Identifier: Apache-2.0
"""The cost model: the time of a collective on a topology, latency plus bytes over the slowest level it crosses.

A collective on tiles of L bytes takes `latency_s + seconds_per_byte * L`, an all_to_all maybe more. All its groups run
at the same time and share the links. Each level has its own ports, and the levels work at the same time, so the time of
the bytes is the maximum over the levels. At each level:

- **gathering** (all_gather; reduce_scatter is its mirror image on 1/n of the tile, all_reduce both): bandwidth-optimal
  phases per level, as libraries run them. Of a group of n, a unit that has k members, in a surrounding unit that has
  K, receives n·L·(1 - k/K) bytes here, spread over its k members: first the slow level with the data of the own
  column, then the fast one with everything.
  The kinds that the topology lists as `rings` go around a ring instead: each member passes everything on to the next
  one of its group, in the order in which the group lists them, a tile or 1/n of it at a time, in n - 1 steps. A
  library may order them by their places instead (`rings_by_place`), or have trees for an all_reduce (`trees`).
- **all_to_all**: each member exchanges L/n with every member that it meets at this level. A library may send every
  partner a message of its own. Then a device is busy with K - k messages at this level, for `message_s` each, whatever
  their bytes, and no all_to_all is faster than that. The messages to all partners leave one behind the other, so they
  arrive one latency later, that of the outermost level, and not one for each step:

      launch + max(latency_s + L · seconds_per_byte, sum of (K - k) · message_s)

  Bytes are on their way meanwhile: with gloo, small tiles take about a message for each partner, large ones no longer
  than their bytes. The messages of a device wait for one another, those of different devices do not: gloo takes longer
  for 6 partners in other nodes of 2 devices than for 4 in another node of 4, whose devices send more of them together.
- **collective_permute**: each pair moves L at the level where it meets.

A switch limits the bytes through each port, and the bytes of all groups through the shared ports of a unit. A bus
limits the sum of all bytes. Some libraries use a connection one way at a time; the slowdown of `SWAP` of a level
describes this, and counts where two devices send only to each other. Within one memory (`copies_own`) a device also
copies its own part: all K tiles of a unit are copied, not K - k. On rings and tori the load of every link is counted:
gathering goes around each dimension in both directions, dimensions at once; all_to_all and permute use shortest paths,
one dimension after the other, ties split. Groups that interleave share links. Groups that are no sub-grid of the torus
run along a ring of their members. Compilers for TPUs know a reduce_scatter around one ring alone: over all chips of a
torus that they cross dimension by dimension it is an all_reduce (`Level.is_crossed_in_phases`).

**The bound.** Each model above describes a flow that a real schedule could have: all bytes that enter a unit pass its
ports within the modelled time. So the bytes that must enter a unit, divided by the bandwidth of all its ports, are a
lower bound on the time (`cut_bounds.cut_bytes_bound`); the tests hold the model to it.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH" (2005); Chan et al.,
"Collective communication: theory, practice, and experience" (2007); dimension-ordered routing as in Dally and Towles;
the overhead of a message as in Alexandrov et al., "LogGP: Incorporating Long Messages into the LogP Model" (1995).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..forms.platforms import TPU
from ..layouts.layout import Factor
from ..layouts.mesh import Mesh
from ..programs.tile_program import Copies
from ..programs.traffic import KINDS, Collective
from .topology import SWAP, Level, Topology, TopologyError

RING, TREES, PHASES, DIRECT = "ring", "trees", "phases per level", "direct"  # how a collective runs
UP, DOWN = "up", "down"  # the two directions of a link
MOST_ROUTED_PAIRS = 1 << 18  # of an all_to_all in groups that are no sub-grids; larger ones are priced as a ring

_GATHERS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
EXCHANGES = ("all_to_all", "ragged_all_to_all")


@dataclass(frozen=True, slots=True)
class LevelPrice:
    """What a collective takes at one level: latency_s, and seconds_per_byte · L for its bytes.

    Attributes:
      view: the level. starts_s: the seconds before its first step here: the launch, and the steps at outer levels where
        those come before.
    """

    view: View
    starts_s: float
    latency_s: float
    seconds_per_byte: float


@dataclass(frozen=True, slots=True)
class Price:
    """What a collective takes: latency_s + seconds_per_byte · L, the launch included.

    Attributes:
      algorithm: RING (around a ring of all members), TREES, PHASES (bandwidth-optimal, level by level) or DIRECT (each
        device sends to all its partners).
      levels: the levels at which devices meet, outer to inner; none if no device sends to another.
    """

    latency_s: float
    seconds_per_byte: float
    algorithm: str
    levels: tuple[LevelPrice, ...] = ()


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
    found = price_on(network_of(topology, mesh if isinstance(mesh, int) else mesh.size), kind, groups, pairs)
    return found.latency_s, found.seconds_per_byte


def price_on(
    network: Network,
    kind: str,
    groups: Sequence[Sequence[int]] | np.ndarray | None = None,
    pairs: Sequence[tuple[int, int]] | np.ndarray | None = None,
) -> Price:
    """Returns what a collective takes, also at each level; the arguments and errors are those of `coefficients`."""
    if kind == "collective_permute":
        return price_of_pairs(network, network.positions_of(pairs if pairs is not None else ()).reshape(-1, 2))
    if kind not in KINDS:
        raise ValueError(f"unknown kind of collective {kind!r}; known: {', '.join(KINDS)}")
    return _grouped(network, kind, *network.members_of(groups))


def collective_time_s(topology: Topology, num_devices: int, collective: Collective) -> float:
    """Returns the modelled time of all runs of a collective, trip count included; it prices the HLO of any compiler.

    Example:
      >>> once = Collective("all_gather", 1000, 4000, groups=((0, 1, 2, 3),))
      >>> round(collective_time_s(Topology.parse("uniform"), 4, once) * 1e6, 2)  # 8.4 + 2 * 9.6 + 3000 / 25e3
      27.72
    """
    latency_s, seconds_per_byte = coefficients(
        topology, num_devices, collective.kind, collective.groups, collective.pairs
    )
    least_s = messages_time_s(topology, num_devices, collective.kind, collective.groups)
    latency_s *= (collective.arrays if topology.moves_arrays_apart else 1) / collective.together
    return collective.trip_count * max(latency_s + seconds_per_byte * tile_bytes(collective), least_s)


def tile_bytes(collective: Collective) -> int:
    """Returns L, the bytes of the tile by which a collective is priced."""
    return collective.largest_tile_bytes if collective.kind == "ragged_all_to_all" else collective.bytes_before


def messages_time_s(
    topology: Topology, mesh: Mesh | int, kind: str, groups: Sequence[Sequence[int]] | np.ndarray | None = None
) -> float:
    """Returns the time that a collective takes at least, however small its tiles: that of one message to each partner.

    0 if messages cost nothing, and for all kinds but all_to_alls. The arguments are those of `coefficients`.

    Example: of the 7 partners of a device, 4 are in the other node.
      >>> levels = Level("node", 2, "switch", 1e9, message_s=1e-3), Level("gpu", 4, "switch", 1e9, message_s=1e-4)
      >>> round(messages_time_s(Topology("own", levels, 1e12), 8, "all_to_all"), 4)
      0.0043
    """
    network = network_of(topology, mesh if isinstance(mesh, int) else mesh.size)
    if not network.pays_for_messages(kind):
        return 0.0
    found = meeting_parts(network, *network.members_of(groups))
    seconds = sum(int((parts.around - parts.members).max()) * view.level.message_s for view, parts in found)
    return topology.launch_s(network.run_as(kind)) + seconds if seconds else 0.0


def crossed_level(topology: Topology, num_devices: int, collective: Collective) -> Level | None:
    """Returns the outermost level at which devices of a group, or of a pair, meet; None if no device sends to another.

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
        here = there[(np.cumsum(sizes) - sizes)[group]]  # the first member of the group of each device
    return next((v.level for v in network.views if (here // v.unit != there // v.unit).any()), None)


def relayout_time_s(topology: Topology, num_bytes: int) -> float:
    """Returns the time of a local reshape and transpose: every byte is read once and written once.

    Example:
      >>> relayout_time_s(Topology.parse("v4"), 600_000_000_000)
      1.0
    """
    return 2 * num_bytes / topology.memory_bandwidth_bytes_per_s


def slice_time_s(topology: Topology, num_bytes: int) -> float:
    """Returns the time of a slice that keeps `num_bytes`: each byte is read and written once. 0 if slices are free.

    Example:
      >>> slice_time_s(Topology.parse("v4"), 600_000_000_000)
      0.0
    """
    bandwidth = topology.slice_bandwidth_bytes_per_s
    return 2 * num_bytes / bandwidth if bandwidth else 0.0


def copies_time_s(topology: Topology, copies: Copies) -> float:
    """Returns the time of the copies on a device, less what is free directly before an all_to_all."""
    paid_before = 1 - topology.free_before_all_to_all
    return (
        relayout_time_s(topology, copies.relaid)
        + slice_time_s(topology, copies.sliced)
        + paid_before * relayout_time_s(topology, copies.relaid_before)
        + paid_before * slice_time_s(topology, copies.sliced_before)
    )


# ---- the network as arrays


@dataclass(frozen=True, slots=True)
class View:
    """A level with the number of devices in one of its units."""

    level: Level
    unit: int

    @property
    def is_grid(self) -> bool:
        return self.level.kind in ("ring", "torus")

    def nodes(self, units: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the coordinates of units along each dimension; units are numbered over the whole topology."""
        return np.unravel_index(units % self.level.size, self.level.dims)

    def lines(self, dim: int, units: np.ndarray, nodes) -> np.ndarray:
        """Returns the number, over the whole topology, of the line along `dim` on which each node lies."""
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
                views.append(View(level, unit))
            unit *= level.size
        self.views = tuple(reversed(views))

    def goes_around(self, kind: str) -> bool:
        """Returns whether the library runs this kind around one ring and there are several levels."""
        return len(self.views) > 1 and kind in self.topology.rings

    def run_as(self, kind: str) -> str:
        """Returns the kind that does the work: between processes of CPU devices an all_to_all takes the place of gloo's
        reduce_scatter (`forms.platforms`)."""
        return "all_to_all" if kind == "reduce_scatter" and self.topology.has_processes else kind

    def sums_whole(self, view: View, parts: Parts) -> bool:
        """Returns whether the compiler for TPUs sums whole what a reduce_scatter among parts leaves in parts."""
        of_whole_torus = view.level.is_crossed_in_phases and bool((parts.meeting == view.level.size).all())
        return self.topology.platform == TPU and of_whole_torus

    def pays_for_messages(self, kind: str) -> bool:
        """Returns whether a collective takes some time for each partner of a device."""
        return self.run_as(kind) in EXCHANGES and any(view.level.message_s for view in self.views)

    @property
    def has_trees(self) -> bool:
        """Returns whether the library has trees for an all_reduce; they are of ports on switches."""
        return self.topology.trees and all(view.level.kind == "switch" for view in self.views)

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


# ---- collectives in groups


@dataclass(slots=True)
class Parts:
    """The parts of groups at one level. A part is the members of one group in one unit; parts of one group meet here.

    Fields with one entry per part: `units`, the unit; `members` (k), the size of the part; `around` (K), the members of
    the group in the surrounding unit; `set`, the number of the set of parts that meet; `group_size` (n).
    Field with one entry per set: `meeting`, the number of its parts.
    """

    units: np.ndarray
    members: np.ndarray
    around: np.ndarray
    set: np.ndarray
    group_size: np.ndarray
    meeting: np.ndarray


def _grouped(network: Network, kind: str, positions, group, sizes) -> Price:
    kind = network.run_as(kind)
    if network.goes_around(kind):
        around = _around_rings(network, kind, positions, group, sizes)
        if kind != "all_reduce" or not network.has_trees:
            return around
        return min(around, _along_trees(network, positions, group, sizes), key=lambda found: found.seconds_per_byte)
    launch_s, found = network.topology.launch_s(kind), []
    for view, parts in meeting_parts(network, positions, group, sizes):
        is_whole = kind == "reduce_scatter" and network.sums_whole(view, parts)
        level_s, steps = at_level(view, "all_reduce" if is_whole else kind, parts)
        if network.pays_for_messages(kind):  # all leave at once, to the partners far away as well
            steps = 0 if found else steps if view.is_grid else 1
        found.append((view, steps * view.level.latency_s, level_s * view.level.slowdown_of(kind)))
    return _one_after_the_other(PHASES if kind in _GATHERS else DIRECT, launch_s, found)


def _one_after_the_other(algorithm: str, launch_s: float, found: Sequence[tuple[View, float, float]]) -> Price:
    """Returns a price from (level, latency, seconds per byte), if the steps at the levels follow each other."""
    levels, latency_s, seconds_per_byte = [], 0.0, 0.0
    for view, at_level_s, level_s in found:
        levels.append(LevelPrice(view, launch_s + latency_s, at_level_s, level_s))
        latency_s += at_level_s
        seconds_per_byte = max(seconds_per_byte, level_s)
    if not latency_s and not seconds_per_byte:
        return Price(0.0, 0.0, algorithm)
    return Price(launch_s + latency_s, seconds_per_byte, algorithm, tuple(levels))


def meeting_parts(network: Network, positions, group, sizes) -> Iterator[tuple[View, Parts]]:
    """Yields the parts of groups at each level, outer to inner, at which several parts of a group meet."""
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
            yield (
                view,
                Parts(units[rows], here[crosses], counts[busy], in_set, sizes[group[rows]], np.bincount(in_set)),
            )
        if view.unit > 1:
            inside, counts = index, here


def _around_rings(network: Network, kind: str, positions, group, sizes) -> Price:
    """Returns the price of groups whose members form a ring, and pass everything on to the next one."""
    step = price_of_pairs(network, ring_pairs(network, positions, group, sizes), kind)
    size, launch_s = int(sizes.max()), network.topology.launch_s(kind)
    if size == 1:
        return Price(0.0, 0.0, RING)
    passed, share = ring_steps(kind, size)
    levels = tuple(
        LevelPrice(each.view, launch_s, passed * each.latency_s, passed * share * each.seconds_per_byte)
        for each in step.levels
    )
    latency_s = launch_s + passed * (step.latency_s - launch_s)
    return Price(latency_s, passed * share * step.seconds_per_byte, RING, levels)


def ring_pairs(network: Network, positions, group, sizes) -> np.ndarray:
    """Returns the positions of each member and the next one of its group, around the ring.

    The order is that of the group. So a group whose neighbours are on different nodes crosses the link between them at
    every step, unless the library orders the members by their places.
    """
    if network.topology.rings_by_place:
        positions = positions[np.lexsort((positions, group))]
    stops = np.cumsum(sizes)
    following = np.arange(1, len(positions) + 1)
    following[stops - 1] = stops - sizes
    return np.column_stack([positions, positions[following]])


def ring_steps(kind: str, size: int) -> tuple[int, float]:
    """Returns the number of steps around a ring, and the share of the tile that each step passes on."""
    return _GATHERS[kind] * (size - 1), 1 if kind == "all_gather" else 1 / size


def _along_trees(network: Network, positions, group, sizes) -> Price:
    """Returns the price of an all_reduce along two trees of units, each for half of the tile, chains inside.

    Up and down one tree a unit receives from two others and from one; it is a leaf of the other tree. Two units send
    each other half of the tile, twice.
    """
    found = []
    for number, (view, parts) in enumerate(meeting_parts(network, positions, group, sizes)):
        level, meeting = view.level, int(parts.meeting.max())
        received = received_on_trees(meeting, is_outermost=number == 0)
        steps = math.ceil(math.log2(meeting)) if number == 0 else meeting - 1
        level_s = received / level.bandwidth_bytes_per_s
        if level.shared_bandwidth_bytes_per_s:
            busiest = np.bincount(parts.units).max() * received
            level_s = max(level_s, busiest / level.shared_bandwidth_bytes_per_s)
        found.append((view, 2 * steps * level.latency_s, level_s * level.slowdown_of("all_reduce")))
    return _one_after_the_other(TREES, network.topology.launch_s("all_reduce"), found)


def received_on_trees(meeting: int, *, is_outermost: bool) -> float:
    """Returns how many tiles a unit receives at a level where `meeting` parts of a group meet."""
    return 1.0 if meeting == 2 and is_outermost else 2.0


def regular_coefficients(network: Network, kind: str, shares: Sequence[int]) -> tuple[float, float] | None:
    """Returns `coefficients` for equal groups that are sub-grids with `shares[i]` members along level i.

    Only levels of more than one unit count, outer to inner. Returns None if the groups cross a ring or torus, because
    there the places of the members matter.
    """
    kind = network.run_as(kind)
    if network.goes_around(kind):
        return None
    size, seconds_per_byte, latency_s = math.prod(shares), 0.0, 0.0
    if size == 1:
        return 0.0, 0.0
    rounds, members = rounds_of(kind), 1
    for view, share in zip(reversed(network.views), reversed(shares)):
        if share == 1:
            continue
        level, around = view.level, members * share
        if view.is_grid or kind == "collective_broadcast":
            return None
        received = _received_of(kind, members, around, size)
        if level.copies_own:
            received *= around / (around - members)
        groups = view.unit // members  # the groups that have a part in one unit
        if level.kind == "bus":
            level_s = received * groups * level.size / level.bandwidth_bytes_per_s
        else:
            level_s = received / members * level.slowdown_of_size(kind, size) / level.bandwidth_bytes_per_s
            if level.shared_bandwidth_bytes_per_s:
                level_s = max(level_s, received * groups / level.shared_bandwidth_bytes_per_s)
        seconds_per_byte = max(seconds_per_byte, rounds * level_s * level.slowdown_of(kind))
        steps = rounds * math.ceil(math.log2(share))
        latency_s = level.latency_s if network.pays_for_messages(kind) else latency_s + steps * level.latency_s
        members = around
    return network.topology.launch_s(kind) + latency_s, seconds_per_byte


def regular_messages_time_s(network: Network, kind: str, shares: Sequence[int]) -> float:
    """Returns `messages_time_s` for groups as `regular_coefficients` has them."""
    if not network.pays_for_messages(kind):
        return 0.0
    seconds, members = 0.0, 1
    for view, share in zip(reversed(network.views), reversed(shares)):
        seconds += members * (share - 1) * view.level.message_s
        members *= share
    return network.topology.launch_s(network.run_as(kind)) + seconds if seconds else 0.0


def stride(mesh: Mesh, factor: Factor) -> int:
    """Returns the distance, in row-major positions of the mesh, of two neighbours along a factor."""
    sizes = [size for _, size in mesh.axes]
    axis = mesh.axis_names.index(factor.axis)
    return math.prod(sizes[axis + 1 :]) * (sizes[axis] // (factor.pre * factor.size))


def at_level(view: View, kind: str, parts: Parts) -> tuple[float, int]:
    """Returns (seconds per byte, steps of latency) at one level."""
    rounds = rounds_of(kind)
    if view.is_grid:
        seconds, hops = _on_grid(view, kind, parts)
        return rounds * seconds, rounds * hops
    received = received_at(view, kind, parts)
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


def rounds_of(kind: str) -> int:
    """Returns how often a collective goes through the levels: an all_reduce is a reduce_scatter and an all_gather."""
    return _GATHERS.get(kind, 1)


def received_at(view: View, kind: str, parts: Parts) -> np.ndarray:
    """Returns the bytes that are written into each part at a level in one round, for tiles of one byte."""
    received = _received(kind, parts)
    if view.level.copies_own and kind != "collective_broadcast":
        return received * parts.around / (parts.around - parts.members)
    return received


def _received(kind: str, parts: Parts) -> np.ndarray:
    """Returns the bytes that enter each part at this level in one round, for tiles of one byte."""
    if kind == "collective_broadcast":
        return np.ones(len(parts.units))
    return _received_of(kind, parts.members, parts.around, parts.group_size)


def _received_of(kind: str, members, around, group_size):
    if kind in EXCHANGES:
        return members * (around - members) / group_size
    gathered = group_size if kind == "all_gather" else 1.0
    return gathered * (1 - members / around)


# Rings and tori


def _on_grid(view: View, kind: str, parts: Parts) -> tuple[float, int]:
    """Returns (seconds per byte, hops) of one round on a ring or torus."""
    gives = given(kind, parts)
    arcs = crossed_arcs(view, parts)
    hops = int(np.sum([arc.hops for arc in arcs], axis=0).max())
    bandwidth = view.level.bandwidth_bytes_per_s
    if not are_sub_grids(parts, arcs):
        return _along_members(view, kind, parts, gives) / bandwidth, hops
    if kind in EXCHANGES:
        return max(arc.busiest_link(arc.exchanged(), gives * parts.meeting) for arc in arcs) / bandwidth, hops
    if kind == "collective_broadcast":
        return max(arc.busiest_link(arc.is_used, np.ones(len(gives))) for arc in arcs) / bandwidth, hops
    return _gather_on_grid(parts, gives, arcs) / bandwidth, hops


def _gather_on_grid(parts: Parts, tile: np.ndarray, arcs: list[Arcs]) -> float:
    """Returns the time of the bytes at a bandwidth of 1, if each dimension carries the share that its links allow.

    One dimension alone gathers the tiles of its line in the time of its busiest link. Pieces of the tile that pass the
    dimensions in different orders balance the load; no dimension can carry less than its own line needs.
    """
    rates, least = np.zeros(len(tile)), np.zeros(len(tile))
    for arc in arcs:
        busiest = arc.busiest_link(arc.gathered(), tile)
        line = tile * (arc.count - 1)
        rates += line / busiest
        least = np.maximum(least, np.where(line > 0, busiest, 0.0))
    return float(np.maximum(tile * (parts.meeting - 1) / rates, least).max())


def given(kind: str, parts: Parts) -> np.ndarray:
    """Returns the bytes of each set that one part gives to another one in one round, for tiles of one byte."""
    return _max_per_set(_received(kind, parts) / (parts.meeting[parts.set] - 1), parts)


def crossed_arcs(view: View, parts: Parts) -> list[Arcs]:
    """Returns the arcs along each dimension in which parts of one set have different places."""
    nodes = view.nodes(parts.units)
    arcs = [Arcs(view, dim, nodes, parts) for dim in range(len(nodes)) if nodes[dim].min() != nodes[dim].max()]
    return [arc for arc in arcs if arc.count.max() > 1]


def are_sub_grids(parts: Parts, arcs: Sequence[Arcs]) -> bool:
    """Returns whether the parts of each set fill the product of their places along the dimensions."""
    return bool((np.prod([arc.count for arc in arcs], axis=0) == parts.meeting).all())


class Arcs:
    """The places of each set's parts along one dimension: their distinct coordinates, and the arcs between neighbours.

    State: there is one row per distinct (set, coordinate), in order; `row_of` gives the row of each part. The arc of a
    row leads to the next coordinate of the set, around the end. A set that is spread evenly over a dimension that wraps
    uses the whole circle (`is_round`). Other sets do not use their longest arc, or the arc around the end, and `rank`
    numbers the arcs from there. For example, the coordinates 6, 7, 0 on a circle of 8 have arcs of 1, 1 and 6 with
    ranks 1, 2 and 3, and the last arc is not used.
    """

    def __init__(self, view: View, dim: int, nodes, parts: Parts):
        self.dim, self.size = dim, view.level.dims[dim]
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
        """Returns the tiles on each arc, per direction.

        On a circle half of the tiles go each way; otherwise an arc carries all tiles of the longer side.
        """
        return np.where(self.is_round, (self.n - 1) / 2, self.is_used * np.maximum(self.rank, self.n - self.rank))

    def exchanged(self) -> np.ndarray:
        """Returns the tiles on each arc, per direction, when all exchange with all by shortest paths."""
        return np.where(self.is_round, self.n**2 // 4 / (2 * self.n), self.rank * (self.n - self.rank) / self.n)

    def busiest_link(self, tiles_on_arc: np.ndarray, tile_of_set: np.ndarray) -> float:
        """Returns the bytes of all sets together on the busiest link of the dimension."""
        return float(self.loads(tiles_on_arc, tile_of_set).max())

    def loads(self, tiles_on_arc: np.ndarray, tile_of_set: np.ndarray) -> np.ndarray:
        """Returns the bytes of all sets together on each link of the dimension, per direction: [line, link]."""
        bytes_on_arc = tiles_on_arc * tile_of_set[self.set]
        of = self.row_of
        return _line_loads(self.lines, self.at[of], self.length[of], bytes_on_arc[of], self.size)


def _along_members(view: View, kind: str, parts: Parts, gives: np.ndarray) -> float:
    """Returns the bytes on the busiest link for sets that are no sub-grid: all pairs routed, or a ring of members."""
    order = np.lexsort((parts.units, parts.set))
    units, sets = parts.units[order], parts.set[order]
    n = parts.meeting[sets]
    last = np.cumsum(parts.meeting) - 1
    first = (last - parts.meeting + 1)[sets]
    if kind in EXCHANGES and n.sum() <= MOST_ROUTED_PAIRS:
        one = np.repeat(np.arange(len(units)), n)
        other = first[one] + np.arange(len(one)) - np.repeat(np.cumsum(n) - n, n)
        return _routed(view, units[one], units[other], gives[sets[one]])
    following = np.arange(1, len(units) + 1)
    following[last] = first[last]
    if kind == "collective_broadcast":
        return _routed(view, units, units[following], np.ones(len(units)))
    tiles = n**2 // 4 / 2 if kind in EXCHANGES else (n - 1) / 2
    both = np.concatenate([units, units[following]]), np.concatenate([units[following], units])
    return _routed(view, *both, np.tile(tiles * gives[sets], 2))


def _routed(view: View, source: np.ndarray, target: np.ndarray, num_bytes: np.ndarray) -> float:
    """Returns the bytes on the busiest link if units of `source` send to those of `target` by shortest paths."""
    return max((float(loads.max()) for _, _, loads in routed_loads(view, source, target, num_bytes)), default=0.0)


def routed_loads(
    view: View, source: np.ndarray, target: np.ndarray, num_bytes: np.ndarray
) -> Iterator[tuple[int, str, np.ndarray]]:
    """Yields each dimension, UP and DOWN, with the bytes on its links, [line, link]; see `_routed`."""
    here, there = list(view.nodes(source)), view.nodes(target)
    for dim, size in enumerate(view.level.dims):
        lines = view.lines(dim, source, here)
        up, down, share = _ways(here[dim], there[dim], size, view.level.wraps[dim])
        yield dim, UP, _line_loads(lines, here[dim], up, num_bytes * share, size)
        yield dim, DOWN, _line_loads(lines, there[dim], down, num_bytes * (1 - share), size)
        here[dim] = there[dim]


def _ways(here: np.ndarray, there: np.ndarray, size: int, wraps: bool):
    """Returns the hops upwards, the hops downwards, and the share of the bytes that goes upwards."""
    if wraps:
        up = (there - here) % size
        down = (here - there) % size
        return up, down, np.where(up == down, 0.5, (up < down).astype(float))
    return np.maximum(there - here, 0), np.maximum(here - there, 0), (there > here).astype(float)


def _line_loads(
    lines: np.ndarray, start: np.ndarray, length: np.ndarray, num_bytes: np.ndarray, size: int
) -> np.ndarray:
    """Returns the bytes on each link, [line, link], if each row loads `length` links from `start` on, around the end.

    A path adds its bytes to the line where it starts and subtracts them where it ends; sums along the line are the
    loads.
    """
    base = lines * (size + 1)
    stop = start + length
    over = np.maximum(stop - size, 0)
    at = np.concatenate([base + start, base + np.minimum(stop, size), base, base + over])
    wrapped = np.where(over > 0, num_bytes, 0.0)
    weights = np.concatenate([num_bytes, -num_bytes, wrapped, -wrapped])
    change = np.bincount(at, weights, minlength=int(base.max()) + size + 1)
    return np.cumsum(change.reshape(-1, size + 1), axis=1)


def _max_per_set(values: np.ndarray, parts: Parts) -> np.ndarray:
    found = np.zeros(len(parts.meeting))
    np.maximum.at(found, parts.set, values)
    return found


# ---- collective_permute


def price_of_pairs(network: Network, pairs: np.ndarray, kind: str = "collective_permute") -> Price:
    """Returns the price of transfers between pairs of positions, which are parts of a collective of `kind`."""
    levels, launch_s = [], network.topology.launch_s(kind)
    seconds_per_byte, latency_s = 0.0, 0.0
    for view, meets in meeting_pairs(network, pairs):
        met = pairs[meets]
        level_s, hops = permute_at_level(view, met, met // view.unit)
        levels.append(LevelPrice(view, launch_s, hops * view.level.latency_s, level_s * view.level.slowdown_of(kind)))
        seconds_per_byte = max(seconds_per_byte, levels[-1].seconds_per_byte)
        latency_s = max(latency_s, levels[-1].latency_s)
    if not levels:
        return Price(0.0, 0.0, DIRECT)
    return Price(launch_s + latency_s, seconds_per_byte, DIRECT, tuple(levels))


def places_of(topology: Topology, num_devices: int, ids: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the coordinates of devices: at each level, outer to inner, along each of its dimensions, if it has some.

    Example:
      >>> places_of(Topology.parse("v5e:2x4*2"), 16, (0, 1, 4, 8))
      [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    """
    network = network_of(topology, num_devices)
    positions = network.positions_of(ids)
    units = [(view, positions // view.unit) for view in network.views]
    nodes = (view.nodes(unit) if view.is_grid else (unit % view.level.size,) for view, unit in units)
    return [tuple(map(int, place)) for place in zip(*(along for level in nodes for along in level))]


def meeting_pairs(network: Network, pairs: np.ndarray) -> Iterator[tuple[View, np.ndarray]]:
    """Yields each level, outer to inner, at which the ends of pairs meet, and which pairs these are."""
    for view in network.views:
        units = pairs // view.unit
        around = units // view.level.size
        meets = (around[:, 0] == around[:, 1]) & (units[:, 0] != units[:, 1])
        if meets.any():
            yield view, meets


def permute_at_level(view: View, pairs: np.ndarray, units: np.ndarray) -> tuple[float, int]:
    """Returns (seconds per byte, hops) of transfers between pairs that meet at one level; `units` are their units."""
    level = view.level
    if view.is_grid:
        load = _routed(view, units[:, 0], units[:, 1], np.ones(len(units)))
        return load / level.bandwidth_bytes_per_s, _most_hops(view, units)
    if level.kind == "bus":
        return float(np.bincount(units[:, 0] // level.size).max()) / level.bandwidth_bytes_per_s, 1
    slower = level.slowdown_of(SWAP)
    seconds = max(most_used(pairs), slower * _has_swaps(pairs) if slower > 1 else 0) / level.bandwidth_bytes_per_s
    if level.shared_bandwidth_bytes_per_s:
        seconds = max(seconds, most_used(units) / level.shared_bandwidth_bytes_per_s)
    return seconds, 1


def most_used(ends: np.ndarray) -> int:
    """Returns how often the busiest end sends or receives."""
    return int(max(np.bincount(ends[:, 0]).max(), np.bincount(ends[:, 1]).max()))


def _has_swaps(pairs: np.ndarray) -> bool:
    """Returns whether there are two devices that send to each other."""
    span = int(pairs.max()) + 1
    return bool(np.isin(pairs[:, 0] * span + pairs[:, 1], pairs[:, 1] * span + pairs[:, 0]).any())


def _most_hops(view: View, units: np.ndarray) -> int:
    hops = np.zeros(len(units), np.int64)
    nodes = zip(view.nodes(units[:, 0]), view.nodes(units[:, 1]))
    for (here, there), size, wraps in zip(nodes, view.level.dims, view.level.wraps):
        away = np.abs(here - there)
        hops += np.minimum(away, size - away) if wraps else away
    return int(hops.max())
