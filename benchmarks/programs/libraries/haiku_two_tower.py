# SPDX-License-Identifier: Apache-2.0
# The extra `benchmarks` need not be installed.
# pyright: reportMissingImports=false
"""Retrieval with two towers of Haiku, of users and of items, and a loss over all pairs of a batch, both ways."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, constrain, integers, layout, normal

CONFIGS = {
    "small": (16, 64, 8, (32, 16)),
    "demo": (2048, 8192, 64, (1024, 256)),
    "large": (16384, 1048576, 256, (4096, 2048)),
}  # pairs in a batch, rows of an embedding table, features of a row, features of a tower's layers
DENSE = 32


def haiku_two_tower(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step with Adagrad.

    Tables are split by row over all devices. Users are split by batch over `data`, items over `model`; a user's scores
    are normalized over items, an item's over users.
    """
    batch, rows, features, tower = CONFIGS[size]
    everything = ("data", "model")

    def embedded(name, ids, by_batch):
        table = hk.get_parameter(name, (rows, features), init=hk.initializers.RandomNormal(0.1))
        return constrain(constrain(table[ids], mesh, everything), mesh, *by_batch)

    def encoded(name, side, by_batch):
        ids, dense = side
        x = jnp.concatenate([embedded(f"{name}_table", ids, by_batch), dense], axis=-1)
        x = constrain(hk.nets.MLP(tower, name=name)(x), mesh, *by_batch)
        return x / (1e-6 + jnp.linalg.norm(x, axis=-1, keepdims=True))

    @hk.without_apply_rng
    @hk.transform
    def scores(users, items):
        of_users, of_items = encoded("user", users, ("data",)), encoded("item", items, ("model",))
        return 20 * of_users @ of_items.T

    def loss(weights, users, items):
        pairs = scores.apply(weights, users, items)
        labels = jnp.arange(batch)
        # Each softmax runs along a dimension that is whole on its device.
        of_users = constrain(pairs, mesh, everything)
        of_items = constrain(pairs, mesh, None, everything).T
        each = (optax.softmax_cross_entropy_with_integer_labels(way, labels).mean() for way in (of_users, of_items))
        return sum(each) / 2

    optimizer = optax.adagrad(0.05)

    def train_step(state, users, items):
        weights, sums = state
        value, gradients = jax.value_and_grad(loss)(weights, users, items)
        updates, sums = optimizer.update(gradients, sums, weights)
        return (optax.apply_updates(weights, updates), sums), value

    def sides():
        return tuple((integers(i, rows, batch), normal(i + 1, batch, DENSE)) for i in (1, 3))

    def values():
        weights = scores.init(jax.random.key(0), *sides())
        return (weights, optimizer.init(weights)), *sides()

    def split(leaf):
        is_table = leaf.shape == (rows, features)
        return layout(mesh, everything) if is_table else layout(mesh, *(None,) * (leaf.ndim - 1), "model")

    placed = jax.tree.map(lambda leaf: split(leaf) if leaf.ndim else layout(mesh), jax.eval_shape(values)[0])
    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))
    return Setup(function, values, (placed, layout(mesh, "data"), layout(mesh, "data")))
