# SPDX-License-Identifier: Apache-2.0
"""Ops that every device does in full, and functions in which nothing divides: right where XLA alone may not be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import RunOptions, Session
from reshard.passes.driver.pipeline import Pipeline

CALLS = {
    "qr": lambda x: jnp.linalg.qr(x.T)[1],
    "svd": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "eigh": lambda x: jnp.linalg.eigh(x[:, :8] + x[:, :8].T)[0],
}


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_linear_algebra(mesh, name):
    array = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    jax.clear_caches()
    placed = jax.device_put(array, NamedSharding(mesh, P("x", "y")))
    result = reshard.optimize(jax.jit(CALLS[name]).lower(placed), emit="local")
    assert result.is_rewritten
    np.testing.assert_allclose(result.compile()(placed), jax.jit(CALLS[name])(array), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, jnp.float8_e5m2])
def test_numbers_that_a_type_does_not_hold_are_rounded_once(mesh, dtype):
    """XLA adds the start of a part to numbers that it has rounded already."""
    jax.clear_caches()
    split = NamedSharding(mesh, P("x"))
    numbers = jax.jit(lambda: jax.lax.with_sharding_constraint(jax.lax.iota(dtype, 4100), split))
    got = reshard.optimize(numbers.lower(), emit="local").compile()()
    np.testing.assert_array_equal(got, np.arange(4100).astype(np.float32).astype(dtype))


UNEVEN = """
sdy.mesh @mesh = <["x"=4]>
func.func public @main(%arg0: tensor<5x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> tensor<5x3xf32> {
  %0 = sdy.sharding_constraint %arg0 <@mesh, [{"x"}, {}]> : tensor<5x3xf32>
  %1 = stablehlo.tanh %0 : tensor<5x3xf32>
  return %1 : tensor<5x3xf32>
}
"""


def test_a_function_in_which_nothing_divides_is_written_per_device_too():
    """XLA would split what does not divide, and has faults of its own there."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(UNEVEN)
        Pipeline.emitting("local", {}).run(module, Session(RunOptions()))
        written = str(module)
    assert "sdy.manual_computation" in written and "sharding_constraint" not in written


UNKNOWN = """
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
  %0 = stablehlo.custom_call @lapack_of_mine(%arg0) {HAS} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_a_call_with_an_effect_is_left_to_xla():
    with pytest.raises(DiagnosedError, match="no rule for tiles"):
        reshard.optimize(UNKNOWN.replace("HAS", "has_side_effect = true"), emit="local")
