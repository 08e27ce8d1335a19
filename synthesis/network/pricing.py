# SPDX-License-Identifier: Apache-2.0
"""The prices of steps on a network: `cost.py` for factors and layouts, with a memory of its answers.

Prices are whole picoseconds, so that equal chains cost the same whatever the order in which their steps are added up.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

import numpy as np

from ..layouts.blocks import Blocks
from ..layouts.layout import Factor, Layout, groups
from ..layouts.mesh import Mesh
from ..layouts.sharding import Sharding
from ..programs.exchange import Exchange, Round
from ..programs.tile_program import changes_hands, permute_pairs
from ..programs.traffic import Collective
from . import cost, cut_bounds
from .topology import SWAP, Level, Topology

PER_SECOND = 10**12
_ROUNDING = 1e-9  # larger than the rounding error of a sum of times


class Pricing:
    """Prices steps on one mesh over one topology.

    Args:
      folds_copies: subtract from the price of an all_to_all the relayout that is free right before it. Searches ask for
        this, since they know nothing of relayouts.

    Attributes:
      topology: the network, fitted to the mesh.
      is_flat: whether one switch connects all devices, so that it does not matter which device sends to which.
    Raises: TopologyError if the topology does not fit the mesh.
    """

    def __init__(self, topology: Topology, mesh: Mesh, bits: int, folds_copies: bool = False):
        self.mesh = mesh
        self.bits = bits
        self.topology = topology.fitted(mesh.size)
        self._network = cost.network_of(topology, mesh.size)
        used = [view.level for view in self._network.views]
        self.is_flat = len(used) <= 1 and all(
            level.kind == "switch" and not level.shared_bandwidth_bytes_per_s and level.slowdown_of(SWAP) == 1
            for level in used
        )
        self.has_aligned_devices = mesh.device_ids is None and topology.device_order is None
        self._reaches = {_reach_of_a_step(level) for level in used}
        self._folded_s_per_byte = (
            folds_copies * 2 * topology.free_before_all_to_all / topology.memory_bandwidth_bytes_per_s
        )
        self.least_hop_s = min((level.latency_s for level in used), default=0.0)
        self._ports_bytes_per_s = sum(map(_ports_bytes_per_s, used)) or math.inf
        self._grouped: dict[tuple[str, tuple[Factor, ...]], tuple[float, float]] = {}
        self._messages: dict[tuple[str, tuple[Factor, ...]], int] = {}
        self._permutes: dict[tuple[Layout, Layout], tuple[float, float]] = {}
        self._shares: dict[Factor, tuple[int, ...] | None] = {}
        self._latencies: dict[tuple[int, int, float, int], float] = {}

    def bytes_of(self, elements: int) -> int:
        return -(-elements * self.bits // 8)

    def coefficients(self, kind: str, factors: tuple[Factor, ...]) -> tuple[float, float]:
        """Returns (latency_s, seconds_per_byte) of a step that moves `factors`; permutes only on a flat topology.

        The step takes at least `messages_picoseconds`.
        """
        key = kind, tuple(sorted(factors))
        if key not in self._grouped:
            if kind == "permute":
                found = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=((0, 1), (1, 0)))
            else:
                found = self._regular(kind, key[1]) or cost.coefficients(
                    self.topology, self.mesh, kind, groups(self.mesh, key[1])
                )
            self._grouped[key] = (
                self._without_folded(found, key[1]) if kind == "all_to_all" and self._folded_s_per_byte else found
            )
        return self._grouped[key]

    def _without_folded(self, coefficients: tuple[float, float], factors: tuple[Factor, ...]) -> tuple[float, float]:
        """Returns the coefficients of an all_to_all less the free relayout, but not less than its ports allow."""
        latency_s, seconds_per_byte = coefficients
        members = math.prod(factor.size for factor in factors)
        return latency_s, max(seconds_per_byte - self._folded_s_per_byte, (1 - 1 / members) / self._ports_bytes_per_s)

    def messages_picoseconds(self, kind: str, factors: tuple[Factor, ...]) -> int:
        """Returns the time that a step takes at least, however small its tiles; see `cost.messages_time_s`."""
        if not self._network.pays_for_messages(kind):
            return 0
        key = kind, tuple(sorted(factors))
        if key not in self._messages:
            shares = [known for factor in factors if (known := self.shares(factor)) is not None]
            if len(shares) == len(factors):
                regular = tuple(map(math.prod, zip(*shares)))
                seconds = cost.regular_messages_time_s(self._network, kind, regular)
            else:
                seconds = cost.messages_time_s(self.topology, self.mesh, kind, groups(self.mesh, key[1]))
            self._messages[key] = math.ceil(seconds * PER_SECOND)
        return self._messages[key]

    def _regular(self, kind: str, factors: tuple[Factor, ...]) -> tuple[float, float] | None:
        """Returns the coefficients if the factors alone determine them, else None."""
        shares = [self.shares(factor) for factor in factors]
        if None in shares:
            return None
        return cost.regular_coefficients(self._network, kind, tuple(map(math.prod, zip(*shares))))

    def shares(self, factor: Factor) -> tuple[int, ...] | None:
        """Returns for each level, outer to inner, the number of units over which the devices along a factor are spread.

        None if the devices are not in the order of the mesh, or if the factor and a level have radices that do not
        nest.
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

    @functools.cached_property
    def level_places(self) -> tuple[tuple[str, int], ...]:
        """Returns the places inside axes, as (axis, product of the sizes before), at which the level changes.

        Devices that differ along the part of the axis before such a place meet at another level of the network than
        those that differ along the part behind it. An axis that levels do not divide in one radix has none.

        Example: an axis over two nodes and all their devices is cut between the nodes and the devices.
          >>> Pricing(Topology.parse("h100:2"), Mesh.parse("x=16"), 32).level_places
          (('x', 2),)
        """
        found: list[tuple[str, int]] = []
        for name, size in self.mesh.axes:
            for largest_first in (False, True):
                pieces = Factor(name, 1, size).primes(largest_first)
                depths = [self._depth(piece) for piece in pieces]
                if None not in depths:
                    changes = zip(pieces[1:], itertools.pairwise(depths))
                    found += [(name, piece.pre) for piece, (before, after) in changes if before != after]
                    break
        return tuple(found)

    def _depth(self, factor: Factor) -> int | None:
        """Returns the number of the level at which devices along a factor meet; None if it is not the same for all."""
        positions = self._network.positions_of(groups(self.mesh, (factor,)))
        units = [positions // view.unit for view in self._network.views]
        meets = np.array([(unit != unit[:, :1]).any(axis=1) for unit in units])
        depths = {int(depth) for depth in meets.argmax(axis=0)}
        return depths.pop() if len(depths) == 1 else None

    def cuts(self, factors: tuple[Factor, ...]) -> list[tuple[float, tuple[int, ...]]]:
        """Returns for each level (seconds per element into a unit, the units over which each factor spreads devices).

        The level of single devices is left out; `least_seconds_per_element` is about these. The result is empty unless
        all factors have `shares`.
        """
        shares = [known for factor in factors if (known := self.shares(factor)) is not None]
        if len(shares) < len(factors):
            return []
        bits = self.bits / 8
        return [
            (
                bits / cut_bounds.most_bytes_per_s_into_unit(self._network, depth),
                tuple(math.prod(each[: depth + 1]) for each in shares),
            )
            for depth in range(len(self._network.views) - 1)
        ]

    @property
    def least_seconds_per_element(self) -> float:
        """Returns the seconds in which a device can receive an element through all its ports."""
        return self.bits / 8 / self._ports_bytes_per_s

    def hop_s(self, factor: Factor) -> float:
        """Returns the least latency of a step that brings data from another coordinate along the factor."""
        shares = None if self.is_flat else self.shares(factor)
        if shares is None:
            return self.least_hop_s
        outermost = next(depth for depth, share in enumerate(shares) if share > 1)
        return min(view.level.latency_s for view in self._network.views[: outermost + 1])

    def least_latency_s(self, vacated: int, displaced: int, hop_s: float, collectives: int) -> float:
        """Returns a lower bound on the latency of a chain of at least `collectives`, 1 or 2.

        Args:
          vacated: the product of the sizes of the factors that must leave their digits for good.
          displaced: the product of the sizes of all factors that move.
          hop_s: the latency of one step that the chain must contain.
        """
        key = vacated, displaced, hop_s, collectives
        if key not in self._latencies:
            launch_s, one_s, of_many = self.topology.launch_latency_s, self.least_hop_s, self._least_hops_of_many_s
            hops_s = max(one_s, hop_s) + one_s
            if vacated > 1:
                hops_s = max(
                    hops_s, min(of_many(displaced), of_many(vacated) + one_s), hop_s + of_many(-(-vacated // 2))
                )
            least = 2 * launch_s + hops_s
            if collectives == 1:
                least = min(least, self.least_latency_of_one_s(displaced if vacated > 1 else 1, hop_s))
            self._latencies[key] = least
        return self._latencies[key]

    def least_latency_of_one_s(self, members: int, hop_s: float = 0.0) -> float:
        """Returns a lower bound on the latency of one collective in groups of a size, given the latency of one step."""
        hops_s = max(
            _least_hops_s(self._network, members, 0), hop_s + _least_hops_s(self._network, -(-members // 2), 0)
        )
        return self.topology.launch_latency_s + max(self.least_hop_s, hops_s)

    def least_picoseconds_of_one(self, members: int, received_elements: int, hop_s: float = 0.0) -> int:
        """Returns a lower bound on the time of one collective in groups of a size, given the latency of one step."""
        seconds = received_elements * self.bits / 8 / self._ports_bytes_per_s
        return math.floor((self.least_latency_of_one_s(members, hop_s) + seconds) * PER_SECOND)

    def _least_hops_of_many_s(self, members: int) -> float:
        steps = math.log2(members) / math.log2(max(self._reaches, default=2)) - 1e-9
        return self.least_hop_s * (math.ceil(steps) if len(self._reaches) == 1 else steps)

    def picoseconds(self, kind: str, factors: Iterable[Factor], tile: int) -> int:
        """Returns the time of a step that moves `factors`, on tiles of `tile` elements before it."""
        moved = tuple(factors)
        return max(self.whole(*self.coefficients(kind, moved), tile), self.messages_picoseconds(kind, moved))

    def permute_picoseconds(self, before: Layout, after: Layout, tile: int) -> int:
        """Returns the time of the permute between two layouts, priced by its pairs of devices."""
        if self.is_flat:  # all pairs cost the same, since no device sends or receives twice
            return self.whole(*self.coefficients("permute", ()), tile) if changes_hands(self.mesh, before, after) else 0
        key = before, after
        if key not in self._permutes:
            pairs = permute_pairs(self.mesh, before, after)
            self._permutes[key] = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=pairs)
        return self.whole(*self._permutes[key], tile)

    def least_picoseconds(self, received_elements: int) -> int:
        """Returns a lower bound on the time to receive so many elements: one launch, and all ports at once."""
        if not received_elements:
            return 0
        num_bytes = received_elements * self.bits / 8  # fractions of bytes count, since steps pay for them
        seconds = num_bytes / self._ports_bytes_per_s
        return math.floor((self.topology.launch_latency_s + self.least_hop_s + seconds) * PER_SECOND)

    def least_exchange_s(self, rounds: int, tile: int, received_bytes: int) -> float:
        """Returns a lower bound on the time of an exchange.

        Args:
          rounds: the number of its rounds.
          tile: the elements of the tile after the exchange.
          received_bytes: the bytes that the busiest device receives.
        """
        transfer_s = (1 - _ROUNDING) * received_bytes / self._ports_bytes_per_s
        return rounds * (self.topology.launch_latency_s + self.least_hop_s) + transfer_s + self.relayout_seconds(tile)

    def rounds_s(self, rounds: int, piece: int, tile: int) -> float:
        """Returns the time of an exchange on a flat topology, from the number and the sizes of its rounds."""
        return rounds * self.whole(*self.coefficients("permute", ()), piece) / PER_SECOND + self.relayout_seconds(tile)

    def round_elements(self) -> float:
        """Returns the number of elements that arrive in the time that one more round of an exchange costs."""
        pairs = ((0, self.mesh.size - 1), (self.mesh.size - 1, 0))
        latency_s, seconds_per_byte = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=pairs)
        return latency_s / seconds_per_byte * 8 / self.bits if seconds_per_byte else 0.0

    @functools.cached_property
    def _addresses(self) -> list[list[int]]:
        """Returns the coordinates of each device in the network, outer to inner."""
        return self.topology.coordinates().tolist()

    def distance(self, a: int, b: int) -> int:
        """Returns the distance of two devices, which is 0 for the same device.

        Else it is 1 + the number of levels inside the level that connects them.
        """
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
        """Returns the time of a slice that keeps the given number of elements."""
        return math.ceil(cost.slice_time_s(self.topology, self.bytes_of(elements)) * PER_SECOND)

    def bound_seconds(self, shape, source: Sharding, target: Sharding) -> float:
        """Returns a lower bound on the time of any redistribution, from the bytes that must enter each unit.

        A partial sum of an element counts as the element. The bound is 0 if the target has partial sums, because a
        device may then fill its tile with zeros.
        """
        if target.unreduced:
            return 0.0
        blocks = (Blocks.of_sharding(self.mesh, shape, Sharding(side.dims)) for side in (source, target))
        held, wanted = ((side.starts, side.stops) for side in blocks)
        return cut_bounds.cut_bytes_bound(self.topology, held, wanted, self.bits).time_s

    def flat_bound_seconds(self, received_elements: int) -> float:
        """Returns `bound_seconds` on a flat topology, from the elements that the busiest device must receive.

        The array has no partial sums.
        """
        if not received_elements:
            return 0.0
        latency_s = self.topology.launch_latency_s + self.least_hop_s
        num_bytes = received_elements * self.bits / 8  # fractions of bytes count, since steps pay for them
        return latency_s + num_bytes / self._ports_bytes_per_s

    def seconds(self, collectives: Iterable[Collective]) -> float:
        """Returns the time of collectives that run one after the other, each rounded to whole picoseconds."""
        times = (cost.collective_time_s(self.topology, self.mesh.size, each) for each in collectives)
        return sum(math.ceil(seconds * PER_SECOND) for seconds in times) / PER_SECOND

    def exchange_seconds(self, exchange: Exchange) -> float:
        """Returns the time of the rounds of an exchange, each rounded to whole picoseconds."""
        return sum(map(self._round_picoseconds, exchange.rounds)) / PER_SECOND

    def _round_picoseconds(self, each: Round) -> int:
        if self.is_flat:  # all pairs cost the same, since no device sends or receives twice
            latency_s, seconds_per_byte = self.coefficients("permute", ())
        else:
            pairs = np.stack([each.senders, each.receivers], axis=1)
            latency_s, seconds_per_byte = cost.coefficients(self.topology, self.mesh, "collective_permute", pairs=pairs)
        return self.whole(latency_s, seconds_per_byte, each.piece_elements)

    def whole(self, latency_s: float, seconds_per_byte: float, tile: int) -> int:
        """Returns latency_s + seconds_per_byte · tile bytes, in whole picoseconds."""
        return math.ceil((latency_s + seconds_per_byte * self.bytes_of(tile)) * PER_SECOND)


def _ports_bytes_per_s(level: Level) -> float:
    """Returns the bytes per second that one device can receive at a level, by its port or by all its links."""
    return level.bandwidth_bytes_per_s * (2 * len(level.dims) if level.kind in ("ring", "torus") else 1)


@functools.lru_cache(maxsize=4096)
def _least_hops_s(network: cost.Network, members: int, depth: int) -> float:
    """Returns the least latency of a collective in one group that is spread over the levels from `depth` on."""
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
    """Returns the largest factor by which one more step of latency increases the number of devices reached."""
    return 3 if level.kind in ("ring", "torus") else 2
