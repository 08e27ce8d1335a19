# SPDX-License-Identifier: Apache-2.0
"""What outputs change by themselves explains differences as large as that, and no larger ones."""

import ml_dtypes
import numpy as np
import pytest

from reshard.dialect_utils.compare.array_differences import Difference
from reshard.dialect_utils.compare.unstable import explains, nudged


@pytest.mark.parametrize(
    ("own", "off", "is_explained"),
    [((0.5, 0.0), (1.0, 0.0), True), ((0.5, 0.0), (2.1, 0.0), False), ((0.5, 0.0), (0.5, 0.01), False)],
)
def test_each_output_is_off_by_no_more_than_a_few_times_what_it_changes(own, off, is_explained):
    changes, differences = ([Difference(each, 1e-6) for each in fractions] for fractions in (own, off))
    assert explains(changes, differences) == is_explained


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_floats_move_to_a_number_next_to_them(dtype):
    before = np.array([1.5, -3.0, 1000.0], dtype)
    (after,) = nudged([before], 0)
    assert after.dtype == before.dtype and (after != before).all()
    np.testing.assert_allclose(after.astype(np.complex128), before.astype(np.complex128), rtol=0.02)
