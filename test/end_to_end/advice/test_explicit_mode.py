# SPDX-License-Identifier: Apache-2.0
"""Explicit mode, where shardings are types: advice on what lines state, after which other types follow."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reshard
from reshard.dialect_utils.ir.diagnostics import Place
from reshard.dialect_utils.ir.ops import name_of
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.shardings.annotations import annotations_of, constraints_of
from reshard.dialect_utils.shardings.layout_changes import changed
from reshard.passes.advice.source_edits import says_out_sharding
from reshard.synthesis.layouts.sharding import Sharding

SOURCE = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P, reshard

def layer(x, w):
    h = jnp.einsum("be,ef->bf", x, w["up"], out_sharding=P("data", None))
    h = jnp.tanh(h) * 2
    y = jnp.einsum("bf,fe->be", h, w["down"], out_sharding=P("data", None))
    y = reshard(y, P("data", "model"))
    return reshard(y, P("data", None)) + x

def loss(ws, x):
    for w in ws:
        x = layer(x, w)
    return jnp.sum(x * x)

def step(ws, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))
"""
UP, DOWN, THERE, BACK = 7, 9, 10, 11  # lines
SCANNED = """
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P, reshard

def layer(x, w):
    h = jnp.einsum("be,ef->bf", x, w["up"], out_sharding=P("data", None))
    h = jnp.tanh(h) ** 3
    y = jnp.einsum("bf,fe->be", h, w["down"], out_sharding=P("data", None))
    return x + y, None

def loss(ws, x):
    y, _ = jax.lax.scan(jax.checkpoint(layer), x, jax.tree.map(lambda *each: jnp.stack(each), *ws))
    y = reshard(y, P(None, "model"))
    y = jax.jit(lambda y: jnp.sin(y) ** 3)(y)
    y = reshard(y, P("data", None))
    return jnp.sum(y * y)

def step(ws, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws, x))
"""
UP_SCANNED, DOWN_SCANNED, THERE_SCANNED, BACK_SCANNED = 7, 9, 14, 16
LAYERS, WIDTH, HIDDEN = 2, 256, 1024


@pytest.fixture
def lowered(tmp_path):
    """Returns a function that lowers a source for a mesh of data=2 and model=4 devices."""
    explicit = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=explicit, devices=jax.devices()[:8])

    def from_source(source: str, name: str):
        (tmp_path / f"{name}.py").write_text(source)
        spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)

        def argument(*shape, by):
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*by)))

        weights = {
            "up": argument(WIDTH, HIDDEN, by=(None, "model")),
            "down": argument(HIDDEN, WIDTH, by=("model", None)),
        }
        with jax.set_mesh(mesh):
            return jax.jit(module.step).lower([weights] * LAYERS, argument(2048, WIDTH, by=("data", None)))

    return from_source


def says_so(place: Place) -> bool:
    return place.line in (UP, DOWN)


@pytest.mark.slow
def test_what_a_line_states_is_changed_and_what_follows_from_it_gives_what_is_said(lowered):
    """The edit is Megatron's, of one line; a line that moves all elements there and back goes."""
    found, lines, applied = applied_advice(lowered, "cpu:8")
    assert {each.annotation.place.line for each in found.changes} >= {UP}
    assert "out_sharding=P('data', 'model'))" in lines[UP - 1]
    assert applied.bytes_received < 0.8 * found.found.stock.compiled.costs.bytes_received


@pytest.mark.slow
def test_no_advice_adds_what_jax_does_not_let_meet(lowered):
    """On this network the fastest changes give the two summands of a layer types that jax refuses."""
    found, _, _ = applied_advice(lowered, "v5e:2x4")
    assert found.changes and found.found.forms[0].time.seconds < found.found.stock.time.seconds


def applied_advice(lowered, network: str):
    """Returns advice, the lines of the source with its edits, and what XLA makes of them, which is as predicted."""
    how = {"topology": network, "with_ours": False}
    found = reshard.advise(lowered(SOURCE, "before"), **how, may_change=("constraints",))
    lines = SOURCE.split("\n")
    for change in sorted(found.changes, key=lambda each: -each.annotation.place.line):
        at = change.annotation.place.line
        indent = lines[at - 1][: len(lines[at - 1]) - len(lines[at - 1].lstrip())]
        assert change.diff[0] == f"- {lines[at - 1].strip()}"
        lines[at - 1 : at] = [indent + each[2:] for each in change.diff if each.startswith("+ ")]
    applied = reshard.traffic(lowered("\n".join(lines), "after"), **how).stock
    assert applied.bytes_received == found.found.forms[0].compiled.costs.bytes_received
    return found, lines, applied


def test_lines_that_state_a_type_are_annotations_and_what_follows_is_none(lowered):
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(lowered(SOURCE, "each").as_text(debug_info=True))
        found = annotations_of(module, says_so)
        assert [(each.place.line, str(each.sharding), len(each.ops)) for each in found] == [
            (UP, '[{"data"}, {}]', LAYERS),
            (DOWN, '[{"data"}, {}]', LAYERS),
            (THERE, '[{"data"}, {"model"}]', LAYERS),
            (BACK, '[{"data"}, {}]', LAYERS),
        ]
        assert [each.is_out_sharding for each in found] == [True, True, False, False]
        assert [each.place.line for each in annotations_of(module)] == [THERE, BACK]


def test_types_follow_up_to_the_next_line_that_states_one(lowered):
    """Of a result of the first product: those of `tanh` and of the multiplication, and their gradients."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(lowered(SOURCE, "follow").as_text(debug_info=True))
        up, *others = annotations_of(module, says_so)
        stated = [number for each in (up, *others) for number in each.ops]
        text = str(ir.Module.parse(changed(module, {up: Sharding.parse('[{"data"}, {"model"}]')}, stated)))
    of_hidden = [line for line in text.split("\n") if "sharding_constraint" in line and f"2048x{HIDDEN}xf32" in line]
    assert len(of_hidden) == LAYERS and all('[{"data"}, {"model"}]' in line for line in of_hidden)
    of_width = [line for line in text.split("\n") if "sharding_constraint" in line and f"2048x{WIDTH}xf32" in line]
    before = [line for line in str(module).split("\n") if "constraint" in line and f"2048x{WIDTH}xf32" in line]
    assert len(of_width) == len(before), "the types of other lines stay"


def test_in_loops_and_functions_the_way_back_states_nothing(lowered):
    """JAX makes functions of the body of a scan, and of what is jitted inside; the names of their ops begin there."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(lowered(SCANNED, "scanned").as_text(debug_info=True))
        found = annotations_of(module, lambda place: place.line in (UP_SCANNED, DOWN_SCANNED))
        stated = sorted((each.place.line, len(each.types)) for each in found)
    assert stated == [(UP_SCANNED, 1), (DOWN_SCANNED, 1), (THERE_SCANNED, 1), (BACK_SCANNED, 1)]


@pytest.mark.parametrize(
    "line, kind", [(THERE_SCANNED, f"2048x{WIDTH}xf32"), (UP_SCANNED, f"tensor<2048x{HIDDEN}xf32")]
)
def test_types_follow_into_functions_and_behind_ops_that_are_several(lowered, line, kind):
    """`y ** 3` is two multiplications with one type behind them."""
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(lowered(SCANNED, f"into_{line}").as_text(debug_info=True))
        every = annotations_of(module, lambda place: place.line in (UP_SCANNED, DOWN_SCANNED))
        (subject,) = (each for each in every if each.place.line == line)
        stated = [number for each in every for number in each.ops]
        new = Sharding.parse('[{"model"}, {"data"}]')
        text = str(ir.Module.parse(changed(module, {subject: new}, stated)))
    before = str(subject.sharding)
    of_kind = [row for row in text.split("\n") if "sharding_constraint" in row and kind in row]
    assert sum('[{"model"}, {"data"}]' in row for row in of_kind) == len(subject.ops)
    assert not [row for row in of_kind if before in row]


def test_of_what_begins_at_one_place_the_call_with_out_sharding_states_the_type(lowered):
    """A sum whose first operand is the call begins where the call does."""
    line = 'h = jnp.einsum("be,ef->bf", x, w["up"], out_sharding=P("data", None))'
    source = SOURCE.replace(line, f'{line} + w["down"][:, 0].astype(x.dtype)')
    with make_context() as context, ir.Location.unknown(context):
        module = ir.Module.parse(lowered(source, "begins").as_text(debug_info=True))
        found = annotations_of(module, lambda place: says_out_sharding(source, place))
        (up,) = (each for each in found if each.place.line == UP)
        constraints = constraints_of(module)
        names = {name_of(constraints[number].location) for number in up.ops}
    assert len(names) == 1 and "dot_general" in (names.pop() or "") and up.is_out_sharding
    assert says_out_sharding("y = dot(x, w, out_sharding=P())", Place("f.py", 1, 4))
    assert not says_out_sharding("y = dot(x, w, out_sharding=None)", Place("f.py", 1, 4))
