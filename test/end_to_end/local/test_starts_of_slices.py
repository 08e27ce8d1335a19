# SPDX-License-Identifier: Apache-2.0
"""Dynamic slices whose result is sliced again: XLA makes one slice of two, and adds starts that are out of range."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard

CASES = {
    "out of range": (8, np.uint32(7)),
    "of few bits, whose limit needs more": (300, np.uint8(60)),
    "of few bits and negative": (300, np.int8(-3)),
    "clamped by the program, to another limit": (8, lambda start: lax.clamp(np.uint32(0), start, np.uint32(7))),
}


@pytest.mark.mostly_slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("spec", [P("x", None), P(None, None)])
def test_a_start(case, spec):
    size, start = CASES[case]
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    array = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    place, change = (np.uint32(7), start) if callable(start) else (start, lambda each: each)

    def taken(array, place):
        return lax.dynamic_slice(array, (change(place), np.zeros((), place.dtype)), (4, 2))

    def program(array, place):
        return lax.with_sharding_constraint(taken(array, place), NamedSharding(mesh, spec))

    args = jax.device_put(array, NamedSharding(mesh, P(None, "x"))), jax.device_put(place, NamedSharding(mesh, P()))
    jax.clear_caches()
    got = reshard.optimize(jax.jit(program).lower(*args), emit="local").compile()(*args)
    np.testing.assert_array_equal(got, jax.jit(taken)(array, place))


def test_a_slice_of_a_slice_of_the_program():
    """Stock XLA takes rows 15 on: 15 + 3, in range of the array, not of the first slice."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    array, starts = np.arange(32, dtype=np.float32).reshape(16, 2), (np.uint32(15), np.uint32(3))

    def program(array, first, second):
        zero = np.uint32(0)
        taken = lax.dynamic_slice(lax.dynamic_slice(array, (first, zero), (8, 2)), (second, zero), (1, 2))
        return lax.with_sharding_constraint(taken, NamedSharding(mesh, P(None, None)))

    args = jax.device_put(array, NamedSharding(mesh, P(None, "x"))), *starts
    jax.clear_caches()
    result = reshard.optimize(jax.jit(program).lower(*args), emit="local")
    assert result.is_rewritten
    np.testing.assert_array_equal(result.compile()(*args), array[11:12])


@pytest.mark.parametrize("spec", [P(None, None, "x"), P("x", None, None)])
def test_an_update_that_is_a_part_of_the_array(spec):
    """XLA for CPU devices writes it in place of the array, over elements that it still has to read."""
    array = np.arange(420, dtype=np.int32).reshape(10, 7, 6)

    def program(split, start):
        zero = np.int32(0)
        return lax.dynamic_update_slice(split, split[:6], (start, zero, zero))

    _, got = updated(program, array, spec)
    wanted = array.copy()
    wanted[3:9] = array[:6]
    np.testing.assert_array_equal(got, wanted)


def test_an_update_that_is_a_product_with_the_array_is_written_in_its_place():
    """As in the cache of a decode step: the product is an array of its own, so nothing is read that is overwritten."""
    array = np.arange(64, dtype=np.float32).reshape(8, 8)

    def program(split, start):
        return lax.dynamic_update_slice(split, split[:1] @ split, (start, np.int32(0)))

    module, got = updated(program, array, P(None, "x"))
    wanted = array.copy()
    wanted[3] = array[0] @ array
    np.testing.assert_array_equal(got, wanted)
    assert "dense<false>" not in module


def updated(program, array, spec) -> tuple[str, np.ndarray]:
    """Returns the module of a program on a split array and the start 3, written per device, and its result."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])

    def split(array, start):
        return program(lax.with_sharding_constraint(array, NamedSharding(mesh, spec)), start)

    args = jax.device_put(array, NamedSharding(mesh, P())), np.int32(3)
    jax.clear_caches()
    result = reshard.optimize(jax.jit(split).lower(*args), emit="local")
    return result.module, np.asarray(result.compile()(*args))
