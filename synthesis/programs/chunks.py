# SPDX-License-Identifier: Apache-2.0
"""Chunked programs: a loop that runs a tile program on one part of the tile after the other, to save memory.

The last digit of a dimension is i mod g for an index i. It is *untouched* if every operation leaves it in its place on
its device: it is part of one axis from beginning to end, no collective moves it, and it ends where it began. Then the
elements with one value of the digit never mix with the others. So the digit can be cut into `count` equal parts: each
part is a chunk of the tile, and the program does the same on each chunk, with g / count in place of g. Temporaries
shrink by the factor `count`, the traffic stays the same, and the latency is paid `count` times. The loop takes each
chunk out of the source tile and writes it into its place in the result:

    tile [.., m·g, ..]  ->  view [.., m, g, ..], part i  ->  the program on a tile [.., m·g/count, ..]  ->  part i of
    the result

An exchange does not touch a digit whose size divides all bounds of the exchange's blocks. It is scheduled again for the
smaller chunk.

In row-major order a reshape changes no element's position. So a digit is identified by its *run*: the number of
elements from one value of the digit to the next.

    >>> from ..layouts.mesh import Mesh
    >>> from ..planner.entry import plan
    >>> from ..layouts.sharding import Sharding
    >>> ends = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]')
    >>> program = plan(Mesh.parse("x=2"), (8, 12), 32, *ends).tile_program
    >>> [untouched_digit(program, dim) for dim in range(2)]
    [4, 6]
    >>> list(cuts(program))
    [Cut(dim=0, count=2, digit=4), Cut(dim=0, count=4, digit=4), Cut(dim=1, count=6, digit=6)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..layouts.blocks import Blocks
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

Schedule = Callable[[Blocks, Blocks], Exchange]  # plans the exchange between two placements


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut into `count` chunks along dimension `dim`, whose untouched last digit has size `digit`."""

    dim: int
    count: int
    digit: int


def cuts(program: TileProgram) -> Iterator[Cut]:
    """Yields cuts, those with the fewest chunks first; of several dimensions the first one, which has the longest runs.

    For each power of two up to MOST_CHUNKS, the count is the smallest divisor of the digit that is at least that power.
    Where XLA would copy the loop's result (see `peak.py`), dimensions whose digit is the whole size of the result tile
    come first.
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
    """Returns the chunked program, which has one step, `Chunked`, with one loop."""
    body = _sliced(program, cut, schedule)
    (taken, taken_from), (put, put_at) = (_view(shape, cut) for shape in (program.in_shape, program.out_shape))
    operations = (Reshape(taken), Loop(cut.count, taken_from, put_at, body, put), Reshape(program.out_shape))
    needless = (Reshape(program.in_shape), None, Reshape(put))
    needed = tuple(each for each, same in zip(operations, needless) if each != same)
    step = Chunked(cut.dim, cut.count, tuple(step for step, _ in body.steps if not isinstance(step, Relayout)))
    return TileProgram(program.mesh, program.in_shape, program.out_shape, ((step, needed),), program.reduction)


def _view(shape: tuple[int, ...], cut: Cut) -> tuple[tuple[int, ...], int]:
    """Returns the shape of the tile with the digit as an axis of its own, and the number of that axis.

    Where this shape differs from the tile's, it has no axis of size 1: XLA may place such an array elsewhere in memory
    than the loop does, and would copy it.
    """
    if shape[cut.dim] == cut.digit:
        return shape, cut.dim
    behind = math.prod(shape[cut.dim + 1 :])
    before = math.prod(shape) // (cut.digit * behind)
    return ((before, cut.digit, behind) if behind > 1 else (before, cut.digit)), 1


# ---- how a digit passes through a program


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
    """Returns the axis that holds the digit with this run, and the digit's place in it: 1 if it is the last digit.

    Returns (-1, 1) if no axis holds the digit, or two axes hold parts of it.
    """
    behind = 1
    for axis in reversed(range(len(shape))):
        if behind * shape[axis] > run:
            return (axis, run // behind) if run % behind == 0 and shape[axis] % (run // behind) == 0 else (-1, 1)
        behind *= shape[axis]
    return -1, 1


def _size_at(shape: tuple[int, ...], run: int) -> int:
    """Returns the largest size of a digit with this run that lies in one axis."""
    axis, place = _axis_at(shape, run)
    return 1 if axis < 0 else shape[axis] // place


def _bounds_divisor(exchange: Exchange) -> np.ndarray:
    """Returns, for each dimension, the greatest common divisor of all bounds of blocks and of the tile sizes."""
    ends = (exchange.source, exchange.target)
    bounds = [np.concatenate([end.starts, end.stops, [end.tile_shape]]) for end in ends]
    return np.gcd.reduce(np.concatenate(bounds), axis=0)


def _run_after(operation: Operation, shape: tuple[int, ...], run: int) -> int | None:
    """Returns the digit's run after an operation; None if the operation touches the digit, or may touch it."""
    axis, place = _axis_at(shape, run)
    match operation:
        case Reshape() | On() | Send() | Gather() | Reduce() | PutOwn() | KeepFirst():
            return run
        case Swap(axis=moved) | ReduceOwn(axis=moved):
            return run if axis != moved else None
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
            run_after = _run_after(operation, shape, run)
            assert run_after is not None  # no operation touches the digit that is cut
            shape, run = shape_after(operation, shape), run_after
            match operation:
                case Reshape() | Resize():
                    operation = replace(operation, shape=_part(shape, run, cut.count))
                case Rounds(exchange):
                    ends = (_blocks_of_part(end, axis, cut.count) for end in (exchange.source, exchange.target))
                    operation = Rounds(schedule(*ends))
            inside.append(operation)
        filed.append((_step_on_part(step, inside, cut), tuple(inside)))
    held, wanted = (_whole_without(each, cut) for each in (program.in_shape, program.out_shape))
    return TileProgram(program.mesh, held, wanted, tuple(filed), program.reduction)


def _part(shape: tuple[int, ...], run: int, count: int) -> tuple[int, ...]:
    at, _ = _axis_at(shape, run)
    return tuple(size // count if axis == at else size for axis, size in enumerate(shape))


def _whole_without(shape: tuple[int, ...], cut: Cut) -> tuple[int, ...]:
    return tuple(size // cut.count if dim == cut.dim else size for dim, size in enumerate(shape))


def _blocks_of_part(blocks: Blocks, dim: int, count: int) -> Blocks:
    divided = np.ones(len(blocks.shape), np.int64)
    divided[dim] = count
    shape, tile = (tuple(int(size) for size in each // divided) for each in (blocks.shape, blocks.tile_shape))
    return Blocks(shape, tile, blocks.starts // divided, blocks.stops // divided, blocks.places // divided)


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
