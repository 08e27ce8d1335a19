# SPDX-License-Identifier: Apache-2.0
"""Which placement an order of devices is: the row-major one, jax's, or any other."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..layouts.layout import Factor
from ..layouts.mesh import Mesh
from ..network.topology import Topology
from .columns import columns, strides
from .placement import Placement

_Digit = tuple[int, Factor]  # the distance of neighbours in network positions, and the factor


def placement_of(topology: Topology, mesh: Mesh) -> Placement | None:
    """Returns the placement with the device ids of a mesh, None if no placement has them.

    Of a mesh without ids this is the default, the row-major order of ids. There is none if radices do not fit, as
    with axes of 2 and 3 on 3 nodes of 2, or if neighbours along an axis are in another order than in the network.

    Args:
      topology: the network; it is fitted to the number of devices of the mesh.
    Raises: TopologyError if it does not fit.

    Example:
      >>> print(placement_of(Topology.parse("h100:4x8"), Mesh.parse("data=8,model=4")))
      data: node 4 x gpu 2; model: gpu 4
      >>> placement_of(Topology.parse("h100:3x2"), Mesh.parse("x=2,y=3")) is None
      True
    """
    fitted = topology.fitted(mesh.size)
    if mesh.devices > mesh.size:
        return None  # a mesh without axes on another device than the first
    ids = np.arange(mesh.size) if mesh.device_ids is None else np.asarray(mesh.device_ids)
    places = fitted.positions()[ids].reshape([size for _, size in mesh.axes])
    sizes = tuple(column.size for column in columns(fitted))
    digits = [digit for at in range(places.ndim) for digit in _digits_of(mesh, places, at)]
    on_columns = [_on_column(digits, stride, size) for stride, size in zip(strides(sizes), sizes)]
    if None in on_columns:
        return None
    found = Placement(fitted, mesh.axes, tuple(filter(None, on_columns)))
    return found if np.array_equal(found.positions(), places.ravel()) else None


def _digits_of(mesh: Mesh, places: np.ndarray, at: int) -> Iterator[_Digit]:
    """Yields digits, minor to major, that explain the places along an axis; some of them if not all can be.

    The minor digit goes as far as the places are multiples of the first one, and so on with its multiples.
    """
    name, size = mesh.axes[at]
    along = np.moveaxis(places, at, 0).reshape(size, -1)[:, 0]
    along = along - along[0]
    done = 1
    while done < size:
        stride = int(along[done])
        multiples = along[::done] == stride * np.arange(size // done)
        run = size // done if multiples.all() else int(np.argmin(multiples))
        if size // done % run:
            return
        yield stride, Factor(name, size // done // run, run)
        done *= run


def _on_column(digits: list[_Digit], inner: int, size: int) -> tuple[Factor, ...] | None:
    """Returns the factors on a column, major to minor: the parts of digits from `inner` to `inner * size`.

    None if these do not fill it.
    """
    found, outer = [], inner * size
    for stride, factor in digits:
        low, high = max(stride, inner), min(stride * factor.size, outer)
        if low < high:
            found.append((low, _part(factor, stride, low, high)))
    parts = [part for _, part in sorted(found, key=lambda each: -each[0]) if part is not None]
    if len(parts) < len(found) or math.prod(part.size for part in parts) != size:
        return None
    return tuple(parts)


def _part(factor: Factor, stride: int, low: int, high: int) -> Factor | None:
    """Returns the piece of a factor from stride `low` up to `high`; None if it cannot be cut there."""
    end = stride * factor.size
    if low % stride or high % low or end % high:
        return None
    return Factor(factor.axis, factor.pre * (end // high), high // low)
