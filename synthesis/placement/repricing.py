# SPDX-License-Identifier: Apache-2.0
"""The time of one program under many placements: its collectives stay, the devices change their places.

Of collectives with the same groups the bytes and runs are added up first, so that a placement costs one look at the
network for each way in which devices are grouped, of which a program has few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..network import cost
from ..network.program_time import LocalWork, program_time
from ..network.topology import Topology
from ..programs.traffic import Collective

_Pattern = tuple[str, tuple, tuple]  # kind, groups, pairs


def renamed(topology: Topology, device_ids: Sequence[int], numbers: Sequence[int] | None = None) -> Topology:
    """Returns the network in which the device at mesh position m has the number that a program's collectives give it.

    Args:
      device_ids: at each mesh position; see `placement`.
      numbers: of each mesh position in the program; None: m itself, as in a program on a mesh without device ids.

    Example:
      >>> renamed(Topology.parse("h100:2x2"), (0, 2, 3, 1)).device_order
      (0, 3, 1, 2)
    """
    at = np.argsort(topology.positions()[list(device_ids)])
    order = at if numbers is None else np.asarray(numbers)[at]
    return replace(topology, device_order=tuple(order.tolist()))


@dataclass(frozen=True)
class Repriced:
    """A program, to be priced under placements.

    Attributes:
      tiles: by the way in which a collective groups the devices, the runs of all such collectives by the bytes of a
        tile.
      work: of each device, the same wherever it is.
    """

    devices: int
    tiles: dict[_Pattern, dict[int, int]]
    work: tuple[LocalWork, ...] = ()

    @classmethod
    def of(cls, devices: int, collectives: Iterable[Collective], work: Iterable[LocalWork] = ()) -> Repriced:
        """Returns a program of so many devices, with the numbers of devices in its mesh in its collectives."""
        tiles: dict[_Pattern, dict[int, int]] = {}
        for each in collectives:
            pattern = each.kind, each.groups, each.pairs
            tile = each.largest_tile_bytes if each.kind == "ragged_all_to_all" else each.bytes_before
            runs = tiles.setdefault(pattern, {})
            runs[tile] = runs.get(tile, 0) + each.trip_count
        return cls(devices, tiles, tuple(work))

    def seconds(self, topology: Topology) -> float:
        """Returns the modelled time of a run, with the devices as `topology.device_order` says."""
        total = program_time(topology, self.devices, (), self.work).seconds
        for (kind, groups, pairs), runs in self.tiles.items():
            latency_s, seconds_per_byte = cost.coefficients(topology, self.devices, kind, groups, pairs)
            least_s = cost.messages_time_s(topology, self.devices, kind, groups)
            total += sum(count * max(latency_s + seconds_per_byte * tile, least_s) for tile, count in runs.items())
        return total
