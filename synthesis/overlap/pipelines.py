# SPDX-License-Identifier: Apache-2.0
"""The modelled time of products whose blocks travel meanwhile.

A device multiplies one block at a time, in the order of the pipeline. Each direction of a ring carries one block at a
time. A block is multiplied when it is there, or, if its product is what travels, leaves when it is computed. What is
left is who waits for whom:

- **gather**: the own block is multiplied while the first ones come. Hop h ends at h hops; products wait for their
  block. Or a block is passed on *late*, behind its product, as compilers do that expect the product of another block to
  be long enough for a hop.
- **scatter**: a sum leaves after its product. At each hop it waits for the next term, or the term for the sum; while
  they are added, this sum does not travel. So there should be several: one goes each way, or blocks travel in parts.
  The own term comes last.
- **swap**: all blocks are for other members at once. The connection of a device carries one after the other. On the way
  in they are multiplied as they come; on the way out each leaves when it is computed, the own block is computed last.

And without blocks, in a loop:

- **ahead**: what a trip needs comes while the trip before it computes. As it is, it comes while the trip computes what
  stands before its use. It may come into the place of what the trip before it used, once that is used for the last
  time, beside the products that are left; or into another place, beside all products.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ..network.topology import Topology
from .rings import Hops

COMPUTING, LINK = "computing", "link"  # lanes
_WAYS = (f"{LINK}, forward", f"{LINK}, back")
AHEAD, IN_ANOTHER_SHAPE = "one trip ahead", " in another shape"  # in the words of patterns
_AS_FAST = 1.05
_LINE_BYTES = 64  # what memory reads at once, at least


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices on one device, batched: its sizes, and the bytes of an element of each operand and of the
    result."""

    batch: int
    rows: int
    columns: int
    inner: int
    bits: tuple[int, int, int]

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.columns * self.inner

    @property
    def bytes(self) -> int:
        sizes = self.rows * self.inner, self.inner * self.columns, self.rows * self.columns
        return self.batch * sum(size * bits for size, bits in zip(sizes, self.bits)) // 8

    @property
    def result_bytes(self) -> int:
        return self.batch * self.rows * self.columns * self.bits[2] // 8

    def seconds(self, topology: Topology, more_bytes: int = 0) -> float:
        """Returns the time of a roofline, and of a start. more_bytes: read and written beside the product."""
        computing = self.flops / topology.flops_per_s if topology.flops_per_s else 0.0
        moving = (self.bytes + more_bytes) / topology.memory_bandwidth_bytes_per_s
        return max(computing, moving) + topology.launch_latency_s


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows that are read anywhere in a table, and written one after the other.

    Attributes:
      index_bytes: of all indices. copied_bytes: of what is cut out of the table before.
    """

    rows: int
    row_bytes: int
    index_bytes: int
    copied_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Returns what is read and written: of each row whole lines of memory are read.

        Example: rows of 16 bytes are read as slowly as rows of 64 bytes.
          >>> Lookup(10, 16, 40).bytes, Lookup(10, 64, 40).bytes, Lookup(10, 64, 40, 100).bytes
          (840, 1320, 1520)
        """
        read = self.rows * -(-self.row_bytes // _LINE_BYTES) * _LINE_BYTES
        return read + self.result_bytes + self.index_bytes + 2 * self.copied_bytes

    @property
    def result_bytes(self) -> int:
        return self.rows * self.row_bytes

    def seconds(self, topology: Topology, more_bytes: int = 0) -> float:
        """Returns the time at the bandwidth of memory, and of a start; more_bytes as of a product."""
        return (self.bytes + more_bytes) / topology.memory_bandwidth_bytes_per_s + topology.launch_latency_s


@dataclass(frozen=True, slots=True)
class Span:
    """What a device does from one time to another, in seconds: computes, or sends along one of its links."""

    lane: str
    start_s: float
    end_s: float
    name: str


def end_s(spans: Sequence[Span]) -> float:
    """Returns when the last of some spans ends."""
    return max(span.end_s for span in spans)


def one_after_the_other(*parts: tuple[str, float, str]) -> list[Span]:
    """Returns the spans of (lane, seconds, name), each of which waits for the one before."""
    spans, now = [], 0.0
    for lane, seconds, name in parts:
        spans.append(Span(lane, now, now + seconds, name))
        now += seconds
    return spans


def gathered(hops: Hops, block_s: float, hop_s: float, *, is_late: bool = False) -> list[Span]:
    """Returns the spans of products of blocks that come around a ring.

    Args:
      is_late: whether each block is passed on behind its product, not when it is there.

    Example: three of four products run while blocks come, or the other way round.
      >>> [end_s(gathered(Hops(*hops), *seconds)) for hops, *seconds in
      ...     [((3, 0), 4.0, 1.0), ((3, 0), 1.0, 4.0), ((2, 1), 1.0, 4.0)]]
      [16.0, 13.0, 9.0]
      >>> [end_s(gathered(Hops(*hops), 1.0, 4.0, is_late=True)) for hops in ((3, 0), (2, 1))]
      [15.0, 10.0]
    """
    now, spans = block_s, [Span(COMPUTING, 0.0, block_s, "own")]
    sends = {False: 0.0, True: 0.0}  # when the next hop may start, by whether it goes back
    for offset in itertools.chain.from_iterable(hops.rounds()):
        name, way = f"{abs(offset)}", offset > 0
        arrives = sends[way] + hop_s
        spans.append(Span(_WAYS[way], sends[way], arrives, name))
        start, now = max(now, arrives), max(now, arrives) + block_s
        spans.append(Span(COMPUTING, start, now, name + "-" * way))
        sends[way] = now if is_late else arrives
    return spans


def scattered(hops: Hops, block_s: float, add_s: float, hop_s: float, chains: int = 1) -> list[Span]:
    """Returns the spans of a sum of products that is scattered around a ring.

    Args:
      add_s: the time in which a term is added to the sum of a block.
      chains: the number of parts in which each block travels and is computed, one after the other.

    Example: the last of four terms waits for the sum. While one part of a block travels, another is added up.
      >>> end_s(scattered(Hops(3, 0), 4.0, 0.0, 1.0)), end_s(scattered(Hops(3, 0), 1.0, 0.0, 4.0))
      (16.0, 13.0)
      >>> end_s(scattered(Hops(3, 0), 1.0, 1.0, 2.0)), end_s(scattered(Hops(3, 0), 1.0, 1.0, 2.0, chains=2))
      (10.0, 7.0)
    """
    now, links = 0.0, [0.0, 0.0]
    arrives: dict[tuple[int, int], float] = {}
    spans = []

    def added(chain: int, ways: Sequence[int], name: str) -> float:
        """Returns when a term is computed, and added to what arrives."""
        time = now + block_s / chains
        spans.append(Span(COMPUTING, now, time, name))
        for way in ways:
            if (way, chain) in arrives:
                start = max(time, arrives[way, chain])
                time = start + add_s / chains
                spans.append(Span(COMPUTING, start, time, "+"))
        return time

    for hop in range(max(hops.forward, hops.backward)):
        for chain in range(chains):
            for way, count in enumerate((hops.forward, hops.backward)):
                if hop < count:
                    name = f"{count - hop}"
                    now = added(chain, (way,), name + "-" * way)
                    start = max(now, links[way])
                    links[way] = arrives[way, chain] = start + hop_s / chains
                    spans.append(Span(_WAYS[way], start, links[way], name))
    for chain in range(chains):
        now = added(chain, (0, 1), "own")
    return spans


def swapped(block_s: float, sends_s: Sequence[float], *, is_sent: bool) -> list[Span]:
    """Returns the spans of products of blocks that members swap.

    Args:
      sends_s: the time of each send, in the order in which they start.
      is_sent: whether the products are sent; otherwise what arrives is multiplied.

    Example:
      >>> [end_s(swapped(1.0, (4.0, 4.0), is_sent=is_sent)) for is_sent in (False, True)]
      [9.0, 9.0]
    """
    now = link = 0.0
    spans = []
    if not is_sent:
        now = block_s
        spans.append(Span(COMPUTING, 0.0, now, "own"))
    for number, send_s in enumerate(sends_s, 1):
        if is_sent:
            spans.append(Span(COMPUTING, now, now + block_s, f"{number}"))
            now += block_s
        start = max(link, now) if is_sent else link
        link = start + send_s
        spans.append(Span(LINK, start, link, f"{number}"))
        if not is_sent:
            now = max(now, link)
            spans.append(Span(COMPUTING, now, now + block_s, f"{number}"))
            now += block_s
    if is_sent:
        spans.append(Span(COMPUTING, now, now + block_s, "own"))
    return spans


@dataclass(frozen=True, slots=True)
class Ahead:
    """A collective in a loop, as it is and one trip ahead.

    Attributes:
      brought_s: the time of the collective. products_s: of the products of a trip; before_s and after_s: of those
        before the first use of what is brought, and after the last one.

    Example: a gather of 2 s for the first of two products of 3 s, four times; once more, it is brought before the loop.
      >>> ahead = Ahead(2.0, 6.0, 0.0, 3.0, 4)
      >>> ahead.as_it_is_s, ahead.ahead_s, ahead.is_in_place
      (32.0, 26.0, True)
      >>> ahead = Ahead(2.0, 6.0, 0.0, 0.0, 4)
      >>> ahead.as_it_is_s, ahead.ahead_s, ahead.is_in_place
      (32.0, 26.0, False)
    """

    brought_s: float
    products_s: float
    before_s: float
    after_s: float
    trips: int

    @property
    def as_it_is_s(self) -> float:
        return self._loop_s(self.before_s)

    @property
    def ahead_s(self) -> float:
        return self.brought_s + self._loop_s(self.after_s if self.is_in_place else self.products_s)

    @property
    def is_in_place(self) -> bool:
        """Returns whether it comes into the place of what was used: where that is as fast, it takes no memory."""
        return self._loop_s(self.after_s) <= _AS_FAST * self._loop_s(self.products_s)

    def spans(self, *, is_ahead: bool) -> list[Span]:
        """Returns the spans of two trips, as it is or a trip ahead. A trip begins with what can run before."""
        rest_s, spans, now = self.products_s - self.before_s, [], 0.0
        if is_ahead:
            spans, now = one_after_the_other((LINK, self.brought_s, "1")), self.brought_s
        for trip in (1, 2):
            here_s, start = now, now
            if not is_ahead:
                here_s = now + self.brought_s
                spans.append(Span(LINK, now, here_s, f"{trip}"))
            elif self.is_in_place:
                start = now + self.products_s - self.after_s
            if self.before_s:
                spans.append(Span(COMPUTING, now, now + self.before_s, "before"))
            now = max(now + self.before_s, here_s)
            spans.append(Span(COMPUTING, now, now + rest_s, f"{trip}"))
            now += rest_s
            if is_ahead:
                spans.append(Span(LINK, start, start + self.brought_s, f"{trip + 1}"))
                now = max(now, start + self.brought_s)
        return spans

    def _loop_s(self, beside_s: float) -> float:
        return self.trips * (self.products_s + max(0.0, self.brought_s - beside_s))
