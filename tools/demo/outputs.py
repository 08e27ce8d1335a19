# SPDX-License-Identifier: Apache-2.0
"""Decides whether the outputs of two runs of a program count as equal.

Integers and booleans must be equal in every bit. Floats and complex numbers may differ by at most `ULPS` units in the
last place of the array's largest magnitude, because another fusion, or another order of a sum, rounds differently. An
entry's own magnitude is no measure: where large terms cancel, a small entry has the rounding errors of the large terms.

Some programs make much of a rounding error: Adam divides a gradient that is nearly zero by its magnitude. So if arrays
differ by more, the program runs on one device, too. Ours counts as equal if no array departs from that run by more than
`TIMES_STOCK` times the largest departure of stock XLA's arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reshard.dialect_utils.compare.array_differences import difference, epsilon

TIMES_STOCK = 2
ULPS = 64  # in another order a sum of n terms differs by about sqrt(n) ulps; the examples sum over about 2,000 tokens


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing all outputs of a program; `text` is for the table."""

    is_equal: bool
    text: str


def compare(names: Sequence[str], stock: Sequence[np.ndarray], ours: Sequence[np.ndarray]) -> Comparison:
    """Returns whether all arrays are equal, with a text that names the array with the largest difference.

    Example:
      >>> one = np.float32([1, 2, 3])
      >>> compare(["a"], [one], [one]).text
      'equal, bit for bit (1 array)'
      >>> compare(["a", "b"], [one, one], [one, one + np.float32([0, 0, 3e-6])]).text
      'equal: 1 of 2 arrays bit for bit, the others within 1.03e-06 of their largest magnitude (limit 7.63e-06)'
      >>> compare(["a"], [one], [one * 1.001]).text
      'NOT EQUAL: a is off by 0.001 of its largest magnitude (limit 7.63e-06)'
    """
    count = f"{len(names)} array{'' if len(names) == 1 else 's'}"
    if len(stock) != len(ours):
        return Comparison(False, f"NOT EQUAL: {len(stock)} outputs from stock XLA, {len(ours)} from ours")
    offs = [_Off.between(*each) for each in zip(names, stock, ours)]
    wrong = [off for off in offs if not off.is_within_limit]
    if wrong:
        return Comparison(False, f"NOT EQUAL: {max(wrong, key=lambda off: off.fraction).text()}")
    inexact = [off for off in offs if off.fraction > 0]
    if not inexact:
        return Comparison(True, f"equal, bit for bit ({count})")
    worst = max(inexact, key=lambda off: off.fraction / off.limit)
    exact = f"{len(offs) - len(inexact)} of {count} bit for bit"
    return Comparison(True, f"equal: {exact}, the others within {worst.measure()}")


def compare_with_one_device(
    names: Sequence[str], stock: Sequence[np.ndarray], ours: Sequence[np.ndarray], one: Sequence[np.ndarray]
) -> Comparison:
    """Returns whether ours departs from the run on one device by about as much as stock XLA's does, where both differ.

    Example:
      >>> one, off = np.float32([1, 2, 3]), np.float32([0, 0, 3e-3])
      >>> compare_with_one_device(["a"], [one - off], [one + off], [one]).text
      'equal within rounding: a is off by 0.001 of its largest magnitude from one device, stock XLA by 0.001'
      >>> compare_with_one_device(["a"], [one], [one + off], [one]).is_equal
      False
    """
    differing = [each for each in zip(names, stock, ours, one) if not _Off.between(*each[:3]).is_within_limit]
    offs = [(_Off.between(name, ref, mine), _Off.between(name, ref, theirs)) for name, theirs, mine, ref in differing]
    most = TIMES_STOCK * max(theirs.fraction for _, theirs in offs)
    if any(mine.problem or mine.fraction > max(most, mine.limit) for mine, _ in offs):
        return compare(names, stock, ours)
    mine, theirs = max(offs, key=lambda each: each[0].fraction)
    departs = f"{mine.name or 'the output'} is off by {mine.fraction:.3g} of its largest magnitude from one device"
    return Comparison(True, f"equal within rounding: {departs}, stock XLA by {theirs.fraction:.3g}")


@dataclass(frozen=True, slots=True)
class _Off:
    """The difference of two arrays: `fraction` of the largest magnitude, infinite if they cannot be compared."""

    name: str
    fraction: float
    limit: float
    problem: str = ""

    @classmethod
    def between(cls, name: str, stock: np.ndarray, ours: np.ndarray) -> _Off:
        is_exact = stock.dtype.kind in "biu" or "int" in stock.dtype.name
        found = difference(stock, ours, 0.0 if is_exact else ULPS * epsilon(stock.dtype))
        return cls(name, found.fraction, 0 if found.is_equal else found.limit, found.problem)

    @property
    def is_within_limit(self) -> bool:
        return not self.problem and self.fraction <= self.limit

    def measure(self) -> str:
        return f"{self.fraction:.3g} of their largest magnitude (limit {self.limit:.3g})"

    def text(self) -> str:
        what = self.problem or "is off by " + self.measure().replace("their", "its")
        return f"{self.name or 'the output'} {what}"


def load(path: str, dtypes: Sequence[str]) -> list[np.ndarray]:
    """Returns the arrays of a worker's .npz file; numpy stores narrow floats without a type, which is restored."""
    with np.load(path) as file:
        arrays = [file[str(number)] for number in range(len(dtypes))]
    return [array if array.dtype.kind != "V" else array.view(_narrow(name)) for array, name in zip(arrays, dtypes)]


def _narrow(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))
