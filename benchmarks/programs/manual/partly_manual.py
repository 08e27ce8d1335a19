# SPDX-License-Identifier: Apache-2.0
"""Training steps with `jax.shard_map` over one axis, whose bodies are split along the other by constraints.

What goes from device to device along the manual axis is written by hand: activations from stage to stage of a pipeline,
keys and values around a ring. Along the other axis a layer is split as Megatron does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from benchmarks.programs.manual import shard_maps
from benchmarks.programs.manual.shard_maps import RATE, weights_of
from benchmarks.programs.program import Program, Setup, layout, normal

BATCH = 2
PARTS = 4  # of the rows, and of the layers of a pipeline
MICROBATCHES = 8


@dataclass(frozen=True)
class Config(shard_maps.Config):
    """Sizes of the model, the rows of a microbatch or of a part of the batch, and the length of a sequence."""

    length: int
    heads: int


CONFIGS = {
    "small": Config(width=32, hidden=64, layers=2, rows=16, length=32, heads=4),
    "demo": Config(width=384, hidden=1536, layers=2, rows=256, length=512, heads=8),
    "large": Config(width=4096, hidden=16384, layers=2, rows=4096, length=8192, heads=32),
}


def _split(x: jax.Array, *spec) -> jax.Array:
    """Splits a tile of a body along the free axis."""
    return lax.with_sharding_constraint(x, P(*spec))


def _stepped(loss, weights, *args):
    return jax.tree.map(lambda w, g: w - RATE * g, weights, jax.grad(loss)(weights, *args))


def pipelined_stages(mesh: Mesh, size: str) -> Setup:
    """Microbatches go through the stages of a pipeline (GPipe); the layers of a stage are split along `model`."""
    c, stages = CONFIGS[size], mesh.shape["stage"]

    def layers(weights, x):
        def layer(x, weights):
            up, down = weights
            made = jnp.tanh(_split(x @ up, None, "model")) @ down
            return x + _split(made, None, None), None

        return lax.scan(layer, x, weights)[0]

    def losses(weights, x):
        stage = lax.axis_index("stage")
        onwards = [(i, i + 1) for i in range(stages - 1)]

        def tick(held, number):
            here = jnp.where(stage == 0, x[jnp.minimum(number, MICROBATCHES - 1)], held)
            made = layers(weights, here)
            is_done = (stage == stages - 1) & (number >= stages - 1)
            loss = jnp.where(is_done, jnp.mean(jnp.square(made)), 0.0)
            return lax.ppermute(made, "stage", onwards), loss

        first = lax.pcast(jnp.zeros_like(x[0]), "stage", to="varying")
        return lax.psum(lax.scan(tick, first, jnp.arange(MICROBATCHES + stages - 1))[1].sum(), "stage")

    mapped = jax.shard_map(losses, mesh=mesh, in_specs=(P("stage"), P()), out_specs=P(), axis_names={"stage"})

    def initial():
        count = PARTS * c.layers
        up = normal(0, count, c.width, c.hidden, scale=c.width**-0.5)
        down = normal(1, count, c.hidden, c.width, scale=c.hidden**-0.5)
        return (up, down), normal(99, MICROBATCHES, c.rows, c.width)

    at = (layout(mesh, "stage", None, "model"), layout(mesh, "stage", "model"))
    step = jax.jit(lambda weights, x: _stepped(mapped, weights, x), out_shardings=at)
    return Setup(step, initial, (at, layout(mesh)))


def ring_attention(mesh: Mesh, size: str) -> Setup:
    """Keys and values of a part of the sequence go around all parts; heads are split along `model`."""
    c, parts = CONFIGS[size], mesh.shape["seq"]
    depth = c.width // c.heads

    def attended(q, k, v):
        """Returns the attention of [batch, length, heads, depth] by parts of the keys, with a running softmax."""
        around = [(i, (i + 1) % parts) for i in range(parts)]

        def turn(held, _):
            k, v, most, total, made = held
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * depth**-0.5
            now = jnp.maximum(most, scores.max(-1))
            weight, kept = jnp.exp(scores - now[..., None]), jnp.exp(most - now)
            total = total * kept + weight.sum(-1)
            made = made * kept[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weight, v)
            k, v = (lax.ppermute(each, "seq", around) for each in (k, v))
            return (k, v, now, total, made), None

        b, t, h, d = q.shape
        start = jnp.full((b, h, t), -1e30, q.dtype), jnp.zeros((b, h, t), q.dtype), jnp.zeros((b, h, t, d), q.dtype)
        start = lax.pcast(start, "seq", to="varying")
        (_, _, _, total, made), _ = lax.scan(turn, (k, v, *start), None, length=parts)
        return (made / total[..., None]).swapaxes(1, 2)

    def losses(weights, x):
        for heads, out, up, down in weights:
            q, k, v = (_split(jnp.einsum("btw,whd->bthd", x, each), None, None, "model") for each in heads)
            x = x + _split(jnp.einsum("bthd,hdw->btw", attended(q, k, v), out), None, None, None)
            x = x + _split(jnp.tanh(_split(x @ up, None, None, "model")) @ down, None, None, None)
        return lax.pmean(jnp.mean(jnp.square(x)), "seq")

    mapped = jax.shard_map(losses, mesh=mesh, in_specs=(P(), P(None, "seq")), out_specs=P(), axis_names={"seq"})

    def initial():
        weights = [
            (
                normal(4 * i, 3, c.width, c.heads, depth, scale=c.width**-0.5),
                normal(4 * i + 1, c.heads, depth, c.width, scale=c.width**-0.5),
                normal(4 * i + 2, c.width, c.hidden, scale=c.width**-0.5),
                normal(4 * i + 3, c.hidden, c.width, scale=c.hidden**-0.5),
            )
            for i in range(c.layers)
        ]
        return weights, normal(99, BATCH, c.length, c.width)

    of_layer = tuple(layout(mesh, *spec) for spec in ((None, None, "model"), ("model",), (None, "model"), ("model",)))
    at = [of_layer] * c.layers
    step = jax.jit(lambda weights, x: _stepped(mapped, weights, x), out_shardings=at)
    return Setup(step, initial, (at, layout(mesh, None, "seq")))


def summed_gradients(mesh: Mesh, size: str) -> Setup:
    """Rows are split along `data` by hand, with one sum of each gradient; layers are split along `model`."""
    c = CONFIGS[size]

    def loss(weights, x):
        for up, down in weights:
            x = x + _split(jnp.tanh(_split(x @ up, None, "model")) @ down, None, None)
        return jnp.mean(jnp.square(x))

    def body(weights, x):
        gradients = jax.grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - RATE * lax.pmean(g, "data"), weights, gradients)

    specs = {"in_specs": (P(), P("data")), "out_specs": P(), "axis_names": {"data"}, "check_vma": False}

    def initial():
        return weights_of(c), normal(99, PARTS * c.rows, c.width)

    at = [(layout(mesh, None, "model"), layout(mesh, "model"))] * c.layers
    step = jax.jit(jax.shard_map(body, mesh=mesh, **specs), out_shardings=at)
    return Setup(step, initial, (at, layout(mesh, "data")))


PARTLY_MANUAL = (
    Program(
        "map_summed_gradients",
        "a training step in shard_map over the batch, one sum of each gradient, layers split along the other axis",
        (("data", 4), ("model", 2)),
        summed_gradients,
    ),
    Program(
        "map_pipelined_stages",
        "a training step in shard_map over the stages of a pipeline, whose layers are split along the other axis",
        (("stage", 4), ("model", 2)),
        pipelined_stages,
    ),
    Program(
        "map_ring_attention",
        "a training step in shard_map over parts of a sequence, keys and values in a ring, heads along the other axis",
        (("seq", 4), ("model", 2)),
        ring_attention,
    ),
)
