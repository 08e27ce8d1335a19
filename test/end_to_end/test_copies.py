# SPDX-License-Identifier: Apache-2.0
"""Of an array that is not alike on all devices that hold it, a copy is seen that differs from the first."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from reshard.dialect_utils.platform.global_arrays import as_numpy
from reshard.dialect_utils.xla.child import shared_child

WRONG_COPIES = """module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"x"}
        (%tile: tensor<1xf32>) {
      %1 = stablehlo.broadcast_in_dim %tile, dims = [0] : (tensor<1xf32>) -> tensor<4xf32>
      sdy.return %1 : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""


def test_a_program_whose_copies_differ_does_not_look_right():
    ran = shared_child().run(WRONG_COPIES, [np.float32([7, 8, 8, 8])], 4)
    assert ran.status == "ok", ran.message
    assert ran.outputs[0].tolist() == [8] * 4  # the first copy is [7] * 4


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_copies_that_are_alike_are_the_array(value):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    for spec in (P(), P("x"), P(None, "x")):
        array = jax.device_put(np.full((4, 4), value, np.float32), NamedSharding(mesh, spec))
        assert np.array_equal(as_numpy(array), np.asarray(array), equal_nan=True)
