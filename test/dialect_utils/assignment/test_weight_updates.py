# SPDX-License-Identifier: Apache-2.0
"""Weights of training steps, their new values, and which of their uses are the optimizer's."""

import jax
import jax.numpy as jnp
import pytest

from reshard.dialect_utils.assignment.factored_modules import inline_calls_of
from reshard.dialect_utils.assignment.weight_updates import weight_updates
from reshard.dialect_utils.ir.functions import functions_of, public_functions
from reshard.dialect_utils.platform.bindings import ir, make_context

SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def updates(step, *args, **options):
    """Returns (argument, result, the names of the ops of the uses) of each weight of a step."""
    text = jax.jit(step, **options).lower(*args).as_text()
    with make_context() as context, ir.Location.unknown():
        module = ir.Module.parse(text, context)
        inline_calls_of(module)
        (main,) = public_functions(functions_of(module.operation))
        found = weight_updates(main)
        return [
            (each.argument, each.result, sorted(op.name.removeprefix("stablehlo.") for op, _ in each.uses))
            for each in found
        ]


def gradient(w, x):
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)


def test_a_weight_is_what_the_forward_pass_takes_and_the_optimizer_makes_anew():
    def step(x, m, w):
        m = 0.9 * m + gradient(w, x)
        return m, w - 0.1 * m

    assert updates(step, SQUARE, SQUARE, SQUARE) == [(2, 1, ["subtract"])]


def test_a_decay_is_the_optimizers_and_a_cast_before_a_product_is_not():
    def step(w, m, x):
        forward = w.astype(jnp.bfloat16).astype(jnp.float32)
        m = 0.9 * m + gradient(forward, x)
        return w - 0.1 * (m + 0.01 * w), m

    assert updates(step, SQUARE, SQUARE, SQUARE) == [(0, 0, ["multiply", "subtract"])]


def test_a_weight_that_is_cast_once_for_both_is_a_weight():
    def step(w, m, x):
        wide = w.astype(jnp.float32)
        m = 0.9 * m + gradient(wide, x)
        return (wide - 0.1 * m).astype(jnp.bfloat16), m

    narrow = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    assert updates(step, narrow, SQUARE, SQUARE) == [(0, 0, ["subtract"])]


def test_a_decay_in_the_gradient_makes_the_momentum_follow_from_the_weight_but_the_weight_is_nearer():
    def step(w, m, x):
        m = 0.9 * m + gradient(w, x) + 0.01 * w
        return m, w - 0.1 * m

    ((argument, result, _),) = updates(step, SQUARE, SQUARE, SQUARE)
    assert (argument, result) == (0, 1)


def test_what_is_donated_to_what_says_nothing():
    def step(w, m, x):
        m = 0.9 * m + gradient(w, x)
        return m, w - 0.1 * m

    assert updates(step, SQUARE, SQUARE, SQUARE, donate_argnums=(0, 1)) == [(0, 1, ["subtract"])]


def test_an_average_of_old_weights_is_the_averages_new_value():
    def step(w, m, mean, x):
        mean = 0.99 * mean + 0.01 * w
        m = 0.9 * m + gradient(w, x)
        return jnp.clip((w - 0.1 * m) * 0.999, -1.0, 1.0), m, mean

    ((argument, result, _),) = updates(step, SQUARE, SQUARE, SQUARE, SQUARE)
    assert (argument, result) == (0, 0)


def test_a_weight_that_is_returned_as_it_came_is_its_own_new_value():
    assert updates(lambda w, x: (x @ w, w), SQUARE, SQUARE) == [(0, 1, [])]


@pytest.mark.parametrize(
    "step",
    [
        lambda w, x: jnp.tanh(x @ w),  # no new weight
        lambda w, x: (w - 1.0, x),  # nobody else takes it
    ],
)
def test_programs_without_a_weight(step):
    assert updates(step, SQUARE, SQUARE) == []
