# SPDX-License-Identifier: Apache-2.0
# Tunix need not be installed.
# pyright: reportMissingImports=false
"""Training steps of models of Tunix with their own layouts, in bfloat16, for the CPU devices of this process."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

_SMALL = dict(num_layers=2, vocab_size=4096, embed_dim=256, hidden_dim=768, num_heads=8, head_dim=32, num_kv_heads=4)
_LARGE = dict(
    num_layers=4, vocab_size=32768, embed_dim=2048, hidden_dim=6144, num_heads=16, head_dim=128, num_kv_heads=8
)
SIZES = {"small": (_SMALL, (16, 256)), "large": (_LARGE, (16, 2048))}
STEPS = ("qwen3", "qwen3_blocks_again")


def lowered(name: str, size: str, devices: Sequence[jax.Device] = ()) -> jax.stages.Lowered:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the lowered training step, as Tunix's trainer makes it: loss over one-hot targets, norm of gradients,
    AdamW, donated state. With `_blocks_again` the attention of each layer is computed once more on the way back.

    Args:
      devices: the step is for these; none: for those of this process.
    """
    import optax
    from flax import nnx
    from jax.sharding import AxisType, NamedSharding, PartitionSpec
    from tunix.models.qwen3 import model as qwen3

    placed_on = list(devices) or jax.devices()
    shape = len(placed_on) // 2, 2
    mesh = jax.make_mesh(shape, ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=placed_on)
    placed = functools.partial(NamedSharding, mesh)
    # The model's own function leaves out constraints where the first device is a CPU.
    qwen3.shard = lambda x, axes: jax.lax.with_sharding_constraint(x, placed(PartitionSpec(*axes)))
    widths, (sequences, length) = SIZES[size]
    tokens = max(sequences, len(placed_on)), length
    again = qwen3.RematConfig.BLOCK if name.endswith("again") else qwen3.RematConfig.NONE
    config = qwen3.ModelConfig(
        **widths, rope_theta=1_000_000, norm_eps=1e-6, use_tied_embedding=True, dtype=jnp.bfloat16,
        param_dtype=jnp.bfloat16, remat_config=again,
    )  # fmt: skip

    def made():
        model = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-4), wrt=nnx.Param)

    graph, state = nnx.split(nnx.eval_shape(made))
    specs = jax.tree.leaves(nnx.get_partition_spec(state), is_leaf=lambda each: isinstance(each, PartitionSpec))
    leaves, tree = jax.tree.flatten(state)
    fitting = [each if len(each) <= leaf.ndim else PartitionSpec() for leaf, each in zip(leaves, specs, strict=True)]
    structs = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed(each)) for leaf, each in zip(leaves, fitting)
    ]

    def loss(model, inputs, mask):
        positions = jnp.cumsum(mask, -1) - 1
        attended = jnp.tril(jnp.ones((tokens[1],) * 2, bool))[None] & (mask[:, None, :] > 0)
        logits = model(inputs, positions, None, attended)[0][:, :-1]
        targets = jax.nn.one_hot(inputs[:, 1:], logits.shape[-1]) * mask[:, 1:, None]
        return -jnp.sum(jax.nn.log_softmax(logits) * targets) / (mask[:, 1:].sum() + 1e-8)

    def train_step(state, inputs, mask):
        model, optimizer = nnx.merge(graph, state)
        value, gradients = nnx.value_and_grad(loss)(model, inputs, mask)
        norm = optax.global_norm(gradients)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), value, norm

    batch = jax.ShapeDtypeStruct(tokens, jnp.int32, sharding=placed(PartitionSpec("fsdp")))
    return jax.jit(train_step, donate_argnums=0).lower(jax.tree.unflatten(tree, structs), batch, batch)
