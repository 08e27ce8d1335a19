# SPDX-License-Identifier: Apache-2.0
"""Each rule for ops on indexed dimensions gives the values of the unsharded op, but for the sign of zeros."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.emission.local_ops import OpWriter

AXES = (("x", 2), ("y", 2), ("z", 2))
INDICES = (np.int32, np.int8, np.uint8, np.uint32)
OPS_PER_PROGRAM = 6
written: list[str] = []  # the rules that were chosen, by op


@pytest.fixture(scope="module")
def mesh():
    names, sizes = zip(*AXES)
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8])


class Drawn:
    """Random arrays and layouts. State: `args` and `specs`, the arguments that were drawn."""

    def __init__(self, seed: int):
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.args: list[np.ndarray] = []
        self.specs: list[P] = []

    def spec(self, shape) -> P:
        """Returns a layout in which each dimension divides."""
        free, entries = self.rng.sample(AXES, 3), []
        for size in shape:
            here = []
            while free and self.rng.random() < 0.45 and size % (2 ** (len(here) + 1)) == 0:
                here.append(free.pop()[0])
            entries.append(tuple(here) or None)
        return P(*entries)

    def array(self, shape, dtype=None) -> int:
        """Adds an argument, with zeros of both signs in it, and returns its number."""
        dtype = dtype or self.rng.choice([np.float32, np.float32, np.int32, bool, np.complex64])
        values = self.numbers.integers(-3, 4, shape).astype(np.float32)
        values[values == 1] = -0.0
        self.args.append(values.astype(dtype) if dtype != np.complex64 else (values + 1j * values[::-1]).astype(dtype))
        self.specs.append(self.spec(shape))
        return len(self.args) - 1

    def indices(self, shape, size: int) -> int:
        """Adds indices, a few of them out of range."""
        dtype = self.rng.choice(INDICES)
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -2
        self.args.append(self.numbers.integers(low, size + 3, shape).astype(dtype))
        self.specs.append(self.spec(shape))
        return len(self.args) - 1


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
    dtype = drawn.rng.choice(INDICES)
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


@pytest.fixture
def any_rule(monkeypatch):
    """Makes the writer take any of an op's rules, not the cheapest."""
    chooser = random.Random(0)

    def cheapest(writer, site, rules, scope):
        if len(rules) == 1:
            return rules[0]
        number = chooser.randrange(len(rules))
        written.append(f"{site.op.name} {number}")
        return rules[number]

    monkeypatch.setattr(OpWriter, "_cheapest", cheapest)


def checked(mesh, seed: int) -> None:
    drawn = Drawn(seed)
    ops = [drawn.rng.choice(MAKERS)(drawn) for _ in range(OPS_PER_PROGRAM)]
    shapes = [each.shape for each in jax.eval_shape(lambda *a: tuple(op(a) for op in ops), *drawn.args)]
    specs = [drawn.spec(shape) for shape in shapes]

    def program(*args):
        return tuple(
            lax.with_sharding_constraint(op(args), NamedSharding(mesh, spec))
            for op, spec in zip(ops, specs, strict=True)
        )

    jax.clear_caches()
    args = [jax.device_put(each, NamedSharding(mesh, spec)) for each, spec in zip(drawn.args, drawn.specs, strict=True)]
    got = reshard.optimize(jax.jit(program).lower(*args), emit="local").compile()(*args)
    wanted = jax.jit(lambda *a: tuple(op(a) for op in ops))(*drawn.args)
    for number, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs, f"op {number}, {ops[number].__qualname__}")


@pytest.mark.parametrize("seed", range(3))
def test_any_rule_of_an_indexed_op_gives_the_values_of_one_device(mesh, any_rule, seed):
    checked(mesh, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_rules_of_indexed_ops_on_many_layouts(mesh, any_rule, seed):
    checked(mesh, seed)
