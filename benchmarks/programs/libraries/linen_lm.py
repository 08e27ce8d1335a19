# SPDX-License-Identifier: Apache-2.0
# Flax says less in its types than in its documentation.
# pyright: reportPrivateImportUsage=false, reportArgumentType=false
"""A language model of flax.linen, sharded by the rules of logical axes, with AdamW: data, fsdp and tensor parallel."""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, integers, layout

# Activations between layers are split by sequence over `tensor`; inside them heads or features are.
RULES = (
    ("batch", ("data", "fsdp")),
    ("length", "tensor"),
    ("whole_length", None),
    ("width", "fsdp"),
    ("activation_width", None),
    ("heads", "tensor"),
    ("head_size", None),
    ("hidden", "tensor"),
    ("vocabulary", "tensor"),
)


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of one batch."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    batch: int
    length: int


CONFIGS = {
    "small": Config(layers=2, width=16, heads=4, hidden=32, vocabulary=64, batch=4, length=16),
    "demo": Config(layers=4, width=256, heads=8, hidden=1024, vocabulary=2048, batch=32, length=128),
    "large": Config(layers=4, width=2048, heads=16, hidden=8192, vocabulary=32768, batch=32, length=2048),
}


def _weight(*names: str):
    """Returns how a weight begins, with the names of its logical axes."""
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)


class Block(nn.Module):
    """Attention and feed-forward layer, with the interface of `nn.scan`."""

    config: Config

    @nn.compact
    def __call__(self, x, mask):
        c = self.config
        h = nn.LayerNorm(use_bias=False, name="before_attention")(x)
        h = nn.with_logical_constraint(h, ("batch", "whole_length", "activation_width"))
        split = {"kernel_init": _weight("width", "heads", "head_size"), "use_bias": False}
        q, k, v = (nn.DenseGeneral((c.heads, c.width // c.heads), name=name, **split)(h) for name in ("q", "k", "v"))
        q, k, v = (
            nn.with_logical_constraint(each, ("batch", "whole_length", "heads", "head_size")) for each in (q, k, v)
        )
        h = nn.dot_product_attention(q, k, v, mask=mask)
        out = nn.DenseGeneral(
            c.width, axis=(-2, -1), use_bias=False, kernel_init=_weight("heads", "head_size", "width"), name="out"
        )
        x = nn.with_logical_constraint(x + out(h), ("batch", "length", "activation_width"))

        h = nn.LayerNorm(use_bias=False, name="before_feed_forward")(x)
        h = nn.with_logical_constraint(h, ("batch", "whole_length", "activation_width"))
        h = nn.gelu(nn.Dense(c.hidden, use_bias=False, kernel_init=_weight("width", "hidden"), name="up")(h))
        h = nn.with_logical_constraint(h, ("batch", "whole_length", "hidden"))
        h = nn.Dense(c.width, use_bias=False, kernel_init=_weight("hidden", "width"), name="down")(h)
        return nn.with_logical_constraint(x + h, ("batch", "length", "activation_width")), None


class LanguageModel(nn.Module):
    """A decoder: [batch, length] of tokens to [batch, length, vocabulary] of logits."""

    config: Config

    @nn.compact
    def __call__(self, tokens):
        c = self.config
        embed = nn.Embed(c.vocabulary, c.width, embedding_init=_weight("vocabulary", "width"))
        x = nn.with_logical_constraint(embed(tokens), ("batch", "length", "activation_width"))
        stack = nn.scan(
            Block,
            length=c.layers,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            metadata_params={nn.PARTITION_NAME: None},
        )
        x, _ = stack(c)(x, nn.make_causal_mask(tokens))
        x = nn.with_logical_constraint(nn.LayerNorm(use_bias=False)(x), ("batch", "whole_length", "activation_width"))
        return nn.with_logical_constraint(embed.attend(x), ("batch", "whole_length", "vocabulary"))


def linen_lm(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step; weights and AdamW's moments, which are sharded as the weights, are donated."""
    c = CONFIGS[size]
    model, optimizer = LanguageModel(c), optax.adamw(3e-4)

    def initial():
        weights = model.init(jax.random.key(0), jnp.zeros((c.batch, c.length), jnp.int32))["params"]
        return weights, optimizer.init(weights)

    def loss(weights, tokens):
        logits = model.apply({"params": weights}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(state, tokens):
        weights, moments = state
        with mesh, nn.logical_axis_rules(RULES):
            value, gradients = jax.value_and_grad(loss)(weights, tokens)
        updates, moments = optimizer.update(gradients, moments, weights)
        return (optax.apply_updates(weights, updates), moments), value

    placed = nn.logical_to_mesh_sharding(nn.get_partition_spec(jax.eval_shape(initial)), mesh, RULES)
    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))

    def values():
        return nn.meta.unbox(initial()), integers(1, c.vocabulary, c.batch, c.length + 1)

    return Setup(function, values, (placed, layout(mesh, ("data", "fsdp"))))
