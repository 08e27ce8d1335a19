# SPDX-License-Identifier: Apache-2.0
"""Lookups block by block: where each dimension of their results comes from, and what smaller ones are."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.overlap.lookups import TableLookup
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.overlap.pipelines import Lookup

MODULE = """
func.func @main(%table: tensor<4x100x9x32xbf16>, %indices: tensor<8x2x4x16xi32>) -> tensor<8x4x3x16x32xbf16> {
  %0 = "stablehlo.gather"(%table, %indices) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 4],
    collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [2],
    start_index_map = [1, 2], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1, 3, 32>, indices_are_sorted = true}>
    : (tensor<4x100x9x32xbf16>, tensor<8x2x4x16xi32>) -> tensor<8x4x3x16x32xbf16>
  return %0 : tensor<8x4x3x16x32xbf16>
}"""


@pytest.fixture
def lookup():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(MODULE)
        yield TableLookup(next(op for op in ops_in(module.operation) if op.name == "stablehlo.gather"))


def test_batches_come_from_indices_and_windows_from_the_table(lookup):
    assert lookup.origins(0) == ((1, 0),)
    assert lookup.origins(3) == ((1, 3),)
    assert lookup.origins(4) == ((0, 3),)


def test_what_table_and_indices_share_is_cut_in_both(lookup):
    assert lookup.origins(1) == ((1, 2), (0, 0))


def test_a_dimension_of_which_rows_have_a_part_is_not_cut(lookup):
    assert lookup.origins(2) == ()


@pytest.mark.parametrize(
    ("table", "indices", "result"),
    [
        ("4x100x9x32", "2x2x4x16", "2x4x3x16x32"),
        ("4x100x9x8", "8x2x4x16", "8x4x3x16x8"),
        ("1x100x9x32", "8x2x1x16", "8x1x3x16x32"),
    ],
)
def test_smaller_lookups(lookup, table, indices, result):
    kinds = [ir.Type.parse(kind) for kind in (f"tensor<{table}xbf16>", f"tensor<{indices}xi32>")]
    block = ir.Block.create_at_start(lookup.op.parent.regions[0], kinds)
    with ir.InsertionPoint(block):
        made = lookup.write(list(block.arguments))
    assert str(made.type) == f"tensor<{result}xbf16>"
    assert made.owner.verify()
    assert "indices_are_sorted = true" in str(made.owner)


def test_sizes(lookup):
    table, indices = lookup.shapes
    assert lookup.sized(table, indices) == Lookup(8 * 4 * 16, 3 * 32 * 2, 8 * 2 * 4 * 16 * 4)
    assert lookup.sized(table, (2, *indices[1:])) == Lookup(2 * 4 * 16, 3 * 32 * 2, 2 * 2 * 4 * 16 * 4)


def test_a_part_of_the_table_is_read_and_written_before(lookup):
    table, indices = lookup.shapes
    part = lookup.sized((*table[:3], 8), indices)
    assert part == Lookup(8 * 4 * 16, 3 * 8 * 2, 8 * 2 * 4 * 16 * 4, 4 * 100 * 9 * 8 * 2)
    topology = Topology.parse("uniform")
    whole = Lookup(part.rows, part.row_bytes, part.index_bytes)
    assert part.seconds(topology) > whole.seconds(topology) + part.copied_bytes / topology.memory_bandwidth_bytes_per_s
