# SPDX-License-Identifier: Apache-2.0
"""Muon of optax on the stacked weights of a transformer: gradients are sharded for the model, the optimizer by layer.

Muon makes each matrix orthogonal by products of it with itself. The model keeps the matrices split over all devices;
the optimizer wants whole ones, some layers on each device, and keeps its momentum so (as ZeRO-1 splits its state).
"""

from __future__ import annotations

import jax
from jax.sharding import Mesh
from optax import apply_updates, contrib

from benchmarks.programs.program import Setup, constrain, layout, normal

CONFIGS = {"small": (8, 16, 32), "demo": (32, 128, 512), "large": (32, 2048, 8192)}  # layers, width, hidden features
EVERYTHING = ("fsdp", "tensor")


def optax_muon(mesh: Mesh, size: str) -> Setup:
    """Sets up one step of the optimizer, from gradients to new weights; weights and momentum are donated."""
    layers, width, hidden = CONFIGS[size]
    shapes = {
        "qkv": ((layers, width, 3 * width), (None, "fsdp", "tensor")),
        "out": ((layers, width, width), (None, "tensor", "fsdp")),
        "up": ((layers, width, hidden), (None, "fsdp", "tensor")),
        "down": ((layers, hidden, width), (None, "tensor", "fsdp")),
    }
    optimizer = contrib.muon(
        0.02, muon_weight_dimension_numbers=dict.fromkeys(shapes, contrib.MuonDimensionNumbers(1, 2))
    )
    by_layer = layout(mesh, EVERYTHING)
    of_model = {name: layout(mesh, *spec) for name, (_, spec) in shapes.items()}

    def step(weights, momentum, gradients):
        whole = {name: constrain(each, mesh, EVERYTHING) for name, each in gradients.items()}
        updates, momentum = optimizer.update(whole, momentum, weights)
        updates = jax.tree.map(lambda each: constrain(each, mesh, EVERYTHING), updates)
        return apply_updates(weights, updates), momentum

    def drawn(seed, scale):
        return {name: normal(seed + i, *shape, scale=scale) for i, (name, (shape, _)) in enumerate(shapes.items())}

    def values():
        weights = drawn(0, width**-0.5)
        return weights, optimizer.init(weights), drawn(10, 1e-3)

    def split(leaf):
        return by_layer if leaf.ndim == 3 else layout(mesh)

    of_momentum = jax.tree.map(split, jax.eval_shape(values)[1])
    function = jax.jit(step, donate_argnums=(0, 1), out_shardings=(of_model, of_momentum))
    return Setup(function, values, (of_model, of_momentum, of_model))
