# SPDX-License-Identifier: Apache-2.0
"""Which levels of the network a collective occupies, when and for how long, and what limits it there.

The figures are those of the cost model (`cost`): the time of a collective is the latency of its steps and the time of
the bytes at the level that takes longest, or of its messages if that is more, which no level shows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..programs.traffic import Collective
from . import cost
from .cost import RING, TREES, LevelPrice, Network, Parts, Price, View
from .topology import Topology

_ROUNDING = 1e-9  # relative difference within which two times count as equal
_Port = tuple[str, float, int | None]  # what limits, its bytes for tiles of one byte, the groups that share it


@dataclass(frozen=True, slots=True)
class AtLevel:
    """What one run of a collective does at one level.

    Attributes:
      level: the name of the level.
      starts_s: the seconds before its first step here: the launch, and the steps at outer levels where those come
        before. latency_s: of its steps here. transfer_s: the time of its bytes here.
      port: what limits the bytes: the port of a device, the shared port of a unit, a link or a bus.
      port_bytes: the bytes through the busiest such port, in the direction that has more of them.
      sharing: how many groups, or pairs of devices, use that port; None if the model does not tell.
    """

    level: str
    starts_s: float
    latency_s: float
    transfer_s: float
    port: str
    port_bytes: float
    sharing: int | None

    @property
    def seconds(self) -> float:
        """Returns how long the collective occupies the level."""
        return self.latency_s + self.transfer_s


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What one run of a collective does on the network.

    Attributes:
      seconds: its modelled time. algorithm: as in `cost.Price`.
      levels: the levels that it occupies, outer to inner; none if no device sends to another.
    """

    seconds: float
    algorithm: str
    levels: tuple[AtLevel, ...]


def occupancy(topology: Topology, num_devices: int, collective: Collective) -> Occupancy:
    """Returns what one run of a collective does at each level.

    Example: on 2 nodes of 4 GPUs, four groups of two share the cards of each node.
      >>> pairs = tuple((at, at + 4) for at in range(4))
      >>> found = occupancy(Topology.parse("h100:2x4"), 8, Collective("all_gather", 1000, 2000, groups=pairs))
      >>> [(each.level, each.port, each.port_bytes, each.sharing) for each in found.levels]
      [('node', 'port of a device', 1000.0, 1)]
    """
    network, size = cost.network_of(topology, num_devices), cost.tile_bytes(collective)
    price = cost.price_on(network, collective.kind, collective.groups, collective.pairs)
    ports = _ports(network, price, collective) if price.levels else []
    levels = tuple(_at(each, port, size, collective.together) for each, port in zip(price.levels, ports, strict=True))
    least_s = cost.messages_time_s(topology, num_devices, collective.kind, collective.groups)
    latency_s = price.latency_s / collective.together
    return Occupancy(max(latency_s + price.seconds_per_byte * size, least_s), price.algorithm, levels)


def _at(price: LevelPrice, port: _Port, size: int, together: int) -> AtLevel:
    name, port_bytes, sharing = port
    times = price.starts_s / together, price.latency_s / together, price.seconds_per_byte * size
    return AtLevel(price.view.level.name, *times, name, port_bytes * size, sharing)


def _ports(network: Network, price: Price, collective: Collective) -> list[_Port]:
    """Returns for each level of a price the port that limits the bytes there."""
    if collective.kind == "collective_permute":
        pairs = network.positions_of(collective.pairs).reshape(-1, 2)
        owner = np.arange(len(pairs))
        return [_port_of_pairs(v, pairs[meets], owner[meets]) for v, meets in cost.meeting_pairs(network, pairs)]
    kind, members = network.run_as(collective.kind), network.members_of(collective.groups)
    if price.algorithm == RING:
        pairs, (_, group, sizes) = cost.ring_pairs(network, *members), members
        steps, share = cost.ring_steps(kind, int(sizes.max()))
        return [
            _times(steps * share, _port_of_pairs(view, pairs[meets], group[meets]))
            for view, meets in cost.meeting_pairs(network, pairs)
        ]
    met = enumerate(cost.meeting_parts(network, *members))
    if price.algorithm == TREES:
        return [_port_on_trees(view, parts, is_outermost=number == 0) for number, (view, parts) in met]
    return [_times(cost.rounds_of(kind), _port_of_parts(view, kind, parts)) for _, (view, parts) in met]


def _times(factor: float, port: _Port) -> _Port:
    name, port_bytes, sharing = port
    return name, factor * port_bytes, sharing


def _port_of_pairs(view: View, pairs: np.ndarray, owner: np.ndarray) -> _Port:
    """Returns the port that limits transfers; the owner of a pair is the number of its group."""
    level, units = view.level, pairs // view.unit
    if view.is_grid:
        load, _ = cost.permute_at_level(view, pairs, units)
        return "link", load * level.bandwidth_bytes_per_s, None
    if level.kind == "bus":
        buses = units[:, 0] // level.size
        busiest = int(np.bincount(buses).argmax())
        return "bus", float(np.count_nonzero(buses == busiest)), _different(owner[buses == busiest])
    own = cost.most_used(pairs)
    shared = cost.most_used(units)
    if not _is_shared_slower(view, own, shared):
        return "port of a device", float(own), _sharing_end(pairs, owner)
    return _shared(view), float(shared), _sharing_end(units, owner)


def _sharing_end(ends: np.ndarray, owner: np.ndarray) -> int:
    """Returns how many owners have pairs at the busiest end, which sends or receives."""
    counts = [np.bincount(ends[:, side]) for side in (0, 1)]
    side = int(counts[1].max() > counts[0].max())
    return _different(owner[ends[:, side] == counts[side].argmax()])


def _different(owners: np.ndarray) -> int:
    return len(np.unique(owners))


def _shared(view: View) -> str:
    return f"shared port of a {view.level.name}"


def _is_shared_slower(view: View, own: float, shared: float) -> bool:
    """Returns whether the shared port of a unit takes longer than the port of one device; or as long, if it is the only
    one, such as the network card of a host that has one."""
    bandwidth, own_s = view.level.shared_bandwidth_bytes_per_s, own / view.level.bandwidth_bytes_per_s
    if bandwidth is None:
        return False
    is_only_one = bandwidth <= view.level.bandwidth_bytes_per_s
    return shared / bandwidth > own_s * (1 - _ROUNDING if is_only_one else 1 + _ROUNDING)


def _port_on_trees(view: View, parts: Parts, *, is_outermost: bool) -> _Port:
    received = cost.received_on_trees(int(parts.meeting.max()), is_outermost=is_outermost)
    sharing = int(np.bincount(parts.units).max())
    if not _is_shared_slower(view, received, received * sharing):
        return "port of a device", received, 1
    return _shared(view), received * sharing, sharing


def _port_of_parts(view: View, kind: str, parts: Parts) -> _Port:
    """Returns the port that limits one round of groups whose parts meet at a level."""
    if view.is_grid:
        seconds, _ = cost.at_level(view, kind, parts)
        return "link", seconds / cost.rounds_of(kind) * view.level.bandwidth_bytes_per_s, _sharing_link(view, parts)
    received = cost.received_at(view, kind, parts)
    if view.level.kind == "bus":
        together = np.bincount(parts.units // view.level.size, weights=received)
        return "bus", float(together.max()), _different(parts.set[parts.units // view.level.size == together.argmax()])
    of_ports = received if kind == "collective_broadcast" else received / parts.members
    of_units = np.bincount(parts.units, weights=received)
    if not _is_shared_slower(view, float(of_ports.max()), float(of_units.max())):
        return "port of a device", float(of_ports.max()), 1
    return _shared(view), float(of_units.max()), int(np.count_nonzero(parts.units == of_units.argmax()))


def _sharing_link(view: View, parts: Parts) -> int | None:
    """Returns the most groups on one link of a ring or torus; None for groups that are no sub-grids."""
    arcs = cost.crossed_arcs(view, parts)
    if not cost.are_sub_grids(parts, arcs):
        return None
    one = np.ones(len(parts.meeting))
    return round(max(arc.busiest_link(np.where(arc.is_round, 1.0, arc.is_used), one) for arc in arcs))
