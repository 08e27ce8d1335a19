# SPDX-License-Identifier: Apache-2.0
"""How much a program enlarges errors of rounding, and inputs on which it does not.

A loop may enlarge a small error in each of its turns, until two correct runs differ in their first digits. A limit of
rounding, which counts the terms of sums, does not know that. Two questions tell such a difference from a wrong one:

- Does the program without any partitioning move as far, if its inputs change by a unit in the last place?
- Is the difference gone on smaller inputs, on which it does not move?

A value that is moved to a wrong place, counted twice or lost, is wrong on small inputs, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .array_differences import Difference, difference, epsilon

DIVISORS = (4, 16, 64)  # of the inputs; the first that calms the program is taken
_LEAST_PART = 1 / 16  # of a difference that a unit in the last place has to cause, to explain it

Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray] | None]


@dataclass(frozen=True, slots=True)
class Calm:
    """Inputs on which a program does not enlarge errors.

    Attributes:
      inputs: the floats among them are a `divisor`-th of the original ones.
      outputs: what the program gives for them.
    """

    inputs: list[np.ndarray]
    outputs: Sequence[np.ndarray]
    divisor: int


class Sensitivity:
    """The sensitivity of a program to the last bits of its inputs.

    Args:
      run: runs the program, unsharded on one device; None if that fails.
      inputs: the inputs, and `expected` the outputs for them.
      limits: for each output the largest difference that passes as rounding, in units of its largest magnitude.
    """

    def __init__(self, run: Run, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray], limits: Sequence[float]):
        self._run, self._inputs, self._expected, self._limits = run, inputs, expected, limits

    def explains(self, found: Sequence[np.ndarray]) -> bool:
        """Returns whether each output that is off moves about as far by itself."""
        off = self._differences(self._expected, found)
        return self._moved is not None and all(
            each.is_within_limit or moved.fraction >= each.fraction * _LEAST_PART
            for each, moved in zip(off, self._moved, strict=True)
        )

    @functools.cached_property
    def calm(self) -> Calm | None:
        """Smaller inputs on which no output moves beyond its limit; None if there are none."""
        for divisor in DIVISORS:
            inputs = [smaller(each, divisor) for each in self._inputs]
            outputs = self._run(inputs)
            if outputs is None or not all(map(_says_as_much, self._expected, outputs)):
                return None
            moved = self._moved_by(inputs, outputs)
            if moved is not None and all(each.is_within_limit for each in moved):
                return Calm(inputs, outputs, divisor)
        return None

    @functools.cached_property
    def _moved(self) -> list[Difference] | None:
        return self._moved_by(self._inputs, self._expected)

    def _moved_by(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> list[Difference] | None:
        again = self._run([nudged(each, number) for number, each in enumerate(inputs)])
        return None if again is None else self._differences(outputs, again)

    def _differences(self, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> list[Difference]:
        return [difference(a, b, limit) for a, b, limit in zip(expected, found, self._limits, strict=True)]


def nudged(array: np.ndarray, seed: int) -> np.ndarray:
    """Returns floats moved by a unit in the last place, up or down at random; other arrays as they are.

    Example:
      >>> moved = nudged(np.float32([1, 2, 0]), 0)
      >>> [float(each) for each in np.abs(moved - np.float32([1, 2, 0])) / 2**-23]
      [1.0, 2.0, 0.0]
    """
    if not _has_floats(array):
        return array
    signs = np.random.default_rng(seed).choice([-1, 1], array.shape)
    return (_wide(array) * (1 + signs * epsilon(array.dtype))).astype(array.dtype)


def smaller(array: np.ndarray, divisor: int) -> np.ndarray:
    """Returns floats divided by a number; other arrays as they are."""
    return (_wide(array) / divisor).astype(array.dtype) if _has_floats(array) else array


def _says_as_much(before: np.ndarray, after: np.ndarray) -> bool:
    """Returns whether an output has no more infinities and NaNs than before, and does not vanish."""
    if not _has_floats(before):
        return True
    finite, others = (each[np.isfinite(each)] for each in (_wide(before), _wide(after)))
    return len(others) >= len(finite) and bool(np.any(others) or not np.any(finite))


def _has_floats(array: np.ndarray) -> bool:
    return array.dtype.kind not in "biu" and "int" not in array.dtype.name


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
