# SPDX-License-Identifier: Apache-2.0
# The extra `benchmarks` need not be installed.
# pyright: reportMissingImports=false
"""Turbulence in two dimensions with JAX-CFD: advection on blocks of the grid, pressure by FFTs of whole lines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax_cfd.base import advection, boundaries, equations, finite_differences, grids

from benchmarks.programs.program import Setup, constrain, layout, normal

CONFIGS = {"small": (32, 2), "demo": (512, 4), "large": (8192, 8)}  # cells along a side, steps
STEP = 1e-3


def cfd_turbulence(mesh: Mesh, size: str) -> Setup:
    """Sets up time steps of the Navier-Stokes equations on a periodic square.

    Velocities are split into blocks, over `rows` and `cols`. An FFT along a dimension has it whole on every device.
    """
    side, steps = CONFIGS[size]
    grid = grids.Grid((side, side), domain=((0, 2 * jnp.pi), (0, 2 * jnp.pi)))
    blocks, everything = ("rows", "cols"), ("rows", "cols")
    whole_along = (layout(mesh, None, everything).spec, layout(mesh, everything).spec)

    def along(fft, x, dim: int):
        """Returns the transform of lines, which are whole; each device transforms its own."""
        spec = whole_along[dim]
        x = constrain(x, mesh, *spec)
        return jax.shard_map(lambda tile: fft(tile, axis=dim), mesh=mesh, in_specs=spec, out_specs=spec)(x)

    def solve(v, q0, pressure_bc):
        """Returns the pressure whose Laplacian is the divergence of `v`."""
        right = finite_differences.divergence(v)
        x = along(jnp.fft.fft, along(jnp.fft.fft, right.data.astype(jnp.complex64), 1), 0)
        waves = 2 * jnp.cos(2 * jnp.pi * jnp.arange(side) / side) - 2
        eigenvalues = waves[:, None] / grid.step[0] ** 2 + waves / grid.step[1] ** 2
        x = x * jnp.where(eigenvalues == 0, 0, 1 / jnp.where(eigenvalues == 0, 1, eigenvalues))
        x = along(jnp.fft.ifft, along(jnp.fft.ifft, x, 0), 1).real
        return grids.GridArray(constrain(x, mesh, *blocks), right.offset, grid)

    def convect(v):
        return tuple(advection.advect_linear(u, v, STEP) for u in v)

    step = equations.semi_implicit_navier_stokes(
        density=1.0, viscosity=1e-3, dt=STEP, grid=grid, convect=convect, pressure_solve=solve
    )
    offsets = grid.cell_faces
    periodic = boundaries.periodic_boundary_conditions(2)

    def run(*velocity):
        def one(velocity, _):
            v = tuple(grids.GridVariable(grids.GridArray(u, o, grid), periodic) for u, o in zip(velocity, offsets))
            return tuple(constrain(u.data, mesh, *blocks) for u in step(v)), None

        return jax.lax.scan(one, velocity, None, length=steps)[0]

    by_block = layout(mesh, *blocks)
    function = jax.jit(run, out_shardings=by_block, donate_argnums=(0, 1))
    return Setup(function, lambda: (normal(0, side, side), normal(1, side, side)), by_block)
