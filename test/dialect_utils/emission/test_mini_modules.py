# SPDX-License-Identifier: Apache-2.0
"""Mini-modules: the questions to XLA about an op whose dimensions do not divide."""

import pytest

from reshard.dialect_utils.emission.mini_modules import neighbourhood
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.sites.site_plans import site_plan
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

MESH = Mesh.parse("x=4,y=2")
ROWS, COLUMNS = Sharding.parse('[{"x"}, {}]'), Sharding.parse('[{}, {"x"}]')


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            yield context


def addition(shape: str) -> ir.Operation:
    kind = ir.Type.parse(f"tensor<{shape}xf32>")
    operands = [
        ir.Operation.create("ub.poison", results=[kind], attributes={"value": ir.Attribute.parse("#ub.poison")})
        for _ in "ab"
    ]
    return ir.Operation.create("stablehlo.add", operands=[each.results[0] for each in operands], results=[kind])


def test_an_op_that_does_not_divide_is_asked_about_in_whole_tiles():
    """Otherwise XLA would give its arguments other layouts than the question has."""
    op = addition("10x14")
    operand_plans = {1: site_plan(op.operands[1].type, MESH, COLUMNS, ROWS)}
    stock, ours = (neighbourhood(op, MESH, [ROWS, COLUMNS], [ROWS], plans, {}) for plans in ({}, operand_plans))
    for text in (stock, ours):
        assert (
            "(%arg0: tensor<12x14xf32>" in text
            and "%arg1: tensor<10x16xf32>" in text
            and "-> (tensor<12x14xf32>" in text
        )
        assert ": tensor<10x14xf32>" in next(line for line in text.splitlines() if "stablehlo.add" in line)
    compiled = [shared_child().compile(text, 8) for text in (stock, ours)]
    assert [each.is_ok for each in compiled] == [True, True]
    assert compiled[0].input_shardings == compiled[1].input_shardings
    assert compiled[1].bytes_received == operand_plans[1].bytes_received


def test_an_op_that_divides_is_asked_about_as_it_is():
    text = neighbourhood(addition("8x16"), MESH, [ROWS, COLUMNS], [ROWS], {}, {})
    assert "stablehlo.pad" not in text and "stablehlo.slice" not in text
