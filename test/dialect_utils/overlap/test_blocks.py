# SPDX-License-Identifier: Apache-2.0
"""Ops of which a block is the same op of blocks: which dimensions blocks have, and what is written for one."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.overlap.blocks import along, write_block
from reshard.dialect_utils.platform.bindings import ir, make_context

TRANSPOSE = "stablehlo.transpose %a, dims = [2, 0, 1] : (tensor<4x3x8xf32>) -> tensor<8x4x3xf32>"
ADD = "stablehlo.add %a, %a : tensor<4x3x8xf32>"
BAG = "stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : {} -> tensor<4x8xf32>".format(
    "(tensor<4x3x8xf32>, tensor<f32>)"
)
OTHER_BODY = """stablehlo.reduce(%a init: %z) across dimensions = [1]
  : (tensor<4x3x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  reducer(%p: tensor<f32>, %q: tensor<f32>) {
    %s = stablehlo.subtract %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }"""
MERGED = "stablehlo.reshape %a : (tensor<4x3x8xf32>) -> tensor<12x8xf32>"
PARTED = "stablehlo.reshape %a : (tensor<4x3x8xf32>) -> tensor<4x3x2x4xf32>"
ROWS = "stablehlo.broadcast_in_dim %a, dims = [0, 1, 3] : (tensor<4x3x8xf32>) -> tensor<4x3x5x8xf32>"
ONE = "stablehlo.broadcast_in_dim %a, dims = [0, 1, 2] : (tensor<4x1x8xf32>) -> tensor<4x6x8xf32>"
SCALAR = "stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<4x8xf32>"
SLICE = "stablehlo.slice %a [0:2, 0:3, 0:8] : (tensor<4x3x8xf32>) -> tensor<2x3x8xf32>"


def parsed(text: str) -> ir.Operation:
    """Returns the op of a text, of `%a` and a scalar `%z`."""
    shape = "4x1x8" if text == ONE else "4x3x8"
    body = f"func.func @main(%a: tensor<{shape}xf32>, %z: tensor<f32>) {{ %r = {text}\n return }}"
    parsed.module = ir.Module.parse(body)
    return next(op for op in ops_in(parsed.module.operation) if op.name == text.split()[0].partition("(")[0])


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield


@pytest.mark.parametrize(
    ("text", "dim", "cut", "block"),
    [
        (TRANSPOSE, 0, (2,), "4x4x3"),
        (TRANSPOSE, 1, (0,), "8x2x3"),
        (ADD, 2, (2, 2), "4x3x4"),
        (BAG, 0, (0, None), "2x8"),
        (BAG, 1, (2, None), "4x4"),
        (MERGED, 0, (0,), "6x8"),
        (MERGED, 1, (2,), "12x4"),
        (PARTED, 0, (0,), "2x3x2x4"),
        (PARTED, 2, (2,), "4x3x1x4"),
        (ROWS, 0, (0,), "2x3x5x8"),
        (ROWS, 3, (2,), "4x3x5x4"),
        (ONE, 1, (None,), "4x3x8"),
        (SCALAR, 0, (None,), "2x8"),
    ],
)
def test_blocks_are_made_of_blocks(text, dim, cut, block):
    op = parsed(text)
    assert along(op, dim, 2) == cut
    with ir.InsertionPoint(op):
        operands = [part(each, of_operand) for each, of_operand in zip(op.operands, cut)]
        made = write_block(op, operands, dim, 2)
    assert str(made.type) == f"tensor<{block}xf32>"
    assert parsed.module.operation.verify()


def part(value: ir.Value, dim: int | None) -> ir.Value:
    """Returns a value of the type of a block, or the whole one."""
    if dim is None:
        return value
    kind = ir.RankedTensorType(value.type)
    shape = [size // 2 if each == dim else size for each, size in enumerate(kind.shape)]
    part = ir.RankedTensorType.get(shape, kind.element_type)
    return ir.Operation.create("builtin.unrealized_conversion_cast", [part], [value]).results[0]


@pytest.mark.parametrize(
    ("text", "dim", "blocks"),
    [(OTHER_BODY, 0, 2), (MERGED, 0, 3), (MERGED, 0, 8), (PARTED, 3, 2), (SLICE, 2, 2)],
    ids=["another_body", "blocks_of_the_second_factor", "more_blocks_than_rows", "the_second_factor", "another_op"],
)
def test_other_blocks_are_not(text, dim, blocks):
    assert along(parsed(text), dim, blocks) is None
