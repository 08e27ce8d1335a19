# SPDX-License-Identifier: Apache-2.0
"""Three programs around one conversion each, in which a heuristic of XLA's partitioner moves far more than needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.programs.program import Program, Setup, layout, normal


def zero_gradient(mesh: Mesh, size: str) -> Setup:
    """Sets up the gradient of one layer whose weights are replicated and whose gradient is split, as in ZeRO-1."""
    batch, width = {"small": (16, 32), "demo": (64, 512), "large": (4096, 4096)}[size]
    by_rows = layout(mesh, "data")

    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w))

    function = jax.jit(jax.grad(loss), out_shardings=by_rows)
    return Setup(function, lambda: (normal(0, width, width), normal(1, batch, width)), (layout(mesh), by_rows))


def batch_from_rows(mesh: Mesh, size: str) -> Setup:
    """Sets up a conversion of one array, from rows over all devices to batches over some, the others with copies."""
    batch, rows = {"small": (8, 32), "demo": (16, 2048), "large": (64, 8192)}[size]
    before, after = layout(mesh, None, ("model", "data")), layout(mesh, "data")
    function = jax.jit(lambda x: x, in_shardings=before, out_shardings=after)
    return Setup(function, lambda: (normal(0, batch, rows, rows, dtype="bfloat16"),), before)


def scanned_layers(weights, x):
    """Returns [batch, width] after the layers of `weights`, [layers, width, width], one after the other."""
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


def layer_stack(mesh: Mesh, size: str) -> Setup:
    """Sets up a scan over layers whose stacked weights are split by layer: each step needs one layer, everywhere."""
    values, placed = _stack(mesh, {"small": (16, 16), "demo": (64, 256), "large": (4096, 2048)}[size])
    return Setup(jax.jit(scanned_layers, out_shardings=placed[1]), values, placed)


def layer_stack_gradient(mesh: Mesh, size: str) -> Setup:
    """Sets up the gradient of such a scan: split by layer too, and a sum over the batch."""
    values, placed = _stack(mesh, {"small": (16, 16), "demo": (64, 256), "large": (4096, 2048)}[size])

    def loss(weights, x):
        return jnp.mean(jnp.square(scanned_layers(weights, x)))

    return Setup(jax.jit(jax.grad(loss), out_shardings=placed[0]), values, placed)


def _stack(mesh: Mesh, sizes: tuple[int, int]):
    """Returns what makes a stack of weights and a batch, and their shardings; a stack has a layer for each device."""
    (batch, width), layers = sizes, max(8, mesh.size)

    def values():
        return normal(0, layers, width, width, scale=width**-0.5), normal(1, batch, width)

    return values, (layout(mesh, "data"), layout(mesh, "data"))


CONVERSIONS = (
    Program(
        "zero_gradient",
        "the gradient of a replicated weight, split over the devices that hold the batch",
        (("data", 8),),
        zero_gradient,
    ),
    Program(
        "batch_from_rows",
        "one array, from rows over eight devices to batches over two",
        (("data", 2), ("model", 4)),
        batch_from_rows,
    ),
    Program(
        "layer_stack",
        "a scan over layers, the stacked weights split by layer, the activations by batch",
        (("data", 8),),
        layer_stack,
    ),
    Program(
        "layer_stack_gradient",
        "the gradient of that scan, split by layer",
        (("data", 8),),
        layer_stack_gradient,
    ),
)
