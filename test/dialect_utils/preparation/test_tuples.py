# SPDX-License-Identifier: Apache-2.0
"""Tuples are taken apart."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.tuples import take_tuples_apart


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def taken_apart(body: str) -> ir.Module:
    module = ir.Module.parse(f"func.func @main(%a: tensor<4xf32>, %b: tensor<2xi32>) -> tensor<2xi32> {{ {body} }}")
    take_tuples_apart(module.operation)
    assert module.operation.verify()
    return module


def test_an_element_of_a_tuple_is_used_itself():
    module = taken_apart("""
      %0 = stablehlo.tuple %a, %b : tuple<tensor<4xf32>, tensor<2xi32>>
      %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<4xf32>, tensor<2xi32>>) -> tensor<2xi32>
      return %1 : tensor<2xi32>""")
    assert [op.name for op in ops_in(module.operation)] == ["builtin.module", "func.func", "func.return"]


def test_a_custom_call_returns_the_elements():
    module = taken_apart("""
      %0 = stablehlo.custom_call @f(%a) : (tensor<4xf32>) -> tuple<tensor<4xf32>, tensor<2xi32>>
      %1 = stablehlo.get_tuple_element %0[1] : (tuple<tensor<4xf32>, tensor<2xi32>>) -> tensor<2xi32>
      return %1 : tensor<2xi32>""")
    (call,) = [op for op in ops_in(module.operation) if op.name == "stablehlo.custom_call"]
    assert [str(result.type) for result in call.results] == ["tensor<4xf32>", "tensor<2xi32>"]
    assert "tuple" not in str(module)
