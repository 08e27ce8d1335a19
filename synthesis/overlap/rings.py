# SPDX-License-Identifier: Apache-2.0
"""Rings of devices around which blocks travel, one hop at a time, in one direction or in both.

A *ring* is an order of the n members of a group: position p is next to p + 1 and p - 1, modulo n.

**Gather.** Each device starts with its own block. Forward, it passes on what it has f times; after hop k it holds the
block of position p - k. Backward, b times; after hop k it holds that of p + k. With f + b = n - 1 it has met every
block once, since the offsets -f, ..., b are n successive numbers.

**Scatter of a sum.** Each device has a term of every block. Forward, it starts with its term of block p + f; what
arrives from p - 1 after the first hop is then of block p - 1 + f, to which it adds its own term, and so on: after f
hops it holds block p, with the terms of p - f, ..., p - 1. Backward likewise with those of p + 1, ..., p + b. Its own
term makes n terms in all, each once.

**Swap.** The block for the member k positions ahead goes there at once; offsets 1, ..., n - 1 come from k behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

Ring = tuple[int, ...]  # device ids in the order of the ring
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Hops:
    """How often blocks are passed on, forward and backward.

    Example:
      >>> Hops.of(8, both_ways=True), Hops.of(8, both_ways=False), Hops.of(2, both_ways=True)
      (Hops(forward=4, backward=3), Hops(forward=7, backward=0), Hops(forward=1, backward=0))
    """

    forward: int
    backward: int

    @staticmethod
    def of(members: int, *, both_ways: bool) -> Hops:
        """Returns the hops with which every block comes around."""
        if not both_ways:
            return Hops(members - 1, 0)
        return Hops(members // 2, (members - 1) // 2)

    def rounds(self) -> Iterator[tuple[int, ...]]:
        """Yields the offsets of the blocks that arrive after each hop.

        Example:
          >>> list(Hops(2, 1).rounds())
          [(-1, 1), (-2,)]
        """
        for hop in range(1, max(self.forward, self.backward) + 1):
            yield (*([-hop] if hop <= self.forward else []), *([hop] if hop <= self.backward else []))


@dataclass(frozen=True, slots=True)
class Rings:
    """The groups of a collective, each as a ring; all groups are of one size.

    Attributes:
      groups: device ids, as the collective lists them: member m has block m.
      order: the member at each position of a ring.

    Example:
      >>> rings = Rings(((0, 1, 2, 3), (4, 5, 6, 7)), (0, 1, 3, 2))
      >>> rings.pairs(1)[:4], rings.members_at(1)[:4]
      (((0, 1), (1, 3), (3, 2), (2, 0)), (1, 3, 0, 2))
    """

    groups: tuple[Ring, ...]
    order: tuple[int, ...]

    @property
    def members(self) -> int:
        return len(self.order)

    def pairs(self, offset: int) -> tuple[Pair, ...]:
        """Returns (source, target) of what every device sends to the one that is `offset` positions ahead."""
        ahead = self.order[offset % self.members :] + self.order[: offset % self.members]
        return tuple((group[one], group[other]) for group in self.groups for one, other in zip(self.order, ahead))

    def members_at(self, offset: int) -> tuple[int, ...]:
        """Returns for each of `devices` the member that is `offset` positions ahead."""
        at = {member: position for position, member in enumerate(self.order)}
        ahead = tuple(self.order[(at[member] + offset) % self.members] for member in range(self.members))
        return ahead * len(self.groups)

    @property
    def devices(self) -> tuple[int, ...]:
        """Returns all devices, group by group as the collective lists them."""
        return tuple(device for group in self.groups for device in group)


def orders(members: int, places: Sequence[Sequence[int]] = ()) -> list[tuple[int, ...]]:
    """Returns orders of members among which the ring with the nearest neighbours is looked for: as listed, and row by
    row there and back along one column, for each number of rows; then around the grid on which the members are.

    On a grid of devices the second kind steps from neighbour to neighbour, the last step included.

    Args:
      places: the coordinates of the members on a grid; () if they are unknown.

    Example: eight members as listed, and on a grid of two rows that lists its columns.
      >>> orders(8)
      [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3, 7, 6, 5, 4), (0, 1, 3, 5, 7, 6, 4, 2)]
      >>> orders(4, [(0, 0), (1, 1), (1, 0), (0, 1)])[2:]
      [(0, 3, 1, 2), (0, 2, 1, 3)]
    """
    found = [tuple(range(members))]
    for rows in range(2, members // 2 + 1):
        if members % rows == 0:
            found.append(_around(rows, members // rows))
    return list(dict.fromkeys((*found, *_around_grid(places))))


def _around_grid(places: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yields ways around a grid that members fill, for each of its dimensions as rows; none if they fill none.

    On a line it is every second one there, and the others back.
    """
    at = {tuple(place): member for member, place in enumerate(places)}
    sides = [sorted(set(values)) for values in zip(*places)]
    wide = [dim for dim, side in enumerate(sides) if len(side) > 1]
    if not wide or len(at) < len(places) or prod(map(len, sides)) != len(places):
        return

    def member(values: Mapping[int, int]) -> int:
        return at[tuple(values.get(dim, side[0]) for dim, side in enumerate(sides))]

    for rows in wide:
        columns = _path([(dim, sides[dim]) for dim in wide if dim != rows])
        if len(columns) > 1:
            way = _around(len(sides[rows]), len(columns))
            pairs = (divmod(place, len(columns)) for place in way)
            yield tuple(member({rows: sides[rows][row], **columns[column]}) for row, column in pairs)
        else:
            line = [member({rows: value}) for value in sides[rows]]
            yield (*line[::2], *reversed(line[1::2]))


def _path(sides: Sequence[tuple[int, Sequence[int]]]) -> list[dict[int, int]]:
    """Returns the places of a grid, as values by dimension, along a way on which each is next to the one before."""
    if not sides:
        return [{}]
    (dim, values), rest = sides[0], _path(sides[1:])
    return [{dim: value, **each} for at, value in enumerate(values) for each in (rest if at % 2 == 0 else rest[::-1])]


def _around(rows: int, columns: int) -> tuple[int, ...]:
    """Returns the places of a grid along a closed way: the first column is kept for the way back."""
    if rows % 2 and not columns % 2:
        turned = _around(columns, rows)
        return tuple(place % rows * columns + place // rows for place in turned)
    way: list[int] = [0]
    for row in range(rows):
        there = range(1, columns) if row % 2 == 0 else range(columns - 1, 0, -1)
        way += [row * columns + column for column in there]
    return tuple(way + [row * columns for row in range(rows - 1, 0, -1)])


def nearest(
    groups: Sequence[Ring], seconds: Callable[[Sequence[Pair]], float], places: Sequence[Sequence[int]] = ()
) -> Rings:
    """Returns the groups as rings whose hop takes least, the first order on a tie.

    Args:
      seconds: the time of a hop, from the (source, target) of a permute. places: those of the first group's members.
    """
    found = [Rings(tuple(map(tuple, groups)), order) for order in orders(len(groups[0]), places)]
    return min(found, key=lambda rings: seconds(rings.pairs(1)))
