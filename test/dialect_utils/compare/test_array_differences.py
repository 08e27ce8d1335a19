# SPDX-License-Identifier: Apache-2.0
"""The differences between an array and the array that it should equal."""

import numpy as np
import pytest

from reshard.dialect_utils.compare.array_differences import difference, epsilon


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
def test_integers_are_equal_or_not_whatever_the_limit(dtype):
    found = difference(np.array([1, 1, 0], dtype), np.array([1, 0, 1], dtype), limit=1e9)
    assert found.problem == "differs in 2 of 3 integers" and found.index == (1,)
    assert not found.is_within_limit


def test_errors_are_in_units_of_the_largest_magnitude():
    found = difference(np.float32([[8, 0], [0, 1]]), np.float32([[8, 0], [1, 1]]), limit=0.1)
    assert (found.fraction, found.index, found.expected, found.found) == (0.125, (1, 0), "0.0", "1.0")
    assert difference(np.float32([8, 0]), np.float32([8, 0.5]), limit=0.1).is_within_limit


def test_infinities_and_nans_are_in_the_same_places():
    special = np.float32([np.nan, np.inf, 1])
    assert difference(special, special.copy(), 0.0).is_equal
    found = difference(special, np.float32([np.nan, 1, 1]), limit=1e9)
    assert found.problem == "has infinities or NaNs in other places" and found.index == (1,)


def test_another_shape_or_type_is_a_problem():
    assert difference(np.float32([1]), np.float64([1]), 1.0).problem == "is float64[1], not float32[1]"
    assert not difference(np.float32([1]), np.float32([[1]]), 1.0).is_within_limit


def test_the_epsilon_of_a_narrow_type():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert epsilon(np.dtype(ml_dtypes.bfloat16)) == 2**-7
