# SPDX-License-Identifier: Apache-2.0
"""The pieces of an exchange: the boxes that devices lack of their targets, and the replicas that send them.

The *pieces* are the common refinement of source and target: a piece is the part of a target box that its device lacks
and one source box has. Each piece has one sender among the replicas of its source box. The nearest replicas send, and
the pieces are spread so that the busiest replica sends as little as possible.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..layouts.blocks import Blocks
from .edge_colouring import by_number

MOST_PAIRS = 1 << 28  # pairs of a device and a source box, which are all compared: 16,384 devices with different boxes
MOST_ROUND_WEIGHT = 1 << 40
MOST_BALANCE_NODES = 20_000  # nodes of the searches for an even spread over replicas, in one exchange


class TooManyPieces(ValueError):
    """Raised if an exchange is too large to schedule; collectives in groups are the way for such placements."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Boxes [lo, hi) in global indices, one per row. `src` is a device id; until senders are chosen, a source box."""

    src: np.ndarray
    dst: np.ndarray
    lo: np.ndarray
    hi: np.ndarray

    @functools.cached_property
    def extents(self) -> np.ndarray:
        return self.hi - self.lo

    @property
    def elements(self) -> np.ndarray:
        return self.extents.prod(axis=1)

    def at(self, rows: np.ndarray) -> Pieces:
        return Pieces(*(each.take(rows, axis=0) for each in (self.src, self.dst, self.lo, self.hi)))

    @functools.cached_property
    def are_alike(self) -> bool:
        """Returns whether all pieces have one shape."""
        return bool((self.extents == self.extents[:1]).all())


class SourceBoxes:
    """The distinct boxes of a source, each with its holders in ascending order."""

    def __init__(self, source: Blocks):
        holders = np.flatnonzero(source.elements)
        bounds = np.concatenate([source.starts[holders], source.stops[holders]], axis=1)
        if source.shape:
            boxes, number = np.unique(bounds, axis=0, return_inverse=True)
        else:
            boxes, number = bounds[:1], np.zeros(len(holders), np.int64)
        rank = len(source.shape)
        self.starts, self.stops = boxes[:, :rank], boxes[:, rank:]
        self.of_device = np.full(source.devices, -1)
        self.of_device[holders] = number.reshape(-1)
        self.holders = holders[np.argsort(number.reshape(-1), kind="stable")]
        self.count = np.bincount(number.reshape(-1), minlength=len(boxes))
        self.first = np.cumsum(self.count) - self.count

    def intervals(self) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Returns (starts, stops) of each dimension's intervals if the boxes are their row-major grid, else None."""
        found = []
        for starts, stops in zip(self.starts.T, self.stops.T):
            first, at = np.unique(starts, return_index=True)
            found.append((first, stops[at]))
        if not found or math.prod(len(first) for first, _ in found) != len(self.count):
            return None
        for dim, (first, ends) in enumerate(found):
            at = np.searchsorted(first, self.starts[:, dim])
            if (ends[:-1] > first[1:]).any() or (ends[at] != self.stops[:, dim]).any():
                return None
        return found

    def holders_of(self, box: int) -> np.ndarray:
        return self.holders[self.first[box] : self.first[box] + self.count[box]]


def check_ends(source: Blocks, target: Blocks, boxes: SourceBoxes) -> None:
    if source.shape != target.shape:
        raise ValueError(f"source places an array of shape {list(source.shape)}, target one of {list(target.shape)}")
    if source.devices != target.devices:
        raise ValueError(f"source is over {source.devices} devices, target over {target.devices}")
    covered = int((boxes.stops - boxes.starts).prod(axis=1).sum())
    if covered != math.prod(source.shape):
        raise ValueError(
            f"the source's boxes have {covered} of {math.prod(source.shape)} elements; each is needed once"
        )


def refinement(source: Blocks, target: Blocks, boxes: SourceBoxes, most_pieces: float) -> tuple[Pieces, Pieces]:
    """Returns the pieces to move, from source boxes to devices, and the pieces that devices copy from themselves."""
    intervals = boxes.intervals()
    if intervals is None:
        device, box = _meetings(target, boxes, most_pieces)
    else:
        device, box = _meetings_on_grid(target, intervals, most_pieces)
    pieces = Pieces(
        box,
        device,
        np.maximum(target.starts[device], boxes.starts[box]),
        np.minimum(target.stops[device], boxes.stops[box]),
    )
    is_own = boxes.of_device[device] == box
    own = pieces.at(np.flatnonzero(is_own))
    return pieces.at(np.flatnonzero(~is_own)), Pieces(own.dst, own.dst, own.lo, own.hi)


def _meetings(target: Blocks, boxes: SourceBoxes, most_pieces: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs (device, source box) whose boxes have common elements, in ascending order."""
    if target.devices * len(boxes.count) > MOST_PAIRS:
        raise TooManyPieces(
            f"{target.devices} devices and {len(boxes.count)} source tiles are too many for an exchange"
        )
    meets = np.repeat((target.elements > 0)[:, None], len(boxes.count), axis=1)
    for dim in range(len(target.shape)):
        meets &= target.starts[:, None, dim] < boxes.stops[None, :, dim]
        meets &= boxes.starts[None, :, dim] < target.stops[:, None, dim]
    _check_number(int(np.count_nonzero(meets)), most_pieces)
    device, box = np.nonzero(meets)
    return device, box


def _meetings_on_grid(target: Blocks, intervals, most_pieces: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same pairs for source boxes that are a grid, in which a target box meets a box of the grid."""
    first = [np.searchsorted(stops, target.starts[:, dim], side="right") for dim, (_, stops) in enumerate(intervals)]
    last = [np.searchsorted(starts, target.stops[:, dim], side="left") for dim, (starts, _) in enumerate(intervals)]
    counts = [np.where(target.elements > 0, b - a, 0) for a, b in zip(first, last)]
    number = np.multiply.reduce(counts)
    total = int(number.sum())
    _check_number(total, most_pieces)
    device = np.repeat(np.arange(target.devices), number)
    left = np.arange(total) - np.repeat(np.cumsum(number) - number, number)  # number among the pairs of a device
    box, place = np.zeros(total, np.int64), 1
    for (starts, _), at, count in reversed(list(zip(intervals, first, counts))):
        box += (at[device] + left % count[device]) * place
        left //= count[device]
        place *= len(starts)
    return device, box


def _check_number(pieces: int, most_pieces: float) -> None:
    if pieces > most_pieces:
        raise TooManyPieces(f"the exchange has {pieces} pieces; at most {most_pieces} are scheduled")


# ---- senders


def with_senders(pieces: Pieces, boxes: SourceBoxes, distance, round_elements: float) -> Pieces:
    """Returns the pieces with a sender in place of the source box.

    The weight of a piece is its elements plus the `round_elements` of its round.
    """
    if (boxes.count == 1).all():
        return Pieces(boxes.holders[boxes.first[pieces.src]], pieces.dst, pieces.lo, pieces.hi)
    weights = pieces.elements + int(min(round_elements, MOST_ROUND_WEIGHT))
    is_even = bool((weights == weights[:1]).all())
    order = by_number(pieces.src) if is_even else np.lexsort((pieces.dst, -weights, pieces.src))
    box = pieces.src[order]
    rank = np.arange(len(order)) - np.searchsorted(box, box)  # number of a piece among the pieces of its box
    sender = np.empty(len(order), np.int64)
    sender[order] = boxes.holders[boxes.first[box] + rank % boxes.count[box]]
    search = _Spread()
    for each, rows in _runs(box, order) if distance is not None or not is_even else ():
        holders = boxes.holders_of(each)
        if len(holders) == 1:
            continue
        if distance is not None:
            _serve_from_nearest(sender, rows, pieces.dst, weights, holders.tolist(), distance, search)
        elif weights[rows[0]] != weights[rows[-1]]:
            sender[rows] = holders[search.spread(weights[rows].tolist(), len(holders))]
    return Pieces(sender, pieces.dst, pieces.lo, pieces.hi)


def _runs(sorted_keys: np.ndarray, order: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Returns (key, rows of `order` with that key) for keys that ascend."""
    ends = np.flatnonzero(np.diff(sorted_keys)) + 1
    for rows in np.split(np.arange(len(order)), ends) if len(order) else ():
        yield int(sorted_keys[rows[0]]), order[rows]


def _serve_from_nearest(sender, rows, dst, weights, holders: list[int], distance, search: _Spread) -> None:
    """Sets the senders of the pieces of one source box, the largest piece first.

    Pieces with the same nearest holders are spread together; pieces with the fewest such holders come first.
    """
    served: dict[tuple[int, ...], list[int]] = {}
    for row in rows.tolist():
        away = [distance(holder, int(dst[row])) for holder in holders]
        nearest = min(away)
        served.setdefault(tuple(h for h, d in zip(holders, away) if d == nearest), []).append(row)
    load = dict.fromkeys(holders, 0)
    for nearest, group in sorted(served.items(), key=lambda item: (len(item[0]), item[0])):
        sizes = weights[group].tolist()
        for row, size, number in zip(group, sizes, search.spread(sizes, len(nearest), [load[h] for h in nearest])):
            sender[row] = nearest[number]
            load[nearest[number]] += size


class _Spread:
    """Spreads sizes over bins so that the fullest bin is as small as possible; all searches share one budget."""

    def __init__(self):
        self._nodes_left = MOST_BALANCE_NODES
        self._known: dict[tuple, list[int]] = {}

    def spread(self, sizes: list[int], bins: int, filled: list[int] | None = None) -> list[int]:
        """Returns the bin of each size; the sizes must descend.

        Example:
          >>> _Spread().spread([3, 3, 2, 2, 2], 2)
          [0, 0, 1, 1, 1]
        """
        filled = filled or [0] * bins
        key = (tuple(sizes), tuple(filled))
        if key not in self._known:
            self._known[key] = self._search(sizes, filled)
        return self._known[key]

    def _search(self, sizes: list[int], filled: list[int]) -> list[int]:
        best, fullest = _largest_first(sizes, filled)
        floor = max(-(-(sum(sizes) + sum(filled)) // len(filled)), sizes[0] + min(filled), *filled)
        load, chosen, every = list(filled), [], range(len(filled))

        def place(number: int) -> None:
            nonlocal best, fullest
            if number == len(sizes):
                best, fullest = list(chosen), max(load)
                return
            size, tried = sizes[number], -1
            for bin_ in sorted(every, key=load.__getitem__):  # the emptiest first: equal loads are neighbours
                before = load[bin_]
                if before + size >= fullest or fullest == floor or not self._nodes_left:
                    return
                if before == tried:
                    continue
                tried = before
                self._nodes_left -= 1
                load[bin_] += size
                chosen.append(bin_)
                place(number + 1)
                chosen.pop()
                load[bin_] = before

        if fullest > floor and sizes[0] != sizes[-1] and len(sizes) < 200:
            place(0)
        return best


def _largest_first(sizes: list[int], filled: list[int]) -> tuple[list[int], int]:
    """Returns the bin of each size if each is put into the emptiest bin, and the load of the fullest bin."""
    load, chosen = list(filled), []
    for size in sizes:
        bin_ = min(range(len(load)), key=load.__getitem__)
        load[bin_] += size
        chosen.append(bin_)
    return chosen, max(load)
