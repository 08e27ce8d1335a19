# SPDX-License-Identifier: Apache-2.0
"""Trains a small network whose activations change layout in each step; of the tutorial.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python3 examples/two_layouts.py             # XLA warns twice
XLA_FLAGS=--xla_force_host_platform_device_count=8 python3 examples/two_layouts.py --reshard   # and does not
"""

import sys

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard

mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))
by_sample = NamedSharding(mesh, P("y", None, "x"))  # samples over y, features over x; all positions
by_position = NamedSharding(mesh, P(None, ("x", "y"), None))  # positions over x and y; all features
whole = NamedSharding(mesh, P())


def loss(weights, samples):
    over_positions, over_features = weights
    mixed = jnp.einsum("bsf,st->btf", samples, over_positions)  # a device has all positions of some features
    mixed = jax.lax.with_sharding_constraint(mixed, by_sample)
    mixed = jax.lax.with_sharding_constraint(mixed, by_position)
    hidden = jnp.tanh(jnp.tanh(mixed) @ over_features)  # a device has all features of some positions
    return jnp.mean((hidden - 1) ** 2)


def step(weights, samples):
    value, gradients = jax.value_and_grad(loss)(weights, samples)
    return [weight - 8 * gradient for weight, gradient in zip(weights, gradients)], value


def arguments():
    weights = [jax.device_put(jnp.eye(size) / 2, whole) for size in (64, 128)]
    samples = jax.device_put(jnp.sin(jnp.arange(16 * 64 * 128.0)).reshape(16, 64, 128), by_sample)
    return weights, samples


def main():
    jit = reshard.jit if "--reshard" in sys.argv else jax.jit
    compiled = jit(step, out_shardings=whole)
    weights, samples = arguments()
    for number in range(3):
        weights, value = compiled(weights, samples)
        print(f"step {number}: loss {value:.5f}")


if __name__ == "__main__":
    main()
