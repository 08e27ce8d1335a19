# SPDX-License-Identifier: Apache-2.0
"""A ConvNeXt of flax.nnx with SGD and momentum: images split by batch and rows of pixels, the last stage by channel."""

from __future__ import annotations

import jax
import optax
from flax import nnx
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, constrain, integers, layout, normal

CLASSES = 64
CONFIGS = {
    "small": (8, 32, (8, 16), (1, 1)),
    "demo": (32, 128, (64, 128, 256), (2, 2, 2)),
    "large": (128, 1024, (256, 512, 1024, 2048), (3, 3, 9, 3)),
}  # images, their side in pixels, channels and blocks of each stage


class Block(nnx.Module):
    """A depthwise convolution, then a feed-forward layer over channels."""

    def __init__(self, mesh: Mesh, channels: int, rngs: nnx.Rngs):
        self.mesh = mesh
        self.depthwise = nnx.Conv(channels, channels, (7, 7), feature_group_count=channels, rngs=rngs)
        self.norm = nnx.LayerNorm(channels, rngs=rngs)
        self.up = nnx.Linear(channels, 4 * channels, rngs=rngs)
        self.down = nnx.Linear(4 * channels, channels, rngs=rngs)

    def __call__(self, x, by_pixels: tuple, by_features: tuple):
        h = constrain(self.depthwise(x), self.mesh, *by_pixels)
        h = constrain(jax.nn.gelu(self.up(self.norm(h))), self.mesh, *by_features)
        return constrain(x + self.down(h), self.mesh, *by_pixels)


class ConvNeXt(nnx.Module):
    """[images, side, side, 3] to [images, CLASSES].

    The first stages are split by rows of pixels. In the last one, few pixels are left, and `rows` splits its channels.
    """

    def __init__(self, mesh: Mesh, channels: tuple[int, ...], blocks: tuple[int, ...], rngs: nnx.Rngs):
        self.mesh = mesh
        widths = (3, *channels)
        self.patches = nnx.List(
            nnx.Conv(before, after, (step, step), strides=step, rngs=rngs)
            for before, after, step in zip(widths, channels, (4, *(2 for _ in channels)))
        )
        self.stages = nnx.List(
            nnx.List(Block(mesh, width, rngs) for _ in range(count)) for width, count in zip(channels, blocks)
        )
        self.head = nnx.Linear(channels[-1], CLASSES, rngs=rngs)

    def __call__(self, x):
        by_rows, by_channel = ("data", "rows"), ("data", None, None, "rows")
        for index, (patch, stage) in enumerate(zip(self.patches, self.stages)):
            is_last = index == len(self.stages) - 1
            # A depthwise convolution of a stage that is split by channel needs no neighbour's pixels.
            here = by_channel if is_last else by_rows
            x = constrain(patch(x), self.mesh, *here)
            for block in stage:
                x = block(x, here, by_channel if is_last else by_rows)
        x = constrain(x.mean((1, 2)), self.mesh, ("data", "rows"))
        return self.head(x)


def nnx_convnext(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step; weights are replicated, the momentum is split over all devices where it divides."""
    images, side, channels, blocks = CONFIGS[size]

    def modules():
        model = ConvNeXt(mesh, channels, blocks, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(modules))

    def split(path, leaf):
        is_momentum = "opt_state" in jax.tree_util.keystr(path)
        divides = leaf.ndim and leaf.shape[-1] % mesh.size == 0
        return layout(mesh, *(None,) * (leaf.ndim - 1), ("data", "rows")) if is_momentum and divides else layout(mesh)

    placed = jax.tree_util.tree_map_with_path(split, state)

    def train_step(state, pixels, labels):
        model, optimizer = nnx.merge(graph, state)

        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(pixels), labels).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))

    def values():
        return nnx.state(modules()), normal(1, images, side, side, 3), integers(2, CLASSES, images)

    by_rows, by_batch = layout(mesh, "data", "rows"), layout(mesh, ("data", "rows"))
    return Setup(function, values, (placed, by_rows, by_batch))
