# SPDX-License-Identifier: Apache-2.0
# The extra `benchmarks` need not be installed.
# pyright: reportMissingImports=false
"""An MLP-Mixer of Equinox: a block mixes patches, with channels split, then channels, with patches split."""

from __future__ import annotations

import equinox as eqx
import jax
import optax
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, constrain, integers, layout, normal

CLASSES = 64
CONFIGS = {
    "small": (8, 16, 16, 32, 2),
    "demo": (32, 256, 256, 1024, 4),
    "large": (128, 4096, 2048, 8192, 8),
}  # images, patches, channels, hidden features of both mixers, blocks
PATCH_FEATURES = 48


def _along_last(mlp: eqx.nn.MLP, x):
    """Returns [images, rows, features] after an MLP over features."""
    return jax.vmap(jax.vmap(mlp))(x)


class Block(eqx.Module):
    """Mixes patches, then channels."""

    of_patches: eqx.nn.MLP
    of_channels: eqx.nn.MLP
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]

    def __init__(self, patches: int, channels: int, hidden: int, key):
        first, second = jax.random.split(key)
        self.of_patches = eqx.nn.MLP(patches, patches, hidden, 1, jax.nn.gelu, key=first)
        self.of_channels = eqx.nn.MLP(channels, channels, hidden, 1, jax.nn.gelu, key=second)
        self.norms = eqx.nn.LayerNorm(channels), eqx.nn.LayerNorm(channels)

    def __call__(self, x, mesh: Mesh):
        """Returns [images, patches, channels], split by patches as `x` is."""
        by_patch, by_channel = ("data", "model"), ("data", None, "model")
        y = constrain(jax.vmap(jax.vmap(self.norms[0]))(x), mesh, *by_channel)
        y = _along_last(self.of_patches, y.swapaxes(1, 2)).swapaxes(1, 2)
        x = x + constrain(constrain(y, mesh, *by_channel), mesh, *by_patch)
        y = _along_last(self.of_channels, jax.vmap(jax.vmap(self.norms[1]))(x))
        return constrain(x + y, mesh, *by_patch)


class Mixer(eqx.Module):
    """[images, patches, PATCH_FEATURES] to [images, CLASSES]."""

    stem: eqx.nn.Linear
    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, patches: int, channels: int, hidden: int, blocks: int, key):
        first, *keys, last = jax.random.split(key, blocks + 2)
        self.stem = eqx.nn.Linear(PATCH_FEATURES, channels, key=first)
        self.blocks = [Block(patches, channels, hidden, each) for each in keys]
        self.head = eqx.nn.Linear(channels, CLASSES, key=last)

    def __call__(self, x, mesh: Mesh):
        x = constrain(jax.vmap(jax.vmap(self.stem))(x), mesh, "data", "model")
        for block in self.blocks:
            x = block(x, mesh)
        return jax.vmap(self.head)(x.mean(1))


def equinox_mixer(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step with Adam; weights are split over `model` along their first dimension, moments too."""
    images, patches, channels, hidden, blocks = CONFIGS[size]
    optimizer = optax.adam(3e-4)

    def weights():
        return eqx.filter(Mixer(patches, channels, hidden, blocks, jax.random.key(0)), eqx.is_inexact_array)

    static = eqx.filter(
        eqx.filter_eval_shape(Mixer, patches, channels, hidden, blocks, jax.random.key(0)),
        lambda leaf: not isinstance(leaf, jax.ShapeDtypeStruct),
    )

    def loss(weights, pixels, labels):
        logits = eqx.combine(weights, static)(pixels, mesh)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def train_step(state, pixels, labels):
        weights, moments = state
        value, gradients = jax.value_and_grad(loss)(weights, pixels, labels)
        updates, moments = optimizer.update(gradients, moments, weights)
        return (eqx.apply_updates(weights, updates), moments), value

    def state():
        initial = weights()
        return initial, optimizer.init(initial)

    placed = jax.tree.map(lambda leaf: layout(mesh, "model") if leaf.ndim == 2 else layout(mesh), jax.eval_shape(state))
    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))

    def values():
        return state(), normal(1, images, patches, PATCH_FEATURES), integers(2, CLASSES, images)

    by_patch, by_image = layout(mesh, "data", "model"), layout(mesh, ("data", "model"))
    return Setup(function, values, (placed, by_patch, by_image))
