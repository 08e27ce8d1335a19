# SPDX-License-Identifier: Apache-2.0
"""What the steps of a chain take on a network: `cost.py` by factors and layouts, remembered, in whole picoseconds.

Whole numbers, so that equal chains cost the same in whatever order their steps are added.
"""

from __future__ import annotations

from collections.abc import Iterable
import functools
import math

import numpy as np

from . import cost
from .exchange import Exchange, Round
from .layout import Factor, Layout, groups
from .mesh import Mesh
from .sharding import Sharding
from .tile_program import changes_hands, permute_pairs
from .topology import SWAP, Level, Topology
from .traffic import Collective

PER_SECOND = 10**12
_ROUNDING = 1e-9  # more than sums of times are off


class Pricing:
    """Prices steps on one mesh over one topology.

    Args:
      folds_copies: an all_to_all is cheaper by the relayout that is free before it: for searches, which see no relayouts.

    Attributes:
      topology: fitted to the mesh.
      is_flat: all devices hang on one switch, so that it does not matter who sends to whom.
    Raises: TopologyError if the topology does not fit the mesh.
    """

    def __init__(self, topology: Topology, mesh: Mesh, bits: int, folds_copies: bool = False):
        self.mesh = mesh
        self.bits = bits
        self.topology = topology.fitted(mesh.size)
        self._network = cost.network_of(topology, mesh.size)
        used = [view.level for view in self._network.views]
        self.is_flat = len(used) <= 1 and all(
            level.kind == "switch" and not level.shared_bandwidth_bytes_per_s and level.slowdown_of(SWAP) == 1 for level in used
        )
        self.has_aligned_devices = mesh.device_ids is None and topology.device_order is None
        self._reaches = {_reach_of_a_step(level) for level in used}
        self._folded_s_per_byte = folds_copies * 2 * topology.free_before_all_to_all / topology.memory_bandwidth_bytes_per_s
        self.least_hop_s = min((level.latency_s for level in used), default=0.0)
        self._ports_bytes_per_s = sum(map(_ports_bytes_per_s, used)) or math.inf
        self._grouped: dict[tuple[str, tuple[Factor, ...]], tuple[float, float]] = {}
        self._permutes: dict[tuple[Layout, Layout], tuple[float, float]] = {}
        self._shares: dict[Factor, tuple[int, ...] | None] = {}
        self._latencies: dict[tuple[int, int], float] = {}

    def bytes_of(self, elements: int) -> int:
        return -(-elements * self.bits // 8)

    def coefficients(self, kind: str, factors: tuple[Factor, ...]) -> tuple[float, float]:
        """Returns (latency_s, seconds_per_byte) of a step that moves `factors`; of a permute on a flat topology alone."""
        key = kind, tuple(sorted(factors))
        if key not in self._grouped:
            if kind == "permute":
                found = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=((0, 1), (1, 0)))
            else:
                found = self._regular(kind, key[1]) or cost.coefficients(self.topology, self.mesh, kind, groups(self.mesh, key[1]))
            self._grouped[key] = self._without_folded(found, key[1]) if kind == "all_to_all" and self._folded_s_per_byte else found
        return self._grouped[key]

    def _without_folded(self, coefficients: tuple[float, float], factors: tuple[Factor, ...]) -> tuple[float, float]:
        """Returns the coefficients of an all_to_all without the relayout that it does on the way, no less than the ports allow."""
        latency_s, seconds_per_byte = coefficients
        members = math.prod(factor.size for factor in factors)
        return latency_s, max(seconds_per_byte - self._folded_s_per_byte, (1 - 1 / members) / self._ports_bytes_per_s)

    def _regular(self, kind: str, factors: tuple[Factor, ...]) -> tuple[float, float] | None:
        """Returns the coefficients where the factors say all about the groups, else None."""
        shares = [self.shares(factor) for factor in factors]
        if None in shares:
            return None
        return cost.regular_coefficients(self._network, kind, tuple(map(math.prod, zip(*shares))))

    def shares(self, factor: Factor) -> tuple[int, ...] | None:
        """Returns how many units of each level devices reach that differ along a factor, outer to inner.

        None if devices are not in the order of the mesh, or the factor and a level divide them in two radices.
        """
        if factor not in self._shares:
            self._shares[factor] = self._find_shares(factor)
        return self._shares[factor]

    def _find_shares(self, factor: Factor) -> tuple[int, ...] | None:
        views = self._network.views
        if len(views) == 1:
            return (factor.size,)
        if not self.has_aligned_devices:
            return None
        start = cost.stride(self.mesh, factor)
        stop = start * factor.size
        if any(place % view.unit and view.unit % place for place in (start, stop) for view in views):
            return None
        ends = ((max(start, view.unit), min(stop, view.unit * view.level.size)) for view in views)
        return tuple(max(1, high // low) for low, high in ends)

    def cuts(self, factors: tuple[Factor, ...]) -> list[tuple[float, tuple[int, ...]]]:
        """Returns per level (seconds per element into a unit, for each factor the units that it tells apart).

        Not for single devices, whose seconds are `least_seconds_per_element`; nothing unless all factors have `shares`.
        """
        shares = [self.shares(factor) for factor in factors]
        if None in shares:
            return []
        bits = self.bits / 8
        return [
            (bits / cost.most_bytes_per_s_into_unit(self._network, depth), tuple(math.prod(each[: depth + 1]) for each in shares))
            for depth in range(len(self._network.views) - 1)
        ]

    @property
    def least_seconds_per_element(self) -> float:
        """Returns the seconds in which a device can receive an element through all its ports."""
        return self.bits / 8 / self._ports_bytes_per_s

    def hop_s(self, factor: Factor) -> float:
        """Returns the latency of the step that brings data from where a factor's coordinate differs, at least."""
        shares = None if self.is_flat else self.shares(factor)
        if shares is None:
            return self.least_hop_s
        outermost = next(depth for depth, share in enumerate(shares) if share > 1)
        return min(view.level.latency_s for view in self._network.views[: outermost + 1])

    def least_latency_s(self, vacated: int, displaced: int, hop_s: float, collectives: int) -> float:
        """Returns a lower bound on the latency of a chain of at least `collectives`, 1 or 2.

        Args:
          vacated, displaced: the product of the sizes of factors that have to leave digits for good, and of all that move.
          hop_s: of one step that has to be among those of the chain.
        """
        key = vacated, displaced, hop_s, collectives
        if key not in self._latencies:
            launch_s, one_s, of_many = self.topology.launch_latency_s, self.least_hop_s, self._least_hops_of_many_s
            hops_s = max(one_s, hop_s) + one_s
            if vacated > 1:
                hops_s = max(hops_s, min(of_many(displaced), of_many(vacated) + one_s), hop_s + of_many(-(-vacated // 2)))
            least = 2 * launch_s + hops_s
            if collectives == 1:
                least = min(least, self.least_latency_of_one_s(displaced if vacated > 1 else 1, hop_s))
            self._latencies[key] = least
        return self._latencies[key]

    def least_latency_of_one_s(self, members: int, hop_s: float = 0.0) -> float:
        """Returns a lower bound on the latency of one collective in groups of so many, one step of which is given."""
        hops_s = max(_least_hops_s(self._network, members, 0), hop_s + _least_hops_s(self._network, -(-members // 2), 0))
        return self.topology.launch_latency_s + max(self.least_hop_s, hops_s)

    def least_picoseconds_of_one(self, members: int, received_elements: int, hop_s: float = 0.0) -> int:
        """Returns a lower bound on the time of one collective in groups of so many, one step of which is given."""
        seconds = received_elements * self.bits / 8 / self._ports_bytes_per_s
        return math.floor((self.least_latency_of_one_s(members, hop_s) + seconds) * PER_SECOND)

    def _least_hops_of_many_s(self, members: int) -> float:
        steps = math.log2(members) / math.log2(max(self._reaches, default=2)) - 1e-9
        return self.least_hop_s * (math.ceil(steps) if len(self._reaches) == 1 else steps)

    def picoseconds(self, kind: str, factors: Iterable[Factor], tile: int) -> int:
        """Returns the time of a step that moves `factors`, on tiles of `tile` elements before it."""
        return self.whole(*self.coefficients(kind, tuple(factors)), tile)

    def permute_picoseconds(self, before: Layout, after: Layout, tile: int) -> int:
        """Returns the time of a permute between two layouts, by its pairs."""
        if self.is_flat:  # whoever sends to whom, nobody sends or receives twice
            return self.whole(*self.coefficients("permute", ()), tile) if changes_hands(self.mesh, before, after) else 0
        key = before, after
        if key not in self._permutes:
            pairs = permute_pairs(self.mesh, before, after)
            self._permutes[key] = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=pairs)
        return self.whole(*self._permutes[key], tile)

    def least_picoseconds(self, received_elements: int) -> int:
        """Returns a lower bound on the time in which a device can receive so much: all its ports at once, one start."""
        if not received_elements:
            return 0
        seconds = received_elements * self.bits / 8 / self._ports_bytes_per_s  # parts of bytes too: steps pay for these
        return math.floor((self.topology.launch_latency_s + self.least_hop_s + seconds) * PER_SECOND)

    def least_exchange_s(self, rounds: int, tile: int, received_bytes: int) -> float:
        """Returns a lower bound on the time of an exchange in which a device receives so much; it ends with `tile` elements."""
        transfer_s = (1 - _ROUNDING) * received_bytes / self._ports_bytes_per_s
        return rounds * (self.topology.launch_latency_s + self.least_hop_s) + transfer_s + self.relayout_seconds(tile)

    def rounds_s(self, rounds: int, piece: int, tile: int) -> float:
        """Returns the time of an exchange on a flat topology: of so many rounds of pieces of a size; it ends with `tile` elements."""
        return rounds * self.whole(*self.coefficients("permute", ()), piece) / PER_SECOND + self.relayout_seconds(tile)

    def round_elements(self) -> float:
        """Returns how many elements arrive in the time that one more round of an exchange costs."""
        pairs = ((0, self.mesh.size - 1), (self.mesh.size - 1, 0))
        latency_s, seconds_per_byte = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=pairs)
        return latency_s / seconds_per_byte * 8 / self.bits if seconds_per_byte else 0.0

    @functools.cached_property
    def _addresses(self) -> list[list[int]]:
        """Returns the coordinates of each device in the network, outer to inner."""
        return self.topology.coordinates().tolist()

    def distance(self, a: int, b: int) -> int:
        """Returns how far apart two devices are: 0 for the same one, else 1 + the number of levels inside the one they meet at."""
        found = len(self.topology.levels)
        for mine, other in zip(self._addresses[a], self._addresses[b]):
            if mine != other:
                return found
            found -= 1
        return 0

    def relayout_seconds(self, elements: int) -> float:
        return cost.relayout_time_s(self.topology, self.bytes_of(elements))

    @property
    def has_free_copies(self) -> bool:
        """Returns whether copies right before an all_to_all cost less than others."""
        return self.topology.free_before_all_to_all > 0

    @property
    def has_free_slices(self) -> bool:
        return self.topology.slice_bandwidth_bytes_per_s is None

    def slice_picoseconds(self, elements: int) -> int:
        """Returns the time of a slice that keeps so many elements."""
        return math.ceil(cost.slice_time_s(self.topology, self.bytes_of(elements)) * PER_SECOND)

    def bound_seconds(self, shape, source: Sharding, target: Sharding) -> float:
        """Returns a lower bound on the time of any redistribution: per level, what must enter a unit through its ports.

        Partial sums of an element count as the element; 0 where the target has some, for which zeros may do.
        """
        if target.unreduced:
            return 0.0
        ends = (cost.boxes(self.mesh, shape, side) for side in (source, target))
        return cost.cut_bytes_bound(self.topology, *ends, self.bits).time_s

    def flat_bound_seconds(self, received_elements: int) -> float:
        """Returns `bound_seconds` on a flat topology, from what the busiest device must receive of an array without sums."""
        if not received_elements:
            return 0.0
        latency_s = self.topology.launch_latency_s + self.least_hop_s
        return latency_s + received_elements * self.bits / 8 / self._ports_bytes_per_s  # parts of bytes too, as steps pay for them

    def seconds(self, collectives: Iterable[Collective]) -> float:
        """Returns the time of collectives, one after the other, each in whole picoseconds."""
        times = (cost.collective_time_s(self.topology, self.mesh.size, each) for each in collectives)
        return sum(math.ceil(seconds * PER_SECOND) for seconds in times) / PER_SECOND

    def exchange_seconds(self, exchange: Exchange) -> float:
        """Returns the time of the rounds of an exchange, one after the other, each in whole picoseconds."""
        return sum(map(self._round_picoseconds, exchange.rounds)) / PER_SECOND

    def _round_picoseconds(self, each: Round) -> int:
        if self.is_flat:  # whoever sends to whom, nobody sends or receives twice
            latency_s, seconds_per_byte = self.coefficients("permute", ())
        else:
            pairs = np.stack([each.senders, each.receivers], axis=1)
            latency_s, seconds_per_byte = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=pairs)
        return self.whole(latency_s, seconds_per_byte, each.piece_elements)

    def whole(self, latency_s: float, seconds_per_byte: float, tile: int) -> int:
        """Returns latency_s + seconds_per_byte · the bytes of a tile, in picoseconds."""
        return math.ceil((latency_s + seconds_per_byte * self.bytes_of(tile)) * PER_SECOND)


def _ports_bytes_per_s(level: Level) -> float:
    """Returns what one device can receive at a level: over its port, or over the links in both directions of each dimension."""
    return level.bandwidth_bytes_per_s * (2 * len(level.dims) if level.kind in ("ring", "torus") else 1)


@functools.lru_cache(maxsize=4096)
def _least_hops_s(network: cost.Network, members: int, depth: int) -> float:
    """Returns the least latency of one group, its members spread over the levels from `depth` on."""
    if members == 1:
        return 0.0
    if depth == len(network.views):
        return math.inf
    level, reached, steps = network.views[depth].level, 1, 0
    least = _least_hops_s(network, members, depth + 1)
    while reached < min(level.size, members):
        steps, reached = steps + 1, min(level.size, reached * _reach_of_a_step(level))
        rest = _least_hops_s(network, -(-members // reached), depth + 1)
        least = min(least, steps * level.latency_s + rest)
    return least


def _reach_of_a_step(level: Level) -> int:
    """Returns by what factor one more step of latency widens the reach of a group, at most: a hop goes both ways."""
    return 3 if level.kind in ("ring", "torus") else 2
