# SPDX-License-Identifier: Apache-2.0
"""Trains one layer in JAX's explicit mode, with a sharding that is badly chosen; of docs/advise.md.

reshard advise examples/explicit_step.py --devices 8 --topology h100
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Explicit))
jax.set_mesh(mesh)


def forward(weights, samples):
    up, down = weights
    hidden = jnp.einsum("be,ef->bf", samples, up, out_sharding=P("data", None))
    hidden = jnp.tanh(hidden) * 2
    return jnp.einsum("bf,fe->be", hidden, down, out_sharding=P("data", None))


@jax.jit
def step(weights, samples):
    gradients = jax.grad(lambda weights: jnp.mean((forward(weights, samples) - samples) ** 2))(weights)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


def main():
    up = jax.device_put(jnp.full((512, 2048), 0.01), P(None, "model"))
    down = jax.device_put(jnp.full((2048, 512), 0.01), P("model", None))
    samples = jax.device_put(jnp.ones((1024, 512)), P("data", None))
    step([up, down], samples)


if __name__ == "__main__":
    main()
