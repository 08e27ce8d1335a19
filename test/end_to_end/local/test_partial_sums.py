# SPDX-License-Identifier: Apache-2.0
"""Sums over devices that a loop accumulates are added up once, behind the loop, with the values of one device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from test.end_to_end.local.drawn import mesh

__all__ = ["mesh"]  # a fixture

TURNS, BATCH, WIDTH = 3, 16, 8
LOOP = re.compile(r"stablehlo\.while.*?\n    *\} do \{(.*?)\n      \}", re.DOTALL)


def _numbers(seed: int, *shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def _products(start, xs, add):
    """Returns what a loop accumulates of x.T @ x over the turns."""
    return lax.scan(lambda total, x: (add(total, x.T @ x), None), start, xs)[0]


def _added(start, xs):
    return _products(start, xs, jnp.add)


def _subtracted(start, xs):
    return _products(start, xs, jnp.subtract)


def _turned_round(start, xs):
    return _products(start, xs, lambda total, product: total + jnp.transpose(-product))


def _scaled(start, xs):
    return _products(start, xs, lambda total, product: total + product * 0.5 / 2.0)


def _widened(start, xs):
    def turn(total, x):
        x = x.astype(jnp.bfloat16)
        return total + (x.T @ x).astype(jnp.float32), None

    return lax.scan(turn, start, xs)[0]


def _summed_along_one(start, xs):
    """As gradients of repeated vectors are."""
    return _products(start, xs, lambda total, product: total + jnp.sum(product[None, :, None], axis=(0, 2)))


def _whole_numbers(start, xs):
    return _products(start.astype(jnp.int32), xs.astype(jnp.int32), jnp.add)


def _stacked(start, xs):
    """Each turn writes a part of what the loop carries."""

    def turn(carry, x):
        stack, at = carry
        return (lax.dynamic_update_slice(stack, (x.T @ x)[None], (at, 0, 0)), at + 1), None

    return lax.scan(turn, (jnp.stack([start] * (TURNS + 1)), 0), xs)[0][0]


def _nested(start, xs):
    """An outer loop accumulates what an inner one stacks."""

    def outer(total, x):
        stacked = lax.scan(lambda _, y: (None, y[:, None] * y[None] @ jnp.ones((WIDTH, WIDTH))), None, x[:2])[1]
        inner = lax.scan(lambda sum_, y: (sum_ + y.T @ y, None), jnp.zeros_like(total), jnp.stack([x, x + 1]))[0]
        return total + inner + stacked.sum(0), None

    return lax.scan(outer, start, xs)[0]


def _until(start, xs):
    """The number of turns depends on data."""

    def turn(carry):
        total, at = carry
        x = lax.dynamic_index_in_dim(xs, at % TURNS, keepdims=False)
        return total + x.T @ x, at + 1

    return lax.while_loop(lambda carry: carry[1] < xs[0, 0, 0].astype(jnp.int32) + 4, turn, (start, 0))[0]


def _constrained(start, xs):
    """Constraints keep the layout of what is carried, and of what is added."""
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8])
    keep = lambda value: lax.with_sharding_constraint(value, NamedSharding(mesh, P(None, "z")))  # noqa: E731
    return lax.scan(lambda total, x: (keep(keep(total) + keep(x.T @ x)), None), start, xs)[0]


def _never(start, xs):
    turns = (xs[0, 0, 0] * 0).astype(jnp.int32)
    return lax.fori_loop(0, turns, lambda _, total: total + xs[0].T @ xs[0], start)


ONCE = (
    *(_added, _subtracted, _turned_round, _scaled, _widened, _summed_along_one),
    *(_whole_numbers, _stacked, _until, _never),
)


def _is_read(start, xs):
    """The sum so far decides what is added."""

    def turn(total, x):
        return total + x.T @ (x * (jnp.sum(total) > 0)), None

    return lax.scan(turn, start, xs)[0]


def _is_an_output(start, xs):
    def turn(total, x):
        total = total + x.T @ x
        return total, total[0]

    return lax.scan(turn, start, xs)


def _is_scaled_in_turn(start, xs):
    return lax.scan(lambda total, x: (0.5 * total + x.T @ x, None), start, xs)[0]


def _is_subtracted_from(start, xs):
    return _products(start, xs, lambda total, product: product - total)


def _decides_the_end(start, xs):
    def turn(carry):
        total, at = carry
        x = lax.dynamic_index_in_dim(xs, at % TURNS, keepdims=False)
        return total + x.T @ x, at + 1

    return lax.while_loop(lambda carry: (carry[0][0, 0] < 100) & (carry[1] < 9), turn, (start, 0))[0]


def _converted_in_turn(start, xs):
    """What is carried changes its layout in the loop."""
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8])
    to = lambda value, *spec: lax.with_sharding_constraint(value, NamedSharding(mesh, P(*spec)))  # noqa: E731
    return lax.scan(lambda total, x: (to(to(total, "z") + to(x.T @ x, "z"), None, "z"), None), start, xs)[0]


OTHERS = (
    _converted_in_turn,
    _is_read,
    _is_an_output,
    _is_scaled_in_turn,
    _is_subtracted_from,
    _decides_the_end,
    _nested,
)


def _both(mesh, program, start_spec, batch, out=None):
    """Returns the outputs of one device, and those and the text of the program written per device."""
    args = (_numbers(0, WIDTH, WIDTH), _numbers(1, TURNS, BATCH, WIDTH))
    specs = start_spec, P(None, batch)
    jax.clear_caches()
    placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
    jitted = jax.jit(program, out_shardings=None if out is None else NamedSharding(mesh, out))
    result = reshard.optimize(jitted.lower(*placed), emit="local")
    return jax.tree.leaves(program(*args)), jax.tree.leaves(result.compile()(*placed)), str(result.module)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("out", [P(), P("z")])
@pytest.mark.parametrize("program", ONCE)
def test_what_a_loop_accumulates_is_summed_once(mesh, program, out):
    wanted, got, text = _both(mesh, program, P(None, "z"), ("x", "y"), P(None, *out) if program is _stacked else out)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    (body,) = LOOP.findall(text)
    assert "reduce" not in body
    assert text.count("all_reduce") + text.count("reduce_scatter") >= 1


def test_constraints_do_not_keep_sums_in_a_loop(mesh):
    wanted, got, text = _both(mesh, _constrained, P(None, "z"), ("x", "y"), P(None, "z"))
    np.testing.assert_array_equal(got[0], wanted[0])
    (body,) = LOOP.findall(text)
    assert "reduce" not in body


@pytest.mark.mostly_slow
@pytest.mark.parametrize("batch", ["x", ("x", "y")])
@pytest.mark.parametrize("program", OTHERS)
def test_a_carried_value_that_is_read_in_its_loop_has_its_values(mesh, program, batch):
    wanted, got, _ = _both(mesh, program, P(), batch)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_dimension_of_size_1_that_is_split_is_summed_over_its_devices(mesh):
    """Behind the first device there is nothing along it, which is no part of the sum."""

    def program(start, a, b):
        b = lax.with_sharding_constraint(b, NamedSharding(mesh, P("x", "y")))

        def turn(total, _):
            product = lax.with_sharding_constraint(a @ b, NamedSharding(mesh, P(None, "y")))
            return total + jnp.sum(product, axis=1), None

        return lax.scan(turn, start, None, length=TURNS)[0]

    args, specs = (_numbers(0, 8), _numbers(1, 8, 16), _numbers(2, 16, 1)), (P(), P(None, "x"), P("x", None))
    placed = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(args, specs, strict=True)]
    lowered = jax.jit(program, out_shardings=NamedSharding(mesh, P())).lower(*placed)
    found = reshard.optimize(lowered, emit="local").compile()(*placed)
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, args[0] + TURNS * (args[1] @ args[2])[:, 0])


def _gradient_of_three(xs, weights):
    """What three products take has a gradient that is a sum of three sums."""

    def loss(x):
        made = [jnp.einsum("bw,wh->bh", x, each) for each in weights]
        return jnp.sum(made[0] * made[1] + made[2] * made[0])

    found = jax.grad(loss)(xs)
    return found * jnp.tanh(found)


def _difference(xs, weights):
    first, second, third = (xs @ each for each in weights)
    less = first - (second - third)
    return less * jnp.abs(less)


@pytest.mark.parametrize("fun", (_gradient_of_three, _difference))
@pytest.mark.parametrize("to", (P("x"), P(None, "x"), P()))
def test_sums_that_are_added_are_reduced_once(fun, to):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    by = P(None, "x") if fun is _gradient_of_three else P("x")
    x = jax.device_put(_numbers(0, 64, 32), NamedSharding(mesh, P() if fun is _gradient_of_three else P(None, "x")))
    weights = tuple(jax.device_put(_numbers(at + 1, 32, 32), NamedSharding(mesh, by)) for at in range(3))
    jitted = jax.jit(fun, out_shardings=NamedSharding(mesh, to))
    result = reshard.optimize(jitted.lower(x, weights), emit="local")
    assert len(re.findall(r"stablehlo\.(?:reduce_scatter|all_reduce)\"", result.lowered.as_text())) == 1
    np.testing.assert_array_equal(result.compile()(x, weights), fun(np.asarray(x), tuple(map(np.asarray, weights))))


def _side_by_side(x, weights, value):
    """As in a block whose attention and feed-forward layer take the same value."""
    first, second, third = (x @ each for each in weights)
    return jnp.tanh(value + first + second + third)


def _twice(x, weights, value):
    """What two additions take is added up by itself."""
    once = x @ weights[0]
    return jnp.tanh(once + value + once + x @ weights[1])


def _of_two_kinds(x, weights, value):
    """The second product is no partial sum, since its operands are whole."""
    return jnp.tanh(value + x @ weights[0] + value @ weights[1][:32] + x @ weights[2])


@pytest.mark.parametrize(("fun", "sums"), [(_side_by_side, 1), (_twice, 2), (_of_two_kinds, 1)])
@pytest.mark.parametrize("to", (P("x"), P()))
def test_sums_that_are_added_to_another_value_are_reduced_once(fun, sums, to):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    placed = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, P(*spec)))  # noqa: E731
    x, weights = placed(_numbers(0, 64, 64), None, "x"), tuple(placed(_numbers(at + 1, 64, 32), "x") for at in range(3))
    value = placed(_numbers(9, 64, 32), *to)
    jitted = jax.jit(fun, out_shardings=NamedSharding(mesh, to))
    result = reshard.optimize(jitted.lower(x, weights, value), emit="local")
    found, text = result.compile()(x, weights, value), result.lowered.as_text()
    wanted = fun(np.asarray(x), tuple(map(np.asarray, weights)), np.asarray(value))
    for shard in found.addressable_shards:
        np.testing.assert_array_equal(shard.data, wanted[shard.index])
    assert len(re.findall(r"stablehlo\.(?:reduce_scatter|all_reduce)\"", text)) == sums


def _norm(arrays):
    """As optimizers take it of all gradients; the sum begins with zero."""
    return sum(jnp.sum(each * each) for each in arrays)


@pytest.mark.parametrize("kind", (AxisType.Explicit, AxisType.Auto))
def test_a_norm_of_many_arrays_is_one_sum_also_in_explicit_mode(kind):
    """In explicit mode jax states the layout of each summand and of each sum by a constraint."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2, devices=jax.devices()[:8])
    with jax.set_mesh(mesh):
        arrays = [jax.device_put(_numbers(at, 16, 8), NamedSharding(mesh, P("x", "y"))) for at in range(4)]
        result = reshard.optimize(jax.jit(_norm).lower(arrays), emit="local")
        found = result.compile()(arrays)
    assert int(found) == sum(int(np.sum(np.asarray(each) ** 2)) for each in arrays)
    assert result.lowered.as_text().count('"stablehlo.all_reduce"') == 1


def _turned(value):
    """Returns what no sum passes."""
    return value * jnp.abs(value)


def _used_twice(x, weights, value, constrained):
    first = constrained(value + x @ weights[0])
    return _turned(first + x @ weights[1] + x @ weights[2]) + first


def _in_another_layout(x, weights, value, constrained):
    first = jax.lax.with_sharding_constraint(value + x @ weights[0], NamedSharding(constrained.mesh, P(None, "x")))
    return _turned(first + x @ weights[1] + x @ weights[2])


def _in_a_row(x, weights, value, constrained):
    first = constrained(constrained(value + x @ weights[0]) + x @ weights[1])
    return _turned(constrained(first + x @ weights[2]))


@pytest.mark.parametrize("fun", (_used_twice, _in_another_layout, _in_a_row))
@pytest.mark.parametrize("to", (P("x"), P()))
def test_sums_with_constraints_between_have_the_values_of_one_device(fun, to):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    placed = lambda value, *spec: jax.device_put(value, NamedSharding(mesh, P(*spec)))  # noqa: E731

    def constrained(value):
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, to))

    constrained.mesh = mesh  # pyright: ignore[reportFunctionMemberAccess]
    x, weights = placed(_numbers(0, 64, 64), None, "x"), tuple(placed(_numbers(at + 1, 64, 32), "x") for at in range(3))
    value = placed(_numbers(9, 64, 32), *to)
    step = jax.jit(lambda x, weights, value: fun(x, weights, value, constrained))
    result = reshard.optimize(step.lower(x, weights, value), emit="local")
    found, text = result.compile()(x, weights, value), result.lowered.as_text()
    first, second, third = (np.asarray(x) @ np.asarray(each) for each in weights)
    once = np.asarray(value) + first
    total = once + second + third
    np.testing.assert_array_equal(found, total * np.abs(total) + (once if fun is _used_twice else 0))
    sums = len(re.findall(r"stablehlo\.(?:reduce_scatter|all_reduce)\"", text))
    assert sums == (2 if fun is _used_twice else 1)
