# SPDX-License-Identifier: Apache-2.0
"""Programs that stock XLA computes rightly, and that were once wrong with an island next to an op.

The page docs/miscompilations.md describes these cases.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard

POLICIES = pytest.mark.parametrize("policy", ["better", pytest.param("always", marks=pytest.mark.slow)])
_EDGES = ((0, 0), (4, 4), (0, 0))


def sharded(sizes, *spec) -> NamedSharding:
    mesh = jax.make_mesh(sizes, ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])
    return NamedSharding(mesh, P(*spec))


def whole_numbers(*shape: int, low: int = -8, high: int = 9, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, shape).astype(dtype)


def assert_right(function, arguments, shardings, policy: str, tolerance: float = 0.0):
    """Asserts that the optimized program gives the outputs of one device; returns the result of `optimize`."""
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    placed = [jax.device_put(value, each) for value, each in zip(arguments, shardings, strict=True)]
    result = reshard.optimize(jax.jit(function).lower(*placed), policy=policy)
    for mine, right in zip(jax.tree.leaves(result.compile()(*placed)), expected, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(right), rtol=0, atol=tolerance)
    return result


def _converted(a):
    return with_sharding_constraint(a, sharded((4, 2), None, ("x", "y")))


@pytest.mark.mostly_slow
@POLICIES
@pytest.mark.parametrize("start", [(0, 0), (1, 32), (3, 11), (0, 40), (-5, 2)])
def test_a_slice_whose_start_is_clamped_and_an_island_that_takes_a_part_of_it(policy, start):
    """XLA makes one slice of both, and adds up the starts as they are."""

    def cropped(a, i):
        crop = lax.dynamic_slice(with_sharding_constraint(a + 1, sharded((2, 4), "x", "y")), (i[0], i[1]), (63, 32))
        return with_sharding_constraint(crop, sharded((2, 4), "y", "x")) + 2

    layouts = sharded((2, 4), "x", "y"), sharded((2, 4))
    arguments = whole_numbers(64, 64), np.array(start, np.int32)
    assert assert_right(cropped, arguments, layouts, policy).is_rewritten


@pytest.mark.slow
def test_uneven_scatters_that_add_where_an_axis_is_left_are_taken_over():
    """Stock XLA adds wrong sums: positions of a batch, without the last one, are split over four of eight devices."""

    def gradient(table, tokens):
        def loss(table):
            rows = table[with_sharding_constraint(tokens[:, :-1], sharded((4, 2), None, "x"))]
            return (with_sharding_constraint(rows, sharded((4, 2), None, "x")) ** 2).sum()

        return jax.grad(loss)(table)

    table, tokens = whole_numbers(32, 16, low=-4, high=5), whole_numbers(4, 8, low=0, high=32, dtype=np.int32)
    expected = np.zeros_like(table)
    np.add.at(expected, tokens[:, :-1], 2 * table[tokens[:, :-1]])
    placed = jax.device_put((table, tokens), sharded((4, 2)))
    result = reshard.optimize(jax.jit(gradient).lower(*placed))
    np.testing.assert_array_equal(np.asarray(result.compile()(*placed)), expected)
    assert any("stock XLA computes" in str(each) for each in result.report.to_dict()["value_checks"])


NUMBERS = 4096
_BF16_NUMBERS = functools.partial(lax.iota, jnp.bfloat16, NUMBERS)
_called = jax.jit(_BF16_NUMBERS)
SLOW = pytest.mark.slow


def _whole():
    return with_sharding_constraint(_called(), sharded((4, 2)))


@pytest.mark.parametrize(
    "numbers, stays",
    [
        (_BF16_NUMBERS, False),
        (lambda: jnp.arange(NUMBERS, dtype=jnp.bfloat16), False),
        (lambda: lax.broadcasted_iota(jnp.bfloat16, (4, NUMBERS), 1)[2], False),
        (
            lambda: lax.scan(lambda sums, _: (sums + _BF16_NUMBERS(), None), jnp.zeros_like(_called()), length=1)[0],
            False,
        ),
        pytest.param(lambda: 0 * _whole() + _called(), False, marks=SLOW),
        pytest.param(lambda: _whole() + 0 * _whole(), True, marks=SLOW),
        (lambda: lax.iota(jnp.int32, NUMBERS).astype(jnp.bfloat16), True),
        (lambda: lax.iota(jnp.float32, NUMBERS).astype(jnp.bfloat16), True),
        (lambda: with_sharding_constraint(_BF16_NUMBERS(), sharded((4, 2))), True),
    ],
)
def test_numbers_of_a_split_iota_are_rounded_once(numbers, stays):
    """Stock XLA rounds 256 of them twice: the numbers of each device's part, and their sums with its start."""
    split = sharded((4, 2), "x")
    ones = jax.device_put(np.ones(NUMBERS, jnp.bfloat16), split)
    result = reshard.optimize(
        jax.jit(lambda a: with_sharding_constraint(numbers() * a, split)).lower(ones), check=False
    )
    right = np.arange(NUMBERS).astype(np.float32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(result.compile()(ones)), right)
    assert ("written as integers" in str(result.report)) != stays


def test_numbers_that_are_needed_split_and_whole_are_rounded_once_in_both():
    """Propagation makes two iotas of one, in the layouts of both products."""
    rows, columns = sharded((8, 1), "x"), sharded((8, 1), None, "x")
    ones = [jax.device_put(np.ones((8, NUMBERS), jnp.bfloat16), each) for each in (rows, columns)]

    def both(a, b):
        numbers = lax.broadcasted_iota(jnp.bfloat16, (8, NUMBERS), 1)
        return with_sharding_constraint(a * numbers, rows), with_sharding_constraint(b * numbers, columns)

    right = np.tile(np.arange(NUMBERS).astype(np.float32).astype(jnp.bfloat16), (8, 1))
    for found in reshard.optimize(jax.jit(both).lower(*ones), check=False).compile()(*ones):
        np.testing.assert_array_equal(np.asarray(found), right)


@pytest.mark.parametrize("is_shardy", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_module_without_sites_is_handed_over_with_numbers_that_are_rounded_once(is_shardy):
    split = sharded((4, 2), "x")
    ones = jax.device_put(np.ones(NUMBERS, jnp.bfloat16), split)
    with jax._src.config.use_shardy_partitioner(is_shardy):
        result = reshard.optimize(jax.jit(lambda a: a * _BF16_NUMBERS()).lower(ones))
    assert result.is_rewritten and not result.report.to_dict()["sites"]
    assert any("stock XLA rounds those of a part twice" in str(each) for each in result.report.to_dict()["remarks"])
    right = np.arange(NUMBERS).astype(np.float32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(result.compile()(ones)), right)


def _padded(a):
    return jnp.pad(_converted(a), _EDGES, constant_values=1.0), jnp.pad(_converted(a), _EDGES, constant_values=-7.0)


def _running(a):
    return jnp.cumsum(_converted(a), 1), lax.cumlogsumexp(_converted(a), 1), lax.cummax(_converted(a), 1)


def _in_a_scan(a):
    return lax.scan(lambda carry, _: (carry, _running(carry)), a, length=2)[1]


_RUNNING = (_running, _in_a_scan, jax.checkpoint(_running))


@POLICIES
@pytest.mark.parametrize("function", [_padded, *(pytest.param(each, marks=pytest.mark.slow) for each in _RUNNING)])
def test_users_of_one_converted_value_do_not_share_what_their_windows_are_filled_with(function, policy):
    """Users of one island once shared the fill value of their windows.

    Equal constraints become one island. XLA filled the second pad with the ones of the first, and the windows of a
    running maximum with the zeros of a running sum.
    """
    tolerance = 0.0 if function is _padded else 1e-4
    result = assert_right(function, [whole_numbers(16, 16, 16)], [sharded((4, 2), "y", None, "x")], policy, tolerance)
    assert result.is_rewritten


@POLICIES
@pytest.mark.parametrize(
    "method, count, constrained",
    [
        ("min", 10, "indices"),
        ("multiply", 10, "updates"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in itertools.product(("min", "max", "add"), (10, 12), ("indices", "updates"))
        ),
        pytest.param("set", 16, "indices", marks=pytest.mark.slow),
    ],
)
def test_a_scatter_whose_indices_do_not_divide(method, count, constrained, policy):
    """XLA fills uneven tiles of indices with zeros, so row 0 got an update of zero.

    A minimum, a maximum and a product do not ignore this zero.
    """
    place = functools.partial(sharded, (2, 4))

    def function(a, i, u):
        if constrained == "indices":
            i = with_sharding_constraint(i, place(("y", "x")))
        else:
            u = with_sharding_constraint(u, place("x", None))
        found = getattr(a.at[i], method)(u)
        return found if constrained == "indices" else with_sharding_constraint(found, place("x", None))

    a, i = whole_numbers(16, 12), whole_numbers(count, low=0, high=16, dtype=np.int32)
    u = whole_numbers(count, 12, low=-90) if method != "set" else np.ones((count, 12), np.float32)
    assert_right(function, [a, i, u], [place(None, "x"), place("x"), place("x")], policy)


@pytest.mark.slow
@POLICIES
def test_a_batched_scatter_min_whose_indices_do_not_divide(policy):
    """The scatter has batching dimensions, as vmap writes it."""
    place = functools.partial(sharded, (2, 4))

    def function(a, i, u):
        i = with_sharding_constraint(i, place(None, ("y", "x")))
        return jax.vmap(lambda a, i, u: a.at[i].min(u))(a, i, u)

    a, i = whole_numbers(4, 16, 12), whole_numbers(4, 10, low=0, high=16, dtype=np.int32)
    u = whole_numbers(4, 10, 12, low=-90)
    assert_right(function, [a, i, u], [place(None, None, "x"), place(None, "x"), place(None, "x")], policy)
