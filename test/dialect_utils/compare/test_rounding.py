# SPDX-License-Identifier: Apache-2.0
"""The largest difference that rounding can make between two runs of one program."""

import pytest

from reshard.dialect_utils.compare.rounding import ops_behind, roundings_of_results
from reshard.dialect_utils.platform.bindings import ir, make_context


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def test_a_result_rounds_as_the_coarsest_type_and_the_sums_on_the_way_to_it():
    module = ir.Module.parse("""
      func.func public @main(%a: tensor<8x16xf32>, %n: tensor<4xi32>) -> (tensor<8x8xbf16>, tensor<4xi32>) {
        %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1]
            : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
        %1 = stablehlo.convert %0 : (tensor<8x8xf32>) -> tensor<8x8xbf16>
        %2 = stablehlo.add %n, %n : tensor<4xi32>
        return %1, %2 : tensor<8x8xbf16>, tensor<4xi32>
      }""")
    product, count = roundings_of_results(module)
    assert (product.epsilon, product.terms) == (2**-7, 16)
    assert (count.epsilon, count.limit) == (0.0, 0.0)
    assert [op.name for op in ops_behind(0, module)] == ["stablehlo.dot_general", "stablehlo.convert"]
