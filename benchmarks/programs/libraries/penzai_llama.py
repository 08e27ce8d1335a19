# SPDX-License-Identifier: Apache-2.0
# The extra `benchmarks` need not be installed.
# pyright: reportMissingImports=false
"""Penzai's Llama with named axes, its layers unrolled; constraints by name are inserted into the finished model."""

from __future__ import annotations

import dataclasses

import jax
import optax
from jax.sharding import Mesh
from penzai import pz
from penzai.models.transformer.variants import llamalike_common
from penzai.toolshed import sharding_util

from benchmarks.programs.program import Setup, integers, layout

CONFIGS = {
    "small": ((2, 4, 4, 2, 32, 64), (4, 16)),
    "demo": ((8, 2, 16, 3, 768, 2048), (32, 128)),
    "large": ((16, 1, 128, 3, 6144, 32768), (32, 2048)),
}  # (groups of heads, heads in a group, head size, layers, hidden features, vocabulary), (batch, length)
BATCH = ("data", "fsdp")
WEIGHTS: dict = {
    "embedding": "fsdp", "neurons": "tensor", "vocabulary": "tensor", "heads": "tensor", "head_groups": "tensor",
}  # fmt: skip
BY_SEQUENCE = {"batch": BATCH, "seq": "tensor"}
BY_BATCH = {"batch": BATCH}
BY_EMBEDDING = {"batch": "data", "embedding": ("fsdp", "tensor")}


def model_of(size: str, key: jax.Array | None):
    """Returns the model; without `key` its parameters are slots that have no values."""
    (groups, heads, head_size, layers, hidden, vocabulary), _ = CONFIGS[size]
    return llamalike_common.build_llamalike_transformer(
        llamalike_common.LlamalikeTransformerConfig(
            num_kv_heads=groups,
            query_head_multiplier=heads,
            embedding_dim=groups * heads * head_size,
            projection_dim=head_size,
            mlp_hidden_dim=hidden,
            num_decoder_blocks=layers,
            vocab_size=vocabulary,
            mlp_variant="swiglu",
            tie_embedder_and_logits=False,
        ),
        init_base_rng=key,
    )


def constrained(model, mesh: Mesh):
    """Returns the model with layers that constrain activations: residuals by sequence, in blocks by batch alone.

    What enters the head is split by features, as the head's weights are.
    """

    def by_name(names):
        return sharding_util.ConstrainShardingByName(mesh, names)

    model = pz.select(model).at_instances_of(pz.nn.Residual).insert_after(by_name(BY_SEQUENCE))
    model = pz.select(model).at_instances_of(pz.nn.RMSLayerNorm).insert_after(by_name(BY_BATCH))
    return pz.select(model).at(lambda root: root.body.sublayers[-1]).insert_before(by_name(BY_EMBEDDING))


def penzai_llama(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step with Lion; weights and moments, sharded by the names of their axes, are donated."""
    (*_, vocabulary), (batch, length) = CONFIGS[size]
    optimizer = optax.lion(1e-4)
    slots = constrained(model_of(size, None), mesh)

    def parameters():
        return pz.unbind_params(model_of(size, jax.random.key(0)), freeze=True)[1]

    shapes = jax.eval_shape(parameters)

    def loss(weights, tokens):
        frozen = [dataclasses.replace(each, value=weights[each.label]) for each in shapes]
        model = pz.bind_variables(slots, frozen)
        logits = model(pz.nx.wrap(tokens[:, :-1], "batch", "seq")).unwrap("batch", "seq", "vocabulary")
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(state, tokens):
        weights, moments = state
        value, gradients = jax.value_and_grad(loss)(weights, tokens)
        updates, moments = optimizer.update(gradients, moments, weights)
        return (optax.apply_updates(weights, updates), moments), value

    def state():
        weights = {each.label: each.value for each in parameters()}
        return weights, optimizer.init(weights)

    def split(leaf):
        return sharding_util.name_to_name_sharding(leaf, mesh, WEIGHTS) if pz.nx.is_namedarray(leaf) else layout(mesh)

    placed = jax.tree.map(split, jax.eval_shape(state), is_leaf=pz.nx.is_namedarray)
    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, layout(mesh)))

    def values():
        return state(), integers(1, vocabulary, batch, length + 1)

    return Setup(function, values, (placed, layout(mesh, BATCH)))
