# SPDX-License-Identifier: Apache-2.0
"""Which small collectives of a program run as one: some of one kind and group that wait for nothing of each other.

A collective takes L + s·B for tiles of B bytes. As one collective, k of them take L + s·(B_1 + ... + B_k): they save
(k - 1)·L, and cost the copies of their tiles into one buffer and out of it.

*Definitions.* The collectives of a block of ops are numbered in program order. One *needs* another if a path of values
leads from the other to it. To *join* a set is to put one node in its place, which needs all that a member needs, and
is needed by all that need a member.

**J1 (independence).** A set may be joined if no member needs another, in the program with the sets that are joined
already.

*The program stays without cycles.* A cycle would lead through the new node: out of it from a member a, through other
nodes, and into it at a member b. Then b needs a; with a = b the program had a cycle before.

**J2 (smallness).** A member is small: sending its bytes takes at most as long as the latency, and its copies at most a
quarter of that. So k small collectives, which take k·L + S, S at most k·L, take at most L + S + k·L/4 joined, which is
less for k ≥ 2.

**J3 (memory).** The tiles of a set lie in memory together, so there is a limit for their bytes.

Source: the combiners of XLA's compilers, which make one op of several arrays, without copies, below a limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MOST_COPYING = 0.25  # J2, share of the latency


@dataclass(frozen=True, slots=True)
class Joinable:
    """A small collective of a block.

    Attributes:
      key: equal for collectives that may be one. num_bytes: that it holds, before and after.
      needs: the bit 1 << n for each collective n of the block that it needs.
    """

    key: Hashable
    needs: int
    num_bytes: int


def is_small(latency_s: float, sending_s: float, copying_s: float) -> bool:
    """Returns whether a collective is small by J2.

    Example:
      >>> is_small(8e-6, 4e-6, 1e-6), is_small(8e-6, 9e-6, 1e-6), is_small(8e-6, 4e-6, 3e-6)
      (True, False, False)
    """
    return sending_s <= latency_s and copying_s <= MOST_COPYING * latency_s


def joined_sets(collectives: Sequence[Joinable | None], most_bytes: int) -> list[tuple[int, ...]]:
    """Returns the sets to join, of two or more; each collective goes to the first set that it fits into.

    Args:
      collectives: those of a block, in program order; None for one that is not small, which others may need all the
        same: bits count it.
      most_bytes: of J3.

    Example: 1 needs 0; 3 needs 2 by way of a collective that is not small, 2 is of another kind.
      >>> block = [Joinable("a", 0, 8), Joinable("a", 0b1, 8), Joinable("b", 0, 8), None, Joinable("a", 0b1100, 8)]
      >>> joined_sets(block, 1024)
      [(0, 4)]
      >>> joined_sets(block, 15)
      []
    """
    needs = [each.needs if each else 0 for each in collectives]
    sets: dict[Hashable, list[_Set]] = {}
    for number, each in enumerate(collectives):
        if each is None:
            continue
        of_key = sets.setdefault(each.key, [])
        for found in of_key:
            is_independent = not needs[number] & found.bits and not needs[found.numbers[0]] >> number & 1
            if is_independent and found.num_bytes + each.num_bytes <= most_bytes:
                found.add(number, each.num_bytes)
                _close(needs, found)
                break
        else:
            of_key.append(_Set([number], 1 << number, each.num_bytes))
    return sorted(tuple(each.numbers) for of_key in sets.values() for each in of_key if len(each.numbers) > 1)


@dataclass(slots=True)
class _Set:
    """Collectives that become one. Fields: bits: of its members."""

    numbers: list[int]
    bits: int
    num_bytes: int

    def add(self, number: int, num_bytes: int) -> None:
        self.numbers.append(number)
        self.bits |= 1 << number
        self.num_bytes += num_bytes


def _close(needs: list[int], joined: _Set) -> None:
    """Updates what each collective needs, directly or not, once a set is joined. Its members need the same."""
    together = 0
    for number in joined.numbers:
        together |= needs[number]
    for number, needed in enumerate(needs):
        if needed & joined.bits:
            needs[number] |= joined.bits | together
    for number in joined.numbers:
        needs[number] = together
