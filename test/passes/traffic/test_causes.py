# SPDX-License-Identifier: Apache-2.0
"""Causes of collectives, told from the op for which XLA made them."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.traffic import causes
from reshard.passes.traffic.causes import MEANINGS, SiteAt, cause_of

MODULE = """
sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x8xf32>, %i: tensor<i32>) -> tensor<8x8xf32> {
  %dot = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %slice = stablehlo.dynamic_slice %a, %i, %i, sizes = [1, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %pad = stablehlo.pad %a, %zero, low = [1, 0], high = [0, 0], interior = [0, 0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<9x8xf32>
  %tanh = stablehlo.tanh %a : tensor<8x8xf32>
  %held = sdy.sharding_constraint %a <@mesh, [{"x"}, {}]> : tensor<8x8xf32>
  %step = stablehlo.tanh %a : tensor<8x8xf32> loc("reshard/3/all_gather"("f.py":1:2))
  %whole = stablehlo.cholesky %a, lower = true : tensor<8x8xf32>
  %sum = "stablehlo.all_reduce"(%a) ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %s = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %part = "stablehlo.reduce_scatter"(%a) ({
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %s = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 0 : i64} : (tensor<8x8xf32>) -> tensor<2x8xf32>
  return %tanh : tensor<8x8xf32>
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def ops():
    with make_context() as context:
        module = ir.Module.parse(MODULE, context)
        found = {op.name: op for op in reversed(ops_in(module.operation))}
        yield {**found, "step": next(op for op in ops_in(module.operation) if "reshard/3" in str(op.location))}


@pytest.mark.parametrize(
    "kind, name, expected",
    [
        ("all_reduce", "stablehlo.dot_general", causes.PARTIAL_SUMS),
        ("reduce_scatter", "stablehlo.dot_general", causes.PARTIAL_SUMS),
        ("all_gather", "stablehlo.dot_general", causes.LAYOUTS),
        ("all_reduce", "stablehlo.dynamic_slice", causes.LOOKUP),
        ("all_gather", "stablehlo.dynamic_slice", causes.GATHERED),
        ("collective_permute", "stablehlo.pad", causes.NEIGHBOURS),
        ("all_gather", "stablehlo.cholesky", causes.GATHERED),
        ("all_to_all", "sdy.sharding_constraint", causes.SITE),
        ("all_gather", "step", causes.PLANNED),
        ("all_reduce", "stablehlo.all_reduce", causes.WRITTEN),
        ("collective_permute", "stablehlo.tanh", causes.LAYOUTS),
    ],
)
def test_the_cause_is_told_from_the_op_and_the_kind(ops, kind, name, expected):
    cause = cause_of(kind, ops[name], ["x"], {})
    assert cause.kind == expected and cause.kind in MEANINGS
    assert cause.site == (3 if name == "step" else None)


def test_a_reduce_scatter_that_the_compiler_makes_an_all_reduce_is_told(ops):
    op = ops["stablehlo.reduce_scatter"]
    assert [cause_of(kind, op, ["x"], {}).text for kind in ("reduce_scatter", "all_reduce")] == [
        "the program has this reduce_scatter",
        "the program has this reduce_scatter, which the compiler sums whole",
    ]


def test_without_an_op_the_cause_is_unknown():
    assert cause_of("all_gather", None, ["x"], {}).kind == causes.UNKNOWN


def test_of_several_sites_at_an_op_it_is_the_one_that_moves_the_axes_of_the_collective(ops):
    op = ops["stablehlo.tanh"]
    sites = {op: [SiteAt(1, "first", frozenset({"y"})), SiteAt(2, "second", frozenset({"x"}))]}
    assert [cause_of("all_gather", op, [axis], sites).site for axis in "xyz"] == [2, 1, 1]


def test_sums_of_an_op_are_no_conversion_although_there_is_a_site_at_it(ops):
    op = ops["stablehlo.dot_general"]
    sites = {op: [SiteAt(1, "first", frozenset({"x"}))]}
    assert cause_of("all_reduce", op, ["x"], sites).kind == causes.PARTIAL_SUMS
    assert cause_of("all_gather", op, ["x"], sites).site == 1


@pytest.mark.parametrize("name, words", [("add", "sums"), ("maximum", "maxima"), ("multiply", "results")])
def test_parts_of_a_reduction_are_named_after_what_it_computes(name, words):
    text = f"""func.func @main(%a: tensor<8xf32>, %z: tensor<f32>) -> tensor<f32> {{
      %0 = stablehlo.reduce(%a init: %z) applies stablehlo.{name} across dimensions = [0]
        : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32>
    }}"""
    with make_context() as context:
        module = ir.Module.parse(text, context)
        op = next(op for op in ops_in(module.operation) if op.name == "stablehlo.reduce")
        cause = cause_of("all_reduce", op, ["x"], {})
        assert (cause.kind, cause.text) == (causes.PARTIAL_SUMS, f"partial {words} of this reduce")
