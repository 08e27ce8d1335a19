# SPDX-License-Identifier: Apache-2.0
"""Modules as ops with factors: loops with their trips, constants left out, pinned layouts, what is alive when."""

import pytest

from reshard.dialect_utils.assignment.factored_modules import KeptShardingError, factored_module
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.loop_trips import trips_of
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.layouts.mesh import Mesh

LOOP = """func.func public @main(%x: tensor<8x8xf32>, %w: tensor<4x8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<START> : tensor<i32>
  %one = stablehlo.constant dense<STEP> : tensor<i32>
  %end = stablehlo.constant dense<4> : tensor<i32>
  %0:3 = stablehlo.while(%i = %zero, %h = %x, %ws = %w) : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>
  cond {
    %2 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %2 : tensor<i1>
  } do {
    %2 = stablehlo.dynamic_slice %ws, %i, %zero, %zero, sizes = [1, 8, 8] : (tensor<4x8x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x8xf32>
    %3 = stablehlo.reshape %2 : (tensor<1x8x8xf32>) -> tensor<8x8xf32>
    %4 = stablehlo.dot_general %h, %3, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %5 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %5, %4, %ws : tensor<i32>, tensor<8x8xf32>, tensor<4x8x8xf32>
  }
  return %0#1 : tensor<8x8xf32>
}
"""  # noqa: E501


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown():
        yield context


def read(text: str):
    return factored_module(ir.Module.parse(text))


def loop(start: int = 0, step: int = 1) -> str:
    return LOOP.replace("START", str(start)).replace("STEP", str(step))


@pytest.mark.parametrize(("start", "step", "trips"), [(0, 1, 4), (1, 1, 3), (0, 3, 2), (9, 1, 0), (0, 0, 1)])
def test_the_trips_of_a_loop_follow_from_its_constants(start, step, trips):
    module = ir.Module.parse(loop(start, step))
    (found,) = [op for op in ops_in(module.operation) if op.name == "stablehlo.while"]
    assert trips_of(found) == trips


def test_ops_in_a_loop_run_as_often_as_it_does_and_what_it_carries_is_one_tensor():
    found = read(loop())
    dot = next(op for op in found.program.ops if op.name == "dot_general")
    assert dot.runs == 4 and dot.flops == 2 * 8**3 and dot.reduced
    copies = [op for op in found.program.ops if op.name == "copy"]
    assert [op.runs for op in copies] == [1, 4]  # into the loop, and around it
    assert {op.results for op in copies} == {(found.results[0],)}
    cut = next(op for op in found.program.ops if op.name == "dynamic_slice")
    assert cut.operands == (found.arguments[1],) and cut.whole == {0}  # the loop captures what it does not change


def test_what_is_made_of_constants_is_left_out():
    found = read("""func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = stablehlo.iota dim = 0 : tensor<8x8xf32>
      %1 = stablehlo.constant dense<2.0> : tensor<8x8xf32>
      %2 = stablehlo.multiply %0, %1 : tensor<8x8xf32>
      %3 = stablehlo.add %x, %2 : tensor<8x8xf32>
      return %3 : tensor<8x8xf32>
    }""")
    assert [op.name for op in found.program.ops] == ["add"] and len(found.program.tensors) == 2
    assert found.program.ops[0].operands == (found.arguments[0],)


def test_an_op_without_a_rule_is_whole_in_all_dimensions():
    found = read("""func.func public @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
      %0 = stablehlo.custom_call @mine(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""")
    (op,) = found.program.ops
    assert op.name == "custom_call" and op.whole == {0, 1, 2, 3}


def test_shardings_of_the_module_are_pinned_but_for_open_dimensions():
    found = read("""sdy.mesh @mesh = <["x"=2, "y"=4]>
    func.func public @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {?}]>}) -> tensor<8x8xf32> {
      %0 = sdy.sharding_constraint %x <@mesh, [{}, {"y"}]> : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""")
    pinned = dict(found.program.pinned)
    assert pinned.pop(found.arguments[0]) == (("x",), None) and list(pinned.values()) == [((), ("y",))]
    assert [op.name for op in found.program.ops] == ["copy"] * 3  # behind both, other layouts are possible


@pytest.mark.parametrize(
    ("sharding", "problem"),
    [
        ("@other, [{a}, {}]", 'is on the mesh <["a"=8]>, and layouts are chosen for <["x"=2, "y"=4]>'),
        ("@mesh, [{y:(1)2}, {}]", "splits by a part of an axis"),
    ],
)
def test_shardings_that_layouts_are_not_chosen_from_are_refused(sharding, problem):
    for name in "axy":
        sharding = sharding.replace("{" + name, '{"' + name + '"').replace(", " + name + "}", ', "' + name + '"}')
    text = f"""sdy.mesh @mesh = <["x"=2, "y"=4]>
    sdy.mesh @other = <["a"=8]>
    func.func public @main(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<{sharding}>}}) -> tensor<8x8xf32> {{
      return %x : tensor<8x8xf32>
    }}"""
    with pytest.raises(KeptShardingError) as refused:
        factored_module(ir.Module.parse(text), Mesh.parse("x=2,y=4"))
    assert str(refused.value).endswith(problem)  # what to do is said by those who know what the user has called


def test_arguments_are_alive_to_the_end_unless_they_are_donated():
    text = """func.func public @main(%x: tensor<8x8xf32> ATTR) -> tensor<8x8xf32> {
      %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      return %1 : tensor<8x8xf32>
    }"""  # noqa: E501
    ends = []
    for attribute in ("", "{tf.aliasing_output = 0 : i32}"):
        found = read(text.replace("ATTR", attribute))
        ends.append(next(each.last for each in found.program.lives if each.tensor == found.arguments[0]))
    assert ends[1] < ends[0]


def test_two_programs_are_refused():
    with pytest.raises(DiagnosedError, match="2 public functions; layouts are chosen for one program"):
        read("func.func public @a() { return } func.func public @b() { return }")


def test_another_module_with_the_same_ops_is_recognized():
    found = read(loop())
    assert found.is_of(ir.Module.parse(loop(start=1)))
    longer = loop().replace("%4 = stablehlo.dot", "%6 = stablehlo.tanh %3 : tensor<8x8xf32>\n %4 = stablehlo.dot")
    assert not found.is_of(ir.Module.parse(longer))
