# SPDX-License-Identifier: Apache-2.0
"""Trains two layers, with constraints of which one is badly chosen; of docs/advise.md.

reshard advise examples/annotated_step.py --devices 8 --topology h100
"""

import sys

import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def forward(weights, samples):
    up, down = weights
    hidden = with_sharding_constraint(jnp.tanh(samples @ up), P("model", None))
    return with_sharding_constraint(hidden @ down, P("data", None))


@jax.jit
def step(weights, samples, wanted):
    def loss(weights):
        return jnp.mean((forward(weights, samples) - wanted) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)], value


@jax.jit
def evaluate(weights, samples):
    return jnp.max(forward(weights, samples))


def main(steps):
    with jax.set_mesh(mesh):
        weights = [
            jax.device_put(jnp.full((512, 2048), 0.01), P(None, "model")),
            jax.device_put(jnp.full((2048, 512), 0.01), P("model", None)),
        ]
        samples, wanted = (jax.device_put(jnp.full((1024, 512), each), P("data", None)) for each in (0.5, 1.0))
        for _ in range(steps):
            weights, _ = step(weights, samples, wanted)
        print(f"after {steps} steps: {evaluate(weights, samples):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
