# SPDX-License-Identifier: Apache-2.0
"""Programs of random ops on random arrays in random layouts, written per device with any of the rules of each op."""

import random

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.partitioning.rule_choice import RuleChoice

INDEX_TYPES = (np.int32, np.int8, np.uint8, np.uint32)
AXES = (("x", 2), ("y", 2), ("z", 2))
OPS_PER_PROGRAM = 6
written: list[str] = []  # the rules that were chosen, by op


@pytest.fixture(scope="module")
def mesh():
    names, sizes = zip(*AXES)
    return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8])


@pytest.fixture
def any_rule(monkeypatch):
    """Makes the writer take any of an op's rules, not the cheapest, and join parts or not."""
    monkeypatch.setenv("RESHARD_CACHE", "off")  # such a result is not to be kept, and none to be read
    chooser = random.Random(0)

    def cheapest(choice, site, rules, scope):
        if len(rules) == 1:
            return rules[0]
        number = chooser.randrange(len(rules))
        written.append(f"{site.op.name} {number}")
        return rules[number]

    monkeypatch.setattr(RuleChoice, "cheapest", cheapest)
    monkeypatch.setattr(RuleChoice, "cost_apart", lambda *_: (float("inf") if chooser.random() < 0.7 else -1, 0, 0))


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
        dtype = self.rng.choice(INDEX_TYPES)
        low = 0 if np.issubdtype(dtype, np.unsignedinteger) else -2
        self.args.append(self.numbers.integers(low, size + 3, shape).astype(dtype))
        self.specs.append(self.spec(shape))
        return len(self.args) - 1


def checked(mesh, seed: int, makers) -> None:
    """Writes a program of ops that `makers` draw per device, and compares its values with those of one device."""
    drawn = Drawn(seed)
    ops = [drawn.rng.choice(makers)(drawn) for _ in range(OPS_PER_PROGRAM)]
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
