# SPDX-License-Identifier: Apache-2.0
# MaxText need not be installed.
# pyright: reportMissingImports=false
"""What MaxText's engine runs to serve a model, `prefill` of a prompt and the step of `decode` that writes a token of
each sequence, for the CPU devices of this process or for those of a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.trainers.maxtext_steps import configured

_TOKENS = {  # of a prompt, sequences on each device, and a head for each of eight
    "small": "max_prefill_predict_length=128 per_device_batch_size=2 base_num_kv_heads=8",
    "large": "max_prefill_predict_length=1024 per_device_batch_size=4",
}
_EXPERTS = (
    "ici_fsdp_parallelism=1 ici_expert_parallelism=-1 ici_tensor_parallelism=2 num_experts=4 num_experts_per_tok=2 "
    "megablox=False sparse_matmul=False decoder_block=mixtral"
)
_CONTEXT = "ici_fsdp_parallelism=1 ici_tensor_parallelism=4"
# Names of programs, and the options of MaxText that make them; one axis takes what the others leave (-1).
STEPS = {
    "prefill": "ici_fsdp_parallelism=1 ici_tensor_parallelism=-1",
    "prefill_context": f"{_CONTEXT} ici_context_parallelism=-1",
    "prefill_sequence": "ici_fsdp_parallelism=1 ici_tensor_sequence_parallelism=-1",
    "prefill_experts": _EXPERTS,
    "prefill_fsdp": "ici_fsdp_parallelism=-1",  # as MaxText does it by default
    "decode": "ici_fsdp_parallelism=1 ici_tensor_parallelism=-1",
    "decode_autoregressive": f"{_CONTEXT} ici_autoregressive_parallelism=-1",
    "decode_context": f"{_CONTEXT} ici_context_autoregressive_parallelism=-1",
    "decode_experts": _EXPERTS,
    "decode_fsdp": "ici_fsdp_parallelism=-1",
    "decode_fsdp_unscanned": "ici_fsdp_parallelism=-1 scan_layers=False",
    "decode_fsdp_tensor": "ici_fsdp_parallelism=-1 ici_tensor_parallelism=2",
}


def lowered(name: str, size: str, devices: Sequence[jax.Device] = ()) -> jax.stages.Lowered:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the lowered program of a configuration.

    Weights and cache are split as the engine splits them when it loads a model; what else there is, such as tokens, is
    on every device.

    Args:
      devices: the program is for these; none: for those of this process.
    Source: `maxtext.inference.maxengine.maxengine.MaxEngine`.
    """
    from flax import nnx
    from flax.core.spmd import logical_axis_rules
    from maxtext.common.common_types import MODEL_MODE_AUTOREGRESSIVE, MODEL_MODE_PREFILL
    from maxtext.inference.maxengine.maxengine import MaxEngine
    from maxtext.utils.sharding import nnx_construct_named_sharding

    config = configured("decode", size, f"{_TOKENS[size]} {STEPS[name]}")
    engine = MaxEngine(config, list(devices) or jax.devices())
    mesh, is_prefill = engine.mesh, name.startswith("prefill")

    def everywhere(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.NamedSharding(mesh, jax.P()))

    def placed(state: Any) -> Any:
        shardings = nnx_construct_named_sharding(state, mesh)
        return jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), state, shardings)

    with logical_axis_rules(config.logical_axis_rules):
        mode = MODEL_MODE_PREFILL if is_prefill else MODEL_MODE_AUTOREGRESSIVE
        model = engine._abstract_model_for_mode(mode)
        _, params, cache, rest = nnx.split(model, nnx.Param, nnx.Cache, ...)
        engine._nnx_rest_state = jax.tree.map(_made, rest)
        params, cache = placed(params), nnx.to_pure_dict(placed(cache))
        engine.kv_cache_shardings = jax.tree.map(lambda each: each.sharding, cache)
        if is_prefill:
            length = config.max_prefill_predict_length

            def prefill(params, tokens, rng):
                return _run(engine, "_prefill_jit", params=params, padded_tokens=tokens, true_length=length, rng=rng)

            return jax.jit(prefill).lower(params, everywhere((length,), jnp.int32), everywhere((2,), jnp.uint32))

        def decode(params, state, rng):
            return _run(engine, "_generate_jit", params=params, decode_state=state, rng=rng)

        sequences = int(config.per_device_batch_size * mesh.size)
        state = {each: everywhere((sequences, 1), jnp.int32) for each in ("tokens", "next_pos", "generated_tokens")}
        state |= {"token_logp": everywhere((sequences, 1), jnp.float32), "cache": cache}
        state["logits"] = everywhere((sequences, 1, config.vocab_size), jnp.float32)
        return jax.jit(decode, donate_argnums=1).lower(params, state, everywhere((2,), jnp.uint32))


def _run(engine: Any, method: str, **arguments: Any) -> Any:
    """Returns what a jitted method of an engine returns first; the tokens beside it are no arrays without JetStream."""
    return getattr(type(engine), method).__wrapped__(engine, **arguments)[0]


def _made(struct: Any) -> Any:
    """Returns what stands for a part of the model that is no weight, such as a key of random numbers."""
    if jnp.issubdtype(struct.dtype, jax.dtypes.prng_key):
        keys = jax.random.split(jax.random.key(0), int(np.prod(struct.shape)))
        return keys.reshape(struct.shape)
    return jnp.zeros(struct.shape, struct.dtype)
