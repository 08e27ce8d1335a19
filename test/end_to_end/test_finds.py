# SPDX-License-Identifier: Apache-2.0
"""Programs that test/fuzz has found; each test describes the error that it found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:8])


def assert_like_stock(function, *args, policy: str = "always", check: bool = False) -> dict:
    """Asserts that the rewritten program has stock's outputs and output shardings; returns the report."""
    jax.clear_caches()
    lowered = function.lower(*args)
    result = reshard.optimize(lowered, policy=policy, check=check)
    assert result.is_rewritten, result.report.text()
    for mine, theirs in zip(result.compile()(*args), lowered.compile()(*args), strict=True):
        assert mine.sharding.is_equivalent_to(theirs.sharding, mine.ndim), (mine.sharding, theirs.sharding)
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    return result.report.to_dict()


def test_a_loop_that_hands_through_complex_numbers(mesh):
    """The bindings have no Python class for attributes of complex numbers; the analysis once raised TypeError."""
    a = jax.device_put(np.ones((8, 8), np.complex64), NamedSharding(mesh, P("x")))

    @jax.jit
    def function(a):
        moved = with_sharding_constraint(jax.lax.optimization_barrier(a), NamedSharding(mesh, P(None, "x")))
        return (jax.lax.fori_loop(0, 3, lambda _, carry: (carry[0], carry[0] + carry[1]), (moved, a))[1],)

    assert_like_stock(function, a)


@pytest.mark.parametrize("policy", ["better", "always"])
def test_an_open_output_that_propagation_leaves_replicated_stays_so(mesh, policy):
    """Propagation once gave the output the layout of an island; the whole-module check then took the rewrite back."""
    a = jax.device_put(np.arange(576, dtype=np.int32).reshape(24, 24), NamedSharding(mesh, P("z", "y")))
    function = jax.jit(lambda a: (jnp.einsum("ij,ji->i", a, a),))
    report = assert_like_stock(function, a, policy=policy, check=True)
    check = report["checks"][0]
    assert not check["dropped"] and check["ours"]["bytes_received"] < check["stock"]["bytes_received"]


def test_an_open_output_has_the_layout_that_xla_propagates(mesh):
    """XLA of jaxlib 0.10 propagates nothing through erf; outputs once got the layouts of our analysis instead."""
    a = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(mesh, P("x")))

    @jax.jit
    def function(a, b):
        return jax.lax.erf(a), with_sharding_constraint(
            jax.lax.optimization_barrier(b), NamedSharding(mesh, P(None, "y"))
        )

    assert_like_stock(function, a, a)


def test_a_convolution_keeps_the_layouts_in_which_xla_computes_it_rightly(mesh):
    """If a spatial dimension is split too, XLA wrongly sums over the axes of the output features.

    The stock program does not use these layouts.
    """
    a = np.arange(16 * 8 * 8, dtype=np.float32).reshape(16, 8, 8) % 5 - 2
    weights = np.arange(8 * 8 * 3, dtype=np.float32).reshape(8, 8, 3) % 3 - 1
    replicated, features_and_space = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "y", "x"))

    def function(a, weights):
        return jax.lax.conv_general_dilated(with_sharding_constraint(a, replicated), weights, (2,), "SAME")

    expected = jax.jit(function)(a, weights)
    jitted = jax.jit(function, in_shardings=(replicated, NamedSharding(mesh, P("y"))), out_shardings=features_and_space)
    result = reshard.optimize(jitted.lower(a, weights), policy="always", check=False)
    assert result.report.to_dict()["totals"]["sites"] > 0
    np.testing.assert_array_equal(np.asarray(result.compile()(a, weights)), np.asarray(expected))


def test_a_dot_whose_sums_are_scattered_keeps_the_layouts_in_which_xla_computes_it_rightly(mesh):
    """XLA computes ij,ij->i from [{"y"}, {"x", "z"}] to [{"y", "z"}] wrongly; stock XLA does not use these layouts."""
    a = np.arange(4 * 16, dtype=np.float32).reshape(4, 16) % 5 - 2
    placed = jax.device_put(a, NamedSharding(mesh, P(None, ("x", "z"))))
    function = jax.jit(lambda a: jnp.einsum("ij,ij->i", a, a), out_shardings=NamedSharding(mesh, P(("y", "z"))))
    result = reshard.optimize(function.lower(placed), policy="always", check=False)
    assert result.report.to_dict()["totals"]["sites"] > 0
    np.testing.assert_array_equal(np.asarray(result.compile()(placed)), np.sum(a * a, axis=1))


def test_an_update_beyond_the_end_is_clamped_though_stock_xla_drops_it(mesh):
    """Stock XLA does not clamp the offset along a dimension that it splits; the island leaves that dimension whole."""
    a = np.arange(8 * 2, dtype=np.float32).reshape(8, 2)
    placed = jax.device_put(a, NamedSharding(mesh, P(("x", "y"))))

    def update(a, offset):
        return jax.lax.dynamic_update_slice_in_dim(a, 100 + a[:, :1], offset, axis=1)

    function = jax.jit(update, out_shardings=NamedSharding(mesh, P(None, "y")))
    result = reshard.optimize(function.lower(placed, np.int32(5)), policy="always", check=False)
    assert result.is_rewritten, result.report.text()
    expected = a.copy()
    expected[:, 1] = 100 + a[:, 0]
    np.testing.assert_array_equal(np.asarray(result.compile()(placed, np.int32(5))), expected)


TWO_IN_A_ROW = """module @m attributes {mhlo.num_partitions = 12 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2, "z"=3]>
  func.func public @main(%a: tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"z"}]>})
      -> (tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"z"}]>}, tensor<12x24xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}, {"x", "y"}]>}) {
    %0 = sdy.sharding_constraint %a <@mesh, [{"z"}, {"x", "y"}]> : tensor<12x24xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"y"}, {"z"}]> : tensor<12x24xf32>
    return %1, %0 : tensor<12x24xf32>, tensor<12x24xf32>
  }
}"""  # noqa: E501


def test_islands_in_a_row_whose_transposes_cancel_compile():
    """XLA of jaxlib 0.10 passes parts of one all_to_all to the next one, and its verifier then refuses the program."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(TWO_IN_A_ROW)
        Pipeline.default().with_options({"policy": "always"}).run(module, Session())
        assert str(module).count("stablehlo.optimization_barrier %arg") == 1
        found = shared_child().compile(str(module), 12)
    assert found.is_ok, found.message
