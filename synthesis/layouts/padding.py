# SPDX-License-Identifier: Apache-2.0
"""Padding: dimensions that do not divide, as XLA stores them, and the even problem that has the same tiles.

XLA stores a dimension of size D in s shards as tiles of w = ceil(D / s). That is an array of size s·w, whose entries
after D are padding. A *padded size* P serves a redistribution from s to t shards if P has XLA's tiles at both ends:
P = s·w_s and P = t·w_t. A side that does not split the dimension sets no condition, because a device can pad its tile
from D to P, or cut it from P to D. So a padded size exists if one side does not split the dimension, or if
s·w_s = t·w_t.

    >>> padded_shape((10,), (4,), (1,)), padded_shape((10,), (5,), (2,)), padded_shape((10,), (4,), (2,))
    ((12,), (10,), None)

In the last case tiles of 3 become tiles of 5, and no array has both. But an array of 12 has the tiles of the source,
and tiles of 6 that are nearly those of the target: only a shift between neighbours is missing.

    >>> nearly_padded_shapes((10,), (4,), (2,))
    ((12,),)
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def whole_shape(shape: Sequence[int], shards: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape filled up to a whole number of tiles along each dimension.

    Example:
      >>> whole_shape((10, 3), (4, 1))
      (12, 3)
    """
    return tuple(-(-size // n) * n for size, n in zip(shape, shards, strict=True))


def padded_shape(
    shape: Sequence[int], source_shards: Sequence[int], target_shards: Sequence[int]
) -> tuple[int, ...] | None:
    """Returns the smallest shape with XLA's tiles at both ends; None if there is none. See the module's docstring."""
    before, after = whole_shape(shape, source_shards), whole_shape(shape, target_shards)
    both = zip(before, after, source_shards, target_shards)
    if any(a != b and s > 1 and t > 1 for a, b, s, t in both):
        return None
    return tuple(map(max, before, after))


def nearly_padded_shapes(
    shape: Sequence[int], source_shards: Sequence[int], target_shards: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Returns shapes that divide into the shards of both ends.

    The first keeps the source's tiles in every dimension where that is possible, the second the target's, the last is
    the smallest.
    """
    before, after = whole_shape(shape, source_shards), whole_shape(shape, target_shards)
    least = whole_shape(shape, tuple(map(math.lcm, source_shards, target_shards)))

    def where_even(wanted: tuple[int, ...]) -> tuple[int, ...]:
        shards = zip(source_shards, target_shards)
        return tuple(size if size % s == size % t == 0 else other for size, other, (s, t) in zip(wanted, least, shards))

    return tuple(dict.fromkeys((where_even(before), where_even(after), least)))
