# SPDX-License-Identifier: Apache-2.0
"""A GPT trained with fully sharded weights, the gradients of several microbatches added up before each update.

The batch is too large for the activations of one pass, so that a loop goes through it in parts. Weights, gradients and
the state of Adam are split over all devices. In each turn of the loop weights are gathered, and gradients reduced.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from benchmarks.programs.mixed_gpt import CONFIGS, loss, weights_of
from benchmarks.programs.program import Setup, integers, layout

MICROBATCHES = 4


def accumulated_gpt(mesh: Mesh, size: str) -> Setup:
    """Sets up one step of Adam, from the mean gradient of all microbatches; weights and moments are donated.

    A microbatch has at least a row for each device, and the same rows on all meshes of up to eight.
    """
    c = CONFIGS[size]
    optimizer = optax.adam(1e-3)
    step = partial(_train_step, optimizer)

    def values():
        weights = weights_of(c)
        tokens = integers(3, c.vocabulary, MICROBATCHES, max(c.batch, 8, mesh.size), c.length + 1)
        return weights, optimizer.init(weights), tokens

    weights, state, _ = jax.eval_shape(values)
    placed = jax.tree.map(partial(_in_shards, mesh), (weights, state))
    function = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*placed, layout(mesh)))
    return Setup(function, values, (*placed, layout(mesh, None, "fsdp")))


def _train_step(optimizer, weights, state, tokens):
    """Returns new weights and state, and the mean loss of tokens, [microbatches, batch, length + 1]."""

    def turn(total, part):
        found = jax.value_and_grad(lambda weights: loss(weights, part, lambda x, *_: x))(weights)
        return jax.tree.map(jnp.add, total, found), None

    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights)
    value, gradients = jax.tree.map(lambda each: each / len(tokens), jax.lax.scan(turn, zeros, tokens)[0])
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state, value


def _in_shards(mesh: Mesh, leaf) -> jax.sharding.NamedSharding:
    """Returns the sharding of a leaf along its first dimension that divides; whole if there is none."""
    at = next((dim for dim, size in enumerate(leaf.shape) if size % mesh.size == 0), None)
    return layout(mesh) if at is None else layout(mesh, *[None] * at, "fsdp")
