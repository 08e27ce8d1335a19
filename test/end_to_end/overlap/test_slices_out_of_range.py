# SPDX-License-Identifier: Apache-2.0
"""What a pass cuts into parts may come from a dynamic slice whose start lies outside; XLA makes one slice of two."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline

RIGHT = np.random.default_rng(0).integers(-3, 4, (20, 3)).astype(np.float32)
LEFT = np.random.default_rng(1).integers(-3, 4, (2, 4)).astype(np.float32)
START, INSIDE = np.int32(50), slice(4, 20)  # of 16 rows, asked for and as XLA clamps it
_OUTER = lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(0,))
_BATCHED = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0,))


def _rows(w, i):
    return lax.dynamic_slice(w, (i, jnp.int32(0)), (16, 3))


PRODUCERS = {
    "slice": _rows,
    "transposed": lambda w, i: lax.dynamic_slice(w.T, (jnp.int32(0), i), (3, 16)).T,
    "converted": lambda w, i: _rows(w.astype(jnp.bfloat16), i).astype(jnp.float32),
    "gather": lambda w, i: lax.gather(w, i[None], _OUTER, (16, 3), mode="clip"),
    "gather_of_one": lambda w, i: lax.gather(w, i[None, None], _BATCHED, (16, 3), mode="clip")[0],
    "mapped": lambda w, i: jax.vmap(lambda j: _rows(w, j))(i[None])[0],
    "branch": lambda w, i: lax.cond(i * 0 == 0, lambda: _rows(w, i), lambda: w[:16]),
    "single_turn": lambda w, i: lax.fori_loop(0, 1, lambda _, held: _rows(w, i) + held * 0, w[:16]),
    "stacked_turn": lambda w, i: lax.scan(lambda held, _: (held, _rows(w, i)), 0.0, None, length=1)[1][0],
    "times_one": lambda w, i: _rows(w, i) * 1,
    "split_and_joined": lambda w, i: jnp.concatenate(jnp.split(_rows(w, i), 4)),
    "rows_stacked": lambda w, i: jnp.stack(list(_rows(w, i))),
    "clamped_too_far": lambda w, i: lax.dynamic_slice(
        w, (lax.clamp(-9, i, 99), jnp.int32(0)), (16, 3), allow_negative_indices=False
    ),
}


def _mesh(*axes):
    sizes = [4] if len(axes) == 1 else [2, 2]
    return Mesh(np.array(jax.devices()[:4]).reshape(sizes), axes)


def _written(function, arguments, text: str, **options: str):
    """Returns the program of a function, behind passes, and how many collectives these have replaced."""
    jax.clear_caches()
    lowered = jax.jit(function).lower(*arguments)
    session = Session()
    Pipeline.parse(text).with_options(options).run(lowered.compiler_ir("stablehlo"), session)
    return lowered.compile(), sum(session.results.statistics[text, each] for each in ("overlapped", "decomposed"))


@pytest.mark.parametrize("name", PRODUCERS)
def test_the_other_operand_of_a_pipeline(name):
    def body(x, w, i):
        return (lax.all_gather(x, "x", axis=1, tiled=True) @ PRODUCERS[name](w, i))[None]

    function = jax.shard_map(body, mesh=_mesh("x"), in_specs=P(), out_specs=P("x"), check_vma=False)
    options = {"topology": "h100:1x4", "policy": "always", "may-hold-more": "true", "platform": "cpu"}
    compiled, written = _written(function, (LEFT, RIGHT, START), "overlap-collectives", **options)
    assert written
    for shard in compiled(LEFT, RIGHT, START).addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data)[0], np.concatenate([LEFT] * 4, 1) @ RIGHT[INSIDE])


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_what_a_chain_begins_with(platform):
    """The rows are alike along g, so each device sends a part of them to the other node."""
    x = np.arange(2 * 200_000 * 4, dtype=np.float32).reshape(-1, 4)

    def body(x, i):
        rows = lax.dynamic_slice(x, (i, jnp.int32(0)), (160_000, 4))
        return lax.all_gather(rows, "n", axis=0, tiled=True)[None]

    function = jax.shard_map(
        body, mesh=_mesh("n", "g"), in_specs=(P("n"), P()), out_specs=P(("n", "g")), check_vma=False
    )
    options = {"topology": "v100:2x2", "platform": platform}
    compiled, written = _written(function, (x, np.int32(500_000)), "decompose-collectives", **options)
    assert written
    for shard in compiled(x, np.int32(500_000)).addressable_shards:
        expected = np.concatenate([x[40_000:200_000], x[240_000:]])
        np.testing.assert_array_equal(np.asarray(shard.data)[0], expected)
