# SPDX-License-Identifier: Apache-2.0
"""Which collectives of a loop may come one trip ahead: those that depend on nothing that a trip computes."""

import pytest

from reshard.dialect_utils.overlap.prefetch import prefetches
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.synthesis.network.topology import Topology

ROWS, TILE, WHOLE = "tensor<64x64xf32>", "tensor<16x64xf32>", "tensor<64x64xf32>"
GROUPS = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids"
LAYER = f"""%z = stablehlo.constant dense<0> : tensor<i32>
  %s = stablehlo.dynamic_slice %w, %j, %z, %z, sizes = [1, 16, 64]
      : (tensor<8x16x64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x64xf32>
  %f = stablehlo.reshape %s : (tensor<1x16x64xf32>) -> {TILE}"""
SAME = "%j = stablehlo.optimization_barrier %i : tensor<i32>"


def gather(value: str, name: str = "%g", channel: int = 1) -> str:
    handle = f"channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 1>"
    kinds = f"({TILE}) -> {WHOLE}"
    return f'{name} = "stablehlo.all_gather"({value}) <{{all_gather_dim = 0 : i64, {handle}, {GROUPS}}}> : {kinds}'


def product(rows: str, matrix: str, name: str) -> str:
    return (
        f"{name} = stablehlo.dot_general {rows}, {matrix}, contracting_dims = [1] x [0] : ({ROWS}, {WHOLE}) -> {ROWS}"
    )


def loop(body: str, rows: str = "%p", step: str = "%i", most: int = 8) -> str:
    """Returns a module with a loop that carries a counter %i, a number %k and rows %r; its stack %w is from outside."""
    return f"""module attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
      sdy.mesh @mesh = <["x"=4]>
      func.func public @main(%a: tensor<256x64xf32>, %b: tensor<8x64x64xf32>) -> tensor<256x64xf32> {{
        %0 = sdy.manual_computation(%a, %b)
            in_shardings=[<@mesh, [{{"x"}}, {{}}]>, <@mesh, [{{}}, {{"x"}}, {{}}]>]
            out_shardings=[<@mesh, [{{"x"}}, {{}}]>]
            manual_axes={{"x"}} (%x: {ROWS}, %w: tensor<8x16x64xf32>) {{
          %start = stablehlo.constant dense<0> : tensor<i32>
          %1:3 = stablehlo.while(%i = %start, %k = %start, %r = %x) : tensor<i32>, tensor<i32>, {ROWS}
          cond {{
            %most = stablehlo.constant dense<{most}> : tensor<i32>
            %goes = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %goes : tensor<i1>
          }} do {{
            {body}
            %one = stablehlo.constant dense<1> : tensor<i32>
            %next = stablehlo.add {step}, %one : tensor<i32>
            stablehlo.return %next, %k, {rows} : tensor<i32>, tensor<i32>, {ROWS}
          }}
          sdy.return %1#2 : {ROWS}
        }} : (tensor<256x64xf32>, tensor<8x64x64xf32>) -> tensor<256x64xf32>
        return %0 : tensor<256x64xf32>
      }}
    }}"""


def found(text: str) -> list:
    with make_context():
        return [each.ahead for each in prefetches(ir.Module.parse(text).operation, Topology.parse("v5e:2x2"))]


def test_the_weights_of_a_layer_may_come_ahead_through_a_barrier():
    (ahead,) = found(loop("\n".join([SAME, LAYER, gather("%f"), product("%r", "%g", "%p")])))
    assert ahead.trips == 8 and ahead.before_s == ahead.after_s == 0 and not ahead.is_in_place


def test_what_no_use_waits_for_is_left_after_the_last_use():
    body = [SAME, LAYER, gather("%f"), product("%r", "%g", "%q"), product("%q", "%x", "%p")]
    (ahead,) = found(loop("\n".join(body)))
    assert ahead.after_s == ahead.products_s / 2 > 0 and ahead.before_s == 0


def test_what_is_fused_with_a_product_ends_no_use():
    wide = f"%h = stablehlo.add %g, %g : {WHOLE}"
    body = [SAME, LAYER, gather("%f"), wide, product("%r", "%h", "%p")]
    (ahead,) = found(loop("\n".join(body)))
    assert ahead.after_s == 0 and not ahead.is_in_place


def test_the_second_gather_comes_beside_the_first_product_as_it_is():
    second = LAYER.replace("%z", "%y").replace("%s", "%t").replace("%f", "%e").replace("%j", "%k")
    body = [
        SAME,
        LAYER,
        gather("%f"),
        product("%r", "%g", "%q"),
        second,
        gather("%e", "%h", 2),
        product("%q", "%h", "%p"),
    ]
    first, other = found(loop("\n".join(body)))
    assert first.before_s == 0 and other.before_s > 0


@pytest.mark.parametrize(
    "body",
    [
        [f"%f = stablehlo.slice %r [0:16, 0:64] : ({ROWS}) -> {TILE}", gather("%f"), product("%r", "%g", "%p")],
        [
            "%c = stablehlo.custom_call @number(%i) : (tensor<i32>) -> tensor<i32>",
            LAYER.replace("%j", "%c"), gather("%f"), product("%r", "%g", "%p"),
        ],
        [
            f"%n = stablehlo.slice %r [0:1, 0:1] : ({ROWS}) -> tensor<1x1xf32>",
            "%m = stablehlo.reshape %n : (tensor<1x1xf32>) -> tensor<f32>",
            "%c = stablehlo.convert %m : (tensor<f32>) -> tensor<i32>",
            LAYER.replace("%j", "%c"), gather("%f"), product("%r", "%g", "%p"),
        ],
    ],
    ids=("rows of the trip", "a call that is no part of StableHLO", "a place that the trip computes"),
)  # fmt: skip
def test_what_depends_on_a_trip_does_not_come_ahead(body):
    assert found(loop("\n".join(body))) == []


def test_a_counter_that_a_trip_computes_is_none():
    step = [
        f"%n = stablehlo.slice %r [0:1, 0:1] : ({ROWS}) -> tensor<1x1xf32>",
        "%m = stablehlo.reshape %n : (tensor<1x1xf32>) -> tensor<f32>",
        "%c = stablehlo.convert %m : (tensor<f32>) -> tensor<i32>",
    ]
    assert found(loop("\n".join([SAME, LAYER, gather("%f"), product("%r", "%g", "%p"), *step]), step="%c")) == []


def test_a_gather_that_something_else_uses_too_stays_with_it():
    narrow = f"%l = stablehlo.slice %g [0:16, 0:64] : ({WHOLE}) -> {TILE}"
    body = [
        SAME,
        LAYER,
        gather("%f"),
        narrow,
        gather("%l", "%h", 2),
        product("%r", "%h", "%q"),
        product("%q", "%g", "%p"),
    ]
    assert len(found(loop("\n".join(body)))) == 1  # the first one; the second would bring it once more


def test_a_loop_of_one_trip_gains_nothing():
    (ahead,) = found(loop("\n".join([SAME, LAYER, gather("%f"), product("%r", "%g", "%p")]), most=1))
    assert ahead.ahead_s > ahead.as_it_is_s
