# SPDX-License-Identifier: Apache-2.0
"""The order of devices that jax's `mesh_utils` chooses for a mesh, on devices that need not be there."""

from __future__ import annotations

import math
from dataclasses import replace

from reshard.dialect_utils.xla.target_devices import TPU_KINDS, place_of_jax, stand_ins
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Level, Topology


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
    devices = [replace(each, id=order[each.id]) for each in stand_ins(kind, slices, chips.dims, cores)]
    devices.sort(key=place_of_jax)
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
    return TPU_KINDS.get(topology.name.partition(":")[0])


def _parts(topology: Topology, pod: int) -> tuple[int, Level, int]:
    """Returns the number of slices, the level of chips, and the number of devices on a chip."""
    outer, inner = topology.levels[:pod], topology.levels[pod + 1 :]
    return math.prod(each.size for each in outer), topology.levels[pod], math.prod(each.size for each in inner)


def _across(shape: list[int], slices: int) -> list[int] | None:
    """Returns the share of the slices that lies along each axis: the first axes get as much as they divide."""
    found = []
    for size in shape:
        factor = math.gcd(size, slices)
        found.append(factor)
        slices //= factor
    return found if slices == 1 else None
