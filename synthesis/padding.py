# SPDX-License-Identifier: Apache-2.0
"""Padding: dimensions that do not divide, as XLA stores them, and the even problem that has the same tiles.

XLA stores a dimension of size D in s shards as tiles of w = ceil(D / s): an array of size s·w, of which what lies behind D
means nothing. A *padded size* P serves a redistribution from s to t shards if its tiles are XLA's at both ends, P = s·w_s
and P = t·w_t. A side that does not split the dimension asks for nothing: its tile of D is padded, or that of P cut, on the
device. So there is a padded size wherever one side leaves the dimension whole, or both tiles make the same whole.

    >>> padded_shape((10,), (4,), (1,)), padded_shape((10,), (5,), (2,)), padded_shape((10,), (4,), (2,))
    ((12,), (10,), None)

In the last case tiles of 3 become tiles of 5, and no array has both. But an array of 12 has the tiles of the source, and
tiles of 6 that are nearly those of the target: what lies in the wrong one is a shift between neighbours.

    >>> nearly_padded_shapes((10,), (4,), (2,))
    ((12,),)
"""

from __future__ import annotations

from collections.abc import Sequence
import math


def whole_shape(shape: Sequence[int], shards: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape filled up to a whole number of tiles along each dimension.

    Example:
      >>> whole_shape((10, 3), (4, 1))
      (12, 3)
    """
    return tuple(-(-size // n) * n for size, n in zip(shape, shards, strict=True))


def padded_shape(shape: Sequence[int], source_shards: Sequence[int], target_shards: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the least shape whose tiles are XLA's at both ends, None if there is none; see the module's docstring."""
    before, after = whole_shape(shape, source_shards), whole_shape(shape, target_shards)
    both = zip(before, after, source_shards, target_shards)
    if any(a != b and s > 1 and t > 1 for a, b, s, t in both):
        return None
    return tuple(map(max, before, after))


def nearly_padded_shapes(
    shape: Sequence[int], source_shards: Sequence[int], target_shards: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Returns shapes that all shards divide: with the source's tiles where these allow it, with the target's, with neither."""
    before, after = whole_shape(shape, source_shards), whole_shape(shape, target_shards)
    least = whole_shape(shape, tuple(map(math.lcm, source_shards, target_shards)))

    def where_even(wanted: tuple[int, ...]) -> tuple[int, ...]:
        shards = zip(source_shards, target_shards)
        return tuple(size if size % s == size % t == 0 else other for size, other, (s, t) in zip(wanted, least, shards))

    return tuple(dict.fromkeys((where_even(before), where_even(after), least)))
