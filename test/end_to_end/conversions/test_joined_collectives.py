# SPDX-License-Identifier: Apache-2.0
"""A module written per device for processes of CPU devices, whose small sums are one: the values of stock XLA."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.synthesis.network.topology import Topology
from test.end_to_end.local.drawn import mesh

__all__ = ["mesh"]  # a fixture


def _gradients(parameters, batch):
    """Each parameter's gradient is a sum over the batch, which is split."""

    def loss(given):
        hidden = batch
        for scale, shift in given:
            hidden = hidden * scale + shift
        return (hidden * hidden).sum()

    return jax.tree.map(lambda each, grad: each - grad, parameters, jax.grad(loss)(parameters))


def _in_a_loop(parameters, batch):
    """The sums of one turn are one, and those of different turns are not."""

    def turn(held, row):
        gradients = jax.tree.map(lambda each: (each * row).sum(0) % 7, held)
        return jax.tree.map(lambda each, other: (each + other) % 5, held, gradients), None

    return lax.scan(turn, parameters, jnp.stack([batch, batch + 1, batch * 2]))[0]


@pytest.mark.parametrize("function", [_gradients, _in_a_loop], ids=lambda each: each.__name__.strip("_"))
def test_values_are_those_of_stock_xla_on_all_devices(mesh, function):
    numbers = np.random.default_rng(0).integers(-1, 2, (6, 4)).astype(np.float32)
    parameters = [(numbers[i], numbers[i + 1]) for i in range(0, 6, 2)]
    batch = np.random.default_rng(1).integers(-1, 2, (8, 4)).astype(np.float32)
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(("x", "y", "z"), None))
    given = jax.device_put(parameters, whole), jax.device_put(batch, split)
    lowered = jax.jit(function).lower(*given)
    written = reshard.optimize(
        lowered, emit="local", topology=replace(Topology.parse("ethernet:2x4"), platform="cpu"), check=False
    )
    assert len(re.findall(r"stablehlo\.(?:all_reduce|reduce_scatter)", str(written.module))) == 1  # of six parameters
    for ours, theirs in zip(jax.tree.leaves(written.compile()(*given)), jax.tree.leaves(lowered.compile()(*given))):
        for mine, right in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
            np.testing.assert_array_equal(np.asarray(mine.data), np.asarray(right.data))
