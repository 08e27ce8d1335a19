# SPDX-License-Identifier: Apache-2.0
# The extra `benchmarks` need not be installed.
# pyright: reportMissingImports=false
"""A neural differential equation with Diffrax on a grid of cells: reaction by a small network, diffusion by FFTs."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from benchmarks.programs.program import Setup, constrain, layout, normal

CONFIGS = {
    "small": (4, 16, 4, 8, 2),
    "demo": (8, 128, 16, 64, 4),
    "large": (32, 2048, 64, 256, 8),
}  # fields in a batch, cells along a side, species, hidden features of the network, steps


class Reaction(eqx.Module):
    """The rate of each species in a cell, a network of the species there."""

    up: jax.Array
    down: jax.Array

    def __init__(self, species: int, hidden: int):
        self.up = normal(0, species, hidden, scale=species**-0.5)
        self.down = normal(1, hidden, species, scale=0.1 * hidden**-0.5)

    def __call__(self, y):
        return jnp.tanh(y @ self.up) @ self.down


def diffrax_reaction(mesh: Mesh, size: str) -> Setup:
    """Sets up one training step: fields, [batch, side, side, species], are integrated and compared with a target.

    Between steps fields are split by batch and rows. An FFT needs the lines whole that it transforms. The reaction was
    written for many species, and splits them.
    """
    batch, side, species, hidden, steps = CONFIGS[size]
    by_rows, by_columns = ("data", "space"), ("data", None, "space")
    by_species = ("data", None, None, "space")
    optimizer = optax.adam(1e-3)

    def along(fft, x, dim: int, spec: tuple):
        """Returns the transform of the lines along `dim`, which `spec` leaves whole; each device transforms its own."""
        x = constrain(x, mesh, *spec)
        lines = layout(mesh, *spec).spec
        return jax.shard_map(lambda tile: fft(tile, axis=dim), mesh=mesh, in_specs=lines, out_specs=lines)(x)

    def diffusion(y):
        waves = 2 * jnp.cos(2 * jnp.pi * jnp.arange(side) / side) - 2
        x = along(jnp.fft.fft, along(jnp.fft.fft, y.astype(jnp.complex64), 2, by_rows), 1, by_columns)
        x = x * (waves[:, None, None] + waves[:, None])
        return along(jnp.fft.ifft, along(jnp.fft.ifft, x, 1, by_columns), 2, by_rows).real

    def rate(t, y, reaction):
        reacted = reaction(constrain(y, mesh, *by_species))
        return constrain(0.1 * diffusion(y) + reacted, mesh, *by_rows)

    def loss(reaction, start, target):
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(rate), diffrax.Euler(), t0=0.0, t1=0.1 * steps, dt0=0.1, y0=start, args=reaction,
            adjoint=diffrax.DirectAdjoint(), max_steps=steps,
        )  # fmt: skip
        assert found.ys is not None  # the default is to keep the last state
        return jnp.mean(jnp.square(constrain(found.ys[0], mesh, *by_rows) - target))

    def train_step(state, start, target):
        reaction, moments = state
        value, gradients = jax.value_and_grad(loss)(reaction, start, target)
        updates, moments = optimizer.update(gradients, moments)
        return (eqx.apply_updates(reaction, updates), moments), value

    def values():
        reaction: Any = Reaction(species, hidden)
        fields = (normal(seed, batch, side, side, species, scale=0.1) for seed in (2, 3))
        return (reaction, optimizer.init(reaction)), *fields

    placed = layout(mesh)
    function = jax.jit(train_step, donate_argnums=0, out_shardings=(placed, placed))
    return Setup(function, values, (placed, layout(mesh, *by_rows), layout(mesh, *by_rows)))
