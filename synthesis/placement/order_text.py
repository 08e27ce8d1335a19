# SPDX-License-Identifier: Apache-2.0
"""Orders of devices in few words: as the axes of an array that change places."""

from __future__ import annotations

from collections.abc import Sequence

from ..hierarchy.device_groups import factors_of
from ..layouts.mesh import Mesh

Sizes = tuple[int, ...]


def as_transposed(ids: Sequence[int]) -> tuple[Sizes, tuple[int, ...]] | None:
    """Returns (sizes, order) such that `arange(n).reshape(sizes).transpose(order)` has the ids, row by row; or None.

    Example:
      >>> as_transposed([0, 4, 1, 5, 2, 6, 3, 7])
      ((2, 4), (1, 0))
    """
    factors = factors_of(Mesh((("device", len(ids)),)), (tuple(ids),))
    if factors is None:
        return None
    rows = sorted(factors, key=lambda factor: factor.pre)
    return tuple(factor.size for factor in rows), tuple(rows.index(factor) for factor in factors)
