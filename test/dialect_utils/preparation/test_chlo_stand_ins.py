# SPDX-License-Identifier: Apache-2.0
"""CHLO ops get stand-ins that keep types and shardings; ops without a rule stay."""

import pytest

from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.preparation.chlo_stand_ins import stand_in_for_chlo

_KIND = "tensor<8xf32>"
_SHARDING = "{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}]>]>}"


@pytest.mark.parametrize(
    "op, expected",
    [
        (f'"chlo.erf_inv"(%a) {_SHARDING} : ({_KIND}) -> {_KIND}', "stablehlo.custom_call"),
        (f'"chlo.next_after"(%a, %a) {_SHARDING} : ({_KIND}, {_KIND}) -> {_KIND}', "stablehlo.add"),
        (f'"chlo.zeta"(%a, %a) : ({_KIND}, {_KIND}) -> {_KIND}', "stablehlo.add"),
        (f'"chlo.broadcast_add"(%a, %s) : ({_KIND}, tensor<f32>) -> {_KIND}', None),
    ],
)
def test_a_stand_in_has_the_type_and_the_sharding_of_its_op(op, expected):
    text = f"""sdy.mesh @mesh = <["x"=2]>
      func.func public @main(%a: {_KIND}, %s: tensor<f32>) -> {_KIND} {{
        %0 = {op}
        return %0 : {_KIND}
      }}"""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
        found = stand_in_for_chlo([each for each in ops_in(module.operation) if each.name.startswith("chlo.")])
        assert module.operation.verify()
        assert [each.name for each in found] == ([expected] if expected else [])
        for each in found:
            assert str(each.results[0].type) == _KIND
            assert ("sdy.sharding" in each.attributes) is ("sdy.sharding" in op)
        assert ("chlo." in str(module)) is (expected is None)
