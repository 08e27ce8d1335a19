# SPDX-License-Identifier: Apache-2.0
"""R3: what any method has to move, whatever its steps.

A device ends with its target tile; what of it is not in its source tile has to arrive from another device, so the
busiest device receives at least max over devices of |target tile \\ source tile|. No chain can beat it, and most
plans meet it.
"""

from __future__ import annotations

import math

import numpy as np

from .layout import coordinates, whole_factors
from .mesh import Mesh
from .sharding import Sharding


def received_elements_bound(mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding) -> int:
    """Returns the elements that the busiest device must receive, at least; shapes in elements.

    Dimensions need not divide: tiles are those of ceil division, their part behind the array's end does not count.

    Example:
      >>> mesh = Mesh.parse("x=4,y=2")
      >>> source, target = Sharding.parse('[{"y"}, {}, {"x"}]'), Sharding.parse('[{}, {"x","y"}, {}]')
      >>> received_elements_bound(mesh, (16, 16, 16), source, target)
      448
    """
    needed = np.ones(mesh.size, dtype=np.int64)
    present = np.ones(mesh.size, dtype=np.int64)
    for dim, size in enumerate(shape):
        start, stop = _block(mesh, size, whole_factors(mesh, source)[dim])
        goal_start, goal_stop = _block(mesh, size, whole_factors(mesh, target)[dim])
        needed *= goal_stop - goal_start
        present *= np.maximum(0, np.minimum(stop, goal_stop) - np.maximum(start, goal_start))
    return int((needed - present).max())


def _block(mesh: Mesh, size: int, factors) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first index and the index behind the last one of each mesh position's block of a dimension."""
    block = np.zeros(mesh.size, dtype=np.int64)
    for factor in factors:
        block = block * factor.size + coordinates(mesh, factor)
    width = -(-size // math.prod(factor.size for factor in factors))
    return np.minimum(block * width, size), np.minimum((block + 1) * width, size)
