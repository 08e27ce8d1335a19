# SPDX-License-Identifier: Apache-2.0
"""Ops on tiles: layouts, types of tiles, and the conversions that are written between them."""

import random

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.partitioning import local_modules
from reshard.dialect_utils.partitioning.layout_changes import LayoutChanges
from reshard.dialect_utils.partitioning.surroundings import Surroundings
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.tile_rules.local_rules import Axes, Dims
from reshard.dialect_utils.tiles.tiles import Tile, dims_of, sharding_of, tile_type
from reshard.synthesis.layouts.layout import whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology

MESH = Mesh.parse("x=4,y=2")
M = "tensor<8x8xf32>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


@pytest.mark.parametrize("text", ['[{"x"}, {"y"}]', '[{"y", "x":(2)2}, {}]', '[{"x":(1)2}, {"x":(2)2}]', "[{}, {}]"])
def test_the_sharding_of_a_layout_has_that_layout(text):
    dims = whole_factors(MESH, Sharding.parse(text))
    assert str(sharding_of(MESH, dims)) == text
    attr = ir.Attribute.parse(f"#sdy.sharding<@mesh, {text}>")
    assert dims_of(attr, ir.Type.parse(M), MESH) == dims


def test_a_value_without_a_layout_is_whole_and_a_token_has_no_dimensions():
    assert dims_of(None, ir.Type.parse(M), MESH) == ((), ())
    assert dims_of(None, ir.Type.parse("!stablehlo.token"), MESH) == ()


def test_the_type_of_a_tile():
    module = ir.Module.parse("module {}")
    dims = whole_factors(MESH, Sharding.parse('[{"x"}, {"y"}]'))
    assert str(tile_type(ir.Type.parse("tensor<8x6xbf16>"), dims, module.operation)) == "tensor<2x3xbf16>"
    assert str(tile_type(ir.Type.parse("tensor<8x5xf32>"), dims, module.operation)) == "tensor<2x3xf32>"  # padded
    with pytest.raises(DiagnosedError, match="emit=local has no tiles of a value of type tensor<\\?x8xf32>"):
        tile_type(ir.Type.parse("tensor<?x8xf32>"), dims, module.operation)


def converted(body: str, result: str) -> str:
    of = "{{sdy.sharding = #sdy.sharding<@mesh, {}>}}".format
    rows, end = of('[{"x"}, {}]'), of(result)
    module = ir.Module.parse(f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func public @main(%a: {M} {rows}) -> ({M} {end}) {{
        {body}
        return %r : {M}
      }}""")
    local_modules.convert(module)
    assert module.operation.verify()
    return str(module)


def test_a_value_that_two_ops_want_in_one_layout_is_converted_once():
    text = converted(
        f"""%0 = sdy.sharding_constraint %a <@mesh, [{{}}, {{"x"}}]> : {M}
        %1 = stablehlo.tanh %0 : {M}
        %2 = stablehlo.sine %0 : {M}
        %r = stablehlo.add %1, %2 : {M}""",
        '[{}, {"x"}]',
    )
    assert text.count("all_to_all") == 1 and "stablehlo.tanh" in text and "tensor<8x2xf32>" in text


def test_a_constant_of_equal_elements_is_made_as_a_tile_and_another_is_cut():
    splat = converted(f"%c = stablehlo.constant dense<2.0> : {M}\n%r = stablehlo.add %a, %c : {M}", '[{"x"}, {}]')
    assert "dense<2.000000e+00> : tensor<2x8xf32>" in splat and "partition_id" not in splat
    numbers = converted(f"%c = stablehlo.iota dim = 0 : {M}\n%r = stablehlo.add %a, %c : {M}", '[{"x"}, {}]')
    assert "stablehlo.iota dim = 0 : tensor<8xf32>" in numbers and "partition_id" in numbers


def test_an_initial_value_is_added_once_and_not_by_each_device():
    body = f"""%c = stablehlo.constant dense<5.0> : tensor<f32>
        %0 = stablehlo.reduce(%a init: %c) applies stablehlo.add across dimensions = [0]
            : ({M}, tensor<f32>) -> tensor<8xf32>
        %r = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<8xf32>) -> {M}"""
    text = converted(body, "[{}, {}]")
    assert "dense<0.000000e+00>" in text  # each device begins with the neutral element
    assert text.index("stablehlo.reduce(") < text.index("all_reduce") < text.rindex("stablehlo.add")


def random_sides(rng: random.Random, mesh: Mesh) -> tuple[tuple[int, ...], list[Dims], Axes]:
    """Returns a shape, two layouts of it, even or not, and the axes along which the first one is partial sums."""
    rank, layouts, partial = rng.randint(1, 3), [], ()
    for number in range(2):
        dims = [[] for _ in range(rank)]
        for axis, _ in rng.sample(mesh.axes, len(mesh.axes)):
            place = rng.randint(-2, rank - 1)
            if place >= 0:
                dims[place].append(axis)
            elif place == -2 and not number:
                partial += (axis,)
        text = ", ".join("{" + ", ".join(f'"{axis}"' for axis in each) + "}" for each in dims)
        layouts.append(whole_factors(mesh, Sharding.parse(f"[{text}]")))
    (unreduced,) = whole_factors(mesh, Sharding.parse("[{" + ", ".join(f'"{axis}"' for axis in partial) + "}]"))
    return tuple(rng.choice((4, 6, 8, 16, 24)) for _ in range(rank)), layouts, unreduced


@pytest.mark.mostly_slow
@pytest.mark.parametrize("topology", ["", "h100:2x4", "h100:1x8", "v5e:2x4", "uniform", "cpu:8"])
def test_no_change_of_layout_costs_less_than_the_least(topology):
    """So that rules which are dearer for sure need no plan."""
    mesh = Mesh.parse("x=2,y=2,z=2")
    planning = {"objective": "time", "topology": Topology.parse(topology).fitted(8)} if topology else {}
    changes = LayoutChanges(mesh, planning, Surroundings(mesh, {}))
    rng, positive = random.Random(4), 0
    for _ in range(60):
        shape, (before, after), partial = random_sides(rng, mesh)
        kind = ir.Type.parse(f"tensor<{'x'.join(map(str, shape))}xf32>")
        module = ir.Module.parse(f"func.func @f(%a: {kind}) {{ return }}")
        (value,) = module.body.operations[0].operation.regions[0].blocks[0].arguments
        tile = Tile(value, before, partial)
        least, cost = changes.least_cost(value, [tile], after), changes.cost(None, kind, tile, after)
        assert least <= cost[0], (shape, before, partial, after)
        positive += least > 0
    assert positive >= 30
