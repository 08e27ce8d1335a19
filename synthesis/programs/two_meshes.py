# SPDX-License-Identifier: Apache-2.0
"""Two meshes over the same devices: shardings on one expressed on the other, and pairs of devices between them.

A position on a mesh is a mixed-radix number whose digits are the coordinates. The number of a block of a sharded array
is made of some of these digits. Let q be the map that takes each position on the target's mesh to the position of the
same device on the source's mesh. If q takes digits to digits, the target's sharding can be expressed on the source's
mesh with sub-axes. For example x=4,y=2 and a=2,b=4 in row-major order are both three digits of 2, so b is the second
digit of x, followed by y.

    >>> x, a = Mesh.parse("x=4,y=2"), Mesh.parse("a=2,b=4")
    >>> print(expressed(Sharding.parse('[{"b"}, {"a"}]'), a, x))
    [{"x":(2)2, "y"}, {"x":(1)2}]

If the devices are in another order, each tile can still move as a whole to the device that has its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..layouts.blocks import Blocks
from ..layouts.layout import Layout
from ..layouts.mesh import Mesh
from ..layouts.sharding import AxisRef, Sharding, ShardingError
from .tile_program import block_ids


def expressed(sharding: Sharding, mesh: Mesh, on: Mesh) -> Sharding | None:
    """Returns the sharding on mesh `on` that places arrays as `sharding` does on `mesh`; None if there is none."""
    if mesh.size != on.size or mesh.devices != on.devices:
        return None
    to = _places(on)[ids_of(mesh)]
    groups = (*sharding.dims, *((axis,) for axis in sharding.unreduced))
    dims = [dim for axes in groups if (dim := _digits_on(on, _starts(mesh, axes), to)) is not None]
    if len(dims) < len(groups):
        return None
    rank = len(sharding.dims)
    found = Sharding(tuple(dims[:rank]), unreduced=tuple(axis for dim in dims[rank:] for axis in dim))
    try:
        return found if _numbers(found, on) == _numbers(sharding, mesh) else None
    except ShardingError:  # two digits can claim one axis if the order of devices has no digits
        return None


def in_another_order(mesh: Mesh, ids_of: Mesh) -> Mesh:
    """Returns a mesh with the axes of `mesh` and the device order of `ids_of`, a mesh of the same size."""
    return Mesh(mesh.axes, ids_of.device_ids)


def reorder_pairs(
    before: Mesh, after: Mesh, layout: Layout, layout_after: Layout | None = None, *, keeps: bool = True
) -> tuple[tuple[int, int], ...]:
    """Returns (from device, to device) pairs that take each tile of `layout` to its place on a mesh in another order.

    With `keeps`, a device that already holds its tile keeps it. All other holders of a block and all other devices that
    want it are matched in the order of their ids, since replicas are equal.

    Args:
      layout_after: the same blocks in the axes of the mesh after; None if the axes have the same names there.

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
    """Returns the position of each block of a dimension that the axes split, with all other coordinates 0."""
    positions = np.zeros(1, np.int64)
    for axis in axes:
        pre, size = axis.resolve(mesh)
        names = mesh.axis_names
        behind = int(np.prod([n for _, n in mesh.axes[names.index(axis.name) + 1 :]], dtype=np.int64))
        minor = behind * (mesh.axis_size(axis.name) // (pre * size))
        positions = (positions[:, None] + np.arange(size) * minor).reshape(-1)
    return positions


def _digits_on(on: Mesh, starts: np.ndarray, to: np.ndarray) -> tuple[AxisRef, ...] | None:
    """Returns the axes of `on`, major to minor, that number the blocks at `starts`; None if there are none.

    Args:
      to: for each position on the other mesh, the position of the same device on `on`.
    """
    q = to[starts] - to[0]
    found: list[AxisRef] = []
    at = 1
    while at < len(q):
        stride, radix = int(q[at]), _radix(q[::at])
        pieces = list(_pieces(on, stride, radix)) if stride > 0 else []
        whole = [piece for piece in pieces if piece is not None]
        if not whole or len(whole) < len(pieces):
            return None
        found = [*whole[::-1], *found]
        at *= radix
    return tuple(found)


def _radix(q: np.ndarray) -> int:
    """Returns the largest divisor n of the length such that the first n numbers are 0, q[1], 2·q[1], ..."""
    is_multiple = q == q[1] * np.arange(len(q))
    run = len(q) if is_multiple.all() else int(np.argmin(is_multiple))
    return next(n for n in range(run, 0, -1) if len(q) % n == 0)


def _pieces(on: Mesh, stride: int, radix: int) -> Iterator[AxisRef | None]:
    """Yields the (sub-)axes that make a digit of positions, minor to major; None if it cuts one in another radix."""
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
    """Returns for each device the numbers of its block along each dimension, and the number of its partial sum."""
    whole = Sharding((*sharding.dims, sharding.unreduced))
    return Blocks.of_sharding(mesh, whole.shards(mesh), whole).starts.tolist()
