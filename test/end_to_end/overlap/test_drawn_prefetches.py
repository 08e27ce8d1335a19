# SPDX-License-Identifier: Apache-2.0
"""Random loops whose collectives are brought a trip ahead: they give what XLA computes of the loop as it came."""

import random

import numpy as np
import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.xla.child import shared_child
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from test.end_to_end.overlap.drawn_loops import DrawnLoop, drawn_loop

NETWORKS = {2: "v5e:1x2", 4: "v5e:2x2"}


def passed(case: DrawnLoop, **options: str) -> tuple[str, list[dict]]:
    """Returns the module after the pass, and its rows."""
    session = Session()
    asked = {"policy": "always", "topology": NETWORKS[case.devices], "platform": "tpu"}
    with make_context():
        module = ir.Module.parse(case.module)
        Pipeline.parse("overlap-collectives").with_options(asked | options).run(module, session)
        assert module.operation.verify()
        return str(module), session.results.report_rows


def checked(seed: int) -> int:
    """Runs both forms of the loop of a seed, and returns how many collectives come a trip ahead."""
    case = drawn_loop(seed)
    _, rows = passed(case)
    ahead = [row["site"] for row in rows if "one trip ahead" in row["group"]]
    assert len(ahead) == case.ahead, f"seed {seed}: {case.words}"
    chosen = sorted(random.Random(seed).sample(ahead, random.Random(seed).randint(1, len(ahead))))
    module, rows = passed(case, only="+".join(map(str, chosen)))
    assert [row["site"] for row in rows if row["is_rewritten"]] == chosen
    rng = np.random.default_rng(seed)
    arguments = [rng.integers(-3, 4, shape).astype(np.int32) for shape in case.shapes]
    stock, ours = (shared_child().run(text, arguments, case.devices) for text in (case.module, module))
    assert stock.status == ours.status == "ok", f"seed {seed}: {case.words}: {stock.message} {ours.message}"
    np.testing.assert_array_equal(ours.outputs[0], stock.outputs[0], err_msg=f"seed {seed}: {case.words}")
    return len(chosen)


@pytest.mark.slow
def test_random_loops_are_the_same():
    assert sum(map(checked, range(12))) >= 12


GROUPS = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids"
BIAS = f"""module attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%a: tensor<16x8xi32>, %b: tensor<3x16xi32>, %c: tensor<8x16xi32>) -> tensor<16x8xi32> {{
    %0 = sdy.manual_computation(%a, %b, %c)
        in_shardings=[<@mesh, [{{"x"}}, {{}}]>, <@mesh, [{{}}, {{"x"}}]>, <@mesh, [{{}}, {{}}]>]
        out_shardings=[<@mesh, [{{"x"}}, {{}}]>] manual_axes={{"x"}}
        (%x: tensor<4x8xi32>, %bias: tensor<3x4xi32>, %w: tensor<8x16xi32>) {{
      %start = stablehlo.constant dense<0> : tensor<i32>
      %1:2 = stablehlo.while(%i = %start, %r = %x) : tensor<i32>, tensor<4x8xi32>
      cond {{
        %most = stablehlo.constant dense<3> : tensor<i32>
        %goes = stablehlo.compare LT, %i, %most : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %goes : tensor<i1>
      }} do {{
        %z = stablehlo.constant dense<0> : tensor<i32>
        %s = stablehlo.dynamic_slice %bias, %i, %z, sizes = [1, 4]
            : (tensor<3x4xi32>, tensor<i32>, tensor<i32>) -> tensor<1x4xi32>
        %f = stablehlo.reshape %s : (tensor<1x4xi32>) -> tensor<4xi32>
        %g = "stablehlo.all_gather"(%f) <{{all_gather_dim = 0 : i64,
            channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, {GROUPS}}}>
            : (tensor<4xi32>) -> tensor<16xi32>
        %l = stablehlo.reshape %g : (tensor<16xi32>) -> tensor<1x16xi32>
        %bb = stablehlo.broadcast_in_dim %l, dims = [0, 1] : (tensor<1x16xi32>) -> tensor<4x16xi32>
        %d = stablehlo.dot_general %r, %w, contracting_dims = [1] x [0]
            : (tensor<4x8xi32>, tensor<8x16xi32>) -> tensor<4x16xi32>
        %e = stablehlo.add %d, %bb : tensor<4x16xi32>
        %t = "stablehlo.reduce_scatter"(%e) <{{scatter_dimension = 1 : i64,
            channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, {GROUPS}}}> ({{
        ^bb0(%p: tensor<i32>, %q: tensor<i32>):
          %sum = stablehlo.add %p, %q : tensor<i32>
          stablehlo.return %sum : tensor<i32>
        }}) : (tensor<4x16xi32>) -> tensor<4x4xi32>
        %n = stablehlo.concatenate %t, %t, dim = 1 : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x8xi32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %next, %n : tensor<i32>, tensor<4x8xi32>
      }}
      sdy.return %1#1 : tensor<4x8xi32>
    }} : (tensor<16x8xi32>, tensor<3x16xi32>, tensor<8x16xi32>) -> tensor<16x8xi32>
    return %0 : tensor<16x8xi32>
  }}
}}"""


def test_a_pipeline_may_take_what_follows_a_gather_that_comes_ahead():
    case = DrawnLoop(BIAS, ((16, 8), (3, 16), (8, 16)), 4, 1, "a gathered bias")
    module, rows = passed(case)
    assert [row["is_rewritten"] for row in rows] == [True, True]
    arguments = [np.random.default_rng(0).integers(-3, 4, shape).astype(np.int32) for shape in case.shapes]
    stock, ours = (shared_child().run(text, arguments, case.devices) for text in (case.module, module))
    assert stock.status == ours.status == "ok", (stock.message, ours.message)
    np.testing.assert_array_equal(ours.outputs[0], stock.outputs[0])


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1300, 50))
def test_many_random_loops_are_the_same(start):
    assert sum(map(checked, range(start, start + 50))) >= 50
