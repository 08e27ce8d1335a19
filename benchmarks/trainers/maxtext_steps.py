# SPDX-License-Identifier: Apache-2.0
# MaxText need not be installed.
# pyright: reportMissingImports=false
"""Training steps of MaxText, as its own ahead-of-time command lowers them, for the CPU devices of this process or for
those of a topology."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

_SMALL = (
    "per_device_batch_size=2 max_target_length=256 base_emb_dim=256 base_mlp_dim=768 base_moe_mlp_dim=768 "
    "base_num_query_heads=8 base_num_kv_heads=4 head_dim=32 base_num_decoder_layers=2 vocab_size=4096 "
    "attention=dot_product"
)
_LARGE = (
    "per_device_batch_size=2 max_target_length=2048 base_emb_dim=2048 base_mlp_dim=6144 base_moe_mlp_dim=6144 "
    "base_num_query_heads=16 base_num_kv_heads=8 head_dim=128 base_num_decoder_layers=4 vocab_size=32768 "
    "attention=dot_product"
)
_SIZES = {"small": _SMALL, "large": _LARGE}
_ALWAYS = (
    "run_name=measured hardware=cpu enable_checkpointing=False dataset_type=synthetic log_config=False "
    "skip_jax_distributed_system=True allow_split_physical_axes=True"
)
# Names of configurations, and the options of MaxText that make them; one axis takes what the others leave (-1).
STEPS = {
    "fsdp": "ici_fsdp_parallelism=-1",
    "zero1": "ici_data_parallelism=-1 ici_fsdp_parallelism=1 shard_optimizer_over_data=True",
    "fsdp_tensor": "ici_fsdp_parallelism=-1 ici_tensor_parallelism=2",
    "accumulated": "ici_fsdp_parallelism=-1 ici_tensor_parallelism=2 gradient_accumulation_steps=2",
    "accumulated_fsdp": "ici_fsdp_parallelism=-1 gradient_accumulation_steps=4",
    "int8": "ici_fsdp_parallelism=-1 ici_tensor_parallelism=2 quantization=int8",
    "gemma2": "ici_fsdp_parallelism=-1 ici_tensor_parallelism=2 decoder_block=gemma2",
    "sequence": "ici_fsdp_parallelism=-1 ici_tensor_sequence_parallelism=2 remat_policy=minimal",
    "context": "ici_fsdp_parallelism=-1 ici_context_parallelism=2",
    "pipeline": "ici_fsdp_parallelism=-1 ici_pipeline_parallelism=2 num_layers_per_pipeline_stage=1 "
    "base_num_decoder_layers=4",
    "experts": "ici_fsdp_parallelism=-1 ici_expert_parallelism=2 num_experts=4 num_experts_per_tok=2 "
    "megablox=False sparse_matmul=False decoder_block=mixtral",
    "explicit": "ici_fsdp_parallelism=-1 ici_tensor_parallelism=2 shard_mode=explicit",
}


def configured(command: str, size: str, options: str) -> Any:
    """Returns MaxText's configuration for one of its commands, "train" or "decode"; `options` win over those of a
    size."""
    import maxtext
    from maxtext.configs import pyconfig

    base = os.path.join(os.path.dirname(str(maxtext.__file__)), "configs", "base.yml")
    return pyconfig.initialize([command, base, *f"{_ALWAYS} {_SIZES[size]} {options}".split()])


def lowered(name: str, size: str, devices: Sequence[jax.Device] = ()) -> jax.stages.Lowered:  # pyright: ignore[reportInvalidTypeForm]
    """Returns the lowered training step of a configuration.

    Args:
      devices: the step is for these; none: for those of this process.
    Source: `maxtext.trainers.pre_train.train_compile`.
    """
    from flax.core.spmd import logical_axis_rules
    from jax.sharding import AxisType, Mesh
    from maxtext.common.common_types import ShardMode
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import maxtext_utils, sharding

    config = configured("train", size, STEPS[name])
    kind = AxisType.Explicit if config.shard_mode == ShardMode.EXPLICIT else AxisType.Auto
    names = config.mesh_axes
    placed = maxtext_utils.create_device_mesh(config, list(devices) or jax.devices())
    mesh = Mesh(placed, names, axis_types=(kind,) * len(names))
    args, kwargs, state, _, model = train_compile.get_shaped_inputs(mesh, config)
    params, state = sharding.maybe_update_params_sharding_with_opt(config, state)
    state = sharding.build_zero1_input_state_mesh_shardings(config, state, params)
    data = sharding.get_input_data_sharding(config, mesh)
    step, in_shardings, out_shardings, static, donated = maxtext_utils.get_functional_train_with_signature(
        train.train_step, data, state, model, config, params
    )
    jitted = jax.jit(
        step,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        static_argnums=static,
        donate_argnums=donated,
    )
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        return jitted.lower(*args, **kwargs)
