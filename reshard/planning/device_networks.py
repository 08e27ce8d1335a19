# SPDX-License-Identifier: Apache-2.0
"""The network between devices of jax, as the text of a topology: from their kind and places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reshard.dialect_utils.xla.compile_targets import Target
from reshard.passes.sites import network
from reshard.passes.sites.network import UNKNOWN, option_text, target_on
from reshard.synthesis.network.topology import Topology, TopologyError

# jax's `Device.device_kind` begins so -> preset. Of two that fit, the longer one counts.
_KINDS = {
    "TPU v4": "v4",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
    "NVIDIA A100": "a100",
    "NVIDIA H100": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA GB200": "gb200",
}


def topology_of(devices: Sequence[Any]) -> str:
    """Returns the topology of devices in the order of the program's partitions; UNKNOWN if it cannot be told.

    CPU devices of one process share its memory. GPUs have a host, TPUs a slice and coordinates in it.

    Args:
      devices: `jax.Device`s.
    """
    kinds = {(each.platform, each.device_kind) for each in devices}
    if len(kinds) != 1:
        return UNKNOWN
    ((platform, kind),) = kinds
    try:
        if platform == "cpu":
            is_one_host = len({each.process_index for each in devices}) == 1
            return f"cpu:{len(devices)}" if is_one_host else UNKNOWN
        fitting = [name for name in _KINDS if kind.startswith(name)]
        if not fitting:
            return UNKNOWN
        preset = _KINDS[max(fitting, key=len)]
        return (_of_tpus if platform == "tpu" else _of_gpus)(preset, devices)
    except (AttributeError, TopologyError):  # a plug-in's devices may have no places; or not as the preset has them
        return UNKNOWN


def target_of(devices: Sequence[Any]) -> Target | None:
    """Returns the target that devices are, if theirs is a compiler to ask: TPUs, whole slices of them. None for others,
    and for a kind without a preset.

    Args:
      devices: `jax.Device`s, in any order.
    """
    if not devices or devices[0].platform != "tpu" or (text := topology_of(devices)) == UNKNOWN:
        return None
    target = target_on(network.topology_of(text).name)
    return target if target is not None and target.devices == len(devices) else None


def _of_gpus(preset: str, devices: Sequence[Any]) -> str:
    hosts = sorted({each.process_index for each in devices})
    counts = set(Counter(each.process_index for each in devices).values())
    if len(counts) != 1:
        return UNKNOWN
    places = [(hosts.index(each.process_index), each.id) for each in devices]
    return _placed(Topology.parse(f"{preset}:{len(hosts)}x{counts.pop()}"), places)


def _of_tpus(preset: str, devices: Sequence[Any]) -> str:
    slices = sorted({getattr(each, "slice_index", 0) or 0 for each in devices})
    places = [(slices.index(getattr(each, "slice_index", 0) or 0), *each.coords) for each in devices]
    levels, pod = Topology.parse(preset).levels, Topology.parse(preset).pod
    rank, cores = len(levels[pod or 0].shapes[0]), levels[(pod or 0) + 1 :]
    lows, highs = ([side(place[1 + dim] for place in places) for dim in range(rank)] for side in (min, max))
    sizes = "x".join(str(1 + high - low) for low, high in zip(lows, highs))
    topology = Topology.parse(f"{preset}:{sizes}*{len(slices)}")
    of_cores = [(each.core_on_chip,) if cores else () for each in devices]
    return _placed(topology, [(*place[: 1 + rank], *core) for place, core in zip(places, of_cores)])


def _placed(topology: Topology, places: Sequence[tuple[int, ...]]) -> str:
    """Returns a topology with the devices at its positions, in the order of their places; UNKNOWN where none fits."""
    if topology.size != len(places) or len(set(places)) != len(places):
        return UNKNOWN
    order = tuple(sorted(range(len(places)), key=places.__getitem__))
    is_in_order = order == tuple(range(len(order)))
    return option_text(topology if is_in_order else replace(topology, device_order=order))
