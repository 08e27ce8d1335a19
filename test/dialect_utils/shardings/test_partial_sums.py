# SPDX-License-Identifier: Apache-2.0
"""Layouts between two layouts of an operand, for partial sums that have to be summed in between."""

import pytest

from reshard.dialect_utils.ir.shardy_limits import NotPropagatedError
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.partial_sums import has_partial_sums, layouts_between, refuse_different_sums
from reshard.synthesis.layouts.mesh import Mesh

MESHES = {"a": Mesh.parse("x=2,y=2"), "b": Mesh.parse("z=4")}
SPLIT = '#sdy.sharding<@a, [{"x"}]>'
ALONG_Y = '#sdy.sharding<@a, [{"x"}], unreduced={"y"}>'
ALONG_X = '#sdy.sharding<@a, [{}], unreduced={"x"}>'
OTHER_MESH = '#sdy.sharding<@b, [{"z"}]>'
OTHER_SUMS = '#sdy.sharding<@b, [{}], unreduced={"z"}>'


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def attribute(text: str | None) -> ir.Attribute | None:
    return None if text is None else ir.Attribute.parse(text)


@pytest.fixture
def ops(context):
    """Yields the ops of a small module by their names, and holds the module as long as they are used."""
    kind = "tensor<8xf32>"
    module = ir.Module.parse(f"""
      sdy.mesh @a = <["x"=2, "y"=2]>
      func.func @main(%a: {kind}) -> {kind} {{
        %0 = stablehlo.tanh %a : {kind}
        %1 = sdy.reshard %0 <@a, [{{}}]> : {kind}
        return %1 : {kind}
      }}""")
    body = module.body.operations[1].operation.regions[0].blocks[0].operations
    yield {op.operation.name: op.operation for op in body}


@pytest.mark.parametrize("texts, expected", [([None, SPLIT], False), ([SPLIT, ALONG_Y], True), ([], False)])
def test_partial_sums_are_seen_in_any_layout(texts, expected):
    assert has_partial_sums(map(attribute, texts)) is expected


@pytest.mark.parametrize(
    "name, source, target, expected",
    [
        ("stablehlo.tanh", None, ALONG_Y, []),
        ("stablehlo.tanh", SPLIT, OTHER_MESH, []),
        ("stablehlo.tanh", ALONG_Y, SPLIT, []),  # Shardy sums in one step
        ("func.return", ALONG_Y, SPLIT, [SPLIT]),
        ("sdy.reshard", ALONG_Y, ALONG_X, [SPLIT]),  # the sums of the two sides are along different axes
        ("sdy.reshard", ALONG_Y, OTHER_MESH, [SPLIT]),
        ("sdy.reshard", ALONG_Y, OTHER_SUMS, [SPLIT, "#sdy.sharding<@b, [{}]>"]),
    ],
)
def test_layouts_between(ops, name, source, target, expected):
    found = layouts_between(attribute(source), attribute(target), ops[name], MESHES)
    assert [str(each) for each in found] == expected


def test_results_with_different_sums_are_refused(ops):
    op = ops["stablehlo.tanh"]
    refuse_different_sums(op, [attribute(ALONG_Y), attribute(ALONG_Y)])
    with pytest.raises(NotPropagatedError, match="different axes"):
        refuse_different_sums(op, [attribute(ALONG_Y), attribute(ALONG_X)])
