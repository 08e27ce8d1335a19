# SPDX-License-Identifier: Apache-2.0
"""Modules for one device that are too large for a lit test."""

from reshard.dialect_utils.partitioning import local_modules
from reshard.dialect_utils.platform.bindings import ir, make_context

_KIND = "tensor<8x8xf32>"


def nested_cases(depth: int) -> str:
    """Returns a module with `depth` nested `stablehlo.case` ops."""
    otherwise = f'}}, {{ "stablehlo.return"(%a) : ({_KIND}) -> () }}) : (tensor<i32>) -> {_KIND}'
    begun = "".join(f'%r{level} = "stablehlo.case"(%i) ({{\n' for level in range(depth))
    innermost = f'%t = stablehlo.tanh %a : {_KIND}\n"stablehlo.return"(%t) : ({_KIND}) -> ()\n'
    ended = "".join(
        f'{otherwise}\n"stablehlo.return"(%r{level}) : ({_KIND}) -> ()\n' for level in reversed(range(1, depth))
    )
    return f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%a: {_KIND} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}}, %i: tensor<i32>) -> {_KIND} {{
{begun}{innermost}{ended}{otherwise}
  return %r0 : {_KIND}
}}"""  # noqa: E501


def test_regions_may_lie_in_each_other_deeper_than_python_recurses():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(nested_cases(400))
        local_modules.convert(module)
        module.operation.verify()
        text = module.operation.get_asm(print_generic_op_form=True)
    assert text.count("stablehlo.case") == 400 and '"stablehlo.tanh"(%' in text and "tensor<2x4xf32>" in text


_THERE_AND_BACK = f"""
sdy.mesh @mesh = <["x"=8]>
func.func public @first(%a: {_KIND} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> ({_KIND} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
  %0 = sdy.sharding_constraint %a <@mesh, [{{}}, {{}}]> : {_KIND}
  %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{}}]> : {_KIND}
  %2 = stablehlo.tanh %1 : {_KIND}
  return %2 : {_KIND}
}}
func.func public @second(%a: {_KIND} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> ({_KIND} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}}) {{
  return %a : {_KIND}
}}"""


def test_conversions_that_are_needed_are_those_in_the_module():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(_THERE_AND_BACK)
        told = local_modules.convert(module).conversions
        text = module.operation.get_asm(enable_debug_info=True)
    assert [each.is_needed for each in told] == [False, True, True]
    assert "all_gather" not in text and text.count("stablehlo.all_to_all") == 2
    assert [each.number for each in told] == [0, 1, 2]
    assert all((f'"reshard/{each.number}/' in text) == each.is_needed for each in told)
