# SPDX-License-Identifier: Apache-2.0
"""Lines without a constraint get one, behind which the program is as fast as the advice says once it is written."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.analysis.open_lines import open_lines
from reshard.dialect_utils.ir.ops import name_of, ops_in
from reshard.dialect_utils.platform.bindings import ir, make_context

SOURCE = """
import jax
import jax.numpy as jnp
from jax.lax import with_sharding_constraint
from jax.sharding import PartitionSpec as P

def layer(x, w):
    h = jnp.tanh(x @ w["up"])
    x = x + h @ w["down"]
    return x

def loss(ws, x):
    for w in ws:
        x = layer(x, w)
    x = with_sharding_constraint(x, P("data", None))
    return jnp.sum(x * x)

def step(ws, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))
"""
LAYERS, WIDTH, HIDDEN = 3, 256, 1024


@pytest.fixture
def lowered(tmp_path):
    """Returns a function that lowers a source for a mesh of data=2 and model=4 devices."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:8])

    def from_source(source: str, name: str):
        (tmp_path / f"{name}.py").write_text(source)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

        def argument(*shape, by=()):
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*by)))

        weights = {"up": argument(WIDTH, HIDDEN), "down": argument(HIDDEN, WIDTH)}
        with jax.set_mesh(mesh):
            return jax.jit(module.step).lower([weights] * LAYERS, argument(256, WIDTH, by=(("data", "model"),)))

    return from_source


@pytest.mark.slow
def test_what_is_added_gives_what_is_said(lowered, tmp_path):
    program = lowered(SOURCE, "before")
    how = {"topology": "uniform", "with_ours": False}
    found = reshard.advise(program, **how, may_change=("constraints", "lines"))
    added = [each for each in found.changes if each.annotation.values]
    assert added and all(each.diff[0].startswith("+ ") for each in added)
    assert "values without a constraint" in str(found) and "3 lines without one" in str(found)
    lines = SOURCE.split("\n")
    for change in sorted(found.changes, key=lambda each: -each.annotation.place.line):
        at = change.annotation.place.line
        indent = lines[at - 1][: len(lines[at - 1]) - len(lines[at - 1].lstrip())]
        new = [indent + each[2:] for each in change.diff if each.startswith("+ ")]
        lines[at - 1 : at] = [*([lines[at - 1]] if change.annotation.values else []), *new]
    applied = reshard.traffic(lowered("\n".join(lines), "after"), topology="uniform", with_ours=False).stock
    predicted = found.found.forms[0]
    assert applied.bytes_received == predicted.compiled.costs.bytes_received
    assert applied.bytes_received < found.found.stock.compiled.costs.bytes_received


def test_a_line_has_its_values_in_each_layer_and_their_gradients(lowered):
    text = lowered(SOURCE, "each").as_text(debug_info=True)
    with make_context() as context, ir.Location.unknown(context):
        found = {each.place.line: each for each in open_lines(ir.Module.parse(text), 7, 10)}
    assert {line: len(each.values) for line, each in found.items() if line in (8, 9)} == {8: 2 * LAYERS, 9: 2 * LAYERS}
    assert found[8].shapes == ((256, HIDDEN),) and found[9].shapes == ((256, WIDTH),)
    assert not {15, 16} & {*found}, "a line with a constraint, and one with a number"
    assert {each.number for each in found.values()} == {*range(7, 7 + len(found))}


def test_a_scan_has_the_values_of_a_line_on_the_way_forward_once_and_once_where_they_are_computed_again(lowered):
    """The bodies of both loops are functions, in which names do not say that they are on the way back."""
    scanned = SOURCE.replace(
        "    for w in ws:\n        x = layer(x, w)\n",
        "    stacked = jax.tree.map(lambda *each: jnp.stack(each), *ws)\n"
        "    x, _ = jax.lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, stacked)\n",
    )
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(lowered(scanned, "scanned").as_text(debug_info=True))
        ops = ops_in(module.operation)
        (hidden,) = (each for each in open_lines(module, 0, 12) if each.place.line == 8)
        forward = [name_of(ops[op].location) for op, number in hidden.values if number >= 0]
    assert [each.rpartition("/")[2] for each in forward] == ["tanh", "tanh"]
    assert sum("rematted_computation" in each for each in forward) == 1


def test_what_a_condition_reads_is_carried_on_by_nothing():
    backward = 'loc("jit(f)/transpose(jvp())/reduce"("f.py":1:2))'
    text = f"""sdy.mesh @mesh = <["x"=8]>
    func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %n = stablehlo.constant dense<0> : tensor<i32>
      %0 = stablehlo.tanh %a : tensor<8x8xf32> loc("jit(f)/tanh"("f.py":1:2))
      %1:2 = stablehlo.while(%i = %n, %x = %0) : tensor<i32>, tensor<8x8xf32> cond {{
        %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
          : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32> {backward}
        %c = stablehlo.compare LT, %s, %zero : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        stablehlo.return %i, %x : tensor<i32>, tensor<8x8xf32>
      }}
      return %1#1 : tensor<8x8xf32>
    }}"""
    with make_context() as context, ir.Location.unknown(context):
        (found,) = open_lines(ir.Module.parse(text), 0, 10)
    assert len(found.values) == 1
