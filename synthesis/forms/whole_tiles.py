# SPDX-License-Identifier: Apache-2.0
"""Which reduce_scatters compilers for TPUs keep, and a form of the others that they keep.

Memory of a TPU is in tiles of 8 rows and 128 columns, the last two dimensions of an array in some order. A compiler
that cannot leave each device its part of a sum in whole tiles sums the whole array on every device, which takes twice
as long, and cuts the part out. So it does with every array of one dimension, such as all gradients in one buffer, and
with `jax.lax.psum_scatter` of one row for each device:

    reduce_scatter f32[262144] of 8                all_reduce f32[262144], then a slice
    reshape to f32[8,256,128], reduce_scatter      reduce_scatter: the parts are 32 tiles each

W1  A reduce_scatter is kept if, in an order of the dimensions that wastes less than half as much memory again,
    a part is whole rows of tiles, 8k of them or a little less; or whole columns, 128k of them, of the last dimension;
    or lies along neither, so that tiles are whole anyway.
W2  Below 64 KiB the whole is summed: the latency is what takes time there.
W3  An array that is summed whole is kept as [devices, rows, 128], if its parts lie one after the other and are a
    number of whole tiles. The reshape costs nothing for a line of elements, else a copy, against an array on the
    network. Parts that lie apart would have to be brought together first, in narrow arrays that tiles pad.

Source: what libtpu 0.0.50 makes of the 72 reduce_scatters of `python benchmarks/conversions/scattered_sums.py`. Three
of them it sums whole and W1 says that they are kept, so it errs in favour of programs as they came. Of parts that are
kept and no whole tiles the compiler sends the padding, too, and moves what is out of place: that is not in any price.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..layouts.layout import Factor
from ..programs.tile_program import (
    Loop,
    Operation,
    ReduceOwn,
    Reshape,
    TileProgram,
    collectives,
    shape_after,
)
from ..programs.traffic import Collective

ROWS, COLUMNS = 8, 128
LEAST_BYTES = 64 << 10  # W2
Shape = tuple[int, ...]


def is_kept(shape: Shape, dim: int, members: int, bits: int) -> bool:
    """Returns whether a reduce_scatter stays one (W1, W2).

    Args:
      shape: of the tile that each of `members` devices sums, in elements of `bits`. dim: the scattered dimension.

    Example:
      >>> is_kept((64, 256), 0, 8, 32), is_kept((32, 512), 0, 8, 32), is_kept((262144,), 0, 8, 32)
      (True, False, False)
    """
    sizes = [size for size in shape if size != 1]  # in memory the others are none
    if len(sizes) < 2 or math.prod(shape) * bits < 8 * LEAST_BYTES:
        return False
    at, part = sum(size != 1 for size in shape[:dim]), shape[dim] // members
    others = [*sizes[:at], *sizes[at + 1 :]]
    if at == len(sizes) - 1 and part % COLUMNS == 0:
        return True
    if at < len(sizes) - 1 and _fills(part if at == len(sizes) - 2 else sizes[-2], ROWS):
        return True
    return (_fills(part, ROWS) and any(_fills(each, COLUMNS) for each in others)) or any(
        _fills(rows, ROWS) and _fills(columns, COLUMNS) for rows, columns in itertools.permutations(others, 2)
    )


def _fills(size: int, of_tile: int) -> bool:
    """Returns whether whole tiles for a dimension waste less than half as much again."""
    return 2 * (-(-size // of_tile) * of_tile) <= 3 * size


def in_whole_tiles(program: TileProgram, bits: int) -> TileProgram:
    """Returns an equal program whose reduce_scatters are kept, as far as W3 goes.

    Args:
      program: its collectives work on any axis. bits: of an element.
    """
    shape, written = program.in_shape, []
    for step, operations in program.steps:
        own: list[Operation] = []
        for operation in operations:
            after = shape_after(operation, shape)
            match operation:
                case ReduceOwn(factors, axis) if is_to_be_rewritten(shape, axis, _members(factors), bits):
                    rows = Reshape((_members(factors), math.prod(after) // COLUMNS, COLUMNS))
                    own += [rows, ReduceOwn(factors), Reshape(after)]
                case Loop(body=body):
                    own.append(replace(operation, body=in_whole_tiles(body, bits)))
                case _:
                    own.append(operation)
            shape = after
        written.append((step, tuple(own)))
    return replace(program, steps=tuple(written))


def is_to_be_rewritten(shape: Shape, dim: int, members: int, bits: int) -> bool:
    """Returns whether a reduce_scatter is kept in another form alone (W3).

    Example:
      >>> is_to_be_rewritten((262144,), 0, 8, 32), is_to_be_rewritten((262136,), 0, 8, 32)
      (True, False)
    """
    size = math.prod(shape)
    lies_together = math.prod(shape[:dim]) == 1 and size // members % (ROWS * COLUMNS) == 0
    return lies_together and size * bits >= 8 * LEAST_BYTES and not is_kept(shape, dim, members, bits)


def as_run(program: TileProgram, bits: int) -> Iterator[Collective]:
    """Yields the collectives of a program as compilers for TPUs run it."""
    kept = _are_kept(program, bits)
    for each in collectives(program, bits):
        if each.kind == "reduce_scatter" and not next(kept):
            each = replace(each, kind="all_reduce", bytes_after=each.bytes_before)
        yield each


def _are_kept(program: TileProgram, bits: int) -> Iterator[bool]:
    """Yields for each reduce_scatter whether it is kept."""
    shape = program.in_shape
    for operation in program.operations:
        match operation:
            case ReduceOwn(factors, axis):
                yield is_kept(shape, axis, _members(factors), bits)
            case Loop(body=body):
                yield from _are_kept(body, bits)
        shape = shape_after(operation, shape)


def _members(factors: Iterable[Factor]) -> int:
    return math.prod(factor.size for factor in factors)
