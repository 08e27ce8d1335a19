# SPDX-License-Identifier: Apache-2.0
"""Written layouts: propagation comes to the chosen ones, from few constraints, and conversions stay out of loops."""

import pytest

from reshard.dialect_utils.assignment import written_layouts
from reshard.dialect_utils.assignment.factored_modules import factored_module, inline_calls_of
from reshard.dialect_utils.assignment.written_layouts import free_of_shardings, write_layouts
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.sdy_shardings import sharding_from_attr
from reshard.synthesis.assignment.layout_problem import LayoutProblem
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology

MLP = """func.func public @main(%up: tensor<1024x4096xf32>, %down: tensor<4096x1024xf32>, %x: tensor<8192x1024xf32>)
    -> tensor<8192x1024xf32> {
  %0 = call @layer(%x, %up) : (tensor<8192x1024xf32>, tensor<1024x4096xf32>) -> tensor<8192x4096xf32>
  %1 = stablehlo.dot_general %0, %down, contracting_dims = [1] x [0] : (tensor<8192x4096xf32>, tensor<4096x1024xf32>) -> tensor<8192x1024xf32>
  return %1 : tensor<8192x1024xf32>
}
func.func private @layer(%x: tensor<8192x1024xf32>, %w: tensor<1024x4096xf32>) -> tensor<8192x4096xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8192x1024xf32>, tensor<1024x4096xf32>) -> tensor<8192x4096xf32>
  %1 = stablehlo.tanh %0 : tensor<8192x4096xf32>
  return %1 : tensor<8192x4096xf32>
}
"""  # noqa: E501
MESH = Mesh.parse("x=8")


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown():
        yield context


def written(text: str, mesh: Mesh = MESH, **limits):
    module = ir.Module.parse(text)
    inline_calls_of(module)
    factored = factored_module(module)
    problem = LayoutProblem(factored.program, mesh, Topology.parse("v5e:2x4").fitted(mesh.size), **limits)
    found = problem.solve()
    return module, write_layouts(module, factored, found, mesh), found


def test_a_program_with_one_layout_needs_no_constraint():
    module, said, found = written(MLP)
    assert said.constraints == said.left == 0 and found.moves == ()
    text = str(module)
    assert 'sdy.mesh @mesh = <["x"=8]>' in text and "sharding_constraint" not in text and "call @" not in text
    assert text.count('#sdy.sharding<@mesh, [{"x"}, {}]>') >= 2
    assert module.operation.verify()


def test_a_conversion_is_written_as_a_constraint_and_propagation_comes_to_the_same_layouts():
    text = MLP.replace(
        "%x: tensor<8192x1024xf32>)\n",
        '%x: tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})\n',
    )
    module, said, found = written(f'sdy.mesh @mesh = <["x"=8]>\n{text}')
    assert found.moves and said.left == 0 and said.constraints <= said.at_first
    assert all("reshard." not in each for op in ops_in(module.operation) for each in [str(op.attributes)])


def test_a_module_that_has_the_mesh_uses_it_and_one_with_another_gets_another_name():
    assert "sdy.mesh @own" in str(written(f'sdy.mesh @own = <["x"=8]>\n{MLP}')[0])
    text = str(written(f'sdy.mesh @mesh = <["a"=2]>\n{MLP}')[0])
    assert 'sdy.mesh @mesh = <["a"=2]>' in text and 'sdy.mesh @mesh_1 = <["x"=8]>' in text


def test_shardings_are_taken_out():
    module = ir.Module.parse("""sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%x: tensor<8x8xf32> {jax.kept = 1 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {
      %0 = sdy.sharding_constraint %x <@mesh, [{}, {"x"}]> : tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }""")  # noqa: E501
    free_of_shardings(module)
    assert "sharding" not in str(module) and "jax.kept = 1" in str(module)


def test_a_conversion_of_what_a_loop_takes_stays_outside_of_the_loop():
    """A scan along the first dimension of what is made in tiles along it: one all_to_all before the loop."""
    text = """sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%x: tensor<64x64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}, %c: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %end = stablehlo.constant dense<64> : tensor<i32>
      %y = stablehlo.tanh %x : tensor<64x64x64xf32>
      %0:3 = stablehlo.while(%i = %zero, %h = %c, %ys = %y) : tensor<i32>, tensor<64x64xf32>, tensor<64x64x64xf32>
      cond {
        %2 = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %2 : tensor<i1>
      } do {
        %2 = stablehlo.dynamic_slice %ys, %i, %zero, %zero, sizes = [1, 64, 64] : (tensor<64x64x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x64x64xf32>
        %3 = stablehlo.reshape %2 : (tensor<1x64x64xf32>) -> tensor<64x64xf32>
        %4 = stablehlo.multiply %h, %3 : tensor<64x64xf32>
        %5 = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %5, %4, %ys : tensor<i32>, tensor<64x64xf32>, tensor<64x64x64xf32>
      }
      return %0#1 : tensor<64x64xf32>
    }"""  # noqa: E501
    module, said, found = written(text)
    assert max(found.moves, key=lambda move: move.seconds).runs == 1 and said.left == 0
    loop = str(next(op for op in ops_in(module.operation) if op.name == "stablehlo.while"))
    before = str(module).split("stablehlo.while")[0]
    assert "sharding_constraint %" in before and "tensor<64x64x64xf32>" in before.split("sharding_constraint %")[1]
    assert "64x64x64" not in "".join(line for line in loop.splitlines() if "sharding_constraint" in line)


def layers(count: int) -> str:
    """Returns a program of equal layers whose weights are split along one dimension and the other in turn."""
    weight, rows = "tensor<2048x2048xf32>", "tensor<512x2048xf32>"
    splits = '[{}, {"x"}]', '[{"x"}, {}]'
    pinned = [f"%w{i}: {weight} {{sdy.sharding = #sdy.sharding<@mesh, {splits[i % 2]}>}}" for i in range(count)]
    lines, value = [], "%x"
    for i in range(count):
        product = f"stablehlo.dot_general {value}, %w{i}, contracting_dims = [1] x [0]"
        lines += [
            f"%p{i} = {product} : ({rows}, {weight}) -> {rows}",
            f"%t{i} = stablehlo.tanh %p{i} : {rows}",
            f"%s{i} = stablehlo.sine %t{i} : {rows}",
        ]
        value = f"%s{i}"
    body = "\n".join(lines)
    return f"""sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%x: {rows}, {", ".join(pinned)}) -> {rows} {{
      {body}
      return {value} : {rows}
    }}"""


def propagations(monkeypatch) -> list:
    """Returns a list that gets an entry for each run of propagation from now on."""
    found, run = [], written_layouts.analyse
    monkeypatch.setattr(written_layouts, "analyse", lambda module: found.append(module) or run(module))
    return found


def test_layers_get_their_constraints_side_by_side(monkeypatch):
    runs = {}
    for count in (4, 16):
        ran = propagations(monkeypatch)
        _, said, _ = written(layers(count))
        runs[count] = len(ran)
        assert said.left == 0
    assert runs[16] <= written_layouts.MOST_GROWING + written_layouts.MOST_PRUNING
    assert runs[16] <= runs[4] + written_layouts.MOST_PRUNING


@pytest.mark.parametrize("growing", [0, written_layouts.MOST_GROWING], ids=("everywhere", "growing"))
def test_propagation_comes_to_the_chosen_layouts_either_way(growing, monkeypatch):
    monkeypatch.setattr(written_layouts, "MOST_GROWING", growing)
    module, said, _ = written(layers(6))
    assert said.left == 0 and said.constraints <= said.at_first
    assert str(module).count("sharding_constraint") == said.constraints
    assert "reshard." not in str(module) and module.operation.verify()


def test_an_op_works_in_the_way_that_was_chosen_not_only_with_its_result():
    """Shardy would split the first product by the rows of its result, and bring that into columns by an all_to_all."""
    text = """sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%d: tensor<8192x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %h: tensor<8192x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %w: tensor<1024x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> (tensor<1024x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, tensor<8192x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
      %0 = stablehlo.dot_general %d, %h, contracting_dims = [0] x [0] : (tensor<8192x1024xf32>, tensor<8192x512xf32>) -> tensor<1024x512xf32>
      %1 = stablehlo.dot_general %d, %w, contracting_dims = [1] x [0] : (tensor<8192x1024xf32>, tensor<1024x512xf32>) -> tensor<8192x512xf32>
      return %0, %1 : tensor<1024x512xf32>, tensor<8192x512xf32>
    }"""  # noqa: E501
    module, said, found = written(text)
    assert said.left == 0
    factored = factored_module(ir.Module.parse(text))
    chosen = [
        [str(found.layout_in(dims, way).dims) for dims in op.operand_dims]
        for op, way in ((factored.program.ops[number], way) for number, way in sorted(found.ways.items()))
        if op.name == "dot_general"
    ]
    analysis = written_layouts.analyse(module)
    taken = [
        [str(sharding_from_attr(analysis.layout(each)).dims) for each in op.operands]
        for op in analysis.explicit_ops
        if op.name == "stablehlo.dot_general"
    ]
    assert len(chosen) == 2 and taken == chosen


def test_an_argument_is_converted_once_for_all_that_take_it_in_another_layout():
    """Propagation alone would let both elementwise ops keep the argument's layout, and convert what each makes."""
    layout, rows, small = '[{}, {"x"}]', "tensor<8192x8192xf32>", "tensor<8192xf32>"
    text = f"""sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%x: {rows} {{sdy.sharding = #sdy.sharding<@mesh, {layout}>}}) -> ({rows}, {small}) {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.tanh %x : {rows}
      %1 = "stablehlo.sort"(%0) <{{dimension = 1 : i64}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %5 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %5 : tensor<i1>
      }}) : ({rows}) -> {rows}
      %2 = stablehlo.multiply %x, %1 : {rows}
      %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : ({rows}, tensor<f32>) -> {small}
      return %2, %3 : {rows}, {small}
    }}"""  # noqa: E501
    module, said, found = written(text)
    assert said.left == 0 and [move.runs for move in found.moves] == [1]
    lines = [line for line in str(module).splitlines() if "sdy.sharding_constraint %arg0" in line]
    assert len(lines) == 1 and '[{"x"}, {}]' in lines[0]
    analysis = written_layouts.analyse(module)
    changes = [op for op in analysis.explicit_ops if op.name == "sdy.reshard" and str(op.results[0].type) == rows]
    layouts = [str(analysis.layout(each)) for op in changes for each in (op.operands[0], op.results[0])]
    assert sum(one != other for one, other in zip(layouts[::2], layouts[1::2], strict=True)) == 1
