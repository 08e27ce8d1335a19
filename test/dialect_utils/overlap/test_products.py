# SPDX-License-Identifier: Apache-2.0
"""Products block by block: what each dimension is for, and where it comes from."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.overlap.products import DotProduct, Role
from reshard.dialect_utils.platform.bindings import ir, make_context

MODULE = """
func.func @main(%a: tensor<2x3x5x7xbf16>, %b: tensor<7x11x2xbf16>) -> tensor<2x3x5x11xf32> {
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [2], contracting_dims = [3] x [0],
    precision = [HIGHEST, DEFAULT] : (tensor<2x3x5x7xbf16>, tensor<7x11x2xbf16>) -> tensor<2x3x5x11xf32>
  return %0 : tensor<2x3x5x11xf32>
}"""


@pytest.fixture
def product():
    with make_context():
        module = ir.Module.parse(MODULE)
        yield DotProduct(next(op for op in ops_in(module.operation) if op.name == "stablehlo.dot_general"))


def test_roles_of_dimensions(product):
    assert [product.role(0, dim) for dim in range(4)] == [
        Role("batched", 2, 0),
        Role("free", None, 1),
        Role("free", None, 2),
        Role("contracted", 0, None),
    ]
    assert [product.role(1, dim) for dim in range(3)] == [
        Role("contracted", 3, None),
        Role("free", None, 3),
        Role("batched", 0, 0),
    ]


def test_dimensions_of_the_result_come_from_operands(product):
    assert [product.origins(dim) for dim in range(4)] == [((0, 0), (1, 2)), ((0, 1),), ((0, 2),), ((1, 1),)]


def test_roles_and_origins_agree(product):
    for operand, shape in enumerate(product.shapes):
        for dim in range(len(shape)):
            result = product.role(operand, dim).result
            assert result is None or (operand, dim) in product.origins(result)


def test_the_product_of_smaller_operands_is_as_precise(product):
    with ir.InsertionPoint(product.op), ir.Location.unknown():
        operands = [
            ir.Operation.create(
                "stablehlo.constant",
                attributes={"value": ir.Attribute.parse(f"dense<0.0> : tensor<{shape}xbf16>")},
                results=[ir.Type.parse(f"tensor<{shape}xbf16>")],
            ).results[0]
            for shape in ("1x3x5x7", "7x11x1")
        ]
        made = product.write(operands, ir.F32Type.get())
    assert str(made.type) == "tensor<1x3x5x11xf32>"
    assert "precision = [HIGHEST, DEFAULT]" in str(made.owner)


def test_sizes_as_matrices(product):
    sized = product.sized(*product.shapes)
    assert (sized.batch, sized.rows, sized.columns, sized.inner, sized.bits) == (2, 15, 11, 7, (16, 16, 32))
    assert product.result_shape == (2, 3, 5, 11)
