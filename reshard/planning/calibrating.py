# SPDX-License-Identifier: Apache-2.0
"""Measures collectives with jax on the devices at hand; `synthesis.calibration` fits a topology to the times.

Each probe is one program with one collective. All programs are compiled and warmed up. Then they take turns, so that a
disturbance of the machine slows all of them, and the median of the turns counts. A program without a collective
measures the time that the start of any program takes. In a job of several processes all processes start a turn
together, and the slowest one counts, because a sender is done as soon as its bytes are in a buffer.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.calibration import ELEMENT_BYTES, Probe

if TYPE_CHECKING:
    import jax

_RUN = 256  # elements that stay together in a relayout
_MOST_PARTS = 8  # of a tile that is copied; more parts would make small tiles impossible


class CannotMeasure(RuntimeError):
    """Raised if devices are missing or cannot hold the arrays; the message is one line in the user's words."""


class TooFewDevices(CannotMeasure):
    """Raised if a mesh has more devices than jax sees; the message names both numbers."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured times, and the devices on which they were measured.

    Attributes:
      seconds: the median time of each probe's program.
      start_s: the time of a program that does almost nothing; it is a part of all other times.
      relayouts, slices: (bytes of the result, seconds) of local copies that all devices make at once.
      folded: seconds of (a relayout, an all_to_all, the relayout and the all_to_all in one program), for each size.
      platform, device_kind: jax's names of them. hosts: the number of processes that own the devices.
    """

    seconds: tuple[float, ...]
    start_s: float
    relayouts: tuple[tuple[int, float], ...]
    slices: tuple[tuple[int, float], ...]
    platform: str
    device_kind: str
    hosts: int
    folded: tuple[tuple[float, float, float], ...] = ()


def measure(
    mesh: Mesh, probes: Sequence[Probe], sizes: Sequence[int], *, repeats: int, progress: Callable[[str], None]
) -> Measured:
    """Returns the measured time of each probe on the first devices of `jax.devices()`.

    In a job of several processes, all of them have to call this with the same arguments.

    Args:
      sizes: the sizes of the tiles of local relayouts, in bytes, rounded to whole rows.
      repeats: how often each probe is measured, at least 1. progress: called with a short text as the work goes on.
    Raises: TooFewDevices; CannotMeasure if the devices run out of memory.
    """
    bench = Bench(mesh)
    try:
        return _measured(bench, probes, sizes, repeats, progress)
    except bench.jax.errors.JaxRuntimeError as error:
        raise CannotMeasure(
            f"{mesh.size} {bench.where[1]} devices{_first_line(error)}; measure smaller --sizes"
        ) from None


def _measured(bench: Bench, probes: Sequence[Probe], sizes: Sequence[int], repeats: int, progress) -> Measured:
    sizes = sorted(set(map(bench.tile_bytes, sizes)))
    relayouts, slices = (
        [each for size in sizes for each in copies(size)] for copies in (bench.relayouts, bench.slices)
    )
    folded = [bench.before_all_to_all(size) for size in sizes]
    copied = [turn for _, turn in (*relayouts, *slices)]
    turns = [bench.start(), *copied, *itertools.chain(*folded), *map(bench.collective, probes)]
    for number, turn in enumerate(turns, 1):
        progress(f"compiling {number} of {len(turns)} programs")
        turn()
    found, together = [], bench.barrier()
    for number in range(1, repeats + 1):
        progress(f"measuring {len(turns)} programs, turn {number} of {repeats}")
        found.append([_seconds(turn, together) for turn in turns])
    start_s, *seconds = (statistics.median(times) for times in zip(*bench.slowest(found)))
    times = iter(seconds)
    relaid, sliced = (tuple((num_bytes, next(times)) for num_bytes, _ in copies) for copies in (relayouts, slices))
    folded = tuple((next(times), next(times), next(times)) for _ in folded)
    platform, device_kind, hosts = bench.where
    return Measured(tuple(times), start_s, relaid, sliced, platform, device_kind, hosts, folded)


def _first_line(error: Exception) -> str:
    """Returns `: ` and the first line of an error's message; empty if the message is empty."""
    return "".join(f": {line[:200]}" for line in str(error).strip().splitlines()[:1])


def _seconds(turn: Callable[[], object], together: Callable[[], object]) -> float:
    together()
    began_s = time.perf_counter()
    turn()
    return time.perf_counter() - began_s


def platform() -> str:
    """Returns the platform that jax uses here: `cpu`, `gpu` or `tpu`. Raises: CannotMeasure if jax finds no devices."""
    return _devices()[0].platform


def _devices() -> list[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]  # jax assigns it
    import jax

    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # jax asserts if a platform of JAX_PLATFORMS has no plug-in
        raise CannotMeasure(f"jax finds no devices{_first_line(error)}") from None


class Bench:
    """Programs on one jax mesh, as functions that run a program once to its end.

    Programs with equal tiles share their arrays.
    """

    def __init__(self, mesh: Mesh):
        import jax

        devices = _devices()
        if len(devices) < mesh.size:
            platform = devices[0].platform
            raise TooFewDevices(f"mesh {mesh} has {mesh.size} devices, jax sees {len(devices)} ({platform})")
        self.jax = jax
        self.mesh = mesh
        self.names = tuple(f"axis{number}" for number in range(len(mesh.axes)))  # the mesh's own names may be any text
        in_order = np.array(devices[: mesh.size])[[mesh.device_at(position) for position in range(mesh.size)]]
        self.jax_mesh = jax.sharding.Mesh(in_order.reshape([size for _, size in mesh.axes]), self.names)
        self.spec = jax.sharding.PartitionSpec(self.names)
        self.where = devices[0].platform, devices[0].device_kind, len({device.process_index for device in in_order})
        widest, self.widest = max((size, number) for number, (_, size) in enumerate(mesh.axes))
        self.parts = min(widest, _MOST_PARTS)
        self.arrays: dict[int, jax.Array] = {}

    def start(self) -> Callable[[], object]:
        """Returns a program that does almost nothing on every device."""
        return self._program(lambda tile: tile[:1], 1)

    def tile_bytes(self, num_bytes: int) -> int:
        """Returns the size of a tile for copies, in bytes: about `num_bytes`, in whole rows, at least two of them."""
        row = self.parts * _RUN * ELEMENT_BYTES
        return max(2, num_bytes // row) * row

    def relayouts(self, num_bytes: int) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yields (bytes, a program) for two transposes of a tile on every device.

        The first one is into parts, as before an all_to_all. The second one is back, as after a gather.
        """
        for shape in ((-1, self.parts, _RUN), (self.parts, -1, _RUN)):
            yield (
                num_bytes,
                self._program(lambda tile, shape=shape: tile.reshape(shape).swapaxes(0, 1), num_bytes // ELEMENT_BYTES),
            )

    def slices(self, num_bytes: int) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yields (bytes, a program) for two slices that take the own part of a tile on every device.

        The first one is along an inner dimension, the second one along the first dimension.
        """
        for shape, dim in (((-1, self.parts, _RUN), 1), ((self.parts, -1, _RUN), 0)):
            yield num_bytes // self.parts, self._program(self._own_part(shape, dim), num_bytes // ELEMENT_BYTES)

    def before_all_to_all(self, num_bytes: int) -> tuple[Callable[[], object], ...]:
        """Returns three programs: a relayout into parts, an all_to_all of the parts, and both in this order.

        The all_to_all is along the widest axis.
        """
        lax, axis = self.jax.lax, self.names[self.widest]
        members = self.mesh.axes[self.widest][1]
        row = members * _RUN * ELEMENT_BYTES
        elements = max(1, num_bytes // row) * row // ELEMENT_BYTES

        def into_parts(tile):
            return tile.reshape(-1, members, _RUN).swapaxes(0, 1)

        def exchanged(tile):
            return lax.all_to_all(tile.reshape(members, -1, _RUN), axis, 0, 0, tiled=True)

        bodies = into_parts, exchanged, lambda tile: exchanged(into_parts(tile))
        return tuple(self._program(lambda tile, body=body: body(tile).reshape(-1), elements) for body in bodies)

    def _own_part(self, shape: tuple[int, ...], dim: int) -> Callable:
        """Returns a function that takes the device's own part along `dim` from a tile of this shape.

        The own part is the one at the device's place on the widest axis.
        """
        lax, axis = self.jax.lax, self.names[self.widest]
        return lambda tile: lax.dynamic_slice_in_dim(tile.reshape(shape), lax.axis_index(axis) % self.parts, 1, dim)

    def barrier(self) -> Callable[[], object]:
        """Returns a function that waits until all processes have called it; with one process it does nothing."""
        if self.where[2] == 1:
            return lambda: None
        barrier = self._program(lambda tile: self.jax.lax.psum(tile, self.names), 1)
        barrier()
        return barrier

    def slowest(self, seconds: Sequence[Sequence[float]]) -> list[list[float]]:
        """Returns for each time the longest one that any process measured."""
        if self.where[2] == 1:
            return [list(each) for each in seconds]
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(np.array(seconds)).max(axis=0).tolist()

    def collective(self, probe: Probe) -> Callable[[], object]:
        return self._program(self._body(probe), probe.collective.bytes_before // ELEMENT_BYTES)

    def _body(self, probe: Probe) -> Callable:
        lax = self.jax.lax
        axes = tuple(self.names[self.mesh.axis_names.index(axis)] for axis in probe.axes)
        groups = None
        if probe.is_paired:  # neighbours along an axis, by their places along it
            places = list(range(self.mesh.axis_size(probe.axes[0])))
            groups = list(map(list, zip(places[::2], places[1::2])))
        match probe.collective.kind:
            case "all_gather":
                return lambda tile: lax.all_gather(tile, axes, axis_index_groups=groups, tiled=True)
            case "all_to_all":
                return lambda tile: lax.all_to_all(tile, axes, 0, 0, axis_index_groups=groups, tiled=True)
            case "reduce_scatter":
                return lambda tile: lax.psum_scatter(tile, axes, tiled=True)
            case "all_reduce":
                return lambda tile: lax.psum(tile, axes)
            case _:
                position = {self.mesh.device_at(position): position for position in range(self.mesh.size)}
                pairs = [(position[a], position[b]) for a, b in probe.collective.pairs]
                return lambda tile: lax.ppermute(tile, self.names, pairs)

    def _program(self, body: Callable, elements: int) -> Callable[[], object]:
        jax, array = self.jax, self._array(elements)
        whole = jax.shard_map(body, mesh=self.jax_mesh, in_specs=self.spec, out_specs=self.spec, check_vma=False)
        program = jax.jit(whole)
        return lambda: jax.block_until_ready(program(array))

    def _array(self, elements: int) -> jax.Array:
        """Returns an array with this number of elements on each device."""
        if elements not in self.arrays:
            sharding = self.jax.sharding.NamedSharding(self.jax_mesh, self.spec)
            ones = self.jax.jit(
                lambda: self.jax.numpy.ones(elements * self.mesh.size, "float32"), out_shardings=sharding
            )
            self.arrays[elements] = self.jax.block_until_ready(ones())
        return self.arrays[elements]
