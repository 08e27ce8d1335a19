# SPDX-License-Identifier: Apache-2.0
"""A T5 of flax.nnx with Adafactor: an encoder and a decoder that attends to it, by heads, residuals by position."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, constrain, integers, layout

BUCKETS, FARTHEST = 32, 128  # of relative positions
RESIDUAL = ("data", "model")
WHOLE = ("data",)
BY_HEAD = ("data", None, "model")
BY_FEATURE = ("data", None, "model")


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of one batch."""

    layers: int  # of the encoder, and of the decoder
    width: int
    heads: int
    head_size: int
    hidden: int
    vocabulary: int
    batch: int
    source: int  # positions
    target: int


CONFIGS = {
    "small": Config(1, 16, 4, 4, 32, 64, 8, 16, 8),
    "demo": Config(3, 256, 8, 32, 512, 2048, 32, 128, 64),
    "large": Config(4, 2048, 16, 128, 5120, 32768, 32, 2048, 512),
}


def buckets(queries: int, keys: int, is_two_sided: bool) -> jax.Array:
    """Returns the bucket of each relative position, [queries, keys]: single ones nearby, logarithmic ones further away.

    Source: arXiv 1910.10683, section 2.1.
    """
    distance = jnp.arange(queries)[:, None] - jnp.arange(keys)[None, :]
    count, base = BUCKETS, 0
    if is_two_sided:
        count //= 2
        base = jnp.where(distance < 0, count, 0)
        distance = jnp.abs(distance)
    distance = jnp.maximum(distance, 0)
    exact = count // 2
    scaled = jnp.log(jnp.maximum(distance, 1) / exact) / math.log(FARTHEST / exact) * (count - exact)
    far = jnp.minimum(exact + scaled.astype(jnp.int32), count - 1)
    return base + jnp.where(distance < exact, distance, far)


class Attention(nnx.Module):
    """Attention without scale, as T5 has it; `places` adds a bias for each relative position and head."""

    def __init__(self, mesh: Mesh, c: Config, rngs: nnx.Rngs):
        self.mesh = mesh
        heads = (c.heads, c.head_size)
        self.query, self.key, self.value = (
            nnx.LinearGeneral(c.width, heads, use_bias=False, rngs=rngs) for _ in range(3)
        )
        self.out = nnx.LinearGeneral(heads, c.width, axis=(-2, -1), use_bias=False, rngs=rngs)

    def __call__(self, x, memory, bias):
        q, k, v = (
            constrain(project(each), self.mesh, *BY_HEAD)
            for project, each in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        weights = jax.nn.softmax(scores if bias is None else scores + bias, axis=-1)
        return self.out(constrain(jnp.einsum("bhqk,bkhd->bqhd", weights, v), self.mesh, *BY_HEAD))


class FeedForward(nnx.Module):
    """The gated layer of T5 1.1."""

    def __init__(self, mesh: Mesh, c: Config, rngs: nnx.Rngs):
        self.mesh = mesh
        self.gate, self.up = (nnx.Linear(c.width, c.hidden, use_bias=False, rngs=rngs) for _ in range(2))
        self.down = nnx.Linear(c.hidden, c.width, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.down(constrain(jax.nn.gelu(self.gate(x)) * self.up(x), self.mesh, *BY_FEATURE))


class Layer(nnx.Module):
    """A layer of the encoder, or with `attends` one of the decoder. Residuals are split by position over `model`."""

    def __init__(self, mesh: Mesh, c: Config, attends: bool, rngs: nnx.Rngs):
        self.mesh = mesh
        self.own = Attention(mesh, c, rngs)
        self.cross = Attention(mesh, c, rngs) if attends else None
        self.feed_forward = FeedForward(mesh, c, rngs)
        self.norms = nnx.List(nnx.RMSNorm(c.width, rngs=rngs) for _ in range(3 if attends else 2))

    def __call__(self, x, bias, memory=None):
        norms = iter(self.norms)

        def normalized(x):
            return constrain(next(norms)(x), self.mesh, *WHOLE)

        h = normalized(x)
        x = constrain(x + self.own(h, h, bias), self.mesh, *RESIDUAL)
        if self.cross is not None:
            x = constrain(x + self.cross(normalized(x), memory, None), self.mesh, *RESIDUAL)
        return constrain(x + self.feed_forward(normalized(x)), self.mesh, *RESIDUAL)


class Stack(nnx.Module):
    """Layers whose first attention has one table of biases, [BUCKETS, heads]."""

    def __init__(self, mesh: Mesh, c: Config, attends: bool, rngs: nnx.Rngs):
        self.mesh = mesh
        self.places = nnx.Embed(BUCKETS, c.heads, rngs=rngs)
        self.layers = nnx.List(Layer(mesh, c, attends, rngs) for _ in range(c.layers))
        self.norm = nnx.RMSNorm(c.width, rngs=rngs)

    def __call__(self, x, memory=None):
        length = x.shape[1]
        bias = self.places(buckets(length, length, memory is None)).transpose(2, 0, 1)
        if memory is not None:
            bias = jnp.where(jnp.tril(jnp.ones((length, length), bool)), bias, -1e9)
        for layer in self.layers:
            x = layer(x, bias, memory)
        return constrain(self.norm(x), self.mesh, *WHOLE)


class T5(nnx.Module):
    """[batch, source] and [batch, target] of tokens to [batch, target, vocabulary] of logits; embeddings are shared."""

    def __init__(self, mesh: Mesh, c: Config, rngs: nnx.Rngs):
        self.mesh = mesh
        self.embed = nnx.Embed(c.vocabulary, c.width, rngs=rngs)
        self.encoder, self.decoder = (Stack(mesh, c, attends, rngs) for attends in (False, True))
        self.scale = c.width**-0.5

    def __call__(self, source, target):
        memory = self.encoder(constrain(self.embed(source), self.mesh, *RESIDUAL))
        x = self.decoder(constrain(self.embed(target), self.mesh, *RESIDUAL), memory)
        return constrain(self.embed.attend(x * self.scale), self.mesh, *BY_FEATURE)


def _split(mesh: Mesh, path, leaf):
    """Returns where a parameter lives: heads, hidden features and the vocabulary are split over `model`.

    So are Adafactor's averages over rows and columns of a matrix where they have that dimension.
    """
    name = jax.tree_util.keystr(path)
    if "v_row" in name or "v_col" in name or leaf.ndim < 2:
        return layout(mesh)
    if "embed" in name or "'out'" in name or "'down'" in name:
        return layout(mesh, "model")
    if any(each in name for each in ("'query'", "'key'", "'value'", "'gate'", "'up'")):
        return layout(mesh, None, "model")
    return layout(mesh)


def nnx_t5(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step; weights and Adafactor's averages are donated."""
    c = CONFIGS[size]

    def modules():
        model = T5(mesh, c, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adafactor(1e-3), wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(modules))
    placed = jax.tree_util.tree_map_with_path(lambda path, leaf: _split(mesh, path, leaf), state)

    def train_step(state, source, target):
        model, optimizer = nnx.merge(graph, state)

        def loss(model):
            logits = model(source, target[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, target[:, 1:]).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value

    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))

    def values():
        tokens = (integers(seed, c.vocabulary, c.batch, n) for seed, n in ((1, c.source), (2, c.target + 1)))
        return nnx.state(modules()), *tokens

    return Setup(function, values, (placed, layout(mesh, "data"), layout(mesh, "data")))
