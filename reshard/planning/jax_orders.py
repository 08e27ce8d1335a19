# SPDX-License-Identifier: Apache-2.0
"""The order of devices that jax's `mesh_utils` chooses for a mesh, on devices that need not be there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Level, Topology

_TPU_KINDS = {
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}  # by preset


@dataclass(frozen=True, slots=True)
class _Device:
    """What `mesh_utils` reads of a device."""

    id: int
    platform: str
    device_kind: str
    coords: tuple[int, ...] = ()
    core_on_chip: int = 0
    slice_index: int = 0
    process_index: int = 0


def jax_order(topology: Topology, mesh: Mesh) -> tuple[int, ...] | None:
    """Returns the device ids at the positions of a mesh, row-major, as `create_device_mesh` orders them.

    Over several slices it is `create_hybrid_device_mesh`, with the slices along the first axes that they divide. Where
    all devices are not chips of a TPU, jax takes them in the order of their ids.

    Args:
      topology: the network, without open levels.
    Returns: None if jax refuses the shape, or jax is not installed.

    Example:
      >>> jax_order(Topology.parse("h100:2x2"), Mesh.parse("x=2,y=2"))
      (0, 1, 2, 3)
    """
    kind = _tpu_kind(topology)
    order = topology.device_order or tuple(range(mesh.size))
    if kind is None or topology.pod is None:
        return tuple(range(mesh.size))
    slices, chips, cores = _parts(topology, topology.pod)
    devices = [_tpu(order[at], kind, at, chips.dims, cores) for at in range(mesh.size)]
    devices.sort(key=_place_of_jax)
    try:
        from jax.experimental import mesh_utils

        shape = [size for _, size in mesh.axes]
        if slices == 1:
            found = mesh_utils.create_device_mesh(shape, devices)
        elif (across := _across(shape, slices)) is None:
            return None
        else:
            inside = [size // factor for size, factor in zip(shape, across)]
            found = mesh_utils.create_hybrid_device_mesh(inside, across, devices)
    except (ImportError, ValueError, NotImplementedError, AssertionError):  # all that mesh_utils raises for a shape
        return None
    return tuple(device.id for device in found.flat)


def is_by_coordinates(topology: Topology) -> bool:
    """Returns whether the network numbers its devices by the coordinates of a TPU's chips, which have other ids.

    Example:
      >>> [is_by_coordinates(Topology.parse(text)) for text in ("v5p:2x2x4", "h100:2x2")]
      [True, False]
    """
    return _tpu_kind(topology) is not None and topology.device_order is None


def _tpu_kind(topology: Topology) -> str | None:
    return _TPU_KINDS.get(topology.name.partition(":")[0])


def _parts(topology: Topology, pod: int) -> tuple[int, Level, int]:
    """Returns the number of slices, the level of chips, and the number of devices on a chip."""
    outer, inner = topology.levels[:pod], topology.levels[pod + 1 :]
    return math.prod(each.size for each in outer), topology.levels[pod], math.prod(each.size for each in inner)


def _tpu(number: int, kind: str, at: int, dims: tuple[int, ...], cores: int) -> _Device:
    """Returns the device at a position of the network, row-major over the coordinates x, y, z and the core."""
    at, core = divmod(at, cores)
    slice_index, inside = divmod(at, math.prod(dims))
    coords = []
    for size in reversed(dims):
        inside, coord = divmod(inside, size)
        coords.append(coord)
    return _Device(number, "tpu", kind, (*reversed(coords), *[0] * (3 - len(coords))), core, slice_index)


def _place_of_jax(device: _Device) -> tuple[int, ...]:
    """Returns what the devices of a TPU are sorted by in `jax.devices()`: x changes fastest but for the core."""
    return device.slice_index, *reversed(device.coords), device.core_on_chip


def _across(shape: list[int], slices: int) -> list[int] | None:
    """Returns the share of the slices that lies along each axis: the first axes get as much as they divide."""
    found = []
    for size in shape:
        factor = math.gcd(size, slices)
        found.append(factor)
        slices //= factor
    return found if slices == 1 else None
