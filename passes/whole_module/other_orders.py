# SPDX-License-Identifier: Apache-2.0
"""Whether a program would be faster if its mesh had the devices in another order, which the caller alone can change."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reshard.passes.sites.network import SiteNetwork, option_text

if TYPE_CHECKING:  # loading them loads numpy
    from reshard.dialect_utils.xla.child import Compiled
    from reshard.synthesis.layouts.mesh import Mesh

LEAST_GAIN = 0.02  # a share of the time, as in "no longer by 2 %"
_MOST_PRICED = 400_000  # placements, times the ways in which the program groups devices, times devices
_MOST_TIMED = 3


@dataclass(frozen=True, slots=True)
class OtherOrder:
    """A placement of the program's mesh. Fields: the modelled time of the same program with it, that as it is, by the
    same measure, and in words which part of which axis is where."""

    seconds: float
    own_s: float
    text: str


def faster_order(network: SiteNetwork, mesh: Mesh, compiled: Compiled) -> OtherOrder | None:
    """Returns the placement of a mesh with which a compiled program is faster by 2 % at least, the fastest one of those
    that are looked at, which are all if that takes little time; None if there is none, or if the network is unknown.

    Source: `reshard place`, which optimizes the program anew for the fastest ones, and says how to make the mesh.
    """
    from reshard.synthesis.placement.enumeration import placements
    from reshard.synthesis.placement.repricing import Repriced, renamed

    devices = mesh.size
    if not network.is_known or not compiled.is_ok or devices < 2:
        return None
    final = network.final_time_of(compiled, devices)
    own_s = (final or network.time_of(compiled, devices)).seconds
    program = Repriced.of(devices, compiled.final_moved if final else compiled.moved)
    if not program.tiles:
        return None
    most = _MOST_PRICED // (devices * len(program.tiles))
    topology = replace(network.topology.fitted(devices), device_order=None)
    found = [
        (program.seconds(other := renamed(topology, each.device_ids, mesh.device_ids)), other, each.text)
        for each in itertools.islice(placements(topology, mesh), most)
    ]
    orders = []
    for _, other, text in sorted(found, key=lambda each: each[0])[:_MOST_TIMED]:
        there = SiteNetwork(option_text(other))
        time = there.final_time_of(compiled, devices) if final else there.time_of(compiled, devices)
        orders += [OtherOrder(time.seconds, own_s, text)] if time else []
    best = min(orders, key=lambda each: each.seconds, default=None)
    return best if best and best.seconds < (1 - LEAST_GAIN) * own_s else None
