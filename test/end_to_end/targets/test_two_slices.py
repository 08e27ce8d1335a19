# SPDX-License-Identifier: Apache-2.0
"""Collectives over slices in the benchmark's two forms, flat and level by level by hand, run on CPU devices."""

import jax
import numpy as np
import pytest

from benchmarks.networks.two_slices import forms_of


@pytest.mark.parametrize("name", ["sum", "all_gather", "reduce_scatter", "all_to_all"])
def test_both_forms_have_the_same_values(name):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("slice", "chip"))
    array = np.random.default_rng(0).integers(0, 100, (8 * 16, 4)).astype(np.float32)
    forms = forms_of(mesh)[name]
    flat, by_hand = (np.asarray(function(array)) for function in forms.values())
    assert flat.size >= array.size // 8 and not np.array_equal(flat, np.zeros_like(flat))
    np.testing.assert_array_equal(flat, by_hand)
