# SPDX-License-Identifier: Apache-2.0
"""Conversions that are written once more where their result is needed late: less memory, the same bits.

XLA may compute a product of one of the two forms with its operands swapped, which sums in another order on some CPUs.
So the numbers here are few, small and powers of two, whose sums are exact in any order.
"""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.passes.driver import registry
from test.end_to_end.local.drawn import mesh

__all__ = ["mesh"]  # a fixture

LAYERS, ROWS, WIDTH = 6, 512, 32


def released(lowered, release: int = 10**12):
    """Returns the module written per device, with conversions repeated that hold something."""
    pipeline = f"import-gspmd,convert-to-local{{release={release}}}"
    with mock.patch.dict(registry.EMISSIONS, {"local": pipeline}):
        return reshard.optimize(lowered, emit="local")


def repeated(result) -> int:
    """Returns how many conversions of a module for CPU devices are repeated."""
    return result.module.count("stablehlo.popcnt")


def step(mesh, dtype):
    """Returns the gradient of feed-forward layers between which rows are split, and inside of which features are."""
    every = ("x", "y", "z")

    def placed(value, *spec):
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P(*spec)))

    def layer(x, up, down):
        return placed(jax.nn.relu(placed(placed(x) @ up, None, every)) @ down, every)

    def loss(weights, x):
        for up, down in weights:
            x = layer(x, up, down)
        return jnp.sum(x.astype(jnp.float32) ** 2)

    def numbers(seed, shape, *spec):
        few = min(shape) // 2  # some two in a row or column are not zero, so that no sum is large
        digits = jax.random.randint(jax.random.key(seed), shape, -few, few + 1)
        value = jnp.where(abs(digits) == 1, digits, 0).astype(dtype)
        return jax.device_put(value, NamedSharding(mesh, P(*spec)))

    weights = [
        (numbers(2 * i, (WIDTH, 2 * WIDTH), None, every), numbers(2 * i + 1, (2 * WIDTH, WIDTH), every))
        for i in range(LAYERS)
    ]
    return jax.jit(jax.grad(loss)), (weights, numbers(2 * LAYERS, (ROWS, WIDTH), every) / 64)


def scanned(mesh):
    """Returns the gradient of a scan over such layers, which are computed again in the backward pass."""
    _, (weights, x) = step(mesh, jnp.float32)
    every = NamedSharding(mesh, P(("x", "y", "z")))
    ups, downs = (jnp.stack(each) for each in zip(*weights))
    by_column, by_row = (NamedSharding(mesh, P(*spec)) for spec in ((None, None, every.spec[0]), (None, every.spec[0])))

    def block(x, up, down):
        whole = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P()))
        inner = jax.lax.with_sharding_constraint(jax.nn.relu(whole @ up), NamedSharding(mesh, P(None, every.spec[0])))
        return jax.lax.with_sharding_constraint(inner @ down, every)

    def loss(ups, downs, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jax.checkpoint(block)(x, *w), None), x, (ups, downs))[0] ** 2)

    placed = jax.device_put(ups, by_column), jax.device_put(downs, by_row), x
    return jax.jit(jax.grad(loss, argnums=(0, 1))), placed


@pytest.mark.slow
def test_in_loops_too(mesh):
    f, args = scanned(mesh)
    lowered = f.lower(*args)
    once, again = reshard.optimize(lowered, emit="local"), released(lowered)
    assert repeated(again)
    for mine, theirs in zip(bits(again.compile()(*args)), bits(once.compile()(*args)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def bits(results) -> list[np.ndarray]:
    return [np.asarray(each).view(np.uint8) for each in jax.tree.leaves(results)]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_less_is_held_and_every_bit_is_the_same(mesh, dtype):
    f, args = step(mesh, dtype)
    lowered = f.lower(*args)
    once, again = reshard.optimize(lowered, emit="local"), released(lowered)
    assert repeated(again) and not repeated(once)
    first, second = once.compile(), again.compile()
    for mine, theirs in zip(bits(second(*args)), bits(first(*args)), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert second.memory_analysis().temp_size_in_bytes < first.memory_analysis().temp_size_in_bytes


def test_no_more_is_repeated_than_frees_what_is_asked_for(mesh):
    f, args = step(mesh, jnp.float32)
    lowered = f.lower(*args)
    counts = [repeated(released(lowered, bytes_)) for bytes_ in (0, 1, 50_000, 10**9)]
    assert 0 == counts[0] < counts[1] < counts[2] == counts[3]


def test_infinities_and_not_a_numbers_stay_what_they_are(mesh):
    f, (weights, x) = step(mesh, jnp.float32)
    x = x.at[0, 0].set(jnp.inf).at[1, 1].set(jnp.nan)
    lowered = f.lower(weights, x)
    theirs, mine = (each.compile()(weights, x) for each in (reshard.optimize(lowered, emit="local"), released(lowered)))
    for one, other in zip(bits(mine), bits(theirs), strict=True):
        np.testing.assert_array_equal(one, other)
