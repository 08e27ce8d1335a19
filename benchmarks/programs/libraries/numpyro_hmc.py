# SPDX-License-Identifier: Apache-2.0
# The extra `benchmarks` need not be installed.
# pyright: reportMissingImports=false
"""Hamiltonian Monte Carlo of a NumPyro model: many chains, split over devices, and data that are split as well."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.sharding import Mesh
from numpyro.infer.util import potential_energy

from benchmarks.programs.program import Setup, constrain, integers, layout, normal

CONFIGS = {
    "small": (16, 64, 8, 8, 2),
    "demo": (64, 4096, 128, 64, 4),
    "large": (256, 262144, 2048, 2048, 8),
}  # chains, rows of data, features, groups, steps of the integrator
STEP = 1e-3


def model(features, groups, outcome, num_groups: int):
    """A logistic regression whose offsets differ from group to group."""
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
    logits = features @ weights + spread * jnp.asarray(offset)[groups]
    numpyro.sample("outcome", dist.Bernoulli(logits=logits), obs=outcome)


def numpyro_hmc(mesh: Mesh, size: str) -> Setup:
    """Sets up a transition of all chains: momenta, leapfrog steps, and the choice of Metropolis.

    The likelihood splits chains over `chain` and rows over `data`; the rest splits chains over all devices.
    """
    chains, rows, features, groups, steps = CONFIGS[size]
    by_chain, everything = ("chain",), (("chain", "data"),)

    def placed_as(tree, spec):
        return jax.tree.map(lambda x: constrain(x, mesh, *spec), tree)

    def energy(position, data):
        def of_chain(each):
            return potential_energy(model, (*data, groups), {}, each)

        return jax.vmap(of_chain)(placed_as(position, by_chain))

    def transition(position, seed, data):
        keys = jax.random.split(jax.random.key(seed), 4)
        momentum = {
            name: constrain(jax.random.normal(key, x.shape), mesh, *everything)
            for key, (name, x) in zip(keys, sorted(position.items()))
        }

        def kinetic(momentum):
            return sum(jnp.sum(jnp.square(p.reshape(chains, -1)), -1) / 2 for p in momentum.values())

        def total(position, momentum):
            return constrain(energy(position, data), mesh, *everything) + kinetic(momentum)

        def slope(position):
            return placed_as(jax.grad(lambda q: jnp.sum(energy(q, data)))(position), everything)

        def leapfrog(state, _):
            q, p = state
            p = jax.tree.map(lambda p, g: p - STEP / 2 * g, p, slope(q))
            q = placed_as(jax.tree.map(lambda q, p: q + STEP * p, q, p), everything)
            p = jax.tree.map(lambda p, g: p - STEP / 2 * g, p, slope(q))
            return (q, placed_as(p, everything)), None

        (proposed, at_end), _ = jax.lax.scan(leapfrog, (position, momentum), None, length=steps)
        after = total(proposed, at_end)
        is_taken = jnp.log(jax.random.uniform(keys[3], (chains,))) < total(position, momentum) - after
        chosen = jax.tree.map(
            lambda new, old: jnp.where(is_taken.reshape((-1,) + (1,) * (new.ndim - 1)), new, old), proposed, position
        )
        return chosen, after

    def values():
        position = {
            "spread": normal(0, chains, scale=0.1),
            "offset": normal(1, chains, groups, scale=0.1),
            "weights": normal(2, chains, features, scale=0.1),
        }
        data = (normal(3, rows, features, scale=features**-0.5), integers(4, groups, rows), integers(5, 2, rows))
        return position, jnp.uint32(7), data

    by_all = layout(mesh, *everything)
    function = jax.jit(transition, out_shardings=(by_all, by_all))
    return Setup(function, values, (by_all, layout(mesh), layout(mesh, "data")))
