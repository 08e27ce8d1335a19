# SPDX-License-Identifier: Apache-2.0
"""Explicit reshards: they are added where Shardy would read beyond its factors."""

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.platform.bindings import ir, make_context

MESH = 'sdy.mesh @mesh = <["x"=3, "y"=4]>'
SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}]>}'


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def explicit(function: str) -> str:
    """Returns the clone of a module with the mesh x=3,y=4 and one function, with explicit reshards."""
    return str(analyse(ir.Module.parse(f"{MESH}\n{function}")).explicit)


def test_axes_that_end_amid_three_factors_are_cut_off_before_a_reshape():
    text = explicit(f"""
      func.func public @main(%arg0: tensor<36xi32> {SPLIT}) -> tensor<2x3x2x3xi32> {{
        %0 = stablehlo.reshape %arg0 : (tensor<36xi32>) -> tensor<6x2x3xi32>
        %1 = stablehlo.dot_general %0, %0, contracting_dims = [0] x [0] : (tensor<6x2x3xi32>, tensor<6x2x3xi32>) -> tensor<2x3x2x3xi32>
        return %1 : tensor<2x3x2x3xi32>
      }}""")  # noqa: E501
    assert 'sdy.reshard %arg0 <@mesh, [{"y":(1)2}]>' in text
    assert text.count("sdy.reshard") == 1


def test_axes_that_end_amid_three_factors_are_added_behind_a_reshape():
    text = explicit(f"""
      func.func public @main(%arg0: tensor<6x2x3xi32>) -> (tensor<36xi32> {SPLIT}) {{
        %0 = stablehlo.negate %arg0 : tensor<6x2x3xi32>
        %1 = stablehlo.reshape %0 : (tensor<6x2x3xi32>) -> tensor<36xi32>
        return %1 : tensor<36xi32>
      }}""")
    assert 'sdy.sharding_per_value<[<@mesh, [{"y":(1)2}]>]>} : (tensor<6x2x3xi32>)' in text
    assert (
        'sdy.reshard %2 <@mesh, [{"y", "x"}]> : tensor<36xi32>' in text
        or 'sdy.reshard %1 <@mesh, [{"y", "x"}]> : tensor<36xi32>' in text
    )
