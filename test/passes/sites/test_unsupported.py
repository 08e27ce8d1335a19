# SPDX-License-Identifier: Apache-2.0
"""Types and shardings that are not planned are refused with a reason."""

import pytest

from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Session
from reshard.passes.sites.unsupported import dynamic_type, first_with, refuse_uneven_ends, unsupported_type


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("tuple<tensor<f32>>", "Shardy propagates no tuples such as tuple<tensor<f32>>"),
        ("tensor<*xf32>", "tensor<*xf32> has no rank"),
        ("tensor<4x?xf32>", "dimension 1 of tensor<4x?xf32> is dynamic"),
        ("tensor<4503599627370497xi8>", "more than 2^52 elements"),
    ],
)
def test_a_type_that_is_not_propagated_has_a_reason(kind, words):
    assert words in unsupported_type(ir.Type.parse(kind))


@pytest.mark.parametrize("kind", ["tensor<4x8xf32>", "tensor<f32>", "!stablehlo.token", "tensor<4503599627370496xi8>"])
def test_other_types_have_none(kind):
    assert unsupported_type(ir.Type.parse(kind)) is None


def test_the_first_op_with_such_an_operand_is_named():
    module = ir.Module.parse("""
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: tensor<4xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
        %0 = stablehlo.tanh %a : tensor<4xf32>
        %1 = sdy.sharding_constraint %b <@mesh, [{"x"}]> : tensor<?xf32>
        return %1 : tensor<?xf32>
      }""")
    op, skipped = first_with(dynamic_type, module)
    assert op.name == "sdy.sharding_constraint"
    assert (skipped.kind, skipped.where) == ("constraint", "operand 0 of sharding_constraint")


def test_there_is_none_in_a_module_of_static_shapes():
    assert first_with(unsupported_type, ir.Module.parse("func.func @f(%a: tensor<4xf32>) { return }")) is None


def refused(visibility: str, argument: str, result: str) -> list[str]:
    """Returns the errors about a function from 6x8 to 6x8, on a mesh of 4 by 2, whose ends have these layouts."""
    given, returned = (f"{{sdy.sharding = #sdy.sharding<@mesh, {each}>}}" for each in (argument, result))
    module = ir.Module.parse(f"""
      sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func {visibility} @f(%a: tensor<6x8xf32> {given}) -> (tensor<6x8xf32> {returned}) {{
        return %a : tensor<6x8xf32>
      }}""")
    session = Session()
    refuse_uneven_ends(analyse(module), session)
    return [error.message for error in session.errors]


def test_a_sharding_of_an_end_that_does_not_divide_is_an_error():
    assert refused("public", '[{"x"}, {}]', '[{}, {"x", "y"}]') == [
        'argument 0 of type tensor<6x8xf32> is sharded [{"x"}, {}]: dimension 0 of size 6 does not divide into 4 '
        "shards; pad it, or shard it otherwise"
    ]
    (message,) = refused("public", '[{"y"}, {"x"}]', '[{"x", "y"}, {}]')
    assert message.startswith("result 0 of type tensor<6x8xf32>") and "into 8 shards" in message


def test_only_the_ends_of_public_functions_have_to_divide():
    assert refused("private", '[{"x"}, {}]', '[{"x"}, {}]') == []
