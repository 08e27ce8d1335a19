# SPDX-License-Identifier: Apache-2.0
"""Differences between an array and the array that it should equal.

Errors are in units of the largest magnitude of the expected array. An entry's own magnitude says nothing: an entry near
zero, where large terms cancel, carries the rounding of those terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two arrays.

    Attributes:
      fraction: the largest error, in units of the largest magnitude; 0 if all bits are equal, infinite with a
        `problem`.
      limit: the largest fraction that passes as rounding.
      index: the index of the first entry whose error is above the limit; None if there is none.
      expected, found: that entry in both arrays, as text.
    """

    fraction: float
    limit: float
    problem: str = ""
    index: tuple[int, ...] | None = None
    expected: str = ""
    found: str = ""

    @property
    def is_equal(self) -> bool:
        return not self.problem and self.fraction == 0

    @property
    def is_within_limit(self) -> bool:
        return not self.problem and self.fraction <= self.limit


def difference(expected: np.ndarray, found: np.ndarray, limit: float, least: float = 0.0) -> Difference:
    """Returns the difference of two arrays. Integers and booleans must be equal, whatever the limit.

    Args:
      least: what counts as the largest magnitude if all are smaller.

    Example:
      >>> one = np.float32([1, 2, 4])
      >>> difference(one, one, 0.0).is_equal
      True
      >>> off = difference(one, np.float32([1, 2, 5]), 1e-6)
      >>> off.fraction, off.index, off.expected, off.found
      (0.25, (2,), '4.0', '5.0')
    """
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        return Difference(np.inf, 0, f"is {found.dtype}{list(found.shape)}, not {expected.dtype}{list(expected.shape)}")
    if expected.tobytes() == found.tobytes():
        return Difference(0.0, limit)
    if expected.dtype.kind in "biu" or "int" in expected.dtype.name:
        is_off = np.asarray(expected != found)
        problem = f"differs in {np.count_nonzero(is_off)} of {expected.size} integers"
        return _at_first(is_off, expected, found, np.inf, 0.0, problem)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    right, got = np.asarray(expected).astype(wide), np.asarray(found).astype(wide)
    is_finite = np.isfinite(right)
    is_same = (right == got) | (np.isnan(right) & np.isnan(got))
    if not is_same[~is_finite].all() or not np.isfinite(got[is_finite]).all():
        is_off = ~is_same & ~(is_finite & np.isfinite(got))
        return _at_first(is_off, expected, found, np.inf, limit, "has infinities or NaNs in other places")
    largest = float(np.abs(right[is_finite]).max(initial=least))
    off = np.zeros(right.shape)
    off[is_finite] = np.abs(right[is_finite] - got[is_finite])
    fraction = float(off.max(initial=0)) / largest if largest else float(np.inf if off.any() else 0)
    if fraction <= limit:
        return Difference(fraction, limit)
    return _at_first(off > limit * largest, expected, found, fraction, limit, "")


def largest_magnitude(array: np.ndarray) -> float:
    """Returns the largest finite magnitude of floats or complex numbers; 0 for other arrays.

    Example:
      >>> largest_magnitude(np.float32([1, -4, np.inf])), largest_magnitude(np.int32([7]))
      (4.0, 0.0)
    """
    if array.dtype.kind in "biu" or "int" in array.dtype.name:
        return 0.0
    magnitudes = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def epsilon(dtype) -> float:
    """Returns the distance of 1 from the next number of a numpy dtype of floats or complex numbers.

    Example:
      >>> epsilon(np.dtype("float16")), epsilon(np.dtype("complex64")) == 2**-23
      (0.0009765625, True)
    """
    if dtype.kind in "fc" and dtype.isbuiltin == 1:
        return float(np.finfo(dtype).eps)
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def _at_first(
    is_off: np.ndarray, expected: np.ndarray, found: np.ndarray, fraction: float, limit: float, problem: str
) -> Difference:
    index = tuple(int(at) for at in np.unravel_index(int(np.argmax(is_off)), is_off.shape))
    return Difference(fraction, limit, problem, index, str(expected[index]), str(found[index]))
