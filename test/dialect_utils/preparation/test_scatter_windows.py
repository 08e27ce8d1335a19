# SPDX-License-Identifier: Apache-2.0
"""Scatters lose windows of size 1 and indices that are known to be 0, and write what they wrote before."""

import numpy as np
import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.scatter_windows import simplify_scatters
from reshard.dialect_utils.xla.child import shared_child

ADDED = """^bb0(%p: tensor<i32>, %q: tensor<i32>):
      %s = stablehlo.add %p, %q : tensor<i32>
      stablehlo.return %s : tensor<i32>"""
# What it is, the operand, the indices, the updates, and the numbers of dimensions before and after.
KEPT = [
    pytest.param(
        "4x16", "3x5x1", "4x3x5x1",
        "update_window_dims = [0, 3], scatter_dims_to_operand_dims = [1], index_vector_dim = 2",
        "update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1],"
        " index_vector_dim = 2",
        id="columns",
    ),
    pytest.param(
        "16x4", "7x1", "1x4x7",
        "update_window_dims = [0, 1], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
        "update_window_dims = [0], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],"
        " index_vector_dim = 1",
        id="rows, windows first",
    ),
    pytest.param(
        "2x3x16x4", "2x3x6x1", "2x3x6x1x4",
        "update_window_dims = [3, 4], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1],"
        " scatter_dims_to_operand_dims = [2], index_vector_dim = 3",
        "update_window_dims = [3], inserted_window_dims = [2], input_batching_dims = [0, 1],"
        " scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3",
        id="batches",
    ),
    pytest.param(
        "12x16x4", "9x2", "9x1x4",
        "update_window_dims = [1, 2], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1, 0],"
        " index_vector_dim = 1",
        "update_window_dims = [1], inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [1, 0],"
        " index_vector_dim = 1",
        id="two dimensions, one inserted already",
    ),
    pytest.param(
        "16", "1", "1",
        "update_window_dims = [0], scatter_dims_to_operand_dims = [0]",
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]",
        id="one element, which becomes a scalar",
    ),
]  # fmt: skip


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def scatter(operand: str, indices: str, updates: str, numbers: str, unused: str = "") -> ir.Module:
    types = f"tensor<{operand}xi32>, tensor<{indices}xi32>, tensor<{updates}xi32>"
    return ir.Module.parse(f"""
    module attributes {{mhlo.num_partitions = 1 : i32}} {{
    func.func public @main(%a: tensor<{operand}xi32>, %i: tensor<{indices}xi32>, %u: tensor<{updates}xi32>)
        -> tensor<{operand}xi32> {{
      %0 = "stablehlo.scatter"(%a, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>}}> ({{
        {ADDED}
      }}) : ({types}) -> tensor<{operand}xi32>
      return %0 : tensor<{operand}xi32>
    }}}}""")


@pytest.mark.parametrize("operand, indices, updates, numbers, after", KEPT)
def test_windows_of_one_element_are_inserted_and_nothing_else_changes(operand, indices, updates, numbers, after):
    module = scatter(operand, indices, updates, numbers)
    before, random = str(module), np.random.default_rng(0)
    assert simplify_scatters(module) == 1
    assert module.operation.verify()
    assert f"#stablehlo.scatter<{after}>" in str(module)
    assert simplify_scatters(module) == 0
    shapes = [tuple(map(int, each.split("x"))) for each in (operand, indices, updates)]
    inputs = [random.integers(-2, 18, shape, dtype=np.int32) for shape in shapes]  # some point outside
    inputs[1].flat[0] = 0
    ran = [shared_child().run(each, inputs, 1) for each in (before, str(module))]
    assert [each.status for each in ran] == ["ok", "ok"]
    np.testing.assert_array_equal(ran[0].outputs[0], ran[1].outputs[0])
    assert (ran[0].outputs[0] != inputs[0]).any()


@pytest.mark.parametrize(
    "updates, numbers",
    [
        ("4x3x2", "update_window_dims = [0, 2], scatter_dims_to_operand_dims = [1], index_vector_dim = 1"),
        ("1x3", "update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1],"
         " index_vector_dim = 1"),
    ],
    ids=("of two elements", "along another dimension"),
)  # fmt: skip
def test_other_windows_stay(updates, numbers):
    module = scatter("4x16", "3x1", updates, numbers)
    before = str(module)
    assert simplify_scatters(module) == 0 and str(module) == before


def batched_update(shape, start, most, rows=1) -> str:
    """Returns a module that updates a slice of each array of a batch, as JAX writes it.

    Args:
      shape: of an array. start: the components of a start, one of them the word `row`. most: what they are clamped to.
    """
    batch, of = "x".join(map(str, (5, *shape))), len(shape)
    names = ["%r" if each == "row" else f"%z{at}" for at, each in enumerate(start)]
    parts = [
        f"%z{at} = stablehlo.constant dense<{each}> : tensor<5x1xi32>" for at, each in enumerate(start) if each != "row"
    ]
    updates = "x".join(map(str, (5, rows, *shape[1:])))
    windows = ", ".join(map(str, range(1, of + 1)))
    ones = ", ".join(["tensor<5x1xi32>"] * of)
    return f"""
    module attributes {{mhlo.num_partitions = 1 : i32}} {{
    func.func public @main(%a: tensor<{batch}xi32>, %i: tensor<5xi32>, %u: tensor<{updates}xi32>)
        -> tensor<{batch}xi32> {{
      %r = stablehlo.reshape %i : (tensor<5xi32>) -> tensor<5x1xi32>
      {" ".join(parts)}
      %c = stablehlo.concatenate {", ".join(names)}, dim = 1 : ({ones}) -> tensor<5x{of}xi32>
      %least = stablehlo.constant dense<0> : tensor<i32>
      %m = stablehlo.constant dense<{list(most)}> : tensor<{of}xi32>
      %most = stablehlo.broadcast_in_dim %m, dims = [1] : (tensor<{of}xi32>) -> tensor<5x{of}xi32>
      %starts = stablehlo.clamp %least, %c, %most : (tensor<i32>, tensor<5x{of}xi32>, tensor<5x{of}xi32>)
        -> tensor<5x{of}xi32>
      %0 = "stablehlo.scatter"(%a, %starts, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
          update_window_dims = [{windows}], input_batching_dims = [0], scatter_indices_batching_dims = [0],
          scatter_dims_to_operand_dims = [{windows}], index_vector_dim = 1>}}> ({{
        {ADDED}
      }}) : (tensor<{batch}xi32>, tensor<5x{of}xi32>, tensor<{updates}xi32>) -> tensor<{batch}xi32>
      return %0 : tensor<{batch}xi32>
    }}}}"""


@pytest.mark.parametrize(
    ("shape", "start", "most", "rows", "pointed"),
    [
        ((16, 3, 4), ("row", 0, 0), (15, 0, 0), 1, "scatter_dims_to_operand_dims = [1]"),
        ((16, 3, 4), ("row", 9, 0), (15, 0, 0), 1, "scatter_dims_to_operand_dims = [1]"),
        ((16, 3, 4), ("row", 0, 0), (14, 0, 0), 2, "scatter_dims_to_operand_dims = [1]"),
        ((16, 3, 4), ("row", 0, 2), (15, 0, 9), 1, "scatter_dims_to_operand_dims = [1, 3]"),
        ((1, 3), ("row", 0), (0, 0), 1, "scatter_dims_to_operand_dims = [1]"),
    ],
    ids=("one row", "clamped to 0", "two rows", "windows outside are not written", "no place to choose"),
)
def test_indices_that_are_known_to_be_0_are_left_out(shape, start, most, rows, pointed):
    before, random = batched_update(shape, start, most, rows), np.random.default_rng(0)
    module = ir.Module.parse(before)
    assert simplify_scatters(module) == 1 and module.operation.verify()
    assert f"{pointed}," in str(module)
    assert simplify_scatters(module) == 0
    inputs = [random.integers(-20, 20, dims, dtype=np.int32) for dims in ((5, *shape), (5,), (5, rows, *shape[1:]))]
    ran = [shared_child().run(each, inputs, 1) for each in (before, str(module))]
    assert [each.status for each in ran] == ["ok", "ok"]
    np.testing.assert_array_equal(ran[0].outputs[0], ran[1].outputs[0])
    assert (ran[0].outputs[0] != inputs[0]).any() == (max(start[1:]) != 2)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_scatter_with_a_sharding_rule_of_its_own_stays(rows):
    text = batched_update((16, 3), ("row", 0), (15, 0), rows).replace(
        "}) : (tensor<5x16x3xi32>, tensor<5x2xi32>",
        "}) {sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k], [i, l], [i, m, k])->([i, j, k])"
        f" {{i=5, j=16, k=3, l=2, m={rows}}}>}} : (tensor<5x16x3xi32>, tensor<5x2xi32>",
    )
    module = ir.Module.parse(text)
    before = str(module)
    assert "op_sharding_rule" in before and simplify_scatters(module) == 0 and str(module) == before


def test_indices_of_unknown_number_stay():
    module = ir.Module.parse("""
    func.func public @main(%a: tensor<16x4xi32>, %i: tensor<?x2xi32>, %u: tensor<5x1x4xi32>) -> tensor<16x4xi32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %0 = stablehlo.clamp %zero, %i, %zero : (tensor<i32>, tensor<?x2xi32>, tensor<i32>) -> tensor<?x2xi32>
      %1 = "stablehlo.scatter"(%a, %0, %u) <{scatter_dimension_numbers = #stablehlo.scatter<
          update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
        ^bb0(%p: tensor<i32>, %q: tensor<i32>):
        stablehlo.return %q : tensor<i32>
      }) : (tensor<16x4xi32>, tensor<?x2xi32>, tensor<5x1x4xi32>) -> tensor<16x4xi32>
      return %1 : tensor<16x4xi32>
    }""")
    before = str(module)
    assert simplify_scatters(module) == 0 and str(module) == before


def test_a_reshape_that_adds_the_dimension_is_taken_back():
    module = ir.Module.parse("""
    func.func public @main(%a: tensor<4x16xi32>, %b: tensor<4x16xi32>, %i: tensor<3x1xi32>, %u: tensor<4x3xi32>)
        -> (tensor<4x16xi32>, tensor<4x16xi32>) {
      %v = stablehlo.reshape %u : (tensor<4x3xi32>) -> tensor<4x3x1xi32>
      %0:2 = "stablehlo.scatter"(%a, %b, %i, %v, %v) <{scatter_dimension_numbers = #stablehlo.scatter<
          update_window_dims = [0, 2], scatter_dims_to_operand_dims = [1], index_vector_dim = 1>}> ({
        ^bb0(%p: tensor<i32>, %r: tensor<i32>, %q: tensor<i32>, %t: tensor<i32>):
        stablehlo.return %q, %t : tensor<i32>, tensor<i32>
      }) : (tensor<4x16xi32>, tensor<4x16xi32>, tensor<3x1xi32>, tensor<4x3x1xi32>, tensor<4x3x1xi32>)
          -> (tensor<4x16xi32>, tensor<4x16xi32>)
      return %0#0, %0#1 : tensor<4x16xi32>, tensor<4x16xi32>
    }""")
    assert simplify_scatters(module) == 1 and module.operation.verify()
    (op,) = (op for op in ops_in(module.operation) if op.name == "stablehlo.scatter")
    given = module.body.operations[0].regions[0].blocks[0].arguments[3]
    assert [op.operands[at] for at in (3, 4)] == [given, given]
