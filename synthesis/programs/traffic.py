# SPDX-License-Identifier: Apache-2.0
"""The one definition of `bytes_received` and `bytes_sent`.

The traffic of a program is a list of `Collective`s. The same functions count the traffic of our chains and of the HLO
that XLA or Shardy produce for the same tensors, so the numbers can be compared. Let L be the bytes of one device's tile
before the collective, and n the size of its group. Then each device exchanges with other devices:

| kind | received per device | sent per device |
|---|---|---|
| all_gather | L·(n-1) | L·(n-1) |
| all_to_all, reduce_scatter | L·(n-1)/n | L·(n-1)/n |
| all_reduce | 2·L·(n-1)/n | 2·L·(n-1)/n |
| collective_permute | L if it is the target of a pair i→j, i≠j | L per pair i→j, i≠j |
| collective_broadcast | L, except the group's first device | L·(n-1) by the first device |
| ragged_all_to_all | at most the output tile | at most L |

Fractions of a byte are rounded up. A collective in a loop counts as often as the loop runs. Rule R3 (traffic) is about
these numbers.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

GROUPED_KINDS = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_broadcast",
    "ragged_all_to_all",
    "reduce_scatter",
)
KINDS = ("collective_permute", *GROUPED_KINDS)


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as every device executes it.

    Fields:
      kind: one of `KINDS`.
      bytes_before, bytes_after: operand and result tile of one device, in bytes; several operands are summed.
      groups: device ids that work together, for every kind but collective_permute. A device in no group receives 0.
      pairs: (source, target) device ids, for collective_permute.
      trip_count: the number of times that the collective runs: the product of the trip counts of the loops around it.
      arrays: the number of arrays that it gathers or reduces at once, as compilers join collectives.
      together: the number of collectives that run as one with it, itself included; each has its share of the start.

    Example:
      >>> bytes_received([Collective("all_gather", 4, 8, groups=((0, 1), (2, 3)), trip_count=3)], 4)
      12
    """

    kind: str
    bytes_before: int
    bytes_after: int
    groups: tuple[tuple[int, ...], ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    trip_count: int = 1
    arrays: int = 1
    together: int = 1

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind of collective {self.kind!r}; known: {', '.join(KINDS)}")

    @property
    def largest_tile_bytes(self) -> int:
        return max(self.bytes_before, self.bytes_after)


def merged(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Returns collectives without repetitions: of equal ones, the first stays and runs as often as all of them.

    Example:
      >>> each = Collective("all_gather", 4, 8, groups=((0, 1),))
      >>> [one.trip_count for one in merged([each, replace(each, trip_count=3)])]
      [4]
    """
    runs: dict[Collective, int] = {}
    for each in collectives:
        once = replace(each, trip_count=1)
        runs[once] = runs.get(once, 0) + each.trip_count
    return tuple(replace(once, trip_count=count) for once, count in runs.items())


def tile_bytes_after(kind: str, bytes_before: int, group_size: int) -> int:
    """Returns the bytes of the result tile for an operand tile of `bytes_before`; uneven parts are rounded up."""
    if kind == "all_gather":
        return bytes_before * group_size
    if kind == "reduce_scatter":
        return _ceil_div(bytes_before, group_size)
    return bytes_before


def bytes_received_per_device(collectives: Iterable[Collective], num_devices: int) -> np.ndarray:
    """Returns an int64 array: the bytes that arrive at each device from another one."""
    return _per_device(collectives, num_devices, _add_received)


def bytes_sent_per_device(collectives: Iterable[Collective], num_devices: int) -> np.ndarray:
    """Returns an int64 array: the bytes that leave each device for another one."""
    return _per_device(collectives, num_devices, _add_sent)


def bytes_received(collectives: Iterable[Collective], num_devices: int) -> int:
    """Returns the bytes that the busiest receiver gets: the maximum over devices of the sum over collectives."""
    return int(bytes_received_per_device(collectives, num_devices).max(initial=0))


def bytes_sent(collectives: Iterable[Collective], num_devices: int) -> int:
    """Returns the bytes that the busiest sender sends: the maximum over devices of the sum over collectives."""
    return int(bytes_sent_per_device(collectives, num_devices).max(initial=0))


def _per_device(
    collectives: Iterable[Collective],
    num_devices: int,
    add: Callable[[Collective, np.ndarray], None],
) -> np.ndarray:
    total = np.zeros(num_devices, np.int64)
    for collective in collectives:
        once = np.zeros(num_devices, np.int64)
        add(collective, once)
        total += collective.trip_count * once
    return total


def _add_received(collective: Collective, received: np.ndarray) -> None:
    received += moved_in_pairs(collective.pairs, collective.bytes_before, len(received))[0]
    for group in collective.groups:
        if len(group) > 1:
            received[_receivers(collective, group)] += received_in_group(collective, len(group))


def moved_in_pairs(pairs: Sequence[tuple[int, int]], num_bytes: int, num_devices: int) -> np.ndarray:
    """Returns the bytes that each device receives and sends if each pair moves `num_bytes`: int64 (2, num_devices).

    Example:
      >>> moved_in_pairs([(0, 1), (0, 2), (2, 2)], 8, 3).tolist()
      [[0, 8, 8], [16, 0, 0]]
    """
    flat = np.fromiter(itertools.chain.from_iterable(pairs), np.int64, 2 * len(pairs))
    sources, targets = flat[::2], flat[1::2]
    apart = sources != targets
    return num_bytes * np.stack([np.bincount(ends[apart], minlength=num_devices) for ends in (targets, sources)])


def _add_sent(collective: Collective, sent: np.ndarray) -> None:
    sent += moved_in_pairs(collective.pairs, collective.bytes_before, len(sent))[1]
    for group in collective.groups:
        if len(group) < 2:
            continue
        if collective.kind == "collective_broadcast":
            sent[group[0]] += collective.bytes_before * (len(group) - 1)
        elif collective.kind == "ragged_all_to_all":
            sent[list(group)] += collective.bytes_before
        else:
            sent[list(group)] += received_in_group(collective, len(group))


def received_in_group(collective: Collective, group_size: int) -> int:
    """Returns the bytes that one member of a group of two or more receives in one run."""
    before, others = collective.bytes_before, group_size - 1
    match collective.kind:
        case "all_gather":
            return before * others
        case "all_to_all" | "reduce_scatter":
            return _ceil_div(before * others, group_size)
        case "all_reduce":
            return _ceil_div(2 * before * others, group_size)
        case "ragged_all_to_all":
            return collective.bytes_after
        case _:
            return before


def _receivers(collective: Collective, group: tuple[int, ...]) -> list[int]:
    """Returns the members that receive: all of them, except the first one of a broadcast, which is its root."""
    return list(group[1:] if collective.kind == "collective_broadcast" else group)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
