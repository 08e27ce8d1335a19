# SPDX-License-Identifier: Apache-2.0
"""A scan over layers whose weights are split over all devices, as in fully sharded data parallelism (ZeRO-3).

Each trip gathers the two weights of its layer, in `shard_map`, and computes x + relu(x w) v; the gradient computes
layers anew. A device has `rows` rows, in bfloat16, and an eighth of the weights, if there are eight devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

NAMES = ("fsdp_forward", "fsdp_gradient")
AXIS = "fsdp"
LAYERS = 8
WIDTH = 4096


def lowered(name: str, devices: int, rows: int = 2048) -> jax.stages.Lowered:
    """Returns the lowered `fsdp_forward` or `fsdp_gradient`."""
    jax.clear_caches()
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    split_rows, split_weights = PartitionSpec(AXIS, None), PartitionSpec(None, AXIS, None)
    layers = jax.shard_map(
        _layers, mesh=mesh, in_specs=(split_rows, (split_weights, split_weights)), out_specs=split_rows
    )

    def loss(weights, x):
        return jnp.sum(layers(x, weights).astype(jnp.float32))

    def array(spec: PartitionSpec, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    x = array(split_rows, rows * devices, WIDTH)
    weights = array(split_weights, LAYERS, WIDTH, 2 * WIDTH), array(split_weights, LAYERS, 2 * WIDTH, WIDTH)
    functions: dict[str, Callable] = {
        "fsdp_forward": lambda weights, x: layers(x, weights),
        "fsdp_gradient": jax.grad(loss),
    }
    return jax.jit(functions[name]).lower(weights, x)


def _layers(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> jax.Array:
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable)
    def layer(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        w, v = (lax.all_gather(each, AXIS, axis=0, tiled=True) for each in weights)
        return x + jax.nn.relu(x @ w) @ v, None

    return lax.scan(layer, x, weights)[0]
