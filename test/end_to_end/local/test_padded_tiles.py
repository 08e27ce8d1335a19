# SPDX-License-Identifier: Apache-2.0
"""Dimensions that do not divide into their shards stay split: tiles have padding, on which no value depends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from test.end_to_end.local.drawn import AXES, Drawn, any_rule, mesh

__all__ = ["any_rule", "mesh"]  # fixtures

SIZES = (3, 5, 6, 7, 9, 11)


def layout_of(drawn: Drawn, rank: int) -> P:
    """Returns any layout, whether or not it divides."""
    free, entries = drawn.rng.sample(AXES, 3), []
    for _ in range(rank):
        here = []
        while free and drawn.rng.random() < 0.5:
            here.append(free.pop()[0])
        entries.append(tuple(here) or None)
    return P(*entries)


def matrix(drawn: Drawn, *sizes: int, dtype=None) -> int:
    return drawn.array(sizes or tuple(drawn.rng.choice(SIZES) for _ in range(2)), dtype)


def reduced(drawn: Drawn):
    at, axis = matrix(drawn, dtype=np.float32), drawn.rng.randrange(2)
    how = drawn.rng.choice([jnp.sum, jnp.max, jnp.min, jnp.prod, jnp.argmax, jnp.any])
    return lambda args: how(args[at], axis=axis)


def product(drawn: Drawn):
    rows, inner, columns = (drawn.rng.choice(SIZES) for _ in range(3))
    a, b = matrix(drawn, rows, inner, dtype=np.float32), matrix(drawn, inner, columns, dtype=np.float32)
    return lambda args: args[a] @ args[b]


def part(drawn: Drawn):
    at = matrix(drawn)
    starts = [drawn.rng.randrange(2) for _ in range(2)]
    return lambda args: args[at][starts[0] :, starts[1] : -1]


def shifted(drawn: Drawn):
    at, axis = matrix(drawn), drawn.rng.randrange(2)
    return lambda args: jnp.roll(jnp.flip(args[at], axis), 1, axis)


def padded(drawn: Drawn):
    at = matrix(drawn, dtype=np.int32)
    amounts = [(drawn.rng.randrange(3), drawn.rng.randrange(3), 0) for _ in range(2)]
    return lambda args: lax.pad(args[at], np.int32(7), amounts)


def concatenated(drawn: Drawn):
    rows, columns = drawn.rng.choice(SIZES), drawn.rng.choice(SIZES)
    a, b = matrix(drawn, rows, columns, dtype=np.int32), matrix(drawn, drawn.rng.choice(SIZES), columns, dtype=np.int32)
    return lambda args: jnp.concatenate([args[a], args[b]])


def reshaped(drawn: Drawn):
    sizes = drawn.rng.choice(SIZES), drawn.rng.choice(SIZES), 4
    at = drawn.array(sizes)
    shape = drawn.rng.choice([(sizes[0], 4 * sizes[1]), (sizes[0] * sizes[1], 4), (sizes[0], sizes[1], 2, 2)])
    return lambda args: args[at].reshape(shape)


def transposed(drawn: Drawn):
    at = matrix(drawn)
    return lambda args: args[at].T + args[at].T


def numbered(drawn: Drawn):
    at, axis = matrix(drawn, dtype=np.int32), drawn.rng.randrange(2)
    return lambda args: args[at] + lax.broadcasted_iota(np.int32, args[at].shape, axis)


def sorted_along(drawn: Drawn):
    at, axis = matrix(drawn, dtype=np.float32), drawn.rng.randrange(2)
    return lambda args: lax.sort(args[at], dimension=axis)


def summed_up(drawn: Drawn):
    at, axis = matrix(drawn, dtype=np.int32), drawn.rng.randrange(2)
    is_reverse = drawn.rng.random() < 0.5
    return lambda args: lax.cumsum(args[at], axis, reverse=is_reverse)


def looked_up(drawn: Drawn):
    at = matrix(drawn)
    rows = drawn.indices((drawn.rng.choice(SIZES),), drawn.args[at].shape[0])
    return lambda args: args[at].at[args[rows]].get(mode="clip")


def added_to_rows(drawn: Drawn):
    at, count = matrix(drawn, dtype=np.int32), drawn.rng.choice(SIZES)
    rows = drawn.indices((count,), drawn.args[at].shape[0])
    updates = matrix(drawn, count, drawn.args[at].shape[1], dtype=np.int32)
    start = drawn.rng.choice([jnp.zeros_like, lambda value: value])
    return lambda args: start(args[at]).at[args[rows]].add(args[updates], mode="drop")


def sliced_at(drawn: Drawn):
    at = matrix(drawn)
    first = drawn.indices((), 5)
    size = drawn.rng.choice([1, 2])
    return lambda args: lax.dynamic_slice_in_dim(args[at], args[first].astype(np.int32), size, 0)


def updated_at(drawn: Drawn):
    at = matrix(drawn, dtype=np.int32)
    first, size = drawn.indices((), 5), drawn.rng.choice([1, 2])
    update = matrix(drawn, size, drawn.args[at].shape[1], dtype=np.int32)
    return lambda args: lax.dynamic_update_slice_in_dim(args[at], args[update], args[first].astype(np.int32), 0)


def looped(drawn: Drawn):
    at = matrix(drawn, dtype=np.int32)
    return lambda args: lax.fori_loop(0, 3, lambda n, held: held + jnp.sum(held, axis=0) % 5 + n, args[at])


def repeated(drawn: Drawn):
    size, rows = drawn.rng.choice(SIZES), drawn.rng.choice(SIZES)
    at = drawn.array((size,))
    return lambda args: jnp.broadcast_to(args[at], (rows, size))


MAKERS = (
    *(reduced, product, part, shifted, padded, concatenated, reshaped, transposed, numbered, sorted_along, summed_up),
    *(looked_up, added_to_rows, sliced_at, updated_at, looped, repeated),
)


def changed(value):
    """Returns other values, so that padding, which is often zero, holds what reductions notice."""
    return ~value if value.dtype == bool else value + 1


def checked(mesh, seed: int, makers, count: int = 5) -> str:
    """Writes a program per device whose arguments and results have any layouts inside; returns its text."""
    drawn = Drawn(seed)
    ops = [drawn.rng.choice(makers)(drawn) for _ in range(count)]
    shapes = [each.shape for each in jax.eval_shape(lambda *a: tuple(op(a) for op in ops), *drawn.args)]
    before = [layout_of(drawn, np.ndim(each)) for each in drawn.args]
    after = [layout_of(drawn, len(shape)) for shape in shapes]

    def held(value, spec):
        return lax.with_sharding_constraint(value, NamedSharding(mesh, spec))

    def program(*args):
        args = [changed(held(value, spec)) for value, spec in zip(args, before, strict=True)]
        return tuple(held(held(op(args), spec), P()) for op, spec in zip(ops, after, strict=True))

    jax.clear_caches()
    args = [jax.device_put(each, NamedSharding(mesh, P())) for each in drawn.args]
    written = reshard.optimize(jax.jit(program).lower(*args), emit="local")
    wanted = jax.jit(lambda *a: tuple(op([*map(changed, a)]) for op in ops))(*drawn.args)
    for number, (mine, theirs) in enumerate(zip(written.compile()(*args), wanted, strict=True)):
        name = f"op {number}, {ops[number].__qualname__}, {before} to {after}"
        assert mine.dtype == theirs.dtype
        if np.issubdtype(mine.dtype, np.inexact):  # sums in another order
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, theirs, name)
    return str(written.module)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_an_op_on_padded_tiles(mesh, maker):
    checked(mesh, seed=7, makers=(maker,))


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_programs_on_padded_tiles_with_any_rule(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)


def test_a_tile_that_is_cut_and_padded_between_two_all_to_alls_compiles():
    """XLA of jaxlib 0.10 passes parts of one all_to_all to the next one, and its verifier then refuses the program."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])

    def program(a, rows):
        constrain = lambda value, *spec: lax.with_sharding_constraint(value, NamedSharding(mesh, P(*spec)))  # noqa: E731
        found = jnp.take_along_axis(constrain(a, "y", None), rows, axis=0, mode="promise_in_bounds")
        return constrain(found, None, "y"), constrain(found, "y", None)

    a, rows = np.arange(50, dtype=np.float32).reshape(5, 10), (np.arange(50, dtype=np.int32) % 5).reshape(5, 10)
    jax.clear_caches()
    whole = NamedSharding(mesh, P())
    args = jax.device_put((a, rows), whole)
    lowered = jax.jit(program, out_shardings=whole).lower(*args)
    for mine in reshard.optimize(lowered, emit="local").compile()(*args):
        np.testing.assert_array_equal(mine, np.take_along_axis(a, rows, 0))
