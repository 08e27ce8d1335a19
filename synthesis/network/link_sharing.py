# SPDX-License-Identifier: Apache-2.0
"""How far two collectives that are under way at once wait for each other's links.

Each uses a link for a share of its time: the bytes on it, by those on the busiest link. Both together take as long as
the busiest link of both does. So gathers along two dimensions of a torus run beside each other, those of two rows as
well, and permutes around a ring in two directions; what uses the same links runs one after the other.

- L1 Levels: a collective uses a level for the time of its bytes there, by that at its slowest level. Links of different
  levels are different ones.
- L2 Rings and tori: the load of every link counts, as `cost` has it, each direction for itself.
- L3 Switches and buses, and groups that are no sub-grids of a torus of one size: the level as a whole counts.

Latencies are taken to be used like the bytes: two collectives of which each is short share too much, not too little.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..programs.traffic import Collective
from . import cost
from .cost import DOWN, UP, Arcs, Network, Parts, View
from .topology import Topology

_PERMUTE = "collective_permute"
_Pattern = tuple[str, Sequence[Sequence[int]], Sequence[tuple[int, int]]]  # kind, groups and pairs of a collective
_Links = dict[tuple[int, str], np.ndarray]  # by dimension and direction, [line, link]


@dataclass(frozen=True, slots=True)
class _Use:
    """How a collective uses a level.

    Attributes:
      share: of its time. links: of that, the share of each link; None if the level counts as a whole.
    """

    share: float
    links: _Links | None = None


def shared_links(topology: Topology, num_devices: int, one: Collective, other: Collective) -> float:
    """Returns how far two collectives wait for each other's links: 0 if they run beside each other, 1 if one after the
    other.

    Example: gathers along both dimensions of a torus, and twice along one.
      >>> rows, columns = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))
      >>> along, across = (Collective("all_gather", 8, 8 * len(each[0]), groups=each) for each in (rows, columns))
      >>> torus = Topology.parse("v5e:2x4")
      >>> shared_links(torus, 8, along, across), shared_links(torus, 8, along, along)
      (0.0, 1.0)
    """
    return _shared_by(topology, num_devices, _pattern(one), _pattern(other))


def wait_s(
    topology: Topology,
    num_devices: int,
    collective: Collective,
    seconds: float,
    others: Sequence[tuple[Collective, float]],
) -> float:
    """Returns by how many seconds a collective is later than alone, with others under way.

    Args:
      seconds: its time alone. others: each with the seconds that it has to go; it is beside the collective for as many
        seconds as that takes, at most.

    Example: two gathers along the rows and one along the columns, of a second each.
      >>> rows, columns = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))
      >>> along, across = (Collective("all_gather", 8, 8 * len(each[0]), groups=each) for each in (rows, columns))
      >>> [wait_s(Topology.parse("v5e:2x4"), 8, each, 1.0, [(along, 1.0), (along, 1.0)]) for each in (along, across)]
      [2.0, 0.0]
    """
    waits = [0.0]
    beside = [(_uses(topology, num_devices, _pattern(each)), min(left_s, seconds)) for each, left_s in others]
    for view, own in _uses(topology, num_devices, _pattern(collective)).items():
        here = [(own, seconds), *((uses[view], beside_s) for uses, beside_s in beside if view in uses)]
        waits.append(_busiest_s(here, own.links or {}) - seconds)
    return max(waits)


def _busiest_s(here: Sequence[tuple[_Use, float]], links: _Links) -> float:
    """Returns how long the busiest one of some links is in use, or the level if it counts as a whole for one of those
    that use it, each for some seconds."""
    if any(use.links is None for use, _ in here):
        return sum(use.share * seconds for use, seconds in here)
    busiest = 0.0
    for link in links:
        loads = (use.share * seconds * use.links[link] for use, seconds in here if use.links and link in use.links)
        busiest = max(busiest, float(functools.reduce(_added, loads).max()))
    return busiest


@functools.lru_cache(maxsize=4096)
def _shared_by(topology: Topology, num_devices: int, one: _Pattern, other: _Pattern) -> float:
    if one[0] == other[0] == _PERMUTE:
        return shared_by_permutes(topology, num_devices, one[2], other[2])
    both = [_uses(topology, num_devices, each) for each in (one, other)]
    return max((_shared(both[0][view], both[1][view]) for view in both[0] if view in both[1]), default=0.0)


def _pattern(collective: Collective) -> _Pattern:
    return collective.kind, collective.groups, collective.pairs


def shared_by_permutes(
    topology: Topology, num_devices: int, one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]
) -> float:
    """Returns how far two permutes wait for each other's links: 0 if they run beside each other, 1 if one after the
    other.

    It is the time by which both at once, with tiles of one size, take longer than the longer one, by the shorter one's.

    Args:
      one, other: (source, target) device ids.

    Example: a ring in each of two directions, one ring twice, and the second direction on a line without a wrap.
      >>> around = [(at, (at + 1) % 16) for at in range(16)]
      >>> back = [(there, here) for here, there in around]
      >>> [shared_by_permutes(Topology.parse("v5e:1x16"), 16, around, each) for each in (back, around)]
      [0.0, 1.0]
      >>> around, back = ([pair for pair in pairs if max(pair) < 8] + end for pairs, end in
      ...     ((around, [(7, 0)]), (back, [(0, 7)])))
      >>> shared_by_permutes(Topology.parse("v5e:1x8"), 8, around, back)
      1.0
    """
    network = cost.network_of(topology, num_devices)
    pairs = [network.positions_of(each).reshape(-1, 2) for each in (one, other)]
    alone = [cost.price_of_pairs(network, each).seconds_per_byte for each in pairs]
    if not min(alone):
        return 0.0
    together = cost.price_of_pairs(network, np.concatenate(pairs)).seconds_per_byte
    return min(1.0, max(0.0, (together - max(alone)) / min(alone)))


def _shared(one: _Use, other: _Use) -> float:
    """Returns the share of the time of the shorter of two collectives by which a level is used for longer than that of
    the longer one."""
    if one.links is None or other.links is None:
        return min(1.0, max(0.0, one.share + other.share - 1))
    both = [
        (one.share * mine, other.share * theirs)
        for link, mine in one.links.items()
        if (theirs := other.links.get(link)) is not None
    ]
    busiest = max((float(_added(*each).max()) for each in both), default=0.0)
    return min(1.0, max(0.0, busiest - 1))


def _added(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the sum of two arrays of links, of which one may lack lines at the end."""
    if len(one) < len(other):
        one, other = other, one
    total = one.copy()
    total[: len(other)] += other
    return total


@functools.lru_cache(maxsize=1024)
def _uses(topology: Topology, num_devices: int, pattern: _Pattern) -> dict[View, _Use]:
    """Returns how a collective uses each level at which its devices meet."""
    network, (kind, groups, pairs) = cost.network_of(topology, num_devices), pattern
    price, links = cost.price_on(network, kind, groups, pairs), {}
    if kind == _PERMUTE:
        links = _links_of_pairs(network, pairs)
    elif price.algorithm in (cost.PHASES, cost.DIRECT):
        links = _links_of_groups(network, kind, groups)
    slowest = price.seconds_per_byte
    return {
        each.view: _Use(each.seconds_per_byte / slowest if slowest else 1.0, links.get(each.view))
        for each in price.levels
    }


def _links_of_pairs(network: Network, ids: Sequence[tuple[int, int]]) -> dict[View, _Links]:
    found, pairs = {}, network.positions_of(ids).reshape(-1, 2)
    for view, meets in cost.meeting_pairs(network, pairs):
        if view.is_grid:
            units = pairs[meets] // view.unit
            loads = cost.routed_loads(view, units[:, 0], units[:, 1], np.ones(len(units)))
            found[view] = _by_the_busiest({(dim, way): load for dim, way, load in loads})
    return found


def _links_of_groups(network: Network, kind: str, groups: Sequence[Sequence[int]]) -> dict[View, _Links]:
    found = {}
    for view, parts in cost.meeting_parts(network, *network.members_of(groups or None)):
        arcs = cost.crossed_arcs(view, parts) if view.is_grid and (parts.meeting == parts.meeting[0]).all() else []
        if arcs and cost.are_sub_grids(parts, arcs):
            found[view] = _links_of_arcs(network.run_as(kind), parts, arcs)
    return found


def _links_of_arcs(kind: str, parts: Parts, arcs: Sequence[Arcs]) -> _Links:
    """Returns the shares of links. Pieces of what is gathered pass the dimensions in different orders, so that each is
    busy all the time; an exchange passes one after the other."""
    gives = cost.given(kind, parts)
    if kind in cost.EXCHANGES:
        loads = {arc.dim: arc.loads(arc.exchanged(), gives * parts.meeting) for arc in arcs}
        return _by_the_busiest({(dim, way): load for dim, load in loads.items() for way in (UP, DOWN)})
    tiles = [arc.is_used if kind == "collective_broadcast" else arc.gathered() for arc in arcs]
    loads = {arc.dim: arc.loads(tile, gives) for arc, tile in zip(arcs, tiles)}
    return {(dim, way): load / load.max() for dim, load in loads.items() for way in (UP, DOWN)}


def _by_the_busiest(loads: _Links) -> _Links:
    most = max(float(load.max()) for load in loads.values())
    return {link: load / most for link, load in loads.items()}
