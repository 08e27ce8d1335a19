# SPDX-License-Identifier: Apache-2.0
"""Orders of devices in few words: as the axes of an array that change places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Sizes = tuple[int, ...]


def as_transposed(ids: Sequence[int]) -> tuple[Sizes, tuple[int, ...]] | None:
    """Returns (sizes, order) such that `arange(n).reshape(sizes).transpose(order)` has the ids, row by row; or None.

    Example:
      >>> as_transposed([0, 4, 1, 5, 2, 6, 3, 7])
      ((2, 4), (1, 0))
    """
    digits: list[tuple[int, int]] = []  # stride and size, minor first
    places = np.asarray(ids)
    passed = 1
    while passed < len(places):
        steps = places[::passed] - places[0]
        stride = int(steps[1])
        count = int(np.argmin(np.append(steps == stride * np.arange(len(steps)), False)))
        digits.append((stride, count))
        passed *= count
    sizes = tuple(size for _, size in sorted(digits, reverse=True))
    order = tuple(sorted(digits, reverse=True).index(each) for each in reversed(digits))
    if int(np.prod(sizes)) != len(places) or sorted(order) != list(range(len(sizes))):
        return None
    found = np.arange(len(places)).reshape(sizes).transpose(order).ravel()
    return (sizes, order) if (found == places).all() else None
