# SPDX-License-Identifier: Apache-2.0
"""Manual computations over some axes: the arrays of which a body has tiles, and its collectives."""

from types import SimpleNamespace

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.ops import ops_in
from reshard.dialect_utils.partitioning import local_modules
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.tile_rules.partly_manual import ManualAxes
from reshard.dialect_utils.tiles.refusals import described
from reshard.synthesis.layouts.layout import Factor, whole_factors
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology

MESH = Mesh.parse("x=4,y=2")
X, Y = Factor("x", 1, 4), Factor("y", 1, 2)
M = "tensor<8x8xf32>"
ALONG_X = "dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>"
ALONG_Y = "dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>"


@pytest.fixture(autouse=True)
def context():
    with make_context() as context, ir.Location.unknown(context):
        yield


def partly(body: str, ends: str = "{?}, {?}", axes: str = '"x"', tile: str = M) -> ir.Module:
    """Returns a module whose values are split along y, with a manual computation."""
    split = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>}'
    return ir.Module.parse(f"""sdy.mesh @mesh = <["x"=4, "y"=2, "one"=1]>
      func.func public @main(%a: {M} {split}) -> ({M} {split}) {{
        %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{ends}]>] out_shardings=[<@mesh, [{ends}]>]
            manual_axes={{{axes}}} (%b: {tile}) {{
          {body}
        }} : ({M}) -> {M}
        return %0 : {M}
      }}""")


@pytest.mark.parametrize(("axes", "is_over_all"), [('"x", "y"', True), ('"x"', False)])
def test_axes_of_size_1_need_not_be_manual(axes, is_over_all):
    module = partly(f"sdy.return %b : {M}", "{}, {}", axes)
    island = next(op for op in ops_in(module.operation) if op.name == "sdy.manual_computation")
    mesh = Mesh.parse("x=4,y=2,one=1")
    assert ManualAxes.of(island, mesh).are_all_of(mesh) == is_over_all
    assert described(island) == "sdy.manual_computation"


def test_an_array_has_the_tiles_of_all_devices_along_one_more_dimension():
    manual = ManualAxes((X,))
    assert manual.shape((8, 6)) == (4, 8, 6) and manual.start((0, 2)) == (0, 0, 2)
    assert manual.dimensions((0, 1)) == (1, 2) and manual.dims(((), (Y,))) == ((X,), (), (Y,))
    assert str(manual.tensor(ir.Type.parse(M))) == "tensor<4x8x8xf32>"
    nothing = ManualAxes()
    assert nothing.shape((8, 6)) == (8, 6) and nothing.start((0, 2)) == (0, 2) and nothing.dimensions((1,)) == (1,)
    assert nothing.dims(((), (Y,))) == ((), (Y,)) and str(nothing.tensor(ir.Type.parse(M))) == M


@pytest.mark.parametrize(
    ("shape", "outside", "wanted", "inside"),
    [
        ("tensor<2x8xf32>", '[{"x"}, {"y"}]', '[{"x"}, {"y"}]', '[{}, {"y"}]'),
        ("tensor<2x8xf32>", '[{"x", "y"}, {}]', '[{"x", "y"}, {}]', '[{"y"}, {}]'),
        ("tensor<3x8xf32>", '[{"x", "y"}, {}]', '[{"x"}, {}]', "[{}, {}]"),  # tiles of 2 of 12, or of 2 of each 3
        ("tensor<4x4xf32>", '[{"x":(1)2, "y"}, {"x":(2)2}]', '[{"x":(1)2, "y"}, {"x":(2)2}]', '[{"y"}, {}]'),
        ("tensor<3x8xf32>", '[{"y"}, {"x"}]', '[{"y"}, {"x"}]', '[{"y"}, {}]'),  # uneven, but no tile of x is cut
    ],
)
def test_layouts_where_values_enter_a_body(shape, outside, wanted, inside):
    value = SimpleNamespace(type=ir.Type.parse(shape))
    given, own = ManualAxes((X,)).ends([value], [whole_factors(MESH, Sharding.parse(outside))])
    assert given == [whole_factors(MESH, Sharding.parse(wanted))]
    assert own == [whole_factors(MESH, Sharding.parse(inside))]


def summed(groups: str) -> str:
    return f"""%1 = "stablehlo.all_reduce"(%b) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = {groups}, use_global_device_ids}}> ({{
          ^bb0(%p: tensor<f32>, %q: tensor<f32>):
            %s = stablehlo.add %p, %q : tensor<f32>
            %t = sdy.sharding_constraint %s <@mesh, []> : tensor<f32>
            stablehlo.return %t : tensor<f32>
        }}) : ({M}) -> {M}
        sdy.return %1 : {M}"""


def test_a_collective_runs_on_a_part_of_the_tile():
    module = partly(summed(ALONG_X))
    assert not local_modules.convert(module).conversions
    module.operation.verify()
    assert ALONG_X in str(module) and "(tensor<8x4xf32>) -> tensor<8x4xf32>" in str(module)
    assert "sharding_constraint" not in str(module)


def permuted(pairs: str) -> str:
    return f"""%1 = "stablehlo.collective_permute"(%b) <{{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        source_target_pairs = dense<{pairs}> : tensor<2x2xi64>}}> : ({M}) -> {M}
        sdy.return %1 : {M}"""


@pytest.mark.parametrize(
    "body",
    [
        summed(ALONG_Y),
        summed("dense<[[0, 2, 4, 6], [1, 3, 7, 5]]> : tensor<2x4xi64>"),  # another order along y
        permuted("[[0, 2], [3, 1]]"),
        permuted("[[0, 3], [1, 2]]"),
        permuted("[[0, 2], [2, 4]]"),  # not on the devices with an odd number
    ],
)
def test_collectives_along_other_axes_are_refused(body):
    with pytest.raises(DiagnosedError, match="does not run in equal groups along the axes"):
        local_modules.convert(partly(body))


def test_permutes_of_all_devices_along_other_axes():
    local_modules.convert(partly(permuted("[[0, 2], [1, 3]]")))


def test_a_collective_of_single_devices_outside_of_manual_computations_is_no_chain():
    text = f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
      func.func public @main(%b: {M} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) -> {M} {{
        {summed(f"dense<{[[device] for device in range(8)]}> : tensor<8x1xi64>")}
      }}""".replace("sdy.return", "func.return")
    module = ir.Module.parse(text)
    local_modules.convert(module, objective="time", topology=Topology.parse("v100:2x4"))
    module.operation.verify()
    assert "stablehlo.all_reduce" in str(module)


def test_a_body_converts_among_the_devices_of_its_own_tile():
    body = f"""%1 = sdy.sharding_constraint %b <@mesh, [{{"y"}}, {{}}]> : {M}
      %2 = stablehlo.tanh %1 : {M}
      sdy.return %2 : {M}"""
    module = partly(body)
    first, second = local_modules.convert(module).conversions
    assert str(first.tensor) == "tensor<4x8x8xf32>"
    assert (str(first.plan.source), str(first.plan.target)) == ('[{"x"}, {}, {"y"}]', '[{"x"}, {"y"}, {}]')
    assert first.plan.bytes_received == second.plan.bytes_received == 8 * 8 * 4 // 4
    assert ALONG_Y in str(module) and ALONG_X not in str(module)


def test_a_computation_over_the_other_axes_in_a_body_is_copied():
    """As jax writes `axis_index`."""
    body = f"""%1 = sdy.manual_computation(%b) in_shardings=[<@mesh, [{{}}, {{"y"}}]>]
            out_shardings=[<@mesh, [{{}}, {{"y"}}]>] manual_axes={{"y"}} (%c: tensor<8x4xf32>) {{
        %i = stablehlo.partition_id : tensor<ui32>
        %f = stablehlo.convert %i : (tensor<ui32>) -> tensor<f32>
        %g = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
        %d = stablehlo.add %c, %g : tensor<8x4xf32>
        sdy.return %d : tensor<8x4xf32>
      }} : ({M}) -> {M}
      sdy.return %1 : {M}"""
    module = partly(body)
    assert not local_modules.convert(module).conversions
    module.operation.verify()
    assert str(module).count("sdy.manual_computation") == 1 and "stablehlo.partition_id" in str(module)
