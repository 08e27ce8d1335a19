# SPDX-License-Identifier: Apache-2.0
"""What repeats a value is written once more in another layout: with the values of one device, and without a collective.
What only looks like a broadcast on one device is converted."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from test.end_to_end.local.drawn import mesh

__all__ = ["mesh"]  # a fixture


def _in(mesh, x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def _rows_with_one_on_each_device(mesh, x):
    """What is broadcast has one element on each device, of eight."""
    repeated = _in(mesh, jnp.broadcast_to(x[:, None], (8, 16)), ("x", "y", "z"), None)
    return jnp.sin(repeated), _in(mesh, repeated, None, ("x", "y", "z")) + 1


def _numbers_of_rows(mesh, x):
    numbers = _in(mesh, lax.broadcasted_iota(jnp.float32, (8, 16), 0), ("x", "y", "z"), None)
    return numbers + x[0], _in(mesh, numbers, None, ("x", "y", "z")) * x[1]


def _out_of_a_manual_computation(mesh, x):
    """Inside, the same number is repeated on each device, another one on each."""

    def body(part):
        return jnp.broadcast_to(lax.axis_index("x") * part.sum(), (4, 8))

    made = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x)
    return _in(mesh, made, None, None) * 2, _in(mesh, made, "y", None) + 1


def _out_of_one_over_one_axis(mesh, x):
    def body(part):
        return jnp.broadcast_to(lax.axis_index("x") * part.sum(), (4, 8))

    made = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False)(x)
    return _in(mesh, made, None, None) * 2, _in(mesh, made, "y", None) + 1


def _columns(mesh, x):
    repeated = jnp.broadcast_to(x, (16, 8))
    return _in(mesh, repeated, "x", None) * 2, _in(mesh, repeated, None, None) + 1, _in(mesh, repeated, "y", None) - 1


def _a_number(mesh, x):
    repeated = jnp.broadcast_to(x[0], (10, 9))  # 9 does not divide
    return _in(mesh, repeated, "x", "y").max(), _in(mesh, repeated, "y", None) * 2, _in(mesh, repeated, None, "x").sum()


def _in_a_loop(mesh, x):
    repeated = jnp.broadcast_to(x, (16, 8))

    def turn(total, _):
        return _in(mesh, total * _in(mesh, repeated, None, None), "x", None) + _in(mesh, repeated, "x", None), None

    return lax.scan(turn, _in(mesh, repeated, "x", None), None, length=3)[0]


def _a_row_that_one_device_has(mesh, x):
    """A dimension of size 1 that is split, and one that stays."""
    row = _in(mesh, x[None, :] * 2, ("x", "y", "z"), None)
    kept = _in(mesh, lax.broadcast_in_dim(row, (1, 8, 8), (0, 2)), "x", None, None)
    return jnp.broadcast_to(row, (8, 8)) + 1, _in(mesh, kept, None, None, None) * 2


FREE = [_columns, _a_number, _in_a_loop]
OTHERS = [
    _a_row_that_one_device_has,
    _rows_with_one_on_each_device,
    _numbers_of_rows,
    _out_of_a_manual_computation,
    _out_of_one_over_one_axis,
]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("function", [*FREE, *OTHERS], ids=lambda each: each.__name__.strip("_"))
def test_values_are_those_of_one_device(mesh, function):
    x = np.random.default_rng(0).integers(-3, 4, 8).astype(np.float32)
    lowered = jax.jit(lambda x: function(mesh, x)).lower(
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, P()))
    )
    found = reshard.optimize(lowered, emit="local", check=False).compile()(jax.device_put(x, NamedSharding(mesh, P())))
    expected = _expected(mesh, function, x)
    for each, right in zip(jax.tree.leaves(found), expected, strict=True):
        for shard in each.addressable_shards:  # copies, too
            np.testing.assert_array_equal(np.asarray(shard.data), right[shard.index])


def _expected(mesh, function, x):
    """Returns what stock XLA computes; it is right about all of these."""
    return [np.asarray(each) for each in jax.tree.leaves(jax.jit(lambda x: function(mesh, x))(x))]


def test_what_repeats_a_value_is_never_sent(mesh):
    lowered = jax.jit(lambda x: _columns(mesh, x)).lower(
        jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(mesh, P()))
    )
    text = str(reshard.optimize(lowered, emit="local", check=False).module)
    assert "manual_computation" in text
    assert not re.search("all_gather|all_to_all|collective_permute|partition_id", text)
