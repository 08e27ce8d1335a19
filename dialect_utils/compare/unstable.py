# SPDX-License-Identifier: Apache-2.0
"""How far the outputs of a program change by rounding alone: it runs several times on one device, nothing but rounding
being different.

A program may divide by what is zero but for rounding, or count what lies on the border between two numbers. Then an
error of rounding becomes as large as a value, with floats of 64 bits as well, and no op is wrong. What changes as much
when an input moves to the next number, or when the compiler orders a sum in another way, is no sign of a fault:

    d = sum(x) - sum(reversed(x))        ours        d / abs(d) is 1 where it should be -1
    return d / abs(d)                    one device  it is 1 as well, once x is nudged: unstable
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .array_differences import Difference, epsilon

_AS_MUCH = 4  # times what was seen in a few runs


def nudged(inputs: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """Returns inputs of which each float is about one distance to the next number off, up or down; others as they are.

    Example:
      >>> ones, counts = nudged([np.ones(4, np.float32), np.arange(3)], 0)
      >>> set((ones - 1).tolist()) <= {-2.0**-23, 2.0**-23}, counts.tolist()
      (True, [0, 1, 2])
    """
    generator = np.random.default_rng(seed)
    return [
        each if each.dtype.kind in "biu" or "int" in each.dtype.name else _moved(each, generator) for each in inputs
    ]


def explains(own: Sequence[Difference], differences: Sequence[Difference]) -> bool:
    """Returns whether outputs are off by no more than a few times what they change by themselves.

    Args:
      own: for each output, by how much it changes by rounding alone. differences: by how much it is off.
    """
    pairs = zip(own, differences, strict=True)
    return all(each.is_within_limit or each.fraction <= _AS_MUCH * change.fraction for change, each in pairs)


def _moved(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    factor = 1 + epsilon(array.dtype) * generator.choice((-1.0, 1.0), array.shape)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    return (array.astype(wide) * factor).astype(array.dtype)
