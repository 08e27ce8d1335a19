# SPDX-License-Identifier: Apache-2.0
"""Exchange: the step from any placement to any placement over the same devices, as rounds of collective_permute.

**Pieces.** The common refinement of source and target: what device r lacks of its target box T_r and the holders of source
box S have is the one box T_r ∩ S. Each piece crosses the network once, from one of the holders, so that every device
receives exactly what R3 says it must. A device copies what it has from its own tile.

**Senders.** The holders of a piece are the replicas of one source box. The nearest by `distance` serve it; among equally
near ones the pieces are spread so that the busiest sends as little as possible: exactly where the pieces have equal
size and every holder is equally near, or where a small search proves it; else within 4/3 of it if all holders are equally
near (Graham's rule), without such a promise if they are not.

**Sizes.** One collective_permute has one static shape, so pieces of unlike shape cost padding, and pieces of a round apart
cost rounds. Pieces are classed by shape. Classes are merged, and the extents of pieces cut into powers of two times
their greatest common divisor (8 against 10 shards gives pieces of 4, 3, 2 and 1), where that lowers the cost

    round_elements · rounds + elements that the busiest device receives, padding included

ties by rounds. With `round_elements=0` the traffic is the bound to the element; with a large one the rounds are the
most pieces that one device sends or receives.

**Rounds.** Each class is a bipartite multigraph of senders and receivers; it is coloured with as many colours as its
largest degree (Koenig, 1916): by the shift from sender to receiver where that is a proper colouring, else edge by edge with
alternating paths, large pieces first, so that large ones share a round; where many pieces have one shape, by halving it
over and over (Gabow, 1976). Each colour is a round.

    >>> from reshard.synthesis.mesh import Mesh
    >>> from reshard.synthesis.sharding import Sharding
    >>> mesh = Mesh.parse("x=2,y=3")
    >>> halves, thirds = (Blocks.of_sharding(mesh, (6,), Sharding.parse(text)) for text in ('[{"x"}]', '[{"y"}]'))
    >>> found = plan_exchange(halves, thirds)
    >>> [(each.piece_shape, each.pairs) for each in found.rounds]
    [((2,), ((4, 1), (3, 2), (0, 3), (1, 4)))]
    >>> found.received_elements, found.bound_elements
    (2, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import copy
from dataclasses import dataclass
import functools
import itertools
import math

import numpy as np

from .blocks import Blocks, cut
from .traffic import Collective

__all__ = ["Exchange", "Round", "TooManyPieces", "check_exchange", "plan_exchange", "run_exchange"]

MOST_PIECES = 1 << 20  # copies included; 1,024 devices that all exchange with all
MOST_PIECES_BESIDE_CHAIN = 1 << 17  # where it is not all there is; 512 devices with 256 rounds, 4,096 with 32
MOST_PAIRS = 1 << 28  # of a device and a source box, all of which are compared: 16,384 devices with different boxes
MOST_EDGES_BY_PATHS = 1 << 12  # of pieces of one shape, which are coloured one by one; more are halved
MOST_STUBS_PER_EDGE = 4  # where devices have so many fewer pieces than the busiest one, halving has too much to fill up
MOST_CUTS = 5  # ways of cutting pieces that are compared
MOST_CHUNKS_PER_PIECE = 6
MOST_CLASSES_FOR_ALL_MERGES = 16
MOST_ROUND_WEIGHT = 1 << 40
MOST_BALANCE_NODES = 20_000  # of the search for the most even spread over replicas, per exchange


class TooManyPieces(ValueError):
    """An exchange that is too large to be scheduled piece by piece; collectives of groups serve such placements."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One collective_permute of a piece of static shape, or, with senders = receivers, the copy on each device.

    Row i of the arrays (pairs, rank) is about the pair i; all are int32 or int64, read-only, and sorted by receiver.

    Attributes:
      piece_shape: what each sender reads, from `read` on in its source tile; the window stays inside the tile.
      senders, receivers: device ids (pairs,). Nobody sends or receives twice.
      write: the first index of the window of `piece_shape` in the receiver's target tile; it stays inside the tile.
      found_at, placed_at: the first valid element in the piece that arrives, and its place in the receiver's window. They
        differ only where no window of the sender and of the receiver has the valid part at the same place.
      extent: the size of the valid part; the rest of the window keeps what it holds.
    """

    piece_shape: tuple[int, ...]
    senders: np.ndarray
    receivers: np.ndarray
    read: np.ndarray
    write: np.ndarray
    found_at: np.ndarray
    placed_at: np.ndarray
    extent: np.ndarray

    def __post_init__(self):
        for name in ("senders", "receivers", "read", "write", "found_at", "placed_at", "extent"):
            getattr(self, name).setflags(write=False)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Returns (sender, receiver) device ids."""
        return tuple(zip(self.senders.tolist(), self.receivers.tolist()))

    @property
    def piece_elements(self) -> int:
        return math.prod(self.piece_shape)

    @property
    def is_shifted(self) -> bool:
        """Returns whether a valid part arrives at another place of the piece than the window has it."""
        return bool((self.found_at != self.placed_at).any())

    @property
    def is_exact(self) -> bool:
        """Returns whether every piece fills its window."""
        return bool((self.extent == self.piece_shape).all())


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """An exchange, scheduled.

    Attributes:
      source, target: the placements; tiles have their tile shapes.
      local: what devices copy from their own tile, None if none does.
      rounds: in execution order, the largest pieces first.
      bound_elements: what the busiest device must receive whatever the method (R3).
    Same placements, same exchange, in every process (R5).
    """

    source: Blocks
    target: Blocks
    local: Round | None
    rounds: tuple[Round, ...]
    bound_elements: int

    @property
    def received_elements(self) -> int:
        """Returns what the busiest device receives, padding included, in elements."""
        received = np.zeros(self.source.devices, np.int64)
        for each in self.rounds:
            received[each.receivers] += each.piece_elements
        return int(received.max(initial=0))

    def collectives(self, bits: int) -> tuple[Collective, ...]:
        """Returns the rounds as `traffic` prices them; bits: of one element."""
        return tuple(
            Collective("collective_permute", size, size, pairs=each.pairs)
            for each in self.rounds
            for size in (-(-each.piece_elements * bits // 8),)
        )

    def bytes_moved(self, bits: int) -> np.ndarray:
        """Returns what each device receives, and what it sends, padding included, as `traffic` counts: int64 (2, devices)."""
        moved = np.zeros((2, self.source.devices), np.int64)
        for each in self.rounds:
            num_bytes = -(-each.piece_elements * bits // 8)
            moved[0, each.receivers] += num_bytes  # nobody twice
            moved[1, each.senders] += num_bytes
        return moved

    def bytes_received(self, bits: int) -> int:
        """Returns R3's number: the bytes that the busiest receiver gets, padding included."""
        return int(self.bytes_moved(bits)[0].max(initial=0))

    def bytes_sent(self, bits: int) -> int:
        return int(self.bytes_moved(bits)[1].max(initial=0))

    @property
    def text(self) -> str:
        """Returns e.g. `exchange in 3 rounds of [2], 2 x [1]`."""
        shapes: list[list] = []
        for each in self.rounds:
            if shapes and shapes[-1][1] == each.piece_shape:
                shapes[-1][0] += 1
            else:
                shapes.append([1, each.piece_shape])
        words = [f"{count} x {list(shape)}" if count > 1 else f"{list(shape)}" for count, shape in shapes]
        if not words:
            return "exchange without rounds"
        return f"exchange in {len(self.rounds)} round{'s' * (len(self.rounds) > 1)} of {', '.join(words)}"


def plan_exchange(
    source: Blocks,
    target: Blocks,
    *,
    distance: Callable[[int, int], float] | None = None,
    round_elements: float = 0,
    most_rounds: float = math.inf,
    most_pieces: float = math.inf,
) -> Exchange:
    """Returns the exchange that turns `source` into `target`.

    Args:
      source: covers the array; boxes of two devices are equal or disjoint, as those of `Blocks.of_sharding` are.
      target: over as many devices; its boxes may overlap.
      distance: of two device ids; the nearest replicas serve a piece. None: all are equally near.
      round_elements: what a round costs besides its traffic, as the number of elements that would take the time of its
        latency; 0 keeps the traffic at the bound.
      most_rounds, most_pieces: more are of no use.
    Raises:
      ValueError: placements of different arrays or device counts, or a source that lacks an element.
      TooManyPieces: an exchange of all with all over thousands of devices, or one that surely has more rounds than `most_rounds`.
    """
    boxes = _SourceBoxes(source)
    _check(source, target, boxes)
    pieces, local = _refinement(source, target, boxes, min(most_pieces, MOST_PIECES))
    arriving = int(np.bincount(pieces.dst, minlength=1).max())
    if arriving > most_rounds:
        raise TooManyPieces(f"the exchange has {arriving} rounds or more; at most {most_rounds:.0f} are of use")
    pieces = _with_senders(pieces, boxes, distance, round_elements)
    received = np.bincount(pieces.dst, weights=pieces.elements, minlength=source.devices)
    rounds = []
    for group in _cheapest_classes(pieces, source.devices, round_elements):
        colour = _edge_colours(group, source.devices)
        order = _order(group.dst)
        order = order[_order(colour[order])]
        rounds += _rounds(source, target, group.at(order), np.flatnonzero(np.diff(colour[order])) + 1)
    rounds.sort(key=lambda each: (-each.piece_elements, each.piece_shape, each.senders[0], each.receivers[0]))
    return Exchange(
        source,
        target,
        local=_round(source, target, local) if len(local.src) else None,
        rounds=tuple(rounds),
        bound_elements=int(received.max(initial=0)),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Pieces
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Boxes [lo, hi) in global indices, one per row; src is a device id, or before it is known a source box."""

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

    def at(self, rows: np.ndarray) -> _Pieces:
        return _Pieces(*(each.take(rows, axis=0) for each in (self.src, self.dst, self.lo, self.hi)))

    @functools.cached_property
    def are_alike(self) -> bool:
        """Returns whether all have one shape."""
        return bool((self.extents == self.extents[:1]).all())


class _SourceBoxes:
    """The different boxes of a source, and for each its holders in ascending order."""

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
        """Returns (starts, stops) of the intervals of each dimension whose grid the boxes are, row-major; None if of none."""
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


def _check(source: Blocks, target: Blocks, boxes: _SourceBoxes) -> None:
    if source.shape != target.shape:
        raise ValueError(f"source places an array of shape {list(source.shape)}, target one of {list(target.shape)}")
    if source.devices != target.devices:
        raise ValueError(f"source is over {source.devices} devices, target over {target.devices}")
    covered = int((boxes.stops - boxes.starts).prod(axis=1).sum())
    if covered != math.prod(source.shape):
        raise ValueError(f"the source's boxes have {covered} of {math.prod(source.shape)} elements; each is needed once")


def _refinement(source: Blocks, target: Blocks, boxes: _SourceBoxes, most_pieces: int) -> tuple[_Pieces, _Pieces]:
    """Returns the pieces to move, from source boxes to devices, and those to copy, from device to device."""
    intervals = boxes.intervals()
    if intervals is None:
        device, box = _meetings(target, boxes, most_pieces)
    else:
        device, box = _meetings_on_grid(target, intervals, most_pieces)
    pieces = _Pieces(
        box,
        device,
        np.maximum(target.starts[device], boxes.starts[box]),
        np.minimum(target.stops[device], boxes.stops[box]),
    )
    is_own = boxes.of_device[device] == box
    own = pieces.at(np.flatnonzero(is_own))
    return pieces.at(np.flatnonzero(~is_own)), _Pieces(own.dst, own.dst, own.lo, own.hi)


def _meetings(target: Blocks, boxes: _SourceBoxes, most_pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (device, source box) wherever a device's target box has something of a source box, in ascending order."""
    if target.devices * len(boxes.count) > MOST_PAIRS:
        raise TooManyPieces(f"{target.devices} devices and {len(boxes.count)} source tiles are too many for an exchange")
    meets = np.repeat((target.elements > 0)[:, None], len(boxes.count), axis=1)
    for dim in range(len(target.shape)):
        meets &= target.starts[:, None, dim] < boxes.stops[None, :, dim]
        meets &= boxes.starts[None, :, dim] < target.stops[:, None, dim]
    _check_number(np.count_nonzero(meets), most_pieces)
    return np.nonzero(meets)


def _meetings_on_grid(target: Blocks, intervals, most_pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same where the source boxes are all those of a grid: those that a box meets are a box of the grid."""
    first = [np.searchsorted(stops, target.starts[:, dim], side="right") for dim, (_, stops) in enumerate(intervals)]
    last = [np.searchsorted(starts, target.stops[:, dim], side="left") for dim, (starts, _) in enumerate(intervals)]
    counts = [np.where(target.elements > 0, b - a, 0) for a, b in zip(first, last)]
    number = np.multiply.reduce(counts)
    total = int(number.sum())
    _check_number(total, most_pieces)
    device = np.repeat(np.arange(target.devices), number)
    left = np.arange(total) - np.repeat(np.cumsum(number) - number, number)  # of those that the device meets
    box, place = np.zeros(total, np.int64), 1
    for (starts, _), at, count in reversed(list(zip(intervals, first, counts))):
        box += (at[device] + left % count[device]) * place
        left //= count[device]
        place *= len(starts)
    return device, box


def _check_number(pieces: int, most_pieces: int) -> None:
    if pieces > most_pieces:
        raise TooManyPieces(f"the exchange has {pieces} pieces; at most {most_pieces} are scheduled")


# ---------------------------------------------------------------------------------------------------------------------
# Senders
# ---------------------------------------------------------------------------------------------------------------------


def _with_senders(pieces: _Pieces, boxes: _SourceBoxes, distance, round_elements: float) -> _Pieces:
    """Returns the pieces with a device in place of the source box; a piece weighs its elements and those of its round."""
    if (boxes.count == 1).all():
        return _Pieces(boxes.holders[boxes.first[pieces.src]], pieces.dst, pieces.lo, pieces.hi)
    weights = pieces.elements + int(min(round_elements, MOST_ROUND_WEIGHT))
    is_even = bool((weights == weights[:1]).all())
    order = _order(pieces.src) if is_even else np.lexsort((pieces.dst, -weights, pieces.src))
    box = pieces.src[order]
    rank = np.arange(len(order)) - np.searchsorted(box, box)  # of a piece among those of its box
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
    return _Pieces(sender, pieces.dst, pieces.lo, pieces.hi)


def _order(numbers: np.ndarray) -> np.ndarray:
    """Returns the rows by their numbers, from 0, rows of equal numbers as they are."""
    is_small = numbers.max(initial=0) < 1 << 16
    return np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable")  # small ones are counted, not compared


def _runs(sorted_keys: np.ndarray, order: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Returns (key, rows of `order` with that key) for keys that ascend."""
    ends = np.flatnonzero(np.diff(sorted_keys)) + 1
    for rows in np.split(np.arange(len(order)), ends) if len(order) else ():
        yield int(sorted_keys[rows[0]]), order[rows]


def _serve_from_nearest(sender, rows, dst, weights, holders: list[int], distance, search: _Spread) -> None:
    """Sets the senders of the pieces of one source box, largest piece first.

    Pieces with the same nearest holders are spread together, the pieces with the least choice first.
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
    """Spreads sizes over bins so that the fullest bin is as small as possible; a budget of nodes bounds all searches."""

    def __init__(self):
        self._nodes_left = MOST_BALANCE_NODES
        self._known: dict[tuple, list[int]] = {}

    def spread(self, sizes: list[int], bins: int, filled: list[int] | None = None) -> list[int]:
        """Returns the bin of each size; sizes descend.

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
        load, chosen = list(filled), []

        def place(number: int) -> None:
            nonlocal best, fullest
            if number == len(sizes):
                best, fullest = list(chosen), max(load)
                return
            tried = set()
            for bin_ in sorted(range(len(load)), key=load.__getitem__):
                if load[bin_] + sizes[number] >= fullest or fullest == floor or not self._nodes_left:
                    return
                if load[bin_] in tried:
                    continue
                tried.add(load[bin_])
                self._nodes_left -= 1
                load[bin_] += sizes[number]
                chosen.append(bin_)
                place(number + 1)
                chosen.pop()
                load[bin_] -= sizes[number]

        if fullest > floor and sizes[0] != sizes[-1] and len(sizes) < 200:
            place(0)
        return best


def _largest_first(sizes: list[int], filled: list[int]) -> tuple[list[int], int]:
    """Returns the bin of each size, each put into the emptiest bin, and what the fullest bin then has."""
    load, chosen = list(filled), []
    for size in sizes:
        bin_ = min(range(len(load)), key=load.__getitem__)
        load[bin_] += size
        chosen.append(bin_)
    return chosen, max(load)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes
# ---------------------------------------------------------------------------------------------------------------------


def _cheapest_classes(pieces: _Pieces, devices: int, round_elements: float) -> list[_Pieces]:
    """Returns pieces, perhaps cut, in the classes whose rounds are cheapest together."""
    if not len(pieces.src):
        return []
    if pieces.are_alike:
        return [pieces]
    best, least = None, None
    round_elements = float(round_elements)
    for candidate in (pieces, *_ways_to_cut(pieces)):
        classes = _Classes(candidate, devices)
        for merged in (classes.merged_cheapest(round_elements), classes.merged_all()):
            cost = merged.cost(round_elements)
            if least is None or cost < least:
                best, least = merged, cost
    return best.members()


def _ways_to_cut(pieces: _Pieces) -> Iterator[_Pieces]:
    """Returns the pieces with unlike extents cut into powers of two of their unit, with ever smaller largest chunks."""
    extents = pieces.extents
    unlike = [dim for dim in range(extents.shape[1]) if (extents[:, dim] != extents[0, dim]).any()]
    if not unlike:
        return
    units = np.gcd.reduce(extents, axis=0)
    most_bits = max(int(extents[:, dim].max() // units[dim]).bit_length() for dim in unlike)
    for fewer in range(min(most_bits, MOST_CUTS)):
        found = pieces
        for dim in unlike:
            bits = max(1, int(extents[:, dim].max() // units[dim]).bit_length() - fewer)
            found = _cut_into_powers(found, dim, int(units[dim]), bits)
            if len(found.src) > MOST_CHUNKS_PER_PIECE * len(pieces.src):
                return
        yield found


def _cut_into_powers(pieces: _Pieces, dim: int, unit: int, bits: int) -> _Pieces:
    """Returns the pieces with their extents in one dimension cut into unit · 2^k, k < bits, large chunks first."""
    left = pieces.extents[:, dim] // unit
    start = pieces.lo[:, dim].copy()
    rows, starts, sizes = [], [], []
    for bit in reversed(range(bits)):
        count = left >> bit
        row = np.repeat(np.arange(len(left)), count)
        number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        rows.append(row)
        starts.append(start[row] + number * (unit << bit))
        sizes.append(np.full(len(row), unit << bit))
        start += count * (unit << bit)
        left = left - (count << bit)
    found = pieces.at(np.concatenate(rows))
    found.lo[:, dim] = np.concatenate(starts)
    found.hi[:, dim] = found.lo[:, dim] + np.concatenate(sizes)
    return found


class _Classes:
    """Pieces classed by shape; merged classes have the smallest shape that holds all their pieces.

    `degree[end][k, d]` is how many pieces of class k device d receives (end 0) or sends (end 1).
    """

    def __init__(self, pieces: _Pieces, devices: int):
        self.pieces = pieces
        extents = pieces.extents
        radix = extents.max(axis=0) + 1
        key = extents @ np.append(np.cumprod(radix[:0:-1])[::-1], 1)[: len(radix)]  # of a shape, as one number
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        by_size = np.argsort(extents[first].prod(axis=1), kind="stable")
        self.shapes = extents[first][by_size]
        self.class_of = np.argsort(by_size)[number.reshape(-1)]
        self.degree = [
            np.bincount(self.class_of * devices + device, minlength=len(first) * devices).reshape(-1, devices)
            for device in (pieces.dst, pieces.src)
        ]

    def members(self) -> list[_Pieces]:
        return [self.pieces.at(np.flatnonzero(self.class_of == number)) for number in range(len(self.shapes))]

    def cost(self, round_elements: float) -> tuple:
        """Returns (modelled elements, rounds, elements that the busiest sends)."""
        volumes = self.shapes.prod(axis=1)
        rounds = int(sum(max(r.max(), s.max()) for r, s in zip(*self.degree)))
        received, sent = (int((volumes @ degree).max()) for degree in self.degree)
        return rounds * round_elements + received, rounds, sent

    def merged_all(self) -> _Classes:
        """Returns all classes as one: no other way has fewer rounds."""
        one = copy.copy(self)
        one.shapes = self.shapes.max(axis=0, keepdims=True)
        one.degree = [degree.sum(axis=0, keepdims=True) for degree in self.degree]
        one.class_of = np.zeros_like(self.class_of)
        return one

    def merged_cheapest(self, round_elements: float) -> _Classes:
        """Returns the classes after those two are merged that lower the cost most, as long as any do."""
        found = copy.copy(self)
        while found._merge_cheapest(round_elements):
            pass
        return found

    def _merge_cheapest(self, round_elements: float) -> bool:
        if len(self.shapes) == 1:
            return False
        first, second = self._mergeable()
        costs = list(zip(*self._costs_if_merged(first, second, round_elements)))
        best = min(range(len(costs)), key=costs.__getitem__)
        if costs[best] >= self.cost(round_elements):
            return False
        self._merge(int(first[best]), int(second[best]))
        return True

    def _mergeable(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of classes to consider: all, or if they are many, neighbours in size."""
        count = len(self.shapes)
        if count <= MOST_CLASSES_FOR_ALL_MERGES:
            return np.triu_indices(count, 1)
        return np.arange(count - 1), np.arange(1, count)

    def _costs_if_merged(self, first, second, round_elements: float) -> tuple[list, list, list]:
        volumes = self.shapes.prod(axis=1)
        merged = np.maximum(self.shapes[first], self.shapes[second]).prod(axis=1)
        busiest, most = [], []
        for degree in self.degree:
            now = volumes @ degree
            grown = (merged - volumes[first])[:, None] * degree[first] + (merged - volumes[second])[:, None] * degree[second]
            busiest.append((now + grown).max(axis=1))
            most.append((degree[first] + degree[second]).max(axis=1))
        rounds_of = np.maximum(self.degree[0].max(axis=1), self.degree[1].max(axis=1))
        rounds = rounds_of.sum() - rounds_of[first] - rounds_of[second] + np.maximum(*most)
        received, sent = busiest
        return (rounds * round_elements + received).tolist(), rounds.tolist(), sent.tolist()

    def _merge(self, first: int, second: int) -> None:
        """Merges `second` into `first`, in new arrays."""
        kept = np.arange(len(self.shapes)) != second
        shapes = self.shapes.copy()
        shapes[first] = np.maximum(shapes[first], shapes[second])
        self.shapes = shapes[kept]
        degrees = [degree.copy() for degree in self.degree]
        for degree in degrees:
            degree[first] += degree[second]
        self.degree = [degree[kept] for degree in degrees]
        joined = np.where(self.class_of == second, first, self.class_of)
        self.class_of = joined - (joined > second)


# ---------------------------------------------------------------------------------------------------------------------
# Rounds
# ---------------------------------------------------------------------------------------------------------------------


def _edge_colours(pieces: _Pieces, devices: int) -> np.ndarray:
    """Returns a colour of each piece: pieces of one colour have different senders and different receivers.

    There are as many colours as the busiest device has pieces to send or to receive.
    """
    degree = int(max(np.bincount(pieces.src).max(), np.bincount(pieces.dst).max()))
    if degree == 1:
        return np.zeros(len(pieces.src), np.int64)
    for shift in ((pieces.dst - pieces.src) % devices, pieces.dst ^ pieces.src):
        number = np.cumsum(np.bincount(shift) > 0) - 1
        if number[-1] + 1 == degree and np.diff(np.sort(pieces.src * devices + pieces.dst)).all():  # each pair of devices once
            return number[shift]
    width = 1 << (degree - 1).bit_length()
    if MOST_EDGES_BY_PATHS < len(pieces.src) and width * devices <= MOST_STUBS_PER_EDGE * len(pieces.src) and pieces.are_alike:
        return _coloured_by_halves(pieces.src, pieces.dst, degree, width, devices)
    order = np.lexsort((pieces.dst, (pieces.dst - pieces.src) % devices, -pieces.elements))
    return _coloured_by_paths(pieces.src.tolist(), (pieces.dst + devices).tolist(), order.tolist(), degree, 2 * devices)


def _coloured_by_halves(src: np.ndarray, dst: np.ndarray, degree: int, width: int, devices: int) -> np.ndarray:
    """Returns a proper colouring with `degree` colours.

    The multigraph is filled up until every device sends and receives `width` pieces, a power of two, and halved until they
    send and receive one. Of these `width` colours the smallest ones are given up, and their edges coloured by paths.
    """
    lacking = [width - np.bincount(end, minlength=devices) for end in (src, dst)]
    ends = [np.concatenate([end, np.repeat(np.arange(devices), more)]) for end, more in zip((src, dst), lacking)]
    by_end = [_order(end).astype(np.int32) for end in ends]  # there are fewer than 2^31 pieces, and half the memory is to be read
    colour, bit = np.zeros(len(ends[0]), np.int64), 1
    while bit < width:
        second = _second_half(*by_end)
        colour += bit * second
        by_end = [_first_half_first(order, second) for order in by_end]
        bit *= 2
    colour = colour[: len(src)]
    if degree == width:
        return colour
    kept = np.argsort(-np.bincount(colour, minlength=width), kind="stable")[:degree]
    number = np.full(width, -1)
    number[kept] = np.arange(degree)
    colour = number[colour]
    order = np.flatnonzero(colour < 0)
    return _coloured_by_paths(src.tolist(), (dst + devices).tolist(), order.tolist(), degree, 2 * devices, colour.tolist())


def _first_half_first(order: np.ndarray, second: np.ndarray) -> np.ndarray:
    is_second = second[order]
    return np.concatenate([order[~is_second], order[is_second]])


def _second_half(*by_end: np.ndarray) -> np.ndarray:
    """Returns whether each edge is in the second half: each node has as many edges there as in the first.

    Args:
      by_end: the edges in the order of their senders, and of their receivers. Every node has an even number, so two in a row
        share it. One of each two is in the second half: along the cycles of neighbours in both orders, every other one.
    """
    beside = []
    for order in by_end:
        other = np.empty_like(order)
        other[order[::2]], other[order[1::2]] = order[1::2], order[::2]
        beside.append(other)
    ahead = beside[1][beside[0]]  # the edge after the next one of the cycle
    least = np.arange(len(ahead), dtype=ahead.dtype)  # of those up to where `ahead` leads, and in the end of every other one of the cycle
    while (further := np.minimum(least, least[ahead])).tobytes() != least.tobytes():
        least, ahead = further, ahead[ahead]
    return least > least[beside[0]]


def _coloured_by_paths(
    src: list[int], dst: list[int], order: list[int], degree: int, nodes: int, colour: list[int] | None = None
) -> np.ndarray:
    """Returns a proper colouring with `degree` colours: the lowest that is free at both ends, made free if none is.

    Given a `colour` of the edges that are not in `order`, these may change it along a path too.

    If a is free at the sender and b at the receiver, the path from the receiver whose edges have colours a, b, a, ... ends
    before it reaches the sender; with a and b swapped along it, a is free at both.
    """
    free = [(1 << degree) - 1] * nodes  # bits of the colours that no edge at the node has
    edge_at: list[dict[int, int]] = [{} for _ in range(nodes)]
    colour = colour or [-1] * len(src)
    for edge, chosen in enumerate(colour):
        if chosen >= 0:
            edge_at[src[edge]][chosen] = edge_at[dst[edge]][chosen] = edge
            free[src[edge]] ^= 1 << chosen
            free[dst[edge]] ^= 1 << chosen
    for edge in order:
        sender, receiver = src[edge], dst[edge]
        common = free[sender] & free[receiver]
        if not common:
            a, b = _lowest(free[sender]), _lowest(free[receiver])
            _swap_along_path(receiver, a, b, src, dst, edge_at, free, colour)
            common = 1 << a
        bit = common & -common
        chosen = bit.bit_length() - 1
        colour[edge] = chosen
        edge_at[sender][chosen] = edge_at[receiver][chosen] = edge
        free[sender] ^= bit
        free[receiver] ^= bit
    return np.array(colour)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _swap_along_path(node: int, a: int, b: int, src, dst, edge_at, free, colour) -> None:
    """Swaps colours a and b along the path from `node` that begins with colour a."""
    path, wanted, at = [], a, node
    while wanted in edge_at[at]:
        edge = edge_at[at][wanted]
        path.append(edge)
        at = src[edge] + dst[edge] - at
        wanted = a + b - wanted
    for edge in path:
        del edge_at[src[edge]][colour[edge]], edge_at[dst[edge]][colour[edge]]
    for edge in path:
        colour[edge] = a + b - colour[edge]
        edge_at[src[edge]][colour[edge]] = edge_at[dst[edge]][colour[edge]] = edge
    for end in (node, at):  # those between have both colours, before and after
        free[end] ^= 1 << a | 1 << b


def _rounds(source: Blocks, target: Blocks, pieces: _Pieces, cuts: np.ndarray) -> list[Round]:
    """Returns a round of each run of the pieces, which are cut there."""
    runs = [slice(a, b) for a, b in itertools.pairwise([0, *cuts.tolist(), len(pieces.src)])]
    if not pieces.are_alike:
        rows = np.arange(len(pieces.src))
        return [_round(source, target, pieces.at(rows[run])) for run in runs]
    shape = pieces.extents[0].copy()  # a view would keep all
    dtype = np.int32 if max(len(source.starts), *source.tile_shape, *target.tile_shape) < 1 << 31 else np.int64
    read = (pieces.lo - source.starts[pieces.src]).astype(dtype)
    write = (pieces.lo - target.starts[pieces.dst]).astype(dtype)
    src, dst = pieces.src.astype(dtype), pieces.dst.astype(dtype)
    found = []
    for run in runs:
        nowhere = np.broadcast_to(np.zeros_like(shape), read[run].shape)  # pieces fill their windows
        moved = src[run], dst[run], read[run], write[run]
        found.append(Round(tuple(shape.tolist()), *moved, nowhere, nowhere, np.broadcast_to(shape, nowhere.shape)))
    return found


def _round(source: Blocks, target: Blocks, pieces: _Pieces) -> Round:
    """Returns one round: windows in the tiles, the valid part at the same place of both wherever that is possible."""
    shape = pieces.extents.max(axis=0)
    first_read = pieces.lo - source.starts[pieces.src]
    first_write = pieces.lo - target.starts[pieces.dst]
    room_to_read = np.array(source.tile_shape, np.int64) - shape
    room_to_write = np.array(target.tile_shape, np.int64) - shape
    least = np.maximum(0, np.maximum(first_read - room_to_read, first_write - room_to_write))
    most = np.minimum(np.minimum(first_read, first_write), shape - pieces.extents)
    found_at = np.where(least <= most, least, np.maximum(0, first_read - room_to_read))
    placed_at = np.where(least <= most, least, np.maximum(0, first_write - room_to_write))
    return Round(
        piece_shape=tuple(shape.tolist()),
        senders=pieces.src,
        receivers=pieces.dst,
        read=first_read - found_at,
        write=first_write - placed_at,
        found_at=found_at,
        placed_at=placed_at,
        extent=pieces.extents,
    )


# ---------------------------------------------------------------------------------------------------------------------
# The numpy interpreter, the second witness: it knows the tables alone
# ---------------------------------------------------------------------------------------------------------------------


def run_exchange(exchange: Exchange, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Returns every device's target tile, zero where it holds nothing, by moving arrays as the rounds say."""
    dtype = next(iter(tiles.values())).dtype
    results = {device: np.zeros(exchange.target.tile_shape, dtype) for device in tiles}
    for each in (exchange.local, *exchange.rounds):
        if each is None:
            continue
        assert len(set(each.senders.tolist())) == len(set(each.receivers.tolist())) == len(each.pairs)
        on_the_way = {}
        for i, (sender, receiver) in enumerate(each.pairs):
            on_the_way[receiver] = tiles[sender][_window(each.read[i], each.piece_shape, tiles[sender].shape)]
        for i, receiver in enumerate(each.receivers.tolist()):
            result = results[receiver]
            window = result[_window(each.write[i], each.piece_shape, result.shape)]
            valid = on_the_way[receiver][_window(each.found_at[i], each.extent[i], each.piece_shape)]
            window[_window(each.placed_at[i], each.extent[i], each.piece_shape)] = valid
    return results


def _window(first, size, shape: tuple[int, ...]) -> tuple:
    for start, length, whole in zip(first, size, shape, strict=True):
        assert 0 <= start <= start + length <= whole, f"window [{start}, {start + length}) of a dimension of size {whole}"
    return (*(slice(int(start), int(start) + int(length)) for start, length in zip(first, size)), ...)


def check_exchange(exchange: Exchange) -> None:
    """Raises: AssertionError if an element of a device's target box is not the one that belongs there."""
    indices = np.arange(1, 1 + math.prod(exchange.source.shape)).reshape(exchange.source.shape)
    got = run_exchange(exchange, cut(indices, exchange.source, padding=-1))
    for device, expected in cut(indices, exchange.target).items():
        assert (got[device] == expected).all(), f"device {device} holds other elements than its box"
