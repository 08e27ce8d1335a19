# SPDX-License-Identifier: Apache-2.0
"""Reduce_scatters that TPUs would sum whole, written in whole tiles: the values of stock XLA."""

import re

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from test.end_to_end.local.drawn import mesh

__all__ = ["mesh"]  # a fixture


@pytest.mark.parametrize(
    ("shape", "dim", "axes", "is_tiled"),
    [
        ((65536,), 0, ("x", "y", "z"), True),
        ((65536,), 0, ("z", "x", "y"), True),  # the members of a group in another order
        ((8, 4096), 0, ("x", "y", "z"), False),
        ((16, 2048), 0, ("x", "y", "z"), True),
        ((1, 16384), 1, ("x",), True),
        ((65536,), 0, ("y",), True),  # along the other axes the same is computed
    ],
)
def test_values_are_those_of_stock_xla_on_all_devices(mesh, shape, dim, axes, is_tiled):
    def scattered(x, rows):
        return lax.psum_scatter(x * rows[0], axes, scatter_dimension=dim, tiled=is_tiled)

    out = P(axes) if not is_tiled else P(*([None] * dim), axes)
    function = jax.shard_map(scattered, mesh=mesh, in_specs=(P(), P(("x", "y", "z"))), out_specs=out, check_vma=False)
    numbers = np.random.default_rng(0)
    x, rows = (numbers.integers(-9, 10, each).astype(np.float32) for each in (shape, (8,)))
    given = (
        jax.device_put(x, NamedSharding(mesh, P())),
        jax.device_put(rows, NamedSharding(mesh, P(("x", "y", "z")))),
    )
    theirs = jax.jit(function)(*given)
    jax.clear_caches()  # else the lowering is the one that is compiled already
    lowered = jax.jit(function).lower(*given)
    module = lowered.compiler_ir("stablehlo")
    options = {"platform": "tpu", "topology": "v5e:2x4"}
    Pipeline.parse("decompose-collectives").with_options(options).run(module, Session())
    assert re.search(r"tensor<\dx\d+x128xf32>\) -> tensor<1x\d+x128xf32>", str(module))
    ours = lowered.compile()(*given)
    for mine, right in zip(ours.addressable_shards, theirs.addressable_shards, strict=True):
        np.testing.assert_array_equal(np.asarray(mine.data), np.asarray(right.data))
