# SPDX-License-Identifier: Apache-2.0
"""Axes are dropped from the first one that goes beyond the factors of a dimension."""

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.analysis.propagation import propagation_pipeline
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.ir.pipelines import run_pipeline
from reshard.dialect_utils.platform.bindings import ir, make_context, sdy
from reshard.dialect_utils.shardings.factor_overflow import fitting_axes, may_overflow
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding


@pytest.mark.parametrize(
    "axes, factors, fitting",
    [
        ('"y", "x"', (6, 2, 3), '"y":(1)2'),
        ('"y", "x"', (6, 6), None),  # Shardy records one factor after the overflow
        ('"x", "y"', (6, 2, 3), None),
        ('"x", "y"', (3, 2, 2), None),
        ('"y", "x"', (2, 4, 3, 3), '"y"'),
        ('"x"', (2, 4, 3), ""),
        ("", (6, 2, 3), None),
    ],
)
def test_axes_before_the_first_that_overflows(axes, factors, fitting):
    mesh = Mesh.parse("x=3,y=4")
    found = fitting_axes(Sharding.parse(f"[{{{axes}}}]").dims[0], factors, mesh)
    assert found == (None if fitting is None else Sharding.parse(f"[{{{fitting}}}]").dims[0])


@pytest.mark.parametrize("result, may", [("6x6", False), ("6x2x3", True)])
def test_a_dimension_overflows_only_with_three_factors(result, may):
    text = f"""
      sdy.mesh @mesh = <["x"=3, "y"=4]>
      func.func public @main(%arg0: tensor<36xi32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"y", "x"}}]>}})
          -> tensor<{result}xi32> {{
        %0 = stablehlo.reshape %arg0 : (tensor<36xi32>) -> tensor<{result}xi32>
        return %0 : tensor<{result}xi32>
      }}"""
    with make_context(), ir.Location.unknown():
        module = analyse(ir.Module.parse(text)).prepared
        run_pipeline(module, propagation_pipeline())
        (reshape,) = [op for op in ops_in(module) if op.name == "stablehlo.reshape"]
        assert may_overflow(sdy.OpShardingRuleAttr(reshape.attributes["sdy.sharding_rule"])) == may
