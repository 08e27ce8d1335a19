# SPDX-License-Identifier: Apache-2.0
"""Modules for one device that are too large for a lit test."""

from reshard.dialect_utils.conversions import unneeded
from reshard.dialect_utils.conversions.unneeded import Ends
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


_SUM_FOR_NOBODY = """
sdy.mesh @mesh = <["y"=4]>
func.func public @main(%a: tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>},
                       %b: tensor<32x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}) {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<8x32xf32>
  return %a : tensor<8x32xf32>
}"""
_CALL_FOR_ITS_EFFECT = """
sdy.mesh @mesh = <["x"=8]>
func.func public @main(%a: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) {
  %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{"x"}, {}]>]
      manual_axes={"x"} (%b: tensor<1x8xf32>) {
    %2 = stablehlo.custom_call @fx(%b) {has_side_effect = true}
        : (tensor<1x8xf32>) -> tensor<1x8xf32> loc("reshard/0/fx")
    sdy.return %b : tensor<1x8xf32>
  } : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = stablehlo.tanh %0 : tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}"""


def test_a_sum_that_nobody_takes_is_not_needed():
    """The op in its reducer has a use."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(_SUM_FOR_NOBODY)
        assert [each.is_needed for each in local_modules.convert(module).conversions] == [False]
        assert "all_reduce" not in str(module) and "reduce_scatter" not in str(module)


def test_what_was_written_for_its_effect_stays_whatever_its_name():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(_CALL_FOR_ITS_EFFECT)
        local_modules.convert(module)
        assert "@fx" in str(module)


def test_a_module_that_was_converted_before_has_rows_of_its_own():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(_THERE_AND_BACK)
        local_modules.convert(module)
        assert local_modules.convert(module).conversions == ()
        again = ir.Module.parse(_THERE_AND_BACK.replace("@second", "@third"))
        assert [each.is_needed for each in local_modules.convert(again).conversions] == [False, True, True]


def test_ops_that_take_a_value_twice_are_erased_before_it():
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse("""
          func.func @main(%a: tensor<f32>) -> tensor<f32> {
            %0 = stablehlo.custom_call @fx(%a) {has_side_effect = true} : (tensor<f32>) -> tensor<f32>
            %1 = stablehlo.abs %0 : tensor<f32>
            %2 = stablehlo.add %0, %1 : tensor<f32>
            %3 = stablehlo.multiply %2, %2 : tensor<f32>
            %4 = stablehlo.add %3, %2 : tensor<f32>
            %5 = stablehlo.abs %a : tensor<f32>
            return %5 : tensor<f32>
          }""")
        block = module.body.operations[0].regions[0].blocks[0]
        call, _, first, _, second, used = (op.operation.results[0] for op in list(block.operations)[:-1])
        ends = [Ends(4, (call,), first), Ends(6, tuple(block.arguments), used), Ends(5, (first,), second)]
        assert unneeded.erase_unneeded(ends) == {4, 5}
        assert module.operation.verify()
        assert [op.operation.name for op in block.operations] == [
            "stablehlo.custom_call",
            "stablehlo.abs",
            "func.return",
        ]
