# SPDX-License-Identifier: Apache-2.0
"""The devices of a target that need not be there, in the order in which jax puts a mesh on them.

Compilers are loaded here, and they may abort or print: `target_devices` is for the child process of `child` alone. What
is known without them is the place of each partition in the network.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd, prod
from pathlib import Path

from ..platform.bindings import ir
from ..platform.typed import present
from ..shardings.sdy_shardings import module_meshes
from .compile_targets import TPU_VERSIONS, Target, TargetError, cuda_plugin

# jax's `Device.device_kind` of TPUs, by version.
TPU_KINDS = {
    "v2": "TPU v2",
    "v3": "TPU v3",
    "v4": "TPU v4",
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}

# The plain name of a GPU is its usual form; all other names say which form they are.
_USUAL_GPUS = {"a100": "a100-sxm4-80gb", "h100": "h100-80gb-hbm3", "h200": "h200-141gb-hbm3e"}


def target_devices(target: Target, mesh_sizes: Sequence[int]) -> list:
    """Returns the devices of a target, in the order of the partitions of a mesh.

    Args:
      mesh_sizes: the sizes of the mesh's axes, major to minor; their product is the number of devices.
    Raises: TargetError if the compiler is missing or knows no such devices.
    """
    make = {"tpu": _tpu_topology, "cuda": _cuda_topology}[target.platform]
    try:
        devices = list(make(target).devices)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"the compiler refuses {target}: {first_line(str(error))}") from error
    if len(devices) != target.devices:
        raise TargetError(f"{target} should have {target.devices} devices, the compiler makes {len(devices)} of it")
    return in_mesh_order(devices, mesh_sizes, target.slices)


def mesh_sizes(module: ir.Module, num_devices: int) -> tuple[int, ...]:
    """Returns the sizes of the axes of the first mesh over all devices that has no order of its own."""
    meshes = module_meshes(module).values()
    fitting = (
        tuple(size for _, size in mesh.axes) for mesh in meshes if mesh.size == num_devices and mesh.device_ids is None
    )
    return next(fitting, (num_devices,))


def in_mesh_order(devices: list, sizes: Sequence[int], slices: int = 1) -> list:
    """Returns devices in the order in which `jax.make_mesh` or, for several slices, a hybrid mesh would put them.

    The outermost axes go over slices. Where no axis is a whole physical one, axes are split; where jax has no order for
    a mesh, devices stay as they come: slice by slice, in row-major order.
    """
    if prod(sizes) != len(devices):
        sizes = (len(devices),)
    over_slices = _over_slices(sizes, slices)
    if over_slices is None:
        return devices
    for splits in (False, True):
        try:
            return list(_device_mesh(devices, sizes, over_slices, splits).flat)
        except (NotImplementedError, AssertionError, ValueError):
            continue  # the three ways in which jax's mesh_utils says that no axis fits
    return devices


@dataclass(frozen=True, slots=True)
class StandIn:
    """What jax's `mesh_utils` reads of a TPU."""

    id: int
    device_kind: str
    coords: tuple[int, ...]
    core_on_chip: int
    slice_index: int
    platform: str = "tpu"
    process_index: int = 0


def stand_ins(kind: str, slices: int, dims: Sequence[int], cores: int) -> list[StandIn]:
    """Returns the TPUs of some slices in the order of their places in the network, which are their ids: row-major over
    slices, the coordinates x, y, z and the cores of a chip.

    Example:
      >>> [(each.id, each.coords) for each in stand_ins("TPU v5 lite", 1, (2, 2), 1)]
      [(0, (0, 0, 0)), (1, (0, 1, 0)), (2, (1, 0, 0)), (3, (1, 1, 0))]
    """
    places = itertools.product(range(slices), itertools.product(*map(range, dims)), range(cores))
    return [
        StandIn(number, kind, (*coords, 0, 0)[:3], core, part) for number, (part, coords, core) in enumerate(places)
    ]


def place_of_jax(device: StandIn) -> tuple[int, ...]:
    """Returns what the devices of a TPU are sorted by in `jax.devices()`: x changes fastest but for the core."""
    return device.slice_index, *reversed(device.coords), device.core_on_chip


def places_of_partitions(target: Target, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the place in the network of the TPU that each partition is compiled for, numbered as in `stand_ins`.

    Args:
      sizes: as `mesh_sizes` returns them.

    Example:
      >>> places_of_partitions(Target.parse("tpu:v5e:2x4"), (8,))  # along a ring, first over x
      (0, 4, 1, 5, 7, 3, 6, 2)
    """
    devices = stand_ins(TPU_KINDS[target.model], target.slices, target.shape, TPU_VERSIONS[target.model][1])
    return tuple(each.id for each in in_mesh_order(sorted(devices, key=place_of_jax), sizes, target.slices))


def _device_mesh(devices: list, sizes: Sequence[int], over_slices: Sequence[int], splits: bool):
    from jax.experimental import mesh_utils

    options = {"allow_split_physical_axes": splits}
    if prod(over_slices) == 1:
        return mesh_utils.create_device_mesh(tuple(sizes), devices, **options)
    inside = tuple(size // outer for size, outer in zip(sizes, over_slices, strict=True))
    return mesh_utils.create_hybrid_device_mesh(inside, tuple(over_slices), devices, **options)


def _over_slices(sizes: Sequence[int], slices: int) -> tuple[int, ...] | None:
    """Returns the number of slices that each axis spans, outermost first; None if the axes do not fit.

    Example:
      >>> _over_slices((2, 8), 4), _over_slices((3, 5), 2)
      ((2, 2), None)
    """
    left, over = slices, []
    for size in sizes:
        over.append(gcd(size, left))
        left //= over[-1]
    return tuple(over) if left == 1 else None


def _tpu_topology(target: Target):
    from jax.experimental import topologies

    options: dict[str, int | str] = {"num_slices": target.slices} if target.slices > 1 else {}
    if target.model == "v4":
        options["chip_config_name"] = "megacore"
    return topologies.get_topology_desc(platform="tpu", topology_name=target.topology_name, **options)


# ---------------------------------------------------------------------------------------------------------------------
# GPUs: newer plug-ins have a description of each kind among their constants, older ones know those of the machine
# ---------------------------------------------------------------------------------------------------------------------


_NO_DESCRIPTIONS = (
    "this CUDA plug-in describes no GPUs, as that of jax 0.12 does, so it compiles for those of its machine"
)


def _cuda_topology(target: Target):
    from jax.experimental import topologies

    specs = gpu_specs(_plugin_library().read_bytes())
    options = {"topology": target.topology_name}
    if specs:
        options["target_config"] = specs[gpu_named(target.model, specs)]
    try:
        found = topologies.get_topology_desc(platform="cuda", topology_name="", **options)
    except Exception as problem:  # of whatever kind; without a description it asks the driver
        if specs:
            raise
        raise TargetError(f"{_NO_DESCRIPTIONS}, and there is none here: {first_line(str(problem))}") from None
    if not specs:
        _same_gpu(target.model, found.devices[0].device_kind)
    return found


def _same_gpu(model: str, here: str) -> None:
    """Raises: TargetError if the GPU of this machine, by its description, is another one than a target's."""
    try:
        gpu_named(model, [gpu_name(here)])
    except TargetError:
        raise TargetError(f"{_NO_DESCRIPTIONS}, and the one here is {here}, not '{model}'") from None


@cache
def _plugin_library() -> Path:
    """Returns the shared library of the CUDA plug-in. Raises: TargetError if there is none."""
    spec = importlib.util.find_spec(f"jax_plugins.{cuda_plugin()}")
    folders = present(present(spec).submodule_search_locations)
    libraries = [file for folder in folders for file in sorted(Path(folder).glob("*.so"))]
    if not libraries:
        raise TargetError(f"the CUDA plug-in {cuda_plugin()} has no library; install it anew")
    return max(libraries, key=lambda file: file.stat().st_size)


def gpu_specs(library: bytes) -> dict[str, str]:
    """Returns name -> GpuTargetConfigProto, as text, of the NVIDIA GPUs that are described in a library's constants.

    Example:
      >>> text = 'gpu_device_info { x: 1 }\\nplatform_name: "CUDA"\\ndevice_description_str: "NVIDIA H100 PCIe"\\n'
      >>> list(gpu_specs(b"\\0" + text.encode() + b"\\0"))
      ['h100-pcie']
    """
    specs = {}
    for found in re.finditer(rb'device_description_str: *"([^"]+)"', library):
        start, end = library.rfind(b"\0", 0, found.start()) + 1, library.find(b"\0", found.end())
        text = library[start:end]
        if b"gpu_device_info" in text and re.search(rb'platform_name: *"CUDA"', text):
            specs[gpu_name(found[1].decode())] = text.decode()
    return dict(sorted(specs.items()))


def gpu_name(description: str) -> str:
    """Returns the name of a GPU in targets.

    Example:
      >>> gpu_name("NVIDIA H100 80GB HBM3"), gpu_name("Tesla V100-SXM2-16GB")
      ('h100-80gb-hbm3', 'v100-sxm2-16gb')
    """
    words = re.findall(r"[a-z0-9]+", description.lower())
    return "-".join(word for word in words if word not in ("nvidia", "tesla"))


def gpu_named(name: str, known: Iterable[str]) -> str:
    """Returns the one known GPU that is called so, or whose name begins so. Raises: TargetError for none and for
    several.

    Example:
      >>> known = ("b200", "b200-mig-1g-23gb", "h100-80gb-hbm3", "h100-pcie", "v100-sxm2-16gb")
      >>> gpu_named("b200", known), gpu_named("h100", known), gpu_named("v100", known)
      ('b200', 'h100-80gb-hbm3', 'v100-sxm2-16gb')
    """
    known = tuple(known)
    exact = [each for each in (name, _USUAL_GPUS.get(name)) if each in known]
    begun = [each for each in known if each.startswith(f"{name}-")]
    if exact or len(begun) == 1:
        return (exact or begun)[0]
    if begun:
        raise TargetError(f"'{name}' may be any of {', '.join(begun)}")
    raise TargetError(f"the CUDA plug-in describes no GPU '{name}'; it has {', '.join(known)}")


def first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"
