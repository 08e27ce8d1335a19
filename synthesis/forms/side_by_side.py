# SPDX-License-Identifier: Apache-2.0
"""Parts of the last dimension put side by side by one operation, where compilers for TPUs make more of two.

What arrives in parts along the last dimension, as behind an all_to_all, is put together by a transpose and a reshape
that joins two axes:

    [2, 16384, 256] by [1, 0, 2], reshape to [16384, 512]        =>   [2, 16384, 256], joined: [16384, 512]

No layout in memory makes a reshape free that joins the axes of a transpose. So the compiler chooses one in which the
transpose is free, [16384, 2, 256] in the order of [2, 16384, 256], and a second one for the reshape, which may have the
columns first. It gives that one to all that the result meets elementwise. Behind a gradient these are the weight and
the optimizer's state, which it copies into that layout, long before they are needed, and back again. Parts that are
joined are written where they belong in the layout that the others have.

S1  A transpose that brings one axis right before the last one, and a reshape that joins these two, are a join.
S2  Parts are whole columns of tiles, 128k of them: others would be moved by less than a tile. There are few of them,
    since each is an operation of its own.

Source: what libtpu 0.0.50 makes of a training step of MaxText on v5e:2x4 (`python -m benchmarks.trainers --size large`,
step `sequence`): the copies and what they hold are gone, a tenth of the temporaries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..programs.tile_program import Join, Loop, Operation, Reshape, TileProgram, Transpose, shape_after
from .whole_tiles import COLUMNS, Shape

MOST_PARTS = 16


def side_by_side(program: TileProgram) -> TileProgram:
    """Returns an equal program that joins parts of the last dimension where S1 and S2 say so."""
    shape, written = program.in_shape, []
    for step, operations in program.steps:
        written.append((step, tuple(_joined(operations, shape))))
        for operation in operations:
            shape = shape_after(operation, shape)
    return replace(program, steps=tuple(written))


def _joined(operations: Iterable[Operation], shape: Shape) -> list[Operation]:
    """Returns the operations of a step on a tile of `shape`, with joins."""
    found: list[Operation] = []
    before = shape  # of the last operation
    for operation in operations:
        match operation:
            case Reshape(joined) if found and (join := _join_of(found[-1], before, joined)) is not None:
                found[-1] = join
            case Loop(body=body):
                found.append(replace(operation, body=side_by_side(body)))
            case _:
                found.append(operation)
        before, shape = shape, shape_after(operation, shape)
    return found


def _join_of(transpose: Operation, shape: Shape, joined: Shape) -> Join | None:
    """Returns the join in place of a transpose of a tile of `shape` and a reshape to `joined`; None if there is none.

    Example:
      >>> _join_of(Transpose((1, 0, 2)), (2, 16384, 256), (16384, 512))
      Join(axis=0)
      >>> _join_of(Transpose((1, 0, 2)), (2, 16384, 32), (16384, 64)) is None
      True
    """
    if not isinstance(transpose, Transpose) or len(shape) < 3:
        return None
    *rest, axis, last = transpose.axes
    join = Join(axis)
    stays = [*rest, last] == [each for each in range(len(shape)) if each != axis]
    if not stays or shape_after(join, shape) != joined:
        return None
    return join if shape[last] % COLUMNS == 0 and shape[axis] <= MOST_PARTS else None
