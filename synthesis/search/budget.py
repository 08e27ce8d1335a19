# SPDX-License-Identifier: Apache-2.0
"""The limits of planning: numbers of steps that searches consider, never times, so that every process plans alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The most steps that the searches consider at an effort of 1; a few hundred thousand take a second.

    Attributes:
      first: the limit of the first search, which uses as few digits as possible.
      greedy: the limit of the greedy search that follows if the first search does not reach the target.
      detours: the limit of the search in which every factor has spare digits.
      levels: the limit of the search in factors that are cut where the level of the network changes.
      primes: the limit of the search in prime factors.
      misaligned: replaces `detours` and `primes` if source and target cut the devices in two radices and the network
        has no levels.
      in_need: the limit if the only known chain is the one on leading axes.
      with_sums: the limit for partial sums if no chain is known.
      with_sums_below: the limit for partial sums if a chain is known.
      times_on_levels: a factor for the effort on networks with levels, where the bounds are weaker.
      greed: the weight of the heuristic in greedy searches.
      rearranged: the number of chains with one permute, the fastest ones, whose arrangement is improved.
    """

    first: int = 800
    greedy: int = 2_000
    detours: int = 2_000
    levels: int = 1_000
    primes: int = 1_000
    misaligned: int = 64_000
    in_need: int = 10_000
    with_sums: int = 100_000
    with_sums_below: int = 20_000
    times_on_levels: int = 8
    greed: int = 3
    rearranged: int = 6


BUDGET = Budget()
