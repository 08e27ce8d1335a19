# SPDX-License-Identifier: Apache-2.0
"""Selections along split dimensions in two stages give the values and the indices of the unsharded op."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from test.end_to_end.local.drawn import Drawn, any_rule, checked, mesh

__all__ = ["any_rule", "mesh"]  # fixtures


def _table(drawn: Drawn) -> int:
    shape = [drawn.rng.choice([4, 8, 16]) for _ in range(drawn.rng.choice([1, 2, 3]))]
    table = drawn.array(shape, drawn.rng.choice([np.float32, np.int32]))
    if drawn.args[table].dtype == np.float32 and drawn.rng.random() < 0.3:
        drawn.args[table].reshape(-1)[:: drawn.rng.choice([3, 5])] = np.nan
    return table


def places_of_extremes(drawn: Drawn):
    """The place of the first of equal values, and of the first NaN."""
    table, find = _table(drawn), drawn.rng.choice([jnp.argmax, jnp.argmin])
    axis = drawn.rng.randrange(drawn.args[table].ndim)
    return lambda a: find(a[table], axis=axis)


def reductions_of_pairs(drawn: Drawn):
    """Sums and products at once, in one reduction of two operands, whose initial values count once."""
    table = drawn.array([drawn.rng.choice([4, 8]) for _ in range(3)], np.int32)
    other = drawn.array(list(drawn.args[table].shape), np.int32)
    dims = drawn.rng.sample(range(3), drawn.rng.choice([1, 2]))

    def both(one, two):
        return one[0] + two[0], one[1] * two[1]

    return lambda a: sum(lax.reduce((a[table], a[other]), (np.int32(5), np.int32(3)), both, dims))


def top_values(drawn: Drawn):
    table = _table(drawn)
    k = drawn.rng.choice([1, 2, 3])
    return lambda a: lax.top_k(a[table], k)[0]


def top_places(drawn: Drawn):
    table = _table(drawn)
    k = drawn.rng.choice([1, 2, 4])
    return lambda a: lax.top_k(a[table], k)[1]


def running(drawn: Drawn):
    """What is reduced of all elements before each one, or of all behind it."""
    table = drawn.array([drawn.rng.choice([4, 8, 16]) for _ in range(drawn.rng.choice([1, 2]))], np.int32)
    how = drawn.rng.choice([lax.cumsum, lax.cumprod, lax.cummax, lax.cummin])
    axis, is_reverse = drawn.rng.randrange(drawn.args[table].ndim), drawn.rng.random() < 0.5
    as_floats = drawn.rng.random() < 0.5
    return lambda a: how(a[table].astype(np.float32) if as_floats else a[table], axis=axis, reverse=is_reverse)


MAKERS = (places_of_extremes, reductions_of_pairs, top_values, top_places, running)


@pytest.mark.parametrize("seed", range(2))
def test_any_rule_of_a_selection_gives_the_values_of_one_device(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_rules_of_selections_on_many_layouts(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)
