# SPDX-License-Identifier: Apache-2.0
# Flax says less in its types than in its documentation.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false
"""A diffusion model's U-Net of flax.linen with Adam: pixels by row on the way down and up, heads at the bottom."""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, constrain, integers, layout, normal

GROUPS = 8  # of channels that are normalized together
STEPS = 1000  # of noise
BY_ROWS = ("data", "rows")


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of one batch."""

    images: int
    side: int  # pixels
    channels: tuple[int, ...]  # of each level; pixels are half as many along each side from one to the next
    blocks: int  # of a level, on the way down and on the way up
    heads: int


CONFIGS = {
    "small": Config(4, 16, (8, 16), 1, 4),
    "demo": Config(16, 64, (32, 64, 128), 2, 4),
    "large": Config(32, 256, (256, 512, 1024, 2048), 2, 16),
}


class Block(nn.Module):
    """Two convolutions, of which the second knows the amount of noise."""

    mesh: Mesh
    channels: int

    @nn.compact
    def __call__(self, x, noise):
        h = nn.Conv(self.channels, (3, 3))(nn.swish(nn.GroupNorm(GROUPS)(x)))
        h = constrain(h + nn.Dense(self.channels)(noise)[:, None, None], self.mesh, *BY_ROWS)
        h = nn.Conv(self.channels, (3, 3), kernel_init=nn.initializers.zeros)(nn.swish(nn.GroupNorm(GROUPS)(h)))
        x = x if x.shape[-1] == self.channels else nn.Dense(self.channels)(x)
        return constrain(x + h, self.mesh, *BY_ROWS)


class Attention(nn.Module):
    """Every pixel attends to every other one; heads are split over `rows`."""

    mesh: Mesh
    heads: int

    @nn.compact
    def __call__(self, x):
        images, side, _, channels = x.shape
        h = nn.GroupNorm(GROUPS)(x).reshape(images, side * side, channels)
        h = nn.DenseGeneral((3, self.heads, channels // self.heads))(h)
        q, k, v = jnp.moveaxis(constrain(h, self.mesh, "data", None, None, "rows"), 2, 0)
        h = nn.DenseGeneral(channels, axis=(-2, -1))(nn.dot_product_attention(q, k, v))
        return constrain(x + h.reshape(x.shape), self.mesh, *BY_ROWS)


class UNet(nn.Module):
    """[images, side, side, 3] of noisy pixels and [images] of steps to the noise in each pixel."""

    mesh: Mesh
    config: Config

    @nn.compact
    def __call__(self, x, steps):
        c = self.config
        frequencies = jnp.exp(-jnp.arange(c.channels[0]) / c.channels[0] * jnp.log(1e4))
        angles = steps[:, None] * frequencies
        noise = nn.Dense(c.channels[-1])(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
        x = constrain(nn.Conv(c.channels[0], (3, 3))(x), self.mesh, *BY_ROWS)
        kept = [x]
        for level, channels in enumerate(c.channels):
            for _ in range(c.blocks):
                x = Block(self.mesh, channels)(x, nn.swish(noise))
                kept.append(x)
            if level + 1 < len(c.channels):
                x = constrain(nn.Conv(channels, (3, 3), 2)(x), self.mesh, *BY_ROWS)
        x = Block(self.mesh, c.channels[-1])(x, nn.swish(noise))
        x = Attention(self.mesh, c.heads)(x)
        x = Block(self.mesh, c.channels[-1])(x, nn.swish(noise))
        for level, channels in reversed(list(enumerate(c.channels))):
            for _ in range(c.blocks):
                x = Block(self.mesh, channels)(jnp.concatenate([x, kept.pop()], -1), nn.swish(noise))
            if level:
                images, side, _, _ = x.shape
                x = jax.image.resize(x, (images, 2 * side, 2 * side, channels), "nearest")
                x = constrain(nn.Conv(channels, (3, 3))(x), self.mesh, *BY_ROWS)
        x = jnp.concatenate([x, kept.pop()], -1)
        return nn.Conv(3, (3, 3), kernel_init=nn.initializers.zeros)(nn.swish(nn.GroupNorm(GROUPS)(x)))


def linen_unet(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step; Adam's moments and the averaged weights are split over all devices where they divide.

    Source: the model and the loss of arXiv 2006.11239, with one level of attention.
    """
    c = CONFIGS[size]
    model, optimizer = UNet(mesh, c), optax.adam(2e-4)
    pixels = (c.images, c.side, c.side, 3)

    def initial():
        weights = model.init(jax.random.key(0), jnp.zeros(pixels), jnp.zeros(c.images, jnp.int32))["params"]
        return weights, optimizer.init(weights), weights

    def loss(weights, images, steps, noise):
        kept = jnp.cos(steps / STEPS * jnp.pi / 2)[:, None, None, None]
        noisy = kept * images + jnp.sqrt(1 - kept**2) * noise
        return jnp.mean((model.apply({"params": weights}, noisy, steps) - noise) ** 2)

    def train_step(state, images, steps, noise):
        weights, moments, averaged = state
        value, gradients = jax.value_and_grad(loss)(weights, images, steps, noise)
        updates, moments = optimizer.update(gradients, moments, weights)
        weights = optax.apply_updates(weights, updates)
        return (weights, moments, optax.incremental_update(weights, averaged, 1e-3)), value

    def split(leaf):
        divides = leaf.ndim and leaf.shape[-1] % mesh.size == 0
        return layout(mesh, *(None,) * (leaf.ndim - 1), BY_ROWS) if divides else layout(mesh)

    weights, moments, averaged = jax.eval_shape(initial)
    placed = jax.tree.map(lambda _: layout(mesh), weights), *jax.tree.map(split, (moments, averaged))
    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))

    def values():
        weights, moments, _ = initial()
        averaged = jax.tree.map(jnp.copy, weights)
        return (weights, moments, averaged), normal(1, *pixels), integers(2, STEPS, c.images), normal(3, *pixels)

    by_rows = layout(mesh, *BY_ROWS)
    return Setup(function, values, (placed, by_rows, layout(mesh, "data"), by_rows))
