# SPDX-License-Identifier: Apache-2.0
"""A module written per device for processes of CPU devices, whose small sums are one: the values of stock XLA."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.sites.network import option_text
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


def _large_sum_before_a_loop(order):
    """Returns a program that needs no more of the sum of one array than its rows' largest numbers; the other sum comes
    from a loop, in which much is in memory."""

    def per_device(a, b):
        made = a @ a[:512]
        largest = lax.psum(made, "i").max(1)
        turned = lax.fori_loop(0, 4, lambda _, h: jnp.tanh(h @ h), b @ made.T)
        return largest, lax.psum(turned.sum(0), "i")

    devices = Mesh(np.array(jax.devices())[order].reshape(2, 4), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    split = {"in_specs": (P("j"), P(("i", "j"))), "out_specs": (P("j"), P("j"))}
    return jax.jit(jax.shard_map(per_device, mesh=devices, **split))


@pytest.mark.slow
@pytest.mark.parametrize("order", [range(8), (6, 1, 4, 3, 2, 5, 0, 7)], ids=("in order", "in another order"))
def test_a_sum_that_does_not_wait_for_a_loop_needs_less_memory(order):
    """XLA's combiner for CPU devices makes one of both sums, behind the loop, if they list the same groups alike."""
    network = option_text(replace(Topology.parse("ethernet:2x4"), platform="cpu"))
    draw = np.random.default_rng(0).integers
    given = [draw(-1, 2, (rows, 512)).astype(np.float32) for rows in (4096, 8192)]
    sums, temporaries, values = [], [], []
    for apart in ("false", "true"):
        lowered = _large_sum_before_a_loop(list(order)).lower(*given)
        module = lowered.compiler_ir("stablehlo")
        with module.context:
            Pipeline.parse("join-collectives").with_options({"topology": network, "apart": apart}).run(
                module, Session()
            )
        compiled = lowered.compile()
        sums.append(len(re.findall(r" all-reduce\(", compiled.as_text())))
        temporaries.append(compiled.memory_analysis().temp_size_in_bytes)
        values.append([np.asarray(each) for each in compiled(*map(jnp.asarray, given))])
    assert sums == [1, 2] and temporaries[1] <= temporaries[0] - 1024 * 512 * 4, (sums, temporaries)
    for mine, right in zip(values[1], values[0], strict=True):
        np.testing.assert_array_equal(mine, right)
