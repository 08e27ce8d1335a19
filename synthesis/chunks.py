# SPDX-License-Identifier: Apache-2.0
"""Chunked programs: a tile program on one part of the tile after the other, where all of it at once takes too much memory.

The last digit of a dimension, i mod g of an index i, is *untouched* if every operation keeps it where it is on its device: it is
part of one axis all along, no collective takes or brings it, and it ends where it began. Then the elements that have one value
of it go their way whatever the others do. Cut into `count` equal parts it counts parts of the tile, and the program does the same
thing on each of them, with g / count in place of g. So temporaries shrink by `count`, the bytes stay, and there is `count` times
the latency. Parts are taken out of the source tile, and put into the result in place:

    tile [.., m·g, ..]  ->  view [.., m, g, ..], part i  ->  the program on a tile [.., m·g/count, ..]  ->  part i of the result

An exchange leaves a digit alone whose size divides all bounds of its blocks; it is scheduled anew for a part.

In row-major order a reshape changes no element's position, so an axis's last digit is known by its *run*: the number of
elements that lie behind it, the distance between two values of the digit.

    >>> from reshard.synthesis.mesh import Mesh
    >>> from reshard.synthesis.plan import plan
    >>> from reshard.synthesis.sharding import Sharding
    >>> ends = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]')
    >>> program = plan(Mesh.parse("x=2"), (8, 12), 32, *ends).tile_program
    >>> [untouched_digit(program, dim) for dim in range(2)]
    [4, 6]
    >>> list(cuts(program))
    [Cut(dim=0, count=2, digit=4), Cut(dim=0, count=4, digit=4), Cut(dim=1, count=6, digit=6)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
import math

import numpy as np

from .blocks import Blocks
from .exchange import Exchange
from .peak import has_inner_one
from .steps import Chunked, Exchanged, Permute, Relayout, Step
from .tile_program import (
    Gather,
    KeepFirst,
    Loop,
    On,
    Operation,
    PutOwn,
    Reduce,
    ReduceOwn,
    Reshape,
    Resize,
    Rounds,
    Send,
    Swap,
    TakeOwn,
    TileProgram,
    Transpose,
    copy_text,
    shape_after,
)

MOST_CHUNKS = 256

Schedule = Callable[[Blocks, Blocks], Exchange]  # makes the exchange between two placements


@dataclass(frozen=True, slots=True)
class Cut:
    """`count` chunks along dimension `dim`, whose untouched last digit is of size `digit`, a multiple of it."""

    dim: int
    count: int
    digit: int


def cuts(program: TileProgram) -> Iterator[Cut]:
    """Yields cuts, fewest chunks first; of dimensions that offer as many the first, whose parts are the longest runs.

    Counts are, for each power of two up to MOST_CHUNKS, the least divisor of a digit that is no smaller. Dimensions in which
    the digit is all of the result's tile go before others where the loop's result would be copied (see `peak.py`).
    """
    digits = [untouched_digit(program, dim) for dim in range(len(program.in_shape))]
    is_copied = has_inner_one(program.out_shape)
    found: dict[int, Cut] = {}
    for dim in sorted(range(len(digits)), key=lambda dim: (is_copied and program.out_shape[dim] > digits[dim], dim)):
        for count in _counts(digits[dim]):
            found.setdefault(count, Cut(dim, count, digits[dim]))
    for count in sorted(found):
        yield found[count]


def _counts(digit: int) -> list[int]:
    divisors = [count for count in range(2, min(digit, MOST_CHUNKS) + 1) if digit % count == 0]
    powers = [1 << i for i in range(1, MOST_CHUNKS.bit_length())]
    return sorted({min((d for d in divisors if d >= power), default=0) for power in powers} - {0})


def looped(program: TileProgram, cut: Cut, schedule: Schedule) -> TileProgram:
    """Returns the program in chunks: one step, `Chunked`, that is a loop."""
    body = _sliced(program, cut, schedule)
    (taken, taken_from), (put, put_at) = (_view(shape, cut) for shape in (program.in_shape, program.out_shape))
    operations = (Reshape(taken), Loop(cut.count, taken_from, put_at, body, put), Reshape(program.out_shape))
    needed = tuple(each for each, shape in zip(operations, (program.in_shape, None, put)) if each != Reshape(shape))
    step = Chunked(cut.dim, cut.count, tuple(step for step, _ in body.steps if not isinstance(step, Relayout)))
    return TileProgram(program.mesh, program.in_shape, program.out_shape, ((step, needed),), program.reduction)


def _view(shape: tuple[int, ...], cut: Cut) -> tuple[tuple[int, ...], int]:
    """Returns the tile with the digit as an axis of its own, and that axis.

    A view that is not the tile has no axis of size 1: XLA may give it another place in memory than the loop has it in, and copies.
    """
    if shape[cut.dim] == cut.digit:
        return shape, cut.dim
    behind = math.prod(shape[cut.dim + 1 :])
    before = math.prod(shape) // (cut.digit * behind)
    return ((before, cut.digit, behind) if behind > 1 else (before, cut.digit)), 1


# The way of a digit through a program


def untouched_digit(program: TileProgram, dim: int) -> int:
    """Returns the size of the last digit of a dimension that no operation touches; 1 if there is none."""
    shape, run, digit = program.in_shape, math.prod(program.in_shape[dim + 1 :]), program.in_shape[dim]
    for operation in (*program.operations, Reshape(program.out_shape)):
        digit = math.gcd(digit, _size_at(shape, run))
        if digit == 1:
            return 1
        if isinstance(operation, Rounds):
            digit = math.gcd(digit, int(_bounds_divisor(operation.exchange)[_axis_at(shape, run)[0]]))
        run = _run_after(operation, shape, run)
        if run is None:
            return 1
        shape = shape_after(operation, shape)
    axis, place = _axis_at(shape, run)
    return math.gcd(digit, shape[dim]) if (axis, place) == (dim, 1) else 1


def _axis_at(shape: tuple[int, ...], run: int) -> tuple[int, int]:
    """Returns the axis that the digit with so many elements behind it is part of, and its place there: 1 if it is the last.

    (-1, 1) if it is none, or part of two.
    """
    behind = 1
    for axis in reversed(range(len(shape))):
        if behind * shape[axis] > run:
            return (axis, run // behind) if run % behind == 0 and shape[axis] % (run // behind) == 0 else (-1, 1)
        behind *= shape[axis]
    return -1, 1


def _size_at(shape: tuple[int, ...], run: int) -> int:
    """Returns how large a digit can be that begins there and is part of one axis."""
    axis, place = _axis_at(shape, run)
    return 1 if axis < 0 else shape[axis] // place


def _bounds_divisor(exchange: Exchange) -> np.ndarray:
    """Returns, for each dimension, what all bounds of blocks and the sizes of tiles are multiples of."""
    ends = (exchange.source, exchange.target)
    bounds = [np.concatenate([end.starts, end.stops, [end.tile_shape]]) for end in ends]
    return np.gcd.reduce(np.concatenate(bounds), axis=0)


def _run_after(operation: Operation, shape: tuple[int, ...], run: int) -> int | None:
    """Returns the digit's run after an operation; None if the operation touches it, or nothing is known of it."""
    axis, place = _axis_at(shape, run)
    match operation:
        case Reshape() | On() | Send() | Gather() | Reduce() | PutOwn() | KeepFirst():
            return run
        case Swap() | ReduceOwn():
            return run if axis else None
        case Resize(after):
            return place * math.prod(after[axis + 1 :]) if after[axis] == shape[axis] else None
        case Transpose(axes):
            return place * math.prod(shape[each] for each in axes[axes.index(axis) + 1 :])
        case TakeOwn(picks):
            taken = {each for each, _ in picks}
            behind = math.prod(size for each, size in enumerate(shape) if each > axis and each not in taken)
            return None if axis in taken else place * behind
        case Rounds(exchange):
            return math.prod(exchange.target.tile_shape[axis + 1 :]) if place == 1 else None
    return None


def _sliced(program: TileProgram, cut: Cut, schedule: Schedule) -> TileProgram:
    """Returns the program on one chunk."""
    shape, run = program.in_shape, math.prod(program.in_shape[cut.dim + 1 :])
    filed = []
    for step, operations in program.steps:
        inside: list[Operation] = []
        for operation in operations:
            axis, _ = _axis_at(shape, run)
            shape, run = shape_after(operation, shape), _run_after(operation, shape, run)
            match operation:
                case Reshape() | Resize():
                    operation = replace(operation, shape=_part(shape, run, cut.count))
                case Rounds(exchange):
                    ends = (_blocks_of_part(end, axis, cut.count) for end in (exchange.source, exchange.target))
                    operation = Rounds(schedule(*ends))
            inside.append(operation)
        filed.append((_step_on_part(step, inside, cut), tuple(inside)))
    ends = (_whole_without(each, cut) for each in (program.in_shape, program.out_shape))
    return TileProgram(program.mesh, *ends, tuple(filed), program.reduction)


def _part(shape: tuple[int, ...], run: int, count: int) -> tuple[int, ...]:
    at, _ = _axis_at(shape, run)
    return tuple(size // count if axis == at else size for axis, size in enumerate(shape))


def _whole_without(shape: tuple[int, ...], cut: Cut) -> tuple[int, ...]:
    return tuple(size // cut.count if dim == cut.dim else size for dim, size in enumerate(shape))


def _blocks_of_part(blocks: Blocks, dim: int, count: int) -> Blocks:
    divided = np.ones(len(blocks.shape), np.int64)
    divided[dim] = count
    shape, tile = (tuple(int(size) for size in each // divided) for each in (blocks.shape, blocks.tile_shape))
    return Blocks(shape, tile, blocks.starts // divided, blocks.stops // divided)


def _step_on_part(step: Step, operations: list[Operation], cut: Cut) -> Step:
    match step:
        case Permute(after):
            return Permute(after.slice_of(cut.dim, cut.count))
        case Exchanged(_, after):
            (rounds,) = (each for each in operations if isinstance(each, Rounds))
            return Exchanged(rounds.exchange, after and after.slice_of(cut.dim, cut.count))
        case Relayout() if any(isinstance(each, Transpose) for each in operations):
            return Relayout(copy_text(operations))
    return step
