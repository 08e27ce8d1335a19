# SPDX-License-Identifier: Apache-2.0
"""Objectives: they decide which of two plans is cheaper, and bound the cost of a chain before it becomes a plan.

| objective | key of a plan | bounds on a chain |
|---|---|---|
| `ByBytes` | received bytes, collectives | lower bounds on both; only the largest permute counts |
| `ByTime` | modelled time, then received bytes, collectives | the time of its collectives, then with its copies |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ..network.pricing import PER_SECOND, Pricing
from ..programs.chain import Chain
from ..programs.steps import AllToAll

if TYPE_CHECKING:
    from .costing import Costing
    from .plan import Plan

_ROUNDING = 1e-9  # larger than the rounding error of a sum of times


class Objective(Protocol):
    """The rule by which plans are compared.

    Attributes:
      name: its name in a request. is_by_time: whether the network and the copies on a device count.
    """

    name: str
    is_by_time: bool

    def key(self, plan: Plan) -> tuple[float, ...]:
        """Returns the numbers by which plans are compared; the cheapest plan has the smallest."""
        ...

    def spent(self, plan: Plan) -> tuple[float, float]:
        """Returns the cost of a plan, and the lower bound on the cost of any method."""
        ...

    def proves(self, received: int, bound: int) -> bool:
        """Returns whether a plan is proved optimal by the bound on its received bytes."""
        ...

    def pricing_of_search(self, pricing: Pricing) -> Pricing | None:
        """Returns the pricing that the search uses; None if the search counts elements only."""
        ...

    def bounds(self, costing: Costing, chain: Chain) -> Iterator[tuple[float, ...]]:
        """Yields lower bounds on the key of a chain's plan. Later bounds are tighter and take longer to compute."""
        ...

    def may_permute(self, costing: Costing, than: Plan, tile: int, gathered: int, moves: Sequence[AllToAll]) -> bool:
        """Returns whether a chain of all_to_alls, a permute and a gather may be cheaper than the plan `than`.

        Args:
          tile: the elements of the tile before the gather. gathered: the elements that the gather adds, or 0.
        """
        ...


class ByBytes:
    """The fewest received bytes, then the fewest collectives."""

    name = "bytes"
    is_by_time = False

    def key(self, plan: Plan) -> tuple[float, ...]:
        return plan.bytes_received, plan.collectives

    def spent(self, plan: Plan) -> tuple[float, float]:
        return plan.bytes_received, plan.bound_bytes

    def proves(self, received: int, bound: int) -> bool:
        return received <= bound

    def pricing_of_search(self, pricing: Pricing) -> Pricing | None:
        return None

    def bounds(self, costing: Costing, chain: Chain) -> Iterator[tuple[float, ...]]:
        yield costing.least_received(chain)

    def may_permute(self, costing: Costing, than: Plan, tile: int, gathered: int, moves: Sequence[AllToAll]) -> bool:
        asked = costing.request
        received = asked.bytes_of(tile) + asked.bytes_of(gathered)
        received += sum([costing.bytes_received(tile, move) for move in moves])
        return (received, 1 + len(moves) + (gathered > 0)) < self.key(than)


class ByTime:
    """The least modelled time, then the fewest received bytes, then the fewest collectives."""

    name = "time"
    is_by_time = True

    def key(self, plan: Plan) -> tuple[float, ...]:
        """Returns the key.

        Each collective adds a picosecond, because sums of the same times may differ by rounding. Of plans that take
        equally long, the one with fewer collectives is then the cheaper one.
        """
        picoseconds = round(plan.time_s * PER_SECOND) + plan.collectives
        return picoseconds / PER_SECOND, plan.bytes_received, plan.collectives

    def spent(self, plan: Plan) -> tuple[float, float]:
        return plan.time_s, plan.bound_time_s

    def proves(self, received: int, bound: int) -> bool:
        return False

    def pricing_of_search(self, pricing: Pricing) -> Pricing | None:
        return pricing

    def bounds(self, costing: Costing, chain: Chain) -> Iterator[tuple[float, ...]]:
        seconds = 0.0 if costing.pricing.has_free_copies else costing.least_seconds(chain)
        yield (seconds,)
        least = costing.least_received(chain)
        yield seconds, *least
        yield costing.seconds_with_copies(chain), *least

    def may_permute(self, costing: Costing, than: Plan, tile: int, gathered: int, moves: Sequence[AllToAll]) -> bool:
        pricing = costing.pricing
        times = [pricing.picoseconds("all_to_all", move.factors, tile) for move in moves]
        if gathered:
            times.append(pricing.least_picoseconds_of_one((tile + gathered) // tile, gathered))
        return (pricing.least_picoseconds(tile) + sum(times)) / PER_SECOND <= than.time_s * (1 + _ROUNDING)


_BY_NAME: dict[str, Objective] = {each.name: each for each in (ByBytes(), ByTime())}


def objective(name: str) -> Objective:
    """Returns the objective of a name, one of `request.OBJECTIVES`."""
    return _BY_NAME[name]
