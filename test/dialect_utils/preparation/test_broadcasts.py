# SPDX-License-Identifier: Apache-2.0
"""Broadcasts that grow dimensions become the ops that HLO has."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.broadcasts import join_broadcasts, split_broadcasts


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def split(source: str, dims: str, target: str, joins: bool = False) -> list[str]:
    """Returns the ops that replace a broadcast, each with its result type, in order, split or joined again."""
    module = ir.Module.parse(f"""func.func @main(%a: tensor<{source}>) -> tensor<{target}> {{
      %0 = stablehlo.broadcast_in_dim %a, dims = [{dims}] : (tensor<{source}>) -> tensor<{target}>
      return %0 : tensor<{target}>
    }}""")
    for change in (split_broadcasts, join_broadcasts)[: 1 + joins]:
        change([op for op in ops_in(module.operation) if op.name == "stablehlo.broadcast_in_dim"])
    assert module.operation.verify()
    ops = [op for op in ops_in(module.operation) if op.name.startswith("stablehlo.")]
    return [f"{op.name.removeprefix('stablehlo.')} {str(op.results[0].type)[7:-1]}" for op in ops]


def test_a_dimension_that_grows_is_dropped_first():
    whole = ["broadcast_in_dim 8x1xf32", "reshape 8xf32", "broadcast_in_dim 8x4xf32"]
    assert split("8x1xf32", "0, 1", "8x4xf32") == whole


def test_dimensions_of_size_1_are_added_by_a_reshape():
    assert split("8xf32", "0", "8x1xf32") == ["reshape 8x1xf32"]


@pytest.mark.parametrize("source, dims, target", [("f32", "", "8xf32"), ("8xf32", "1", "4x8xf32")])
def test_other_broadcasts_stay(source, dims, target):
    assert split(source, dims, target) == [f"broadcast_in_dim {target}"]


@pytest.mark.parametrize(
    "source, dims, target",
    [("8x1xf32", "0, 1", "8x4xf32"), ("1x4xf32", "1, 2", "8x2x4xf32"), ("1x1x3xf32", "0, 1, 2", "2x5x3xf32")],
)
def test_a_dimension_that_was_dropped_grows_again(source, dims, target):
    kept = split(source, dims, target)[0].split()[1]
    first = [f"broadcast_in_dim {kept}"] if kept != source else []
    assert split(source, dims, target, joins=True) == [*first, f"broadcast_in_dim {target}"]


@pytest.mark.parametrize("dims, count", [("0, 1", 0), ("1, 0", 1)])
def test_a_broadcast_to_the_same_type_goes_but_for_one_that_transposes(dims, count):
    module = ir.Module.parse(f"""func.func @main(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {{
      %0 = stablehlo.broadcast_in_dim %a, dims = [{dims}] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      return %0 : tensor<4x4xf32>
    }}""")
    join_broadcasts([op for op in ops_in(module.operation) if op.name == "stablehlo.broadcast_in_dim"])
    assert module.operation.verify()
    assert len(module.body.operations[0].regions[0].blocks[0].operations) == 1 + count


@pytest.mark.parametrize(
    "source, dropped, dims, target",
    [("1x8xf32", "8xf32", "0", "8x4xf32"), ("1x4x4xf32", "4x4xf32", "2, 1", "1x4x4xf32")],
)
def test_a_reshape_that_drops_other_dimensions_stays_and_one_before_a_transposition(source, dropped, dims, target):
    module = ir.Module.parse(f"""func.func @main(%a: tensor<{source}>) -> tensor<{target}> {{
      %0 = stablehlo.reshape %a : (tensor<{source}>) -> tensor<{dropped}>
      %1 = stablehlo.broadcast_in_dim %0, dims = [{dims}] : (tensor<{dropped}>) -> tensor<{target}>
      return %1 : tensor<{target}>
    }}""")
    before = str(module)
    join_broadcasts([op for op in ops_in(module.operation) if op.name == "stablehlo.broadcast_in_dim"])
    assert str(module) == before
