# SPDX-License-Identifier: Apache-2.0
"""Topologies: the network between devices, as levels from outer to inner.

**Levels.** A device has one coordinate per level, and its position is the mixed-radix number of these: with levels
`node` of size 4 and `gpu` of size 8, position 13 is GPU 5 of node 1. A level connects *units*: a unit of level `node`
is one node, a unit of the innermost level is one device. Two devices talk at the outermost level where their
coordinates differ. Each level has its own ports (a GPU has NVLink ports and a network card), so the levels work at the
same time.

| kind | what connects the units of one group | `bandwidth_bytes_per_s` belongs to |
|---|---|---|
| switch | a crossbar with full bisection | one device's port, in each direction |
| bus | a medium that all units share, e.g. the memory of a host | the medium, for all transfers together |
| ring | neighbours, around a circle if it wraps | one link, in each direction |
| torus | neighbours along each of its dimensions | one link, in each direction |

A level may be *open* (size 0): it has as many units as the mesh needs. `Topology.fitted` gives it a size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..layouts.mesh import MAX_DEVICES
from ..programs.traffic import KINDS as COLLECTIVES

SWAP = "swap"
MAY_BE_RINGS = ("all_gather", "reduce_scatter", "all_reduce")
IN_PAIRS = (*MAY_BE_RINGS, "all_to_all")
KINDS = ("switch", "bus", "ring", "torus")
_PLATFORMS = ("cpu", "gpu", "tpu")
DEFAULT = "uniform"


class TopologyError(ValueError):
    """Raised if a topology cannot be read or does not fit; the message is one line in the user's words."""


def dims_text(sizes: Iterable[int]) -> str:
    """Returns e.g. `4x4`."""
    return "x".join(map(str, sizes))


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the network.

    Attributes:
      name: what a unit of the level is: slice, node, chip.
      size: units per group; 0 means open, as many units as the mesh needs.
      kind: one of `KINDS`. The meaning of the bandwidth depends on it, see the table in the module's docstring.
      bandwidth_bytes_per_s: the bandwidth in one direction.
      latency_s: the latency of one step: a message through a switch or a bus, a hop along a ring or torus.
      message_s: the time that a device needs in an all_to_all for each partner that it meets at this level, however few
        bytes they exchange. It matters where a library sends a message to every partner, as gloo does.
      shared_bandwidth_bytes_per_s: the limit on the bytes that one unit as a whole sends, and receives, at this level.
        It is set where it is less than the sum over the unit's devices, as for a node with fewer network cards than
        GPUs. None means no such limit.
      dims: the sizes of a torus, major to minor; their product is `size`. A ring has one.
      wrap: for each dimension, whether its ends are connected.
      wrap_multiple_of: used if `wrap` is None. A dimension wraps if its size is a multiple of this; 0 means never.
      wrap_together: used with `wrap_multiple_of`. If true, the dimensions wrap only if all of them may.
      shapes: for an open torus, the dims to choose from.
      slowdown: pairs (kind of collective, factor of at least 1): how much slower than the model the library is here.
        `SWAP` is the kind for two devices that send to each other at the same time, in permutes and in groups of two;
        its factor is 2 if the connection works one way at a time.
      slowdown_in_pairs: the same for groups of two, with the slowdown of `SWAP` included, for the kinds where it is
        known. Larger groups of an all_to_all are between this factor and `slowdown`.
      copies_own: whether a device's own part takes as long as the parts that others send, because one memory holds all
        of them and everything is copied. For a switch or a bus only.
    """

    name: str
    size: int
    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    shared_bandwidth_bytes_per_s: float | None = None
    dims: tuple[int, ...] = ()
    wrap: tuple[bool, ...] | None = None
    wrap_multiple_of: int = 1
    wrap_together: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    slowdown: tuple[tuple[str, float], ...] = ()
    slowdown_in_pairs: tuple[tuple[str, float], ...] = ()
    copies_own: bool = False
    message_s: float = 0.0

    def __post_init__(self):
        if self.kind not in KINDS:
            raise TopologyError(f'level "{self.name}" is of unknown kind "{self.kind}"; known: {", ".join(KINDS)}')
        if self.size < 0 or any(size < 1 for size in self.dims):
            raise TopologyError(
                f'level "{self.name}" has size {self.size or dims_text(self.dims)}; sizes are at least 1'
            )
        self._check_numbers()
        if self.kind == "ring" and not self.dims and self.size:
            object.__setattr__(self, "dims", (self.size,))
        if self.kind in ("ring", "torus"):
            self._check_dims()
            if self.copies_own:
                raise TopologyError(
                    f'level "{self.name}" copies_own, but is of kind {self.kind}; that belongs to a switch or a bus'
                )
        elif self.dims or self.shapes:
            raise TopologyError(f'level "{self.name}" has dims, but is of kind {self.kind}; dims belong to a torus')

    def _check_numbers(self):
        for what, value in (
            ("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s),
            ("shared_bandwidth_bytes_per_s", self.shared_bandwidth_bytes_per_s),
        ):
            if value is not None and not 0 < value < math.inf:
                raise TopologyError(f'level "{self.name}" has {what} = {value}; bandwidths are positive')
        if not 0 <= self.latency_s < math.inf:
            raise TopologyError(f'level "{self.name}" has latency_s = {self.latency_s}; latencies are not negative')
        if not 0 <= self.message_s < math.inf:
            raise TopologyError(f'level "{self.name}" has message_s = {self.message_s}; times are not negative')
        if self.wrap_multiple_of < 0:
            raise TopologyError(
                f'level "{self.name}" has wrap_multiple_of = {self.wrap_multiple_of}; 0 or more is meant'
            )
        for key, factors, known in (
            ("slowdown", self.slowdown, (*COLLECTIVES, SWAP)),
            ("slowdown_in_pairs", self.slowdown_in_pairs, IN_PAIRS),
        ):
            for kind, factor in factors:
                if kind not in known:
                    raise TopologyError(f'level "{self.name}" has a {key} for "{kind}"; known: {", ".join(known)}')
                if not 1 <= factor < math.inf:
                    raise TopologyError(f'level "{self.name}" has {key} {factor} for {kind}; factors are at least 1')

    def _check_dims(self):
        if self.dims and math.prod(self.dims) != self.size:
            raise TopologyError(f'level "{self.name}" has size {self.size}, but dims {dims_text(self.dims)}')
        if self.size and not self.dims:
            raise TopologyError(f'level "{self.name}" is a torus of size {self.size} without dims; write dims = [4, 4]')
        if self.wrap is not None and self.dims and len(self.wrap) != len(self.dims):
            raise TopologyError(f'level "{self.name}" has {len(self.wrap)} wrap flags for dims {dims_text(self.dims)}')

    @property
    def is_open(self) -> bool:
        return self.size == 0

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Returns for each dimension whether it wraps.

        Example:
          >>> Level("chip", 64, "torus", 1e9, dims=(4, 16), wrap_multiple_of=16).wraps
          (False, True)
        """
        if self.wrap is not None:
            return self.wrap
        may = tuple(bool(self.wrap_multiple_of) and size % self.wrap_multiple_of == 0 for size in self.dims)
        return tuple(all(may) for _ in may) if self.wrap_together else may

    @property
    def is_crossed_in_phases(self) -> bool:
        """Returns whether a compiler for TPUs goes through a torus dimension by dimension, if all chips work together.

        It does with three dimensions, and with two of the same size; else one ring visits all chips. That is so in
        libtpu 0.0.50 for slices of v5e, v6e and v5p (`benchmarks/conversions/scattered_sums.py --slices`).

        Example:
          >>> tori = [Level("chip", a * b, "torus", 1e9, dims=(a, b)) for a, b in ((2, 2), (2, 4), (4, 4))]
          >>> [each.is_crossed_in_phases for each in tori]
          [False, False, True]
        """
        sizes = [size for size in self.dims if size > 1]
        return len(sizes) > 2 or (len(sizes) == 2 and sizes[0] == sizes[1] > 2)

    def slowdown_of(self, kind: str) -> float:
        """Returns the factor by which collectives of `kind` are slower at this level than the model says."""
        return next((factor for name, factor in self.slowdown if name == kind), 1.0)

    def slowdown_of_size(self, kind: str, size: int) -> float:
        """Returns the further factor by which groups of `size` devices are slower, beside the slowdown of `kind`.

        For an all_to_all the factor falls with the logarithm of the size: the more partners a device has, the less it
        waits for one of them.

        Example:
          >>> slower, in_pairs = (("all_to_all", 1.3),), (("all_to_all", 2.6),)
          >>> level = Level("host", 8, "switch", 1e9, slowdown=slower, slowdown_in_pairs=in_pairs)
          >>> [round(level.slowdown_of_size("all_to_all", size), 2) for size in (2, 4, 8)]
          [2.0, 1.41, 1.0]
        """
        in_pairs = next((factor for name, factor in self.slowdown_in_pairs if name == kind), None)
        if in_pairs is None or self.size <= 2:
            return self.slowdown_of(SWAP) if size == 2 else 1.0
        if size >= self.size or (size > 2 and kind != "all_to_all"):
            return 1.0
        return (in_pairs / self.slowdown_of(kind)) ** (math.log(self.size / size) / math.log(self.size / 2))

    def with_size(self, size: int) -> Level:
        """Returns the level with another size; a torus needs `with_dims` instead."""
        return replace(self, size=size, dims=(size,) if self.kind == "ring" else ())

    def with_dims(self, dims: tuple[int, ...]) -> Level:
        return replace(self, size=math.prod(dims), dims=dims, shapes=())


@dataclass(frozen=True, slots=True)
class Topology:
    """A model of the network between devices.

    docs/topologies.md explains it.

    Attributes:
      name: the name of the preset, or another name.
      levels: the levels of the network, outer to inner.
      memory_bandwidth_bytes_per_s: the bandwidth of one device's memory in local relayouts, reads plus writes.
      slice_bandwidth_bytes_per_s: the same for slices, whose results are copied out of their tiles; None if slices are
        free.
      flops_per_s: the floating-point operations per second of one device in dense matrix products of bfloat16, or of
        float32 on CPU devices, at the precision that its compiler uses by default; a multiply-add counts 2. If it is
        None, computing counts nothing.
      kernel_s: the time that a device takes at least for what its compiler makes one kernel of, such as a loop over
        memory or a matrix product, however little that is.
      device_memory_bytes: the bytes of one device's memory that one program may fill; None if it is not said.
      free_before_all_to_all: the share of a relayout or slice that costs nothing right before an all_to_all, because
        the all_to_all copies its parts out of the tile anyway.
      launch_latency_s: the time that every collective takes before the first byte moves.
      further_launch_s: pairs (kind of collective, seconds): what a library takes besides to start one of this kind,
        however many steps it has.
      platform: "cpu", "gpu" or "tpu", the platform of the devices; empty if it is not said.
      summary: one line that describes the network.
      source: where the figures were published, and which of them are estimates.
      device_order: the device id at each position; None means that position and id are equal.
      rings: the kinds of collectives that the library runs around one ring of all members of a group, in the order
        in which the group lists them, whatever their levels. It runs the other kinds level by level.
      rings_by_place: whether the library orders the members of a ring by their places in the network.
      trees: whether an all_reduce among `rings` goes along two trees of units where that is fewer bytes.
    """

    name: str
    levels: tuple[Level, ...]
    memory_bandwidth_bytes_per_s: float
    launch_latency_s: float = 0.0
    summary: str = ""
    source: str = ""
    device_order: tuple[int, ...] | None = None
    rings: tuple[str, ...] = ()
    slice_bandwidth_bytes_per_s: float | None = None
    free_before_all_to_all: float = 0.0
    flops_per_s: float | None = None
    platform: str = ""
    rings_by_place: bool = False
    trees: bool = False
    further_launch_s: tuple[tuple[str, float], ...] = ()
    kernel_s: float = 0.0
    device_memory_bytes: float | None = None

    def __post_init__(self):
        if self.platform not in ("", *_PLATFORMS):
            raise TopologyError(f'platform = "{self.platform}"; known: {", ".join(_PLATFORMS)}')
        for kind in self.rings:
            if kind not in MAY_BE_RINGS:
                raise TopologyError(f'rings has "{kind}"; known: {", ".join(MAY_BE_RINGS)}')
        self._check_levels()
        self._check_numbers()
        if self.size > MAX_DEVICES:
            raise TopologyError(f'topology "{self.name}" has {self.size} devices; at most {MAX_DEVICES} are supported')
        if self.device_order is not None:
            self._check_device_order(self.device_order)

    def _check_levels(self):
        if not self.levels:
            raise TopologyError(f'topology "{self.name}" has no levels')
        names = [level.name for level in self.levels]
        for name in names:
            if names.count(name) > 1:
                raise TopologyError(f'topology "{self.name}" has two levels "{name}"')

    def _check_numbers(self):
        for what in ("memory_bandwidth_bytes_per_s", "slice_bandwidth_bytes_per_s"):
            bandwidth = getattr(self, what)
            if bandwidth is not None and not 0 < bandwidth < math.inf:
                raise TopologyError(f"{what} = {bandwidth}; bandwidths are positive")
        if self.flops_per_s is not None and not 0 < self.flops_per_s < math.inf:
            raise TopologyError(f"flops_per_s = {self.flops_per_s}; a positive number is meant")
        if self.device_memory_bytes is not None and not 1 <= self.device_memory_bytes < math.inf:
            raise TopologyError(f"device_memory_bytes = {self.device_memory_bytes}; at least one byte is meant")
        if not 0 <= self.free_before_all_to_all <= 1:
            raise TopologyError(f"free_before_all_to_all = {self.free_before_all_to_all}; a share is between 0 and 1")
        if not 0 <= self.kernel_s < math.inf:
            raise TopologyError(f"kernel_s = {self.kernel_s}; times are not negative")
        if not 0 <= self.launch_latency_s < math.inf:
            raise TopologyError(f"launch_latency_s = {self.launch_latency_s}; latencies are not negative")
        for kind, seconds in self.further_launch_s:
            if kind not in COLLECTIVES:
                raise TopologyError(f'further_launch_s has "{kind}"; known: {", ".join(COLLECTIVES)}')
            if not 0 <= seconds < math.inf:
                raise TopologyError(f"further_launch_s is {seconds} for {kind}; latencies are not negative")

    def _check_device_order(self, order: tuple[int, ...]):
        if sorted(order) != list(range(len(order))):
            raise TopologyError(f"device_order is no permutation of 0..{len(order) - 1}")
        if self.size and len(order) != self.size:
            raise TopologyError(f'device_order has {len(order)} devices, topology "{self.name}" {self.size}')

    @property
    def size(self) -> int:
        """Returns the number of devices, 0 if a level is open."""
        return math.prod(level.size for level in self.levels)

    def launch_s(self, kind: str) -> float:
        """Returns the time that a collective of `kind` takes before the first byte moves."""
        return self.launch_latency_s + next((each for name, each in self.further_launch_s if name == kind), 0.0)

    @property
    def pod(self) -> int | None:
        """Returns the number of the level that is a torus of chips, the outermost such one; None if there is none.

        Example:
          >>> [Topology.parse(text).pod for text in ("v5p", "tpu7x", "h100")]
          [1, 1, None]
        """
        return next((at for at, level in enumerate(self.levels) if level.kind == "torus"), None)

    @property
    def has_processes(self) -> bool:
        """Returns whether its devices are CPU devices of several processes: at some level they share no memory.

        Example:
          >>> own = Topology("own", (Level("host", 4, "switch", 1e8),), 1e10, platform="cpu")
          >>> [each.has_processes for each in (own, Topology.parse("cpu:8"), Topology.parse("h100:4"))]
          [True, False, False]
        """
        return self.platform == "cpu" and any(level.size != 1 and not level.copies_own for level in self.levels)

    @property
    def moves_arrays_apart(self) -> bool:
        """Returns whether a collective of several arrays takes the latency of each: XLA's CPU devices, in one process
        and in several, move them one after the other."""
        return self.platform == "cpu"

    @property
    def is_one_switch(self) -> bool:
        """Returns whether one switch or bus connects all devices, so that any two of them may change places.

        Example:
          >>> [Topology.parse(text).is_one_switch for text in ("h100:1x8", "h100:2x8", "v5e:2x4")]
          [True, False, False]
        """
        return all(level.kind in ("switch", "bus") or level.size == 1 for level in self.levels) and (
            sum(level.size != 1 for level in self.levels) <= 1
        )

    @property
    def shape_text(self) -> str:
        """Returns the sizes of the levels as text, e.g. `4 node x 8 gpu`."""
        sizes = (dims_text(level.dims) if len(level.dims) > 1 else level.size or "any" for level in self.levels)
        return " x ".join(f"{size} {level.name}" for size, level in zip(sizes, self.levels))

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Returns the topology of a preset (`h100`, `h100:4`, `v5e:4x4*2`), of a TOML file's path, or of TOML text.

        `name:AxB` gives the dims of a torus, or the sizes of the levels, outer to inner; `*k` means k slices. A preset
        without sizes is open: its sizes are fitted to the mesh.

        Raises: TopologyError in one line, with the closest names for an unknown preset.

        Example:
          >>> Topology.parse("v5e:4x4*2").shape_text
          '2 slice x 4x4 chip'
        """
        from .topology_text import parse

        return parse(text)

    def fitted(self, num_devices: int) -> Topology:
        """Returns this topology with its open levels closed for `num_devices` devices.

        Raises: TopologyError if no sizes of the open levels give this number of devices.

        Example:
          >>> [Topology.parse("h100").fitted(n).shape_text for n in (4, 32)]
          ['1 node x 4 gpu', '4 node x 8 gpu']
        """
        return _fitted(self, num_devices)

    def positions(self) -> np.ndarray:
        """Returns the position of each device id, an int64 array of shape (size,)."""
        order = np.arange(self.size) if self.device_order is None else np.asarray(self.device_order)
        positions = np.empty(len(order), np.int64)
        positions[order] = np.arange(len(order))
        return positions

    def coordinates(self) -> np.ndarray:
        """Returns the coordinate of each device id at each level, an int array of shape (size, levels).

        Example:
          >>> Topology.parse("h100:4").coordinates()[13].tolist()
          [1, 5]
        """
        sizes = [level.size for level in self.levels]
        return np.stack(np.unravel_index(self.positions(), sizes), axis=1)

    def to_toml(self) -> str:
        """Returns the topology as TOML text, from which `parse` makes an equal topology."""
        from .topology_text import to_toml

        return to_toml(self)


# ---- fitting


@functools.lru_cache(maxsize=256)
def _fitted(topology: Topology, num_devices: int) -> Topology:
    if num_devices < 1:
        raise TopologyError(f"topology for {num_devices} devices; at least 1 is needed")
    if topology.size == num_devices:
        return topology
    levels, left = list(topology.levels), num_devices
    has_open = topology.size == 0
    for at in reversed(range(len(levels))):
        level = levels[at]
        opens_outside = any(other.is_open for other in levels[:at])
        if level.is_open and level.kind == "torus":
            levels[at] = level.with_dims(_largest_shape(topology, level, _outermost_share(left, levels[:at])))
        elif level.is_open:
            levels[at] = level.with_size(_outermost_share(left, levels[:at]))
        elif opens_outside and left < level.size and level.kind != "torus":
            levels[at] = level.with_size(left)
        left = left // levels[at].size if left % levels[at].size == 0 else 0
    if left != 1 or not has_open:
        product = f" = {topology.size}" if topology.size else ""
        raise TopologyError(
            f'topology "{topology.name}" has {topology.shape_text}{product} devices; the mesh has {num_devices}'
        )
    return replace(topology, levels=tuple(levels))


def _outermost_share(left: int, outside: list[Level]) -> int:
    """Returns the number of remaining devices in each unit of the closed levels outside."""
    return max(1, left // math.prod(level.size or 1 for level in outside))


def _largest_shape(topology: Topology, level: Level, left: int) -> tuple[int, ...]:
    fitting = [shape for shape in level.shapes if left % math.prod(shape) == 0]
    if not fitting:
        raise TopologyError(
            f'topology "{topology.name}" needs the dims of level "{level.name}"; write {topology.name}:AxB'
        )
    return max(fitting, key=math.prod)
