# SPDX-License-Identifier: Apache-2.0
"""Two meshes over the same devices: one written in axes of the other, or their places paired.

A position on a mesh is a mixed-radix number whose digits are the coordinates. A block of a sharded array is a number made
of some of these digits. Let q be the map from positions of the target's mesh to those of the source's which keeps the
device. Where q takes digits to digits, the target's sharding is one on the source's mesh, in sub-axes of it: row-major
x=4,y=2 and a=2,b=4 are both three digits of 2, so that b is the second digit of x, then y.

    >>> x, a = Mesh.parse("x=4,y=2"), Mesh.parse("a=2,b=4")
    >>> print(expressed(Sharding.parse('[{"b"}, {"a"}]'), a, x))
    [{"x":(2)2, "y"}, {"x":(1)2}]

Where the devices are in another order, tiles can still change hands whole, each to the device that has its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .blocks import Blocks
from .layout import Layout
from .mesh import Mesh
from .sharding import AxisRef, Sharding, ShardingError
from .tile_program import block_ids


def expressed(sharding: Sharding, mesh: Mesh, on: Mesh) -> Sharding | None:
    """Returns the sharding on mesh `on` that places arrays as `sharding` does on `mesh`; None if there is none in digits."""
    if mesh.size != on.size or mesh.devices != on.devices:
        return None
    to = _places(on)[ids_of(mesh)]
    dims = [_digits_on(on, _starts(mesh, axes), to) for axes in (*sharding.dims, *((axis,) for axis in sharding.unreduced))]
    if any(dim is None for dim in dims):
        return None
    rank = len(sharding.dims)
    found = Sharding(tuple(dims[:rank]), unreduced=tuple(axis for dim in dims[rank:] for axis in dim))
    try:
        return found if _numbers(found, on) == _numbers(sharding, mesh) else None
    except ShardingError:  # positions in an order of no digits can make one axis of two
        return None


def in_another_order(mesh: Mesh, ids_of: Mesh) -> Mesh:
    """Returns the axes of one mesh over the devices in the order of another of equal size."""
    return Mesh(mesh.axes, ids_of.device_ids)


def reorder_pairs(
    before: Mesh, after: Mesh, layout: Layout, layout_after: Layout | None = None, *, keeps: bool = True
) -> tuple[tuple[int, int], ...]:
    """Returns (from device, to device) pairs that take each tile of `layout` to its place on a mesh in another order.

    A device that holds its tile already keeps it, or else (`keeps`) all replicas of a block and all who want it are matched in the
    order of their ids; of replicas it does not matter which one goes where.

    Args:
      layout_after: the layout in the axes of the mesh after, blocked alike; None if they are called the same there.

    Example:
      >>> one, other = Mesh.parse("x=2"), Mesh.parse('<["x"=2], device_ids=[1, 0]>')
      >>> reorder_pairs(one, other, Layout((2,), ()))
      ((0, 0), (1, 1))
    """
    sides = (before, layout), (after, layout if layout_after is None else layout_after)
    held, wanted = (block_ids(mesh, side)[_places(mesh)] for mesh, side in sides)
    stays = np.flatnonzero((held == wanted) & keeps)
    moves = np.flatnonzero((held != wanted) | (not keeps))
    senders, receivers = (moves[np.argsort(side[moves], kind="stable")] for side in (held, wanted))
    return tuple(sorted(zip([*stays.tolist(), *senders.tolist()], [*stays.tolist(), *receivers.tolist()])))


def ids_of(mesh: Mesh) -> np.ndarray:
    """Returns the device id at each position, row-major."""
    return np.arange(mesh.size) if mesh.device_ids is None else np.array(mesh.device_ids)


def _places(mesh: Mesh) -> np.ndarray:
    """Returns the position of each device id."""
    return np.argsort(ids_of(mesh))


def _starts(mesh: Mesh, axes: Sequence[AxisRef]) -> np.ndarray:
    """Returns the position, all other coordinates zero, of each block of a dimension that the axes split."""
    positions = np.zeros(1, np.int64)
    for axis in axes:
        pre, size = axis.resolve(mesh)
        names = mesh.axis_names
        behind = int(np.prod([n for _, n in mesh.axes[names.index(axis.name) + 1 :]], dtype=np.int64))
        minor = behind * (mesh.axis_size(axis.name) // (pre * size))
        positions = (positions[:, None] + np.arange(size) * minor).reshape(-1)
    return positions


def _digits_on(on: Mesh, starts: np.ndarray, to: np.ndarray) -> tuple[AxisRef, ...] | None:
    """Returns the axes of `on` that number the blocks at `starts`, major to minor; `to` takes positions to those on `on`."""
    q = to[starts] - to[0]
    found: list[AxisRef] = []
    at = 1
    while at < len(q):
        stride, radix = int(q[at]), _radix(q[::at])
        if stride <= 0 or (pieces := list(_pieces(on, stride, radix))) == [] or None in pieces:
            return None
        found = [*pieces[::-1], *found]
        at *= radix
    return tuple(found)


def _radix(q: np.ndarray) -> int:
    """Returns the largest divisor of the length up to which the numbers are multiples of the second one."""
    is_multiple = q == q[1] * np.arange(len(q))
    run = len(q) if is_multiple.all() else int(np.argmin(is_multiple))
    return next(n for n in range(run, 0, -1) if len(q) % n == 0)


def _pieces(on: Mesh, stride: int, radix: int) -> Iterator[AxisRef | None]:
    """Yields the (sub-)axes that a digit of positions is made of, minor to major; None where it cuts one in another radix."""
    start, stop, minor = stride, stride * radix, 1
    for name, size in reversed(on.axes):
        end = minor * size
        if minor <= start < end and start < stop:
            piece = min(end, stop)
            if start % minor or piece % start or end % piece or stop % piece:
                yield None
                return
            is_whole = (start, piece) == (minor, end)
            yield AxisRef(name) if is_whole else AxisRef(name, end // piece, piece // start)
            start = piece
        minor = end


def _numbers(sharding: Sharding, mesh: Mesh) -> list[list[int]]:
    """Returns for each device the numbers of its blocks, and of its partial sum."""
    whole = Sharding((*sharding.dims, sharding.unreduced))
    return Blocks.of_sharding(mesh, whole.shards(mesh), whole).starts.tolist()
