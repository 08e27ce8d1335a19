# SPDX-License-Identifier: Apache-2.0
"""How much work planning may take: steps that searches consider, never a time, so that every process plans alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The most steps that the searches consider at an effort of 1; a few hundred thousand take a second.

    Attributes:
      first: of the search in as few digits as serve. greedy: of the greedy one after it, if that finds no end.
      detours: of the search with spare digits for all. primes: of the one in prime factors.
      misaligned: in place of both where the ends cut devices in two radices, if bounds on levels do not draw it out.
      in_need: where no chain is known but the one on leading axes.
      with_sums: with partial sums, where no chain is known. with_sums_below: where one is.
      times_on_levels: the effort is so many times as large where it matters who sends to whom: the bounds say less.
      greed: the weight of the heuristic in greedy searches.
      rearranged: chains with one permute whose arrangement is worked on, the fastest ones.
    """

    first: int = 800
    greedy: int = 2_000
    detours: int = 2_000
    primes: int = 1_000
    misaligned: int = 64_000
    in_need: int = 10_000
    with_sums: int = 100_000
    with_sums_below: int = 20_000
    times_on_levels: int = 8
    greed: int = 3
    rearranged: int = 6


BUDGET = Budget()
