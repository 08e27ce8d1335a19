# SPDX-License-Identifier: Apache-2.0
"""Any rule of an op with windows gives the values of one device, on random windows in random layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from test.end_to_end.local.drawn import Drawn, any_rule, checked, mesh

__all__ = ["any_rule", "mesh"]  # fixtures


def convolutions(drawn: Drawn):
    draw, spatial = drawn.rng, drawn.rng.choice([1, 2])
    feature_groups, batch_groups = draw.choice([(1, 1), (1, 1), (4, 1), (2, 1), (1, 2), (1, 4)])
    image = [draw.choice([8, 16]) for _ in range(spatial)]
    window = [draw.choice([1, 2, 3, 4, 8]) for _ in range(spatial)]
    strides, base, dilation = ([draw.choice([1, 1, 2]) for _ in range(spatial)] for _ in range(3))
    padding = [(draw.choice([0, 1, 2, 7, -1]), draw.choice([1, 2, 7, 15])) for _ in range(spatial)]
    aligned = [
        w * d + (n * b // s - 1) * s - d - n * b + b for w, d, n, b, s in zip(window, dilation, image, base, strides)
    ]
    if draw.random() < 0.7:  # as many windows as tiles have room for
        padding = [(low, total - low) for (low, _), total in zip(padding, aligned)]
    lhs = drawn.array((8, 8, *image), np.float32)
    rhs = drawn.array((8, 8 // feature_groups, *window), np.float32)

    def program(a):
        return lax.conv_general_dilated(
            a[lhs], a[rhs], strides, padding, base, dilation,
            feature_group_count=feature_groups, batch_group_count=batch_groups,
        )  # fmt: skip

    return program


def kernel_gradients(drawn: Drawn):
    lhs, rhs = drawn.array((4, 8, 16), np.float32), drawn.array((8, 8, 3), np.float32)
    stride, padding = drawn.rng.choice([1, 2]), drawn.rng.choice(["SAME", "VALID", [(2, 0)]])

    def value(image, kernel):
        return jnp.sum(lax.conv_general_dilated(image, kernel, [stride], padding) ** 2)

    return lambda a: jax.grad(value, 1)(a[lhs], a[rhs])


def pools(drawn: Drawn):
    at = drawn.array([drawn.rng.choice([4, 8, 16]) for _ in range(2)], drawn.rng.choice([np.float32, np.int32]))
    window, strides, base, dilation = ([drawn.rng.choice([1, 2, 2, 3]) for _ in range(2)] for _ in range(4))
    padding = [(drawn.rng.choice([0, 1, 2]), drawn.rng.choice([4, 1, 2])) for _ in range(2)]
    base, dilation = ([min(2, each) if drawn.rng.random() < 0.4 else 1 for each in sizes] for sizes in (base, dilation))
    start, how = drawn.rng.choice([(0, lax.add), (-5, lax.max), (1, lax.add)])
    return lambda a: lax.reduce_window(
        a[at], a[at].dtype.type(start), lambda x, y: how(x, y), window, strides, padding, base, dilation
    )


def max_pool_gradients(drawn: Drawn):
    at, size = drawn.array((8, 16), np.float32), drawn.rng.choice([2, 4])
    stride = drawn.rng.choice([size, size, 1])

    def value(image):
        return jnp.sum(lax.reduce_window(image, -np.float32(np.inf), lax.max, (1, size), (1, stride), "VALID") ** 2)

    return lambda a: jax.grad(value)(a[at])


MAKERS = (convolutions, convolutions, kernel_gradients, pools, max_pool_gradients)


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", range(4))
def test_any_rule_of_an_op_with_windows_gives_the_values_of_one_device(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_rules_of_ops_with_windows_on_many_layouts(mesh, any_rule, seed):
    checked(mesh, seed, MAKERS)
