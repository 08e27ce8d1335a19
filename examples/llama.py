"""A small Llama-style transformer and its training step, sharded data x fsdp x tensor.

Weights are sharded over fsdp and tensor. Between blocks the residual stream is sharded by batch over
data and fsdp and by sequence over tensor; inside attention and the feed-forward layer the sequence is
whole and heads or hidden features are sharded over tensor instead.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.lax import with_sharding_constraint
from jax.sharding import Mesh

from examples.programs import LARGE, layout, placed

BATCH = ("data", "fsdp")


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of one batch."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    batch: int
    length: int


CONFIGS = {
    "demo": Config(
        layers=4, width=256, heads=8, kv_heads=4, head_size=32, hidden=768, vocabulary=2048, batch=8, length=256
    ),
    "small": Config(layers=2, width=16, heads=4, kv_heads=2, head_size=4, hidden=32, vocabulary=64, batch=4, length=16),
    "pod": Config(
        layers=2, width=256, heads=16, kv_heads=8, head_size=16, hidden=768, vocabulary=2048, batch=64, length=128
    ),
    "large": Config(
        layers=4, width=2048, heads=16, kv_heads=8, head_size=128, hidden=8192, vocabulary=32768, batch=16, length=2048
    ),
}


def weight(rngs: nnx.Rngs, mesh: Mesh, shape: tuple[int, ...], spec: tuple, fan_in: int) -> nnx.Param:
    """Returns a normally distributed parameter of variance 1 / `fan_in`, sharded as `spec`."""
    value = fan_in**-0.5 * jax.random.normal(rngs.params(), shape)
    return nnx.Param(value, out_sharding=spec, mesh=mesh)


def rotate(x):
    """Returns [batch, length, ..., head_size] with rotary position embedding applied."""
    length, half = x.shape[1], x.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half) / half)
    angle = jnp.arange(length)[:, None] * frequency
    angle = angle.reshape((length,) + (1,) * (x.ndim - 3) + (half,))
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


class RMSNorm(nnx.Module):
    def __init__(self, width: int, mesh: Mesh):
        self.scale = nnx.Param(jnp.ones(width), out_sharding=(None,), mesh=mesh)

    def __call__(self, x):
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * self.scale[...]


class Attention(nnx.Module):
    """Causal attention in which each of `kv_heads` keys and values serves a group of query heads."""

    def __init__(self, c: Config, mesh: Mesh, rngs: nnx.Rngs):
        self.mesh = mesh
        kv, group, size = c.kv_heads, c.heads // c.kv_heads, c.head_size
        self.q = weight(rngs, mesh, (c.width, kv, group, size), ("fsdp", "tensor", None, None), c.width)
        self.k = weight(rngs, mesh, (c.width, kv, size), ("fsdp", "tensor", None), c.width)
        self.v = weight(rngs, mesh, (c.width, kv, size), ("fsdp", "tensor", None), c.width)
        self.out = weight(rngs, mesh, (kv, group, size, c.width), ("tensor", None, None, "fsdp"), c.heads * size)

    def __call__(self, x):
        q = jnp.einsum("btm,mkgd->btkgd", x, self.q[...])
        k = jnp.einsum("btm,mkd->btkd", x, self.k[...])
        v = jnp.einsum("btm,mkd->btkd", x, self.v[...])
        by_heads = layout(self.mesh, BATCH, None, "tensor")
        q = with_sharding_constraint(rotate(q), by_heads)
        k = with_sharding_constraint(rotate(k), by_heads)
        v = with_sharding_constraint(v, by_heads)

        scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k) * q.shape[-1] ** -0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
        y = jnp.einsum("bkgqs,bskd->bqkgd", scores, v)
        y = with_sharding_constraint(y, by_heads)
        return jnp.einsum("btkgd,kgdm->btm", y, self.out[...])


class SwiGLU(nnx.Module):
    def __init__(self, c: Config, mesh: Mesh, rngs: nnx.Rngs):
        self.mesh = mesh
        self.gate = weight(rngs, mesh, (c.width, c.hidden), ("fsdp", "tensor"), c.width)
        self.up = weight(rngs, mesh, (c.width, c.hidden), ("fsdp", "tensor"), c.width)
        self.down = weight(rngs, mesh, (c.hidden, c.width), ("tensor", "fsdp"), c.hidden)

    def __call__(self, x):
        h = jax.nn.silu(x @ self.gate[...]) * (x @ self.up[...])
        h = with_sharding_constraint(h, layout(self.mesh, BATCH, None, "tensor"))
        return h @ self.down[...]


class Block(nnx.Module):
    """Attention and feed-forward layer around a residual stream that is sharded by sequence."""

    def __init__(self, c: Config, mesh: Mesh, rngs: nnx.Rngs):
        self.mesh = mesh
        self.attention_norm = RMSNorm(c.width, mesh)
        self.attention = Attention(c, mesh, rngs)
        self.feed_forward_norm = RMSNorm(c.width, mesh)
        self.feed_forward = SwiGLU(c, mesh, rngs)

    def __call__(self, x):
        by_sequence = layout(self.mesh, BATCH, "tensor")
        whole_sequence = layout(self.mesh, BATCH)

        h = with_sharding_constraint(self.attention_norm(x), whole_sequence)
        x = x + with_sharding_constraint(self.attention(h), by_sequence)
        h = with_sharding_constraint(self.feed_forward_norm(x), whole_sequence)
        return x + with_sharding_constraint(self.feed_forward(h), by_sequence)


class Llama(nnx.Module):
    def __init__(self, c: Config, mesh: Mesh, rngs: nnx.Rngs):
        self.mesh = mesh
        self.embedding = weight(rngs, mesh, (c.vocabulary, c.width), ("tensor", "fsdp"), 1)
        self.norm = RMSNorm(c.width, mesh)
        self.head = weight(rngs, mesh, (c.width, c.vocabulary), ("fsdp", "tensor"), c.width)

        # One Block whose parameters have a leading dimension, not sharded, of one entry per layer.
        @nnx.split_rngs(splits=c.layers)
        @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: None})
        def stack(rngs):
            return Block(c, mesh, rngs)

        self.blocks = stack(rngs)

    def __call__(self, tokens):
        x = with_sharding_constraint(self.embedding[...][tokens], layout(self.mesh, BATCH, "tensor"))

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def layer(x, block):
            return block(x)

        x = self.norm(layer(x, self.blocks))
        x = with_sharding_constraint(x, layout(self.mesh, BATCH))
        return with_sharding_constraint(x @ self.head[...], layout(self.mesh, BATCH, None, "tensor"))


def loss(model: Llama, tokens):
    """Returns the mean cross entropy of predicting each next token."""
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def build(mesh: Mesh, size: str = "demo"):
    """Returns `(train_step, (state, tokens))`; `train_step` donates the state and returns it updated, with the loss."""
    c = CONFIGS[size]

    @nnx.jit
    def initialize():
        model = Llama(c, mesh, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(3e-4), wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(initialize) if size == LARGE else initialize())
    shardings = nnx.get_named_sharding(state, mesh)

    def train_step(state, tokens):
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, tokens)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    tokens = np.random.default_rng(0).integers(c.vocabulary, size=(c.batch, c.length + 1), dtype=np.int32)
    function = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, layout(mesh)))
    return function, (placed(state, shardings, size), placed(tokens, layout(mesh, BATCH), size))
