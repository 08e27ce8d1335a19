# SPDX-License-Identifier: Apache-2.0
"""A GPT whose sharding constraints were added one at a time, by people who did not agree with each other.

Its layers are unrolled. Attention splits the batch over `data` and `fsdp`, and heads over `tensor`; the feed-forward
layers split the sequence over `fsdp` and features over `tensor`, or the other way round in every other layer;
the embedding is split by vocabulary and the logits by batch and sequence. Each choice is sensible by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.programs.program import Program, Setup, constrain, integers, layout, normal

BATCH = ("data", "fsdp")


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of one batch."""

    layers: int
    heads: int
    head_size: int
    hidden: int
    vocabulary: int
    batch: int
    length: int

    @property
    def width(self) -> int:
        return self.heads * self.head_size


CONFIGS = {
    "small": Config(layers=3, heads=4, head_size=4, hidden=32, vocabulary=64, batch=4, length=16),
    "demo": Config(layers=3, heads=16, head_size=16, hidden=1024, vocabulary=2048, batch=32, length=128),
    "large": Config(layers=3, heads=16, head_size=128, hidden=8192, vocabulary=32768, batch=32, length=2048),
}


def weights_of(c: Config) -> dict:
    """Returns the weights, a tree of arrays: `embedding`, `positions`, `head` and `layers`."""

    def layer(seed):
        return {
            "scales": jnp.ones((2, c.width)),
            "qkv": normal(seed, c.width, 3, c.heads, c.head_size, scale=c.width**-0.5),
            "out": normal(seed + 1, c.heads, c.head_size, c.width, scale=c.width**-0.5),
            "up": normal(seed + 2, c.width, c.hidden, scale=c.width**-0.5),
            "down": normal(seed + 3, c.hidden, c.width, scale=c.hidden**-0.5),
        }

    return {
        "embedding": normal(0, c.vocabulary, c.width, scale=0.1),
        "positions": normal(1, c.length, c.width, scale=0.1),
        "head": normal(2, c.width, c.vocabulary, scale=c.width**-0.5),
        "layers": [layer(10 + 4 * index) for index in range(c.layers)],
    }


def layouts_of(mesh: Mesh, c: Config) -> dict:
    """Returns where the weights live; every other layer was sharded by somebody else."""
    at = partial(layout, mesh)
    layers = (
        {
            "scales": at(), "qkv": at("fsdp", None, "tensor"), "out": at("tensor", None, "fsdp"),
            "up": at("fsdp", "tensor"), "down": at("tensor", "fsdp"),
        },
        {
            "scales": at(None, "fsdp"), "qkv": at(("fsdp", "tensor")), "out": at(None, None, ("fsdp", "tensor")),
            "up": at("tensor", "fsdp"), "down": at(None, ("tensor", "fsdp")),
        },
    )  # fmt: skip
    return {
        "embedding": at("tensor", "fsdp"),
        "positions": at("fsdp"),
        "head": at("tensor", "fsdp"),
        "layers": [layers[index % 2] for index in range(c.layers)],
    }


def normalized(x, scale):
    """Returns `x` with mean 0 and variance 1 along its last dimension, times `scale`."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), -1, keepdims=True) + 1e-5) * scale


def attention(x, weights, at, index: int):
    """Returns causal attention of [batch, length, width], split by batch and heads."""
    x = at(x, BATCH)
    q, k, v = at(jnp.einsum("btm,mshd->sbthd", x, weights["qkv"]), None, BATCH, None, "tensor")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    # The scores were once too large for a device, and somebody split them by queries.
    scores = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    scores = at(scores, "data", "tensor", "fsdp") if index % 2 else scores
    y = at(jnp.einsum("bhqk,bkhd->bqhd", scores, v), BATCH, None, "tensor")
    return at(jnp.einsum("bthd,hdm->btm", y, weights["out"]), BATCH, "tensor")


def feed_forward(x, weights, at, index: int):
    """Returns the feed-forward layer of [batch, length, width], split by sequence and features, in turn."""
    by_length, by_feature = ("fsdp", "tensor") if index % 2 else ("tensor", "fsdp")
    x = at(x, "data", by_length)
    h = at(jax.nn.gelu(x @ weights["up"]), "data", by_length, by_feature)
    return at(h @ weights["down"], "data", None, ("fsdp", "tensor"))


def loss(weights, tokens, at):
    """Returns the mean cross entropy of predicting each next token of [batch, length + 1]."""
    x = at(weights["embedding"][tokens[:, :-1]], "data", None, "tensor") + weights["positions"]
    for index, each in enumerate(weights["layers"]):
        x = x + attention(normalized(x, each["scales"][0]), each, at, index)
        x = x + feed_forward(normalized(x, each["scales"][1]), each, at, index)
    logits = at(at(x, BATCH) @ weights["head"], "data", "fsdp", "tensor")
    logits = at(jax.nn.log_softmax(logits), ("data", "tensor"), "fsdp")
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()


def mixed_gpt(mesh: Mesh, size: str) -> Setup:
    """Sets up one step of stochastic gradient descent."""
    c = CONFIGS[size]
    placed = layouts_of(mesh, c)

    def at(x, *spec):
        return constrain(x, mesh, *spec)

    def train_step(weights, tokens):
        value, gradients = jax.value_and_grad(loss)(weights, tokens, at)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), value

    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))
    tokens = partial(integers, 3, c.vocabulary, c.batch, c.length + 1)
    return Setup(function, lambda: (weights_of(c), tokens()), (placed, layout(mesh, BATCH)))


MIXED_GPT = (
    Program(
        "mixed_gpt",
        "a training step of a GPT with unrolled layers, whose constraints disagree from one layer to the next",
        (("data", 2), ("fsdp", 2), ("tensor", 2)),
        mixed_gpt,
    ),
)
