# SPDX-License-Identifier: Apache-2.0
"""Each rule for ops on indexed dimensions gives the values of the unsharded op, but for the sign of zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from test.end_to_end.local.drawn import INDEX_TYPES, Drawn, any_rule, checked, mesh

__all__ = ["any_rule", "mesh"]  # fixtures


def gathers(drawn: Drawn):
    shape = [drawn.rng.choice([4, 8]) for _ in range(3)]
    table = drawn.array(shape)
    kind = drawn.rng.choice(["rows", "columns", "points", "batches"])
    if kind == "batches":
        picks = drawn.indices([shape[0], 4], shape[1])
        return lambda a: jax.vmap(lambda t, i: t.at[i].get(mode="clip"))(a[table], a[picks])
    if kind == "points":
        one, two = drawn.indices([8], shape[0]), drawn.indices([8], shape[2])
        return lambda a: a[table].at[a[one].astype(np.int32), :, a[two].astype(np.int32)].get(mode="clip")
    picks = drawn.indices([4, 2], shape[0 if kind == "rows" else 1])
    axis = 0 if kind == "rows" else 1
    return lambda a: jnp.take(a[table], a[picks].astype(np.int32), axis=axis, mode="clip")


def scatters(drawn: Drawn):
    shape = [drawn.rng.choice([4, 8]) for _ in range(2)]
    dtype = drawn.rng.choice([np.float32, np.int32])
    how = drawn.rng.choice(["add", "max", "min", "set"])
    if drawn.rng.random() < 0.3:
        table, updates = drawn.array([4, *shape], dtype), drawn.array([4, 2, shape[1]], dtype)
        picks = drawn.indices([4, 2], shape[0])
        return lambda a: jax.vmap(lambda t, i, u: t.at[i].add(u, mode="drop"))(a[table], a[picks], a[updates])
    updates = drawn.array([8, shape[1]], dtype)
    if how == "set":  # of updates of one place any may remain
        picks = drawn.array([8], np.int32)
        drawn.args[picks] = drawn.numbers.permutation(8).astype(np.int32) - 1
    else:
        picks = drawn.indices([8], shape[0])
    table = None if drawn.rng.random() < 0.5 else drawn.array(shape, dtype)
    least, most = (-np.inf, np.inf) if dtype == np.float32 else (np.iinfo(np.int32).min, np.iinfo(np.int32).max)
    empty = {"max": least, "min": most}.get(how, 0)

    def start(a):
        return jnp.full(shape, empty, dtype) if table is None else a[table]

    return lambda a: getattr(start(a).at[a[picks].astype(np.int32)], how)(a[updates], mode="drop")


def _starts(drawn: Drawn, shape) -> list[int]:
    dtype = drawn.rng.choice(INDEX_TYPES)
    numbers = []
    for size in shape:
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -2
        drawn.args.append(np.array(drawn.rng.randrange(low, size + 2), dtype))
        drawn.specs.append(P())
        numbers.append(len(drawn.args) - 1)
    return numbers


def dynamic_slices(drawn: Drawn):
    shape = [drawn.rng.choice([4, 8]) for _ in range(3)]
    table, starts = drawn.array(shape), _starts(drawn, shape)
    sizes = [drawn.rng.choice([1, 1, 2, 3, size]) for size in shape]
    return lambda a: lax.dynamic_slice(a[table], [a[i] for i in starts], sizes)


def dynamic_updates(drawn: Drawn):
    shape = [drawn.rng.choice([4, 8]) for _ in range(3)]
    table, starts = drawn.array(shape), _starts(drawn, shape)
    update = drawn.array([drawn.rng.choice([1, 1, 2, 3, size]) for size in shape], drawn.args[table].dtype.type)
    return lambda a: lax.dynamic_update_slice(a[table], a[update], [a[i] for i in starts])


MAKERS = (gathers, scatters, dynamic_slices, dynamic_updates)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", range(3))
def test_any_rule_of_an_indexed_op_gives_the_values_of_one_device(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_rules_of_indexed_ops_on_many_layouts(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)
