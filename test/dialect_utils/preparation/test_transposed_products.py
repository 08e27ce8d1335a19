# SPDX-License-Identifier: Apache-2.0
"""Products that are used transposed name their operands the other way round, and compute what they computed."""

import numpy as np
import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.transposed_products import untranspose_products
from reshard.dialect_utils.xla.child import shared_child

PLAIN = ("16x8", "16x12", "contracting_dims = [0] x [0]", "8x12")
BATCHED = ("3x4x8", "3x4x6x2", "batching_dims = [0] x [0], contracting_dims = [1] x [1]", "3x8x6x2")


@pytest.fixture(autouse=True)
def context():
    with make_context():
        yield


def product(shapes, order, behind, numbers="", on_product="", on_transpose="", returns="%1") -> ir.Module:
    """Returns a module with a product of two arguments that is transposed."""
    left, right, dims, made = shapes
    kinds = {"%0": made, "%1": behind}
    return ir.Module.parse(f"""
    module attributes {{mhlo.num_partitions = 1 : i32}} {{
    sdy.mesh @mesh = <["x"=1]>
    func.func public @main(%a: tensor<{left}xf32>, %b: tensor<{right}xf32>) -> tensor<{kinds[returns]}xf32> {{
      %0 = stablehlo.dot_general %a, %b, {dims}{numbers} {on_product}
        : (tensor<{left}xf32>, tensor<{right}xf32>) -> tensor<{made}xf32>
      %1 = stablehlo.transpose %0, dims = {order} {on_transpose} : (tensor<{made}xf32>) -> tensor<{behind}xf32>
      return {returns} : tensor<{kinds[returns]}xf32>
    }}}}""")


@pytest.mark.parametrize("shapes, order, behind", [(PLAIN, [1, 0], "12x8"), (BATCHED, [0, 2, 3, 1], "3x6x2x8")])
def test_the_operands_are_swapped_and_the_values_stay(shapes, order, behind):
    module = product(shapes, order, behind, ", precision = [DEFAULT, HIGHEST]")
    before = str(module)
    assert untranspose_products(module) == 1 and module.operation.verify()
    after = str(module)
    assert "transpose" not in after and "%arg1, %arg0" in after and "precision = [HIGHEST, DEFAULT]" in after
    assert untranspose_products(module) == 0
    shapes = [tuple(map(int, each.split("x"))) for each in shapes[:2]]
    inputs = [np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32) for shape in shapes]
    ran = [shared_child().run(each, inputs, 1) for each in (before, after)]
    assert [each.status for each in ran] == ["ok", "ok"]
    np.testing.assert_array_equal(ran[0].outputs[0], ran[1].outputs[0])


def test_the_layout_that_is_stated_behind_the_transpose_stays():
    module = product(
        PLAIN, [1, 0], "12x8", on_transpose='{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}'
    )
    assert untranspose_products(module) == 1
    assert '<@mesh, [{"x"}, {}]>' in str(module)


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(lambda: product(BATCHED, [0, 3, 2, 1], "3x2x6x8"), id="another order"),
        pytest.param(lambda: product(BATCHED, [0, 1, 3, 2], "3x8x2x6"), id="of one operand alone"),
        pytest.param(lambda: product(PLAIN, [1, 0], "12x8", returns="%0"), id="used as it came, too"),
        pytest.param(
            lambda: product(
                PLAIN, [1, 0], "12x8", on_product='{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}'
            ),
            id="with a layout of its own",
        ),
        pytest.param(
            lambda: product(PLAIN, [1, 0], "12x8", on_transpose='{mhlo.frontend_attributes = {key = "value"}}'),
            id="with what others read",
        ),
    ],
)
def test_others_stay(module):
    module = module()
    before = str(module)
    assert untranspose_products(module) == 0 and str(module) == before
