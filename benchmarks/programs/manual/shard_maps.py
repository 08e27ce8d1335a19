# SPDX-License-Identifier: Apache-2.0
"""Training steps of a multilayer perceptron whose collectives are written by hand, in `jax.shard_map`.

Each is the plain text of a way to train on several hosts, which says nothing of hosts: one sum of the gradients over
all devices, weights gathered over one axis and their gradients summed over both, all gradients in one buffer of which
each device keeps a part, tokens sent to the devices of experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks.programs.program import Program, Setup, layout, normal

RATE = 0.01
PARTS = 8  # of the batch
EXPERTS = 32


@dataclass(frozen=True)
class Config:
    """Sizes of the model, and of an eighth of the batch."""

    width: int
    hidden: int
    layers: int
    rows: int


CONFIGS = {
    "small": Config(width=32, hidden=64, layers=2, rows=32),
    "demo": Config(width=384, hidden=1536, layers=2, rows=64),
    "large": Config(width=4096, hidden=16384, layers=4, rows=4096),
}


def weights_of(c: Config) -> list[tuple[jax.Array, jax.Array]]:
    """Returns for each layer the weights up, [width, hidden], and down, [hidden, width]."""
    return [
        (
            normal(2 * i, c.width, c.hidden, scale=c.width**-0.5),
            normal(2 * i + 1, c.hidden, c.width, scale=c.hidden**-0.5),
        )
        for i in range(c.layers)
    ]


def _loss(weights, x):
    """Returns the mean square of what the layers make of [rows, width]."""
    for up, down in weights:
        x = x + jnp.tanh(x @ up) @ down
    return jnp.mean(jnp.square(x))


def _step(mesh: Mesh, body, c: Config, weights_spec: P, rows_spec: P) -> Setup:
    """Returns the step with `body(weights, rows)`, which returns new weights, on the tiles of each device."""
    specs = [(weights_spec, weights_spec)] * c.layers
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(specs, rows_spec), out_specs=specs, check_vma=False)
    at = jax.tree.map(lambda spec: layout(mesh, *spec), (specs, rows_spec), is_leaf=lambda each: isinstance(each, P))
    return Setup(jax.jit(mapped), lambda: (weights_of(c), normal(99, PARTS * c.rows, c.width)), at)


def data_parallel(mesh: Mesh, size: str) -> Setup:
    """All devices have all weights; one sum of each gradient over all devices."""

    def body(weights, x):
        gradients = jax.grad(_loss)(weights, x)
        return jax.tree.map(lambda w, g: w - RATE * lax.pmean(g, "data"), weights, gradients)

    return _step(mesh, body, CONFIGS[size], P(), P("data"))


def fully_sharded(mesh: Mesh, size: str) -> Setup:
    """Weights are split over `fsdp`, and gathered where they are used; gradients are summed over both axes at once."""

    def body(weights, x):
        whole = jax.tree.map(lambda w: lax.all_gather(w, "fsdp", tiled=True), weights)
        gradients = jax.tree.map(lambda g: lax.pmean(g, ("data", "fsdp")), jax.grad(_loss)(whole, x))
        return jax.tree.map(lambda w, g: w - RATE * _own(g, w.shape[0]), weights, gradients)

    def _own(gradient, rows: int):
        return lax.dynamic_slice_in_dim(gradient, lax.axis_index("fsdp") * rows, rows)

    return _step(mesh, body, CONFIGS[size], P("fsdp"), P(("data", "fsdp")))


def flat_buffer(mesh: Mesh, size: str) -> Setup:
    """All devices have all weights, and a part of the momentum; gradients, momentum and changes are lines of elements,
    as in ZeRO-2."""
    c = CONFIGS[size]
    elements = 2 * c.layers * c.width * c.hidden

    def body(weights, momentum, x):
        gradients, in_layers = ravel_pytree(jax.grad(_loss)(weights, x))
        own = lax.psum_scatter(gradients, "data", tiled=True) / mesh.shape["data"]
        momentum = 0.9 * momentum + own
        change = in_layers(lax.all_gather(RATE * momentum, "data", tiled=True))
        return jax.tree.map(jnp.subtract, weights, change), momentum

    specs = [(P(), P())] * c.layers, P("data")
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(*specs, P("data")), out_specs=specs, check_vma=False)
    at = jax.tree.map(lambda spec: layout(mesh, *spec), (*specs, P("data")), is_leaf=lambda each: isinstance(each, P))
    return Setup(
        jax.jit(mapped), lambda: (weights_of(c), normal(98, elements), normal(99, PARTS * c.rows, c.width)), at
    )


def expert_dispatch(mesh: Mesh, size: str) -> Setup:
    """Experts are split over the devices; every eighth row goes to the device of the same expert, and back."""
    c = CONFIGS[size]

    def body(up, down, x):
        by_expert = x.reshape(-1, EXPERTS, c.width).swapaxes(0, 1)
        sent = lax.all_to_all(by_expert, "expert", 0, 1, tiled=True)
        made = jnp.einsum("erh,ehw->erw", jnp.tanh(jnp.einsum("erw,ewh->erh", sent, up)), down)
        back = lax.all_to_all(made, "expert", 1, 0, tiled=True)
        return back.swapaxes(0, 1).reshape(x.shape)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P("expert"),) * 3, out_specs=P("expert"), check_vma=False)

    def initial():
        up = normal(0, EXPERTS, c.width, 2 * c.width, scale=c.width**-0.5)
        down = normal(1, EXPERTS, 2 * c.width, c.width, scale=(2 * c.width) ** -0.5)
        return up, down, normal(99, PARTS * c.rows, c.width)

    return Setup(jax.jit(mapped), initial, (layout(mesh, "expert"),) * 3)


SHARD_MAPS = (
    Program(
        "map_data_parallel",
        "a training step in shard_map: one flat sum of each gradient over all devices",
        (("data", 8),),
        data_parallel,
    ),
    Program(
        "map_fully_sharded",
        "a training step in shard_map: weights gathered over one axis, gradients summed over two",
        (("data", 2), ("fsdp", 4)),
        fully_sharded,
    ),
    Program(
        "map_flat_buffer",
        "a training step in shard_map: all gradients in one buffer, of which each device sums its part",
        (("data", 8),),
        flat_buffer,
    ),
    Program(
        "map_expert_dispatch",
        "a layer of experts in shard_map: rows to the devices of all experts and back, by flat all_to_alls",
        (("expert", 8),),
        expert_dispatch,
    ),
)
