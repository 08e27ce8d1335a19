# SPDX-License-Identifier: Apache-2.0
"""Chains become Shardy's collectives; a constraint comes first where Shardy does not see the source layout."""

import pytest

from reshard.dialect_utils.emission.sdy_chains import emit_sdy_chain, first_collective
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs.blocked_chains import blocked_chain

MESH = Mesh.parse("x=2,y=2")
_MODULE = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %a : tensor<8x8xf32>
}"""


@pytest.mark.parametrize(
    "source, target, kind",
    [
        ('[{"x"}, {}]', "[{}, {}]", "sdy.all_gather"),
        ("[{}, {}]", '[{"x"}, {}]', "sdy.all_slice"),
        ('[{"x"}, {}]', '[{}, {"x"}]', "sdy.all_to_all"),
        ('[{"x"}, {}]', '[{"y"}, {}]', "sdy.collective_permute"),
    ],
)
def test_each_step_is_one_collective_that_shardy_accepts(source, target, kind):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(_MODULE)
        assert first_collective(module) is None
        end = module.body.operations[1].operation.regions[0].blocks[0].operations[0].operation
        sides = [ir.Attribute.parse(f"#sdy.sharding<@mesh, {each}>") for each in (source, target)]
        chain = blocked_chain(MESH, (8, 8), Sharding.parse(source), Sharding.parse(target))
        with ir.InsertionPoint(end):
            end.operands[0] = emit_sdy_chain(chain, end.operands[0], *sides, "reshard/1", ir.Location.unknown())
        assert module.operation.verify()
        assert first_collective(module).name == kind
        assert str(module).count("sdy.sharding_constraint") == 1
