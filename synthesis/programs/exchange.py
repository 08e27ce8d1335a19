# SPDX-License-Identifier: Apache-2.0
"""Exchange: the step from any placement to any placement over the same devices, as rounds of collective_permute.

**Pieces** (`exchange_pieces.py`). The pieces are the common refinement of source and target: the part of device r's
target box T_r that lies in the source box S is the box T_r ∩ S. If r does not hold S, this piece crosses the network
once, from one of the holders of S. So every device receives exactly the elements that R3 says it must. Elements that a
device holds already are copied from its own tile.

**Senders** (`exchange_pieces.py`). The holders of a piece are the replicas of one source box. The nearest of them by
`distance` send it. Among holders that are equally near, the pieces are spread so that the busiest holder sends as
little as possible. This is exact if all pieces have one size and all holders are equally near, or if a small search
proves it. Otherwise it is within 4/3 of the best spread if all holders are equally near (Graham's rule), and without a
guarantee if they are not.

**Sizes** (`exchange_sizes.py`). One collective_permute has one static shape. So pieces of different shapes in one round
cost padding, and pieces in separate rounds cost rounds. Pieces are classed by shape. Classes are merged, and pieces are
cut into powers of two times the greatest common divisor of their extents (8 against 10 shards gives pieces of 4, 3, 2
and 1), wherever that lowers the cost

    round_elements · rounds + elements of the rounds' pieces, padding included

Of equal costs the one with fewer rounds wins. The elements are those of all rounds, which run one after the other, or
those that the busiest device receives. With `round_elements=0` the latter count alone, and the traffic is exactly the
bound. With a large `round_elements` the number of rounds is the largest number of pieces that one device sends or
receives.

**Rounds** (`edge_colouring.py`). Each class is a bipartite multigraph of senders and receivers, and each colour of its
edges is a round. Large pieces are coloured first, so that they share rounds.

    >>> from ..layouts.mesh import Mesh
    >>> from ..layouts.sharding import Sharding
    >>> mesh = Mesh.parse("x=2,y=3")
    >>> halves, thirds = (Blocks.of_sharding(mesh, (6,), Sharding.parse(text)) for text in ('[{"x"}]', '[{"y"}]'))
    >>> found = plan_exchange(halves, thirds)
    >>> [(each.piece_shape, each.pairs) for each in found.rounds]
    [((2,), ((4, 1), (3, 2), (0, 3), (1, 4)))]
    >>> found.received_elements, found.bound_elements
    (2, 2)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..layouts.blocks import Blocks
from .edge_colouring import by_number, edge_colours
from .exchange_pieces import Pieces, SourceBoxes, TooManyPieces, check_ends, refinement, with_senders
from .exchange_sizes import PieceClasses
from .traffic import Collective

__all__ = ["Exchange", "Round", "TooManyPieces", "plan_exchange", "run_exchange"]

MOST_PIECES = 1 << 20  # local copies included; 1,024 devices in which all exchange with all
MOST_PIECES_BESIDE_CHAIN = 1 << 17  # if a chain exists too; 512 devices with 256 rounds, 4,096 with 32


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One collective_permute of pieces of one static shape; if senders and receivers are equal, a copy on each device.

    Row i of each array of shape (pairs, rank) belongs to pair i. The arrays are int32 or int64, read-only, and sorted
    by receiver.

    Attributes:
      piece_shape: the shape of the window that each sender reads from its source tile, and of the window that each
        receiver writes. Windows stay inside the tiles.
      senders, receivers: device ids, of shape (pairs,). No device sends twice or receives twice.
      read: the first index of the window in the sender's source tile.
      write: the first index of the window in the receiver's target tile.
      found_at, placed_at: the first valid element in the piece that arrives, and its place in the receiver's window.
        They differ only if no pair of windows has the valid part at the same place.
      extent: the size of the valid part; the rest of the receiver's window keeps its old elements.
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
        """Returns whether some valid part has another place in the piece than in the receiver's window."""
        return bool((self.found_at != self.placed_at).any())

    @property
    def is_exact(self) -> bool:
        """Returns whether every piece fills its window."""
        return bool((self.extent == self.piece_shape).all())


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """An exchange, scheduled.

    Attributes:
      source, target: the placements, which say the shapes of the tiles.
      local: the copies of devices from their own tiles; None if there are none.
      rounds: the rounds in execution order, those with the largest pieces first.
      bound_elements: the elements that the busiest device must receive by any method (R3).
    The same placements give the same exchange in every process (R5).
    """

    source: Blocks
    target: Blocks
    local: Round | None
    rounds: tuple[Round, ...]
    bound_elements: int

    @property
    def received_elements(self) -> int:
        """Returns the elements that the busiest device receives, padding included."""
        received = np.zeros(self.source.devices, np.int64)
        for each in self.rounds:
            received[each.receivers] += each.piece_elements
        return int(received.max(initial=0))

    def collectives(self, bits: int) -> tuple[Collective, ...]:
        """Returns the rounds as collectives for `traffic`; `bits` are those of one element."""
        return tuple(
            Collective("collective_permute", size, size, pairs=each.pairs)
            for each in self.rounds
            for size in (-(-each.piece_elements * bits // 8),)
        )

    def bytes_moved(self, bits: int) -> np.ndarray:
        """Returns the bytes that each device receives and sends, padding included: int64 (2, devices)."""
        moved = np.zeros((2, self.source.devices), np.int64)
        for each in self.rounds:
            num_bytes = -(-each.piece_elements * bits // 8)
            moved[0, each.receivers] += num_bytes  # no device twice
            moved[1, each.senders] += num_bytes
        return moved

    def bytes_received(self, bits: int) -> int:
        """Returns the bytes that the busiest device receives, padding included (R3)."""
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


def merged(exchanges: Sequence[Exchange]) -> Exchange | None:
    """Returns exchanges from one source tile into different parts of one target tile as one exchange.

    Rounds of different exchanges become one round if their pieces have one shape and no device sends or receives in
    both. None if a device copies from its own tile in two of them.

    Example: a roll is two exchanges, of the last elements and of the others; all devices send in one round.
    """
    locals_ = [each.local for each in exchanges if each.local is not None]
    local = _one_round(locals_) if locals_ else None
    if locals_ and local is None:
        return None
    rounds: list[Round] = []
    for each in (each for exchange in exchanges for each in exchange.rounds):
        for at, other in enumerate(rounds):
            both = _one_round([other, each])
            if both is not None:
                rounds[at] = both
                break
        else:
            rounds.append(each)
    first = exchanges[0]
    bound = max(each.bound_elements for each in exchanges)
    return Exchange(first.source, first.target, local, tuple(rounds), bound)


def _one_round(rounds: Sequence[Round]) -> Round | None:
    """Returns rounds as one; None if their pieces differ in shape, or a device would send or receive twice."""
    senders, receivers = (np.concatenate([getattr(each, name) for each in rounds]) for name in ("senders", "receivers"))
    if len({each.piece_shape for each in rounds}) > 1 or any(
        len(set(each)) < len(each) for each in (senders, receivers)
    ):
        return None
    order = np.argsort(receivers)
    names = ("senders", "receivers", "read", "write", "found_at", "placed_at", "extent")
    arrays = {name: np.concatenate([getattr(each, name) for each in rounds])[order] for name in names}
    return Round(rounds[0].piece_shape, **arrays)


def plan_exchange(
    source: Blocks,
    target: Blocks,
    *,
    distance: Callable[[int, int], float] | None = None,
    round_elements: float = 0,
    price: Callable[[Exchange], Any] | None = None,
    most_rounds: float = math.inf,
    most_pieces: float = math.inf,
) -> Exchange:
    """Returns the exchange that turns `source` into `target`.

    Args:
      source: covers the whole array. The boxes of two devices are equal or disjoint, as in `Blocks.of_sharding`.
      target: a placement over the same number of devices; its boxes may overlap.
      distance: the distance of two device ids; the nearest replicas send a piece. None: all are equally near.
      round_elements: the latency of a round, as the number of elements that could be sent in this time. 0 keeps the
        traffic at the bound.
      price: what an exchange costs, as numbers that compare. If its pieces are unlike, three schedules are compared:
        two for `round_elements`, of which one counts the elements of all rounds, and the other those that the busiest
        device receives, and the one that keeps the traffic at the bound. The price of a round may depend on the devices
        that it connects, and its largest piece may go to a device that is not the busiest.
      most_rounds, most_pieces: the caller has no use for an exchange with more rounds or more pieces.
    Raises:
      ValueError: placements of different arrays or device counts, or a source that lacks an element.
      TooManyPieces: an exchange of all with all over thousands of devices, or one that surely has more rounds than
        `most_rounds`.
    """
    boxes = SourceBoxes(source)
    check_ends(source, target, boxes)
    pieces, local = refinement(source, target, boxes, min(most_pieces, MOST_PIECES))
    arriving = int(np.bincount(pieces.dst, minlength=1).max())
    if arriving > most_rounds:
        raise TooManyPieces(f"the exchange has {arriving} rounds or more; at most {most_rounds:.0f} are of use")
    received = np.bincount(pieces.dst, weights=pieces.elements, minlength=source.devices)
    own = _round(source, target, local) if len(local.src) else None

    def classes(*asked: tuple[float, bool]) -> Iterator[list[Pieces]]:
        """Yields the classes for (latency of a round in elements, whether all rounds count); repeated ones once."""
        sent: dict[float, Pieces] = {}
        known: dict[bytes, PieceClasses] = {}
        yielded: list[list[Pieces]] = []
        for round_elements, all_rounds_count in asked:
            if round_elements not in sent:
                sent[round_elements] = with_senders(pieces, boxes, distance, round_elements)
            senders = sent[round_elements].src.tobytes()
            if senders not in known:
                known[senders] = PieceClasses(sent[round_elements], source.devices)
            found = known[senders].cheapest(round_elements, all_rounds_count)
            if not any(found is each for each in yielded):
                yielded.append(found)
                yield found

    def scheduled(found: list[Pieces]) -> Exchange:
        rounds = _scheduled(source, target, found)
        return Exchange(source, target, own, rounds, bound_elements=int(received.max(initial=0)))

    if price is None or not round_elements or pieces.are_alike:
        return scheduled(next(classes((round_elements, True))))
    return min(map(scheduled, classes((round_elements, True), (round_elements, False), (0, True))), key=price)


# ---- rounds


def _scheduled(source: Blocks, target: Blocks, classes: Sequence[Pieces]) -> tuple[Round, ...]:
    """Returns the rounds in which the senders of pieces send them, class by class."""
    rounds = []
    for group in classes:
        colour = edge_colours(group.src, group.dst, group.elements, group.are_alike, source.devices)
        order = by_number(group.dst)
        order = order[by_number(colour[order])]
        rounds += _rounds(source, target, group.at(order), np.flatnonzero(np.diff(colour[order])) + 1)
    rounds.sort(key=lambda each: (-each.piece_elements, each.piece_shape, each.senders[0], each.receivers[0]))
    return tuple(rounds)


def _rounds(source: Blocks, target: Blocks, pieces: Pieces, cuts: np.ndarray) -> list[Round]:
    """Returns one round for each run of pieces; `cuts` are the first rows of all runs but the first one."""
    runs = [slice(a, b) for a, b in itertools.pairwise([0, *cuts.tolist(), len(pieces.src)])]
    if not pieces.are_alike:
        rows = np.arange(len(pieces.src))
        return [_round(source, target, pieces.at(rows[run])) for run in runs]
    shape = pieces.extents[0].copy()  # a view would keep the whole array
    dtype = np.int32 if max(len(source.starts), *source.tile_shape, *target.tile_shape) < 1 << 31 else np.int64
    read = (pieces.lo - source.starts[pieces.src] + source.places[pieces.src]).astype(dtype)
    write = (pieces.lo - target.starts[pieces.dst] + target.places[pieces.dst]).astype(dtype)
    src, dst = pieces.src.astype(dtype), pieces.dst.astype(dtype)
    found = []
    for run in runs:
        nowhere = np.broadcast_to(np.zeros_like(shape), read[run].shape)  # pieces fill their windows
        moved = src[run], dst[run], read[run], write[run]
        found.append(Round(tuple(shape.tolist()), *moved, nowhere, nowhere, np.broadcast_to(shape, nowhere.shape)))
    return found


def _round(source: Blocks, target: Blocks, pieces: Pieces) -> Round:
    """Returns one round. Both windows have the valid part at the same place wherever that is possible."""
    shape = pieces.extents.max(axis=0)
    first_read = pieces.lo - source.starts[pieces.src] + source.places[pieces.src]
    first_write = pieces.lo - target.starts[pieces.dst] + target.places[pieces.dst]
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


# ---- the interpreter in numpy, a second witness: it reads only the rounds


def run_exchange(exchange: Exchange, tiles: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Returns every device's target tile, made by moving arrays as the rounds say; all other entries are zero."""
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
        assert 0 <= start <= start + length <= whole, (
            f"window [{start}, {start + length}) of a dimension of size {whole}"
        )
    return (*(slice(int(start), int(start) + int(length)) for start, length in zip(first, size)), ...)
