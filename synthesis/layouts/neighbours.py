# SPDX-License-Identifier: Apache-2.0
"""Shardings that are one edit away from another one, and other shapes of a mesh: the words in which advice is given.

An edit changes the place of one whole mesh axis, or exchanges what splits two dimensions. Every sharding without
sub-axes can be reached from every other one by edits: drop all axes, and add others. Each neighbour splits evenly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from .mesh import Mesh
from .sharding import AxisRef, Sharding

Dims = tuple[tuple[AxisRef, ...], ...]


def neighbours(sharding: Sharding, mesh: Mesh, shapes: Sequence[tuple[int, ...]]) -> list[Sharding]:
    """Returns the shardings one edit away, in the order drop, move, exchange, add; none of a sharding of partial sums.

    Args:
      shapes: global shapes, in elements, of the arrays that have the sharding; a neighbour divides all of them.
    Raises: ShardingError or MeshError for a sharding that does not fit the mesh.

    Example:
      >>> found = neighbours(Sharding.parse('[{"x"}, {}]'), Mesh.parse("x=2,y=4"), [(8, 8)])
      >>> print(*found)
      [{}, {}] [{}, {"x"}] [{"x", "y"}, {}] [{"x"}, {"y"}]
    """
    if sharding.unreduced:
        return []
    dims = sharding.dims
    found = dict.fromkeys([*_dropped(dims), *_moved(dims), *_exchanged(dims), *_added(dims, mesh)])
    found.pop(dims, None)
    made = map(Sharding, found)
    return [each for each in made if all(divides(each, mesh, shape) for shape in shapes)]


def mesh_shapes(mesh: Mesh) -> list[Mesh]:
    """Returns the meshes with the same axes and devices in other sizes; none for a mesh with an order of devices.

    First come those that have all devices on one axis, then the most similar ones.

    Example:
      >>> [shape.axes for shape in mesh_shapes(Mesh.parse("x=2,y=4"))]
      [(('x', 1), ('y', 8)), (('x', 8), ('y', 1)), (('x', 4), ('y', 2))]
    """
    if mesh.device_ids is not None:
        return []
    sizes = tuple(size for _, size in mesh.axes)
    found = [each for each in _factorizations(mesh.size, len(sizes)) if each != sizes]
    return [
        Mesh(tuple(zip(mesh.axis_names, each)))
        for each in sorted(found, key=lambda each: (max(each) < mesh.size, _distance(each, sizes)))
    ]


def _factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields the ways to write a number as a product of so many, in order."""
    if count == 0:
        yield from [()] if number == 1 else []
        return
    for first in (each for each in range(1, number + 1) if number % each == 0):
        for rest in _factorizations(number // first, count - 1):
            yield (first, *rest)


def _distance(sizes: Sequence[int], others: Sequence[int]) -> float:
    """Returns the factors by which sizes differ, as a sum of logarithms."""
    return round(sum(abs(math.log(one / other)) for one, other in zip(sizes, others)), 9)


def divides(sharding: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Returns whether every dimension of a shape, in elements, divides among its shards."""
    return all(size % shards == 0 for size, shards in zip(shape, sharding.shards(mesh), strict=True))


def _dropped(dims: Dims) -> Iterator[Dims]:
    for dim, axes in enumerate(dims):
        for axis in axes:
            yield _with(dims, dim, tuple(each for each in axes if each != axis))


def _moved(dims: Dims) -> Iterator[Dims]:
    """Yields the dims with one axis behind those of another dimension."""
    for dim, axes in enumerate(dims):
        for axis, to in itertools.product(axes, range(len(dims))):
            if to != dim:
                without = _with(dims, dim, tuple(each for each in axes if each != axis))
                yield _with(without, to, (*dims[to], axis))


def _exchanged(dims: Dims) -> Iterator[Dims]:
    for one, other in itertools.combinations(range(len(dims)), 2):
        yield _with(_with(dims, one, dims[other]), other, dims[one])


def _added(dims: Dims, mesh: Mesh) -> Iterator[Dims]:
    used = {axis.name for axes in dims for axis in axes}
    for name, dim in itertools.product([name for name, _ in mesh.axes if name not in used], range(len(dims))):
        yield _with(dims, dim, (*dims[dim], AxisRef(name)))


def _with(dims: Dims, dim: int, axes: tuple[AxisRef, ...]) -> Dims:
    return (*dims[:dim], axes, *dims[dim + 1 :])
