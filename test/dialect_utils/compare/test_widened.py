# SPDX-License-Identifier: Apache-2.0
"""Modules with floats of 64 bits, and what they say about differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from reshard.dialect_utils.compare.array_differences import difference
from reshard.dialect_utils.compare.rounding import Rounding
from reshard.dialect_utils.compare.widened import is_rounding, widened, widened_inputs
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child

DRAW = np.random.default_rng(0)


def wide_run(function, *arguments):
    """Returns what a widened function gives on the child's XLA."""
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")
    wide = widened(module)
    assert wide is not None
    assert str(module) != str(wide) and "tensor<f64>" not in str(module)
    ran = shared_child().run(str(wide), widened_inputs([np.asarray(each) for each in arguments]), 1)
    assert ran.status == "ok", ran.message
    return ran.outputs


def floats(*shape: int, dtype=np.float32) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(dtype)


X = floats(4, 8)


@pytest.mark.mostly_slow
@pytest.mark.parametrize(
    "function, arguments",
    [
        (lambda x: jnp.tanh(x) @ x.T * 0.1, (X,)),
        (lambda x: lax.scan(lambda c, row: (jnp.sin(c + row), c), x[0], x), (X,)),
        (lambda x: jax.grad(lambda y: jnp.sum(jax.nn.softmax(y * 3.7) ** 2))(x), (X,)),
        (lambda x: jnp.fft.fft(x).real, (X,)),
        (lambda x: lax.reduce_precision(x, 8, 7) * 1.25, (X,)),
        (lambda x: lax.cond(x[0, 0] > 0, jnp.cos, jnp.exp, x), (X,)),
        (lambda x: lax.while_loop(lambda c: c.sum() < 50.0, lambda c: c * 1.1 + 1.0, x), (X,)),
        (lambda x, k: jnp.where(k > 2, x, -x), (X, np.arange(8, dtype=np.int32))),
        (lambda x: jnp.sort(x, axis=1), (X,)),
        (lambda x: lax.top_k(x, 3)[0], (X,)),
        (lambda x: lax.dot(x, x.T, preferred_element_type=jnp.float32), (X.astype(jnp.bfloat16),)),
    ],
)
def test_it_computes_the_same_with_more_digits(function, arguments):
    with jax.enable_x64(True):
        wide = [
            np.asarray(each, np.float64) if np.asarray(each).dtype.name in ("float32", "bfloat16") else each
            for each in arguments
        ]
        expected = (
            jax.tree.leaves(function(*wide)) if "bfloat16" not in str(arguments[0].dtype) else [wide[0] @ wide[0].T]
        )
    for mine, right in zip(wide_run(function, *arguments), expected, strict=True):
        if "reduce_precision" in function.__code__.co_names:
            right = wide[0] * 1.25
        np.testing.assert_allclose(np.asarray(mine), np.asarray(right), rtol=1e-6)
        assert mine.dtype in (np.float64, np.int32)


def test_bits_of_floats_and_calls_of_libraries_keep_their_types():
    def function(x):
        bits = lax.bitcast_convert_type(x, jnp.int32)
        q, _ = jnp.linalg.qr(x)
        return bits, q * 2

    bits, q = wide_run(function, X[:, :4])
    np.testing.assert_array_equal(bits, X[:, :4].view(np.int32))
    np.testing.assert_allclose(q.T @ q, 4 * np.eye(4), atol=1e-5)


def test_constants_keep_their_value():
    table = floats(3)
    (found,) = wide_run(lambda x: x[:, :3] * table + jnp.inf, X)
    assert np.isinf(found).all()
    (found,) = wide_run(lambda x: x[:, :3] * 0 + table, X)
    np.testing.assert_array_equal(found, np.broadcast_to(table.astype(np.float64), (4, 3)))


def test_shardings_and_manual_computations_stay():
    text = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<4xf32> {
  %0 = sdy.sharding_constraint %a <@mesh, [{}]> : tensor<4xf32>
  %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"x"} (%t: tensor<2xf32>) {
    %2 = "stablehlo.all_gather"(%t) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>,
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> : (tensor<2xf32>) -> tensor<4xf32>
    sdy.return %2 : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}"""  # noqa: E501
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        wide = widened(module)
        assert "f32" not in str(wide) and "sdy.sharding<@mesh" in str(wide)
        names = [op.name for op in ops_in(module.operation)]
        assert [op.name for op in ops_in(wide.operation)] == names
    ran = shared_child().run(str(wide), [np.arange(4.0)], 2)
    assert ran.status == "ok" and ran.outputs[0].tolist() == [0, 1, 2, 3]


def test_without_narrow_floats_there_is_no_wider_module():
    assert widened(jax.jit(lambda x: x + 1).lower(np.arange(3)).compiler_ir("stablehlo")) is None


ROUNDING = Rounding(2.0**-23, 64)


@pytest.mark.parametrize(
    "before, wide, is_rounded",
    [
        (0.06, 0.06, False),
        (0.06, 1e-6, False),
        (0.06, 1e-8, True),
        (0.0, 1e-14, True),
        (0.0, 1e-9, False),
    ],
)
def test_what_is_left_with_more_digits_decides(before, wide, is_rounded):
    expected = np.array([1.0, 2.0])
    was = difference(np.float32(expected), np.float32(expected + [0, 2 * before]), ROUNDING.limit)
    assert is_rounding([was], [np.float32(expected)], [expected], [expected + [0, 2 * wide]], [ROUNDING]) == is_rounded


@pytest.mark.parametrize("wide, is_rounded", [(1e-17, True), (1e-9, False)])
def test_an_output_that_is_all_rounding_is_almost_nothing_with_more_digits(wide, is_rounded):
    narrow, other = np.float32([4e-9, -1e-9]), np.float32([-2e-9, 3e-9])
    was = difference(narrow, other, ROUNDING.limit)
    assert is_rounding([was], [narrow], [np.array([wide, 0])], [np.array([-wide, wide])], [ROUNDING]) == is_rounded


def test_integers_have_to_be_equal_in_the_end():
    was = difference(np.array([1, 2]), np.array([1, 3]), 0.0)
    right = [np.array([1, 2])]
    assert is_rounding([was], right, right, right, [ROUNDING])
    assert not is_rounding([was], right, right, [np.array([1, 3])], [ROUNDING])


_WAITING = """func.func @main(%x: tensor<8xf32>, %late: tensor<2xf32>) -> tensor<8xf32> {
  %first = stablehlo.slice %late [0:1] : (tensor<2xf32>) -> tensor<1xf32>
  %bits = stablehlo.bitcast_convert %first : (tensor<1xf32>) -> tensor<1xi32>
  %one = stablehlo.reshape %bits : (tensor<1xi32>) -> tensor<i32>
  %wide = stablehlo.convert %one : (tensor<i32>) -> tensor<i64>
  %ones = stablehlo.popcnt %wide : tensor<i64>
  %most = stablehlo.constant dense<64> : tensor<i64>
  %max = stablehlo.maximum %ones, %most : tensor<i64>
  %zero = stablehlo.subtract %max, %most : tensor<i64>
  %narrow = stablehlo.convert %zero : (tensor<i64>) -> tensor<i32>
  %zeros = stablehlo.broadcast_in_dim %narrow, dims = [] : (tensor<i32>) -> tensor<8xi32>
  %same = stablehlo.bitcast_convert %x : (tensor<8xf32>) -> tensor<8xi32>
  %masked = stablehlo.xor %same, %zeros : tensor<8xi32>
  %out = stablehlo.bitcast_convert %masked : (tensor<8xi32>) -> tensor<8xf32>
  %third = stablehlo.constant dense<3.0> : tensor<8xf32>
  %r = stablehlo.divide %out, %third : tensor<8xf32>
  return %r : tensor<8xf32>
}"""


@pytest.mark.parametrize(
    "text, is_wide",
    [(_WAITING, True), (_WAITING.replace("popcnt %wide", "negate %wide"), False)],
    ids=("a tile that waits", "other bits"),
)
def test_a_tile_that_waits_for_another_has_64_bits_and_other_bits_keep_their_number(text, is_wide):
    x = np.full(8, 1 / 3)
    with make_context() as context:
        wide = widened(ir.Module.parse(text, context))
    assert wide is not None
    ran = shared_child().run(str(wide), [x, np.zeros(2)], 1)
    assert ran.status == "ok", ran.message
    kept = x if is_wide else x.astype(np.float32).astype(np.float64)
    assert np.allclose(ran.outputs[0], kept / 3, rtol=1e-12, atol=0.0)
