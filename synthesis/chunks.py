# SPDX-License-Identifier: Apache-2.0
"""Chunked plans: a chain on one slice of the array after the other, where all of it at once takes too much memory.

A dimension of size D whose owned digits, in every layout of a chain, end at places that divide P has a last digit of size
D / P that no step touches. Cut into `count` equal parts it counts slices of the array, and the chain does the same thing
on each of them: the slots are the same, the dimension is D / count. So temporaries shrink by `count`, the bytes stay,
and there is `count` times the latency. Slices are taken out of the source tile, and put into the result in place:

    tile [.., m·D/P, ..]  ->  view [.., m, D/P, ..], part i  ->  the chain on a tile [.., m·D/P/count, ..]  ->  part i

An exchange between placements that are no layouts (dimensions that do not divide) is cut likewise where all bounds of its
blocks are multiples of the digit.

    >>> list(cuts((4, 6)))
    [Cut(dim=0, count=2, digit=4), Cut(dim=0, count=4, digit=4), Cut(dim=1, count=6, digit=6)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
import math

import numpy as np

from . import steps
from .blocks import Blocks
from .exchange import Exchange
from .layout import Factor, Layout, Slot  # noqa: F401: examples
from .mesh import Mesh
from .steps import Chunked, Exchanged, Permute, Relayout, Step
from .tile_program import Loop, Reshape, TileProgram

MOST_CHUNKS = 256


@dataclass(frozen=True, slots=True)
class Cut:
    """`count` chunks along dimension `dim`, whose last digit, which no step touches, is of size `digit`, a multiple of it."""

    dim: int
    count: int
    digit: int


def last_digits(source: Layout, typed: Sequence[Step]) -> tuple[int, ...]:
    """Returns for each dimension the size of the last digit that is local all along a chain.

    Example:
      >>> x = Factor("x", 1, 2)
      >>> last_digits(Layout((8, 12), ((x, Slot(0, 1, 2)),)), [steps.AllToAll(((x, Slot(1, 2, 4)),))])
      (4, 3)
    """
    shape, places = source.shape, [1] * len(source.shape)
    for layout in _layouts(source, typed):
        for _, slot in layout.owners:
            places[slot.dim] = math.lcm(places[slot.dim], slot.end)
    return tuple(size // place for size, place in zip(shape, places))


def _layouts(layout: Layout, typed: Sequence[Step]) -> list[Layout]:
    """Returns the layout before the first step and after each one."""
    found = [layout]
    for step in typed:
        found.append(steps.apply(found[-1], step))
    return found


def block_digits(*placements: Blocks) -> tuple[int, ...]:
    """Returns the same where all that is known are blocks: the last digit that no bound of a block lies inside of."""
    bounds = [np.concatenate([each.starts, each.stops, [each.shape], [each.tile_shape]]) for each in placements]
    return tuple(int(size) for size in np.gcd.reduce(np.concatenate(bounds), axis=0))


def cuts(digits: Sequence[int]) -> Iterator[Cut]:
    """Yields cuts, fewest chunks first; of dimensions that offer as many the first, whose slices are the longest runs.

    Counts are, for each power of two up to MOST_CHUNKS, the least divisor of a digit that is no smaller.
    """
    found: dict[int, Cut] = {}
    for dim, digit in enumerate(digits):
        for count in _counts(digit):
            found.setdefault(count, Cut(dim, count, digit))
    for count in sorted(found):
        yield found[count]


def _counts(digit: int) -> list[int]:
    divisors = [count for count in range(2, min(digit, MOST_CHUNKS) + 1) if digit % count == 0]
    powers = [1 << i for i in range(1, MOST_CHUNKS.bit_length())]
    return sorted({min((d for d in divisors if d >= power), default=0) for power in powers} - {0})


def on_layouts(
    mesh: Mesh, source: Layout, typed: Sequence[Step], cut: Cut, exchange: Callable[[Blocks, Blocks], Exchange]
) -> tuple[Layout, tuple[Step, ...]]:
    """Returns the source and the steps of a chain on one chunk.

    Args:
      exchange: schedules one between two placements.
    """
    layouts = [each.slice_of(cut.dim, cut.count) for each in _layouts(source, typed)]
    inside: list[Step] = []
    for step, before, after in zip(typed, layouts, layouts[1:]):
        match step:
            case Permute():
                step = Permute(after)
            case Exchanged():
                step = Exchanged(exchange(*(Blocks.of_layout(mesh, each) for each in (before, after))), after)
        inside.append(step)
    return layouts[0], tuple(inside)


def on_blocks(blocks: Blocks, cut: Cut) -> Blocks:
    """Returns the placement of one chunk."""
    divided = np.ones(len(blocks.shape), np.int64)
    divided[cut.dim] = cut.count
    shape, tile = (tuple(int(size) for size in each // divided) for each in (blocks.shape, blocks.tile_shape))
    return Blocks(shape, tile, blocks.starts // divided, blocks.stops // divided)


def looped(body: TileProgram, cut: Cut) -> TileProgram:
    """Returns the program that runs `body`, which is of one chunk, for each chunk: one step, `Chunked`."""
    before, after = (_whole(shape, cut) for shape in (body.in_shape, body.out_shape))
    (taken, taken_from), (put, put_at) = (_view(shape, cut) for shape in (before, after))
    operations = (Reshape(taken), Loop(cut.count, taken_from, put_at, body, put), Reshape(after))
    needed = tuple(each for each, shape in zip(operations, (before, None, put)) if each != Reshape(shape))
    step = Chunked(cut.dim, cut.count, tuple(step for step, _ in body.steps if not isinstance(step, Relayout)))
    return TileProgram(body.mesh, before, after, ((step, needed),), body.reduction)


def _whole(shape: tuple[int, ...], cut: Cut) -> tuple[int, ...]:
    return tuple(size * cut.count if dim == cut.dim else size for dim, size in enumerate(shape))


def _view(shape: tuple[int, ...], cut: Cut) -> tuple[tuple[int, ...], int]:
    """Returns the tile with the digit as an axis of its own, and that axis."""
    before = shape[cut.dim] // cut.digit
    if before == 1:
        return shape, cut.dim
    return (*shape[: cut.dim], before, cut.digit, *shape[cut.dim + 1 :]), cut.dim + 1
