# SPDX-License-Identifier: Apache-2.0
"""Each rule for ops that move elements along split dimensions gives the values of the unsharded op, bit for bit."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from test.end_to_end.local.drawn import Drawn, any_rule, checked, mesh

__all__ = ["any_rule", "mesh"]  # fixtures


def _shape(drawn: Drawn) -> list[int]:
    return [drawn.rng.choice([4, 8, 12, 16]) for _ in range(drawn.rng.choice([1, 2, 3]))]


def slices(drawn: Drawn):
    shape = _shape(drawn)
    table, ranges = drawn.array(shape), []
    for size in shape:
        start = drawn.rng.randrange(size)
        stop = drawn.rng.choice([size, min(size, start + 4), drawn.rng.randrange(start, size) + 1])
        ranges.append((start, stop, drawn.rng.choice([1, 1, 1, 2])))
    return lambda a: a[table][tuple(slice(*each) for each in ranges)]


def pads(drawn: Drawn):
    shape = _shape(drawn)
    table, config = drawn.array(shape), []
    for _ in shape:
        low, high = drawn.rng.choice([(0, 0), (4, 4), (-2, 2), (2, -2), (0, 8), (-3, 1), (3, 0), (-1, -1)])
        config.append((low, high, drawn.rng.choice([0, 0, 0, 1])))
    value = drawn.array([], np.float32)
    return lambda a: lax.pad(a[table], a[value].astype(a[table].dtype), config)


def concatenations(drawn: Drawn):
    shape, along = _shape(drawn), drawn.rng.randrange(8)
    along %= len(shape)
    dtype = drawn.rng.choice([np.float32, np.int32, np.complex64])
    parts = []
    for _ in range(drawn.rng.choice([2, 2, 3])):
        size = drawn.rng.choice([4, 8, 2])
        parts.append(drawn.array([size if d == along else each for d, each in enumerate(shape)], dtype))
    return lambda a: jnp.concatenate([a[each] for each in parts], axis=along)


def reversals(drawn: Drawn):
    shape = _shape(drawn)
    table = drawn.array(shape)
    along = drawn.rng.sample(range(len(shape)), drawn.rng.randint(1, len(shape)))
    return lambda a: lax.rev(a[table], along)


def rolls(drawn: Drawn):
    shape = _shape(drawn)
    table, axis = drawn.array(shape), drawn.rng.randrange(len(shape))
    by = drawn.rng.choice([1, -1, 3, shape[axis] // 2])
    return lambda a: jnp.roll(a[table], by, axis=axis)


def halves(drawn: Drawn):
    """Halves of one array change places, one of them with another sign, as in rotary embeddings."""
    shape = _shape(drawn)
    table, axis = drawn.array(shape, np.float32), drawn.rng.randrange(len(shape))

    def program(a):
        low, high = jnp.split(a[table], 2, axis=axis)
        turned = jnp.concatenate([-high, low], axis=axis) + jnp.concatenate([high, low], axis=axis)
        return turned + jnp.concatenate([high.astype(jnp.int32), low.astype(jnp.int32)], axis=axis)

    return program


MAKERS = (slices, pads, concatenations, reversals, rolls, halves)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", range(4))
def test_any_rule_of_an_op_that_moves_elements_gives_the_values_of_one_device(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_rules_of_ops_that_move_elements_on_many_layouts(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)
