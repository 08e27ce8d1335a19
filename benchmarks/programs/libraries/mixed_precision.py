# SPDX-License-Identifier: Apache-2.0
"""A decoder trained in mixed precision, as many are: weights and AdamW's moments in float32, layers in bfloat16.

Weights are split over both axes, and nothing else is annotated: no activation, and no result. Layers are in a scan and
computed again on the way back; gate and up are one product, cut in two, as are keys and values. Gradients of two
microbatches are added up in a loop, and clipped by their norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, integers, layout, normal

MICROBATCHES = 2


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of one batch. `dtype` is that of layers: runs of `small` on one device and on several are
    compared, so it has float32."""

    layers: int
    heads: int
    groups: int
    head_size: int
    hidden: int
    vocabulary: int
    batch: int
    length: int
    dtype: str = "bfloat16"

    @property
    def width(self) -> int:
        return self.heads * self.head_size


CONFIGS = {
    "small": Config(2, heads=4, groups=2, head_size=4, hidden=32, vocabulary=64, batch=8, length=16, dtype="float32"),
    "demo": Config(4, heads=8, groups=4, head_size=32, hidden=768, vocabulary=2048, batch=16, length=128),
    "large": Config(4, heads=16, groups=8, head_size=128, hidden=5632, vocabulary=32768, batch=16, length=2048),
}
# By name: the axes that split each dimension. The first dimension of what the layers have is the layer.
SPLIT = {
    "embedding": ("tensor", "fsdp"),
    "head": ("fsdp", "tensor"),
    "last_scale": (None,),
    "scales": (None, None, None),
    "query": (None, "fsdp", "tensor"),
    "keys_and_values": (None, "fsdp", "tensor"),
    "out": (None, "tensor", "fsdp"),
    "gate_and_up": (None, "fsdp", "tensor"),
    "down": (None, "tensor", "fsdp"),
}


def mixed_precision(mesh: Mesh, size: str) -> Setup:
    """Sets up one step of AdamW; weights and moments are donated. Where results are is left to the compiler."""
    c = CONFIGS[size]
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def values():
        weights = _weights_of(c)
        batch = max(c.batch, mesh.size)
        return weights, optimizer.init(weights), integers(9, c.vocabulary, MICROBATCHES, batch, c.length + 1)

    weights, state, _ = jax.eval_shape(values)
    own = {name: layout(mesh, *axes) for name, axes in SPLIT.items()}
    placed = optax.tree_map_params(
        optimizer, lambda _, sharding: sharding, state, own, transform_non_params=lambda _: layout(mesh)
    )
    function = jax.jit(partial(_train_step, c, optimizer), donate_argnums=(0, 1))
    return Setup(function, values, (own, placed, layout(mesh, None, "fsdp")))


def _weights_of(c: Config) -> dict[str, jax.Array]:
    kept = c.groups * c.head_size
    return {
        "embedding": normal(0, c.vocabulary, c.width, scale=0.1),
        "head": normal(1, c.width, c.vocabulary, scale=c.width**-0.5),
        "last_scale": jnp.ones(c.width),
        "scales": jnp.ones((c.layers, 2, c.width)),
        "query": normal(2, c.layers, c.width, c.width, scale=c.width**-0.5),
        "keys_and_values": normal(3, c.layers, c.width, 2 * kept, scale=c.width**-0.5),
        "out": normal(4, c.layers, c.width, c.width, scale=c.width**-0.5),
        "gate_and_up": normal(5, c.layers, c.width, 2 * c.hidden, scale=c.width**-0.5),
        "down": normal(6, c.layers, c.hidden, c.width, scale=c.hidden**-0.5),
    }


def _train_step(c: Config, optimizer, weights, state, tokens):
    """Returns new weights and state, the mean loss and the norm of its gradient.

    Args:
      tokens: int32[microbatches, batch, length + 1].
    """

    def turn(total, part):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(partial(_loss, c))(weights, part)), None

    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights)
    value, gradients = jax.tree.map(lambda each: each / len(tokens), jax.lax.scan(turn, zeros, tokens)[0])
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state, value, optax.tree.norm(gradients)


def _loss(c: Config, weights, tokens):
    x = weights["embedding"].astype(c.dtype)[tokens[:, :-1]]
    layers = {name: each for name, each in weights.items() if SPLIT[name][0] is None and each.ndim == 3}
    x, _ = jax.lax.scan(jax.checkpoint(lambda x, layer: (_layer(c, x, layer), None)), x, layers)
    logits = (_normed(x, weights["last_scale"]) @ weights["head"].astype(c.dtype)).astype("float32")
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def _layer(c: Config, x, layer):
    layer = {name: each.astype(c.dtype) for name, each in layer.items()}
    rows, length, _ = x.shape
    h = _normed(x, layer["scales"][0])
    query = _turned((h @ layer["query"]).reshape(rows, length, c.heads, c.head_size))
    both = (h @ layer["keys_and_values"]).reshape(rows, length, 2 * c.groups, c.head_size)
    keys, values = jnp.split(both, 2, axis=2)
    query = query.reshape(rows, length, c.groups, c.heads // c.groups, c.head_size)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", query, _turned(keys)).astype("float32") * c.head_size**-0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    found = jnp.einsum("bgrqk,bkgd->bqgrd", jax.nn.softmax(scores).astype(c.dtype), values)
    x = x + found.reshape(rows, length, c.width) @ layer["out"]
    gate, up = jnp.split(_normed(x, layer["scales"][1]) @ layer["gate_and_up"], 2, axis=-1)
    return x + (jax.nn.silu(gate) * up) @ layer["down"]


def _normed(x, scale):
    wide = x.astype("float32")
    return (wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def _turned(x):
    """Returns heads turned by their position: rotary embeddings of [batch, length, heads, head size]."""
    length, half = x.shape[1], x.shape[-1] // 2
    angles = jnp.arange(length)[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = (each[:, None].astype(x.dtype) for each in (jnp.cos(angles), jnp.sin(angles)))
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
