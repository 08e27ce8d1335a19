# SPDX-License-Identifier: Apache-2.0
"""All programs of this folder, and those of examples/. A module of a library is imported when its program is built."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from benchmarks.programs.conversions import CONVERSIONS
from benchmarks.programs.manual.partly_manual import PARTLY_MANUAL
from benchmarks.programs.manual.shard_maps import SHARD_MAPS
from benchmarks.programs.mixed_gpt import MIXED_GPT
from benchmarks.programs.program import SIZES, Program, Setup


def _setup_of(name: str) -> Callable[[Mesh, str], Setup]:
    """Returns the function `name` of the module `name` of libraries/, imported when it is called."""

    def setup(mesh: Mesh, size: str) -> Setup:
        return getattr(importlib.import_module(f"benchmarks.programs.libraries.{name}"), name)(mesh, size)

    return setup


def _of_library(name: str, libraries: tuple[str, ...], mesh_axes: tuple[tuple[str, int], ...], summary: str) -> Program:
    return Program(name, summary, mesh_axes, _setup_of(name), libraries)


LIBRARIES = (
    _of_library(
        "linen_lm",
        ("flax", "optax"),
        (("data", 2), ("fsdp", 2), ("tensor", 2)),
        "a language model's training step, sharded by rules for logical axes, sequence and tensor parallel in turn",
    ),
    _of_library(
        "accumulated_gpt",
        ("optax",),
        (("fsdp", 8),),
        "a GPT's training step with fully sharded weights, gradients added up over four microbatches",
    ),
    _of_library(
        "mixed_precision",
        ("optax",),
        (("fsdp", 4), ("tensor", 2)),
        "a decoder's training step in bfloat16, its weights in shards and nothing else annotated",
    ),
    _of_library(
        "nnx_convnext",
        ("flax", "optax"),
        (("data", 2), ("rows", 4)),
        "a ConvNeXt's training step, split by rows of pixels, then by channel; its momentum split over all devices",
    ),
    _of_library(
        "nnx_t5",
        ("flax", "optax"),
        (("data", 2), ("model", 4)),
        "a T5's training step with Adafactor: encoder and decoder by heads, residuals by position, shared embeddings",
    ),
    _of_library(
        "linen_unet",
        ("flax", "optax"),
        (("data", 2), ("rows", 4)),
        "a diffusion model's training step: a U-Net on rows of pixels, with attention by heads at its bottom",
    ),
    _of_library(
        "equinox_mixer",
        ("equinox", "optax"),
        (("data", 2), ("model", 4)),
        "an MLP-Mixer's training step, split by channel and by patch in turn",
    ),
    _of_library(
        "optax_muon",
        ("optax",),
        (("fsdp", 4), ("tensor", 2)),
        "a step of Muon: gradients of matrices split over all devices, whole matrices split by layer, weights again",
    ),
    _of_library(
        "haiku_two_tower",
        ("haiku", "optax"),
        (("data", 4), ("model", 2)),
        "a retrieval model's training step: tables by row, towers by batch, scores by user and by item",
    ),
    _of_library(
        "numpyro_hmc",
        ("numpyro",),
        (("chain", 4), ("data", 2)),
        "a transition of many Markov chains, split over all devices, and a likelihood whose data are split too",
    ),
    _of_library(
        "penzai_llama",
        ("penzai", "optax"),
        (("data", 2), ("fsdp", 2), ("tensor", 2)),
        "a Llama's training step, its layers unrolled, constraints by the names of axes inserted into the model",
    ),
    _of_library(
        "cfd_turbulence",
        ("jax_cfd",),
        (("rows", 4), ("cols", 2)),
        "time steps of a turbulent flow: advection on blocks, pressure by FFTs along one dimension and the other",
    ),
    _of_library(
        "diffrax_reaction",
        ("diffrax", "equinox", "optax"),
        (("data", 2), ("space", 4)),
        "a neural differential equation on a grid: FFTs along rows and columns, a network on all species of a cell",
    ),
)
PROGRAMS = (*CONVERSIONS, *MIXED_GPT, *SHARD_MAPS, *PARTLY_MANUAL, *LIBRARIES)


def every_program() -> tuple[Program, ...]:
    """Returns `PROGRAMS` and those of examples/, which have the size `pod`, too."""
    from examples.programs import all_programs

    return (*PROGRAMS, *map(_of_examples, all_programs()))


def _of_examples(entry) -> Program:
    """Returns a program of examples/; but for the size `large`, its arguments are allocated when it is built."""

    def setup(mesh: Mesh, size: str) -> Setup:
        function, args = entry.build(mesh, size)
        placed = jax.tree.map(lambda x: x.sharding, args)
        return Setup(function, lambda: jax.tree.map(_values, args), placed)

    libraries = ("flax", "optax") if entry.name == "llama_train_step" else ()
    return Program(entry.name, entry.summary, entry.mesh_axes, setup, libraries, (*SIZES, "pod"), "examples")


def _values(argument):
    """Returns the values of an array; zeros for an argument of which there is only the shape."""
    return np.asarray(argument) if isinstance(argument, jax.Array) else jnp.zeros(argument.shape, argument.dtype)
