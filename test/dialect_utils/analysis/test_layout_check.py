# SPDX-License-Identifier: Apache-2.0
"""The layouts of an analysis are compared with those of a module as XLA propagates it."""

from types import SimpleNamespace

import pytest

from reshard.dialect_utils.analysis.layout_check import compare_with_xla, devices_of, disagreements, tagged_text
from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

_MODULE = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func public @main(%a: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<4x4xf32> {
  %0 = stablehlo.tanh %a : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}"""


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


def tanh_of(module: ir.Module) -> ir.Operation:
    return next(op for op in ops_in(module.operation) if op.name == "stablehlo.tanh")


def propagated_with(sharding: str, module: ir.Module) -> str:
    """Returns the module as XLA would dump it if it gave the tanh the layout `sharding`."""
    made = ir.Module.parse(tagged_text(module))
    tanh_of(made).attributes["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding_per_value<[<@mesh, {sharding}>]>")
    return str(made)


def test_each_op_is_tagged_with_its_index():
    module = ir.Module.parse(_MODULE)
    tagged = tanh_of(ir.Module.parse(tagged_text(module)))
    index = ops_in(module.operation).index(tanh_of(module))
    assert f'"{index}"' in str(tagged.attributes["mhlo.frontend_attributes"])
    assert "mhlo.frontend_attributes" not in str(module)


def test_the_devices_are_those_of_the_mesh_unless_the_module_says_otherwise():
    module = ir.Module.parse(_MODULE)
    assert devices_of(module) == 4
    module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 8)
    assert devices_of(module) == 8


def test_a_function_without_a_body_does_not_end_the_process_that_asks_for_the_devices():
    text = """
    func.func private @declared(tensor<8xf32>) -> tensor<8xf32>
    func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = call @declared(%a) : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }"""
    assert devices_of(ir.Module.parse(text)) == 1


@pytest.mark.parametrize("stated", ['"two"', "0 : i32"])
def test_a_number_of_partitions_that_is_none_is_diagnosed(stated):
    text = f"module attributes {{mhlo.num_partitions = {stated}}} {{}}"
    with pytest.raises(DiagnosedError, match="it is a number of devices, 1 or more"):
        devices_of(ir.Module.parse(text))


def test_equal_layouts_agree():
    module = ir.Module.parse(_MODULE)
    found = disagreements(analyse(module), propagated_with('[{"x"}, {}]', module))
    assert found.compared > 0 and not found.reasons
    assert found.at(tanh_of(module), 0, is_result=True) is None


def test_another_layout_is_a_reason_at_the_op():
    module = ir.Module.parse(_MODULE)
    found = disagreements(analyse(module), propagated_with('[{}, {"y"}]', module))
    reason = found.at(tanh_of(module), 0, is_result=True)
    assert reason is not None and reason.startswith("XLA propagates another layout here: stablehlo.tanh is ")


def test_without_an_answer_nothing_is_compared():
    module = ir.Module.parse(_MODULE)
    answer = SimpleNamespace(propagated_text=None, message="it hangs")
    child = SimpleNamespace(propagate=lambda *_, **__: answer)
    assert compare_with_xla(module, analyse(module), child).failure == "it hangs"
