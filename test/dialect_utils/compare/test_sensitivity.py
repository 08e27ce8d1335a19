# SPDX-License-Identifier: Apache-2.0
"""Differences that rounding explains, and differences that it does not."""

import numpy as np
import pytest

from reshard.dialect_utils.compare.sensitivity import Sensitivity, nudged, smaller

DRAW = np.random.default_rng(0)
WEIGHTS = DRAW.standard_normal((10, 64, 64)).astype(np.float32)
INPUTS = [DRAW.standard_normal((4, 64)).astype(np.float32), WEIGHTS]
LIMIT = 1e-5


def layers(inputs, gain=1.0, parts=1):
    """Ten layers, each of which makes errors larger; sums over `parts` parts are added up one after the other."""
    x, weights = inputs
    for w in weights:
        x = np.tanh(np.float32(gain) * sum(a @ b for a, b in zip(np.split(x, parts, 1), np.split(w, parts))))
    return [x]


def sensitivity(run=layers, inputs=INPUTS):
    return Sensitivity(run, inputs, run(inputs), [LIMIT])


def test_sums_in_another_order_are_explained_and_vanish_on_calm_inputs():
    found = layers(INPUTS, parts=8)
    assert np.abs(found[0] - layers(INPUTS)[0]).max() > 10 * LIMIT
    asked = sensitivity()
    assert asked.explains(found)
    again = layers(asked.calm.inputs, parts=8)
    assert np.abs(again[0] - asked.calm.outputs[0]).max() < LIMIT * np.abs(again[0]).max()
    assert asked.calm.inputs[0].max() * asked.calm.divisor == pytest.approx(INPUTS[0].max())


def test_a_wrong_value_shows_on_calm_inputs():
    calm = sensitivity().calm
    wrong = layers(calm.inputs, gain=1.001)
    assert np.abs(wrong[0] - calm.outputs[0]).max() > 10 * LIMIT * np.abs(wrong[0]).max()


def test_a_difference_is_not_explained_in_a_program_that_is_calm():
    asked = sensitivity(lambda inputs: [inputs[0] * 2], INPUTS)
    assert not asked.explains([INPUTS[0] * np.float32(2.001)])
    assert asked.explains([INPUTS[0] * 2])


def test_a_map_that_stays_sensitive_has_no_calm_inputs():
    def logistic(inputs):
        x = inputs[0]
        for _ in range(60):
            x = 4 * x * (1 - x)
        return [x]

    inputs = [DRAW.uniform(0.1, 0.9, 32).astype(np.float32)]
    asked = sensitivity(logistic, inputs)
    assert asked.explains([asked._expected[0][::-1]])
    assert asked.calm is None


def test_outputs_that_vanish_on_smaller_inputs_say_nothing():
    def run(inputs):
        return [layers(inputs)[0] * (np.abs(inputs[0]).max() > 1)]

    assert sensitivity(run).calm is None


def test_a_program_that_does_not_run_explains_nothing():
    asked = Sensitivity(lambda inputs: None, INPUTS, layers(INPUTS), [LIMIT])
    assert not asked.explains(layers(INPUTS, parts=8)) and asked.calm is None


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integers_stay(dtype):
    array = np.arange(5).astype(dtype)
    assert nudged(array, 0) is array and smaller(array, 4) is array


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "float16", "bfloat16"])
def test_floats_of_each_type_move_by_a_unit_or_two(dtype):
    kind = np.dtype(getattr(__import__("ml_dtypes"), dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    array = DRAW.uniform(1, 2, 100).astype(kind)
    moved = nudged(array, 0)
    assert moved.dtype == kind and (moved != array).sum() > 40
    assert (smaller(array, 4) * np.asarray(4, kind) == array).all()
