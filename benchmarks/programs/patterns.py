# SPDX-License-Identifier: Apache-2.0
"""Small programs on 8 devices, each around one pattern of communication, with the least that a device has to receive.

The ideal is derived by hand: the docstring of each says how. `python -m benchmarks.whole_modules.patterns` compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from benchmarks.programs.conversions import layer_stack
from benchmarks.programs.program import Program, Setup, constrain, integers, layout, normal

N = 8
F32 = 4


@dataclass(frozen=True, slots=True)
class Pattern:
    """A small program, and the least bytes that the busiest device has to receive in it."""

    program: Program
    ideal_bytes: int


PATTERNS: list[Pattern] = []
Make = Callable[[Mesh], Setup]


def _pattern(ideal_bytes: float, **axes: int) -> Callable[[Make], Make]:
    """Registers a function that sets up a program on a mesh of `axes`; without any, on x=8."""

    def register(make: Make) -> Make:
        mesh_axes = tuple((axes or {"x": N}).items())
        summary = (make.__doc__ or "").split("\n")[0]
        name = make.__name__.strip("_")
        PATTERNS.append(Pattern(Program(name, summary, mesh_axes, lambda mesh, size: make(mesh)), int(ideal_bytes)))
        return make

    return register


def _between(have: list[set[int]], want: list[set[int]], element_bytes: int) -> int:
    """Returns the most bytes that a device wants and does not have."""
    return max(len(wanted - held) for held, wanted in zip(have, want, strict=True)) * element_bytes


def _columns(start: int, width: int) -> list[set[int]]:
    """Returns the columns that each device has of `width` ones from `start` on."""
    each = width // N
    return [set(range(start + d * each, start + (d + 1) * each)) for d in range(N)]


def _thirds(rows: int, width: int) -> int:
    """Returns the bytes of [rows, 3 * width] split in three parts along its split dimension."""
    parts = [_columns(at * width, width) for at in range(3)]
    want = [set().union(*(part[d] for part in parts)) for d in range(N)]
    return _between(_columns(0, 3 * width), want, rows * F32)


@_pattern(4 * 128 * 4 * 64 // N * F32)
def _rope(mesh: Mesh) -> Setup:
    """Rotary embeddings, the features of a head split: the halves change places, one tile for each device."""
    batch, length, heads, features = 4, 128, 4, 64
    split, table = layout(mesh, None, None, None, "x"), layout(mesh, None, None, "x")

    def rotate(x, cos, sin):
        first, second = jnp.split(x, 2, axis=-1)
        return x * cos + jnp.concatenate([-second, first], -1) * sin

    def values():
        return normal(0, batch, length, heads, features), normal(1, length, 1, features), normal(2, length, 1, features)

    return Setup(jax.jit(rotate, out_shardings=split), values, (split, table, table))


@_pattern(_thirds(64, 1024))
def _qkv(mesh: Mesh) -> Setup:
    """A fused projection split in three along its split columns; each device lacks some of its parts."""
    split = layout(mesh, None, "x")
    function = jax.jit(lambda y: tuple(jnp.split(y, 3, axis=1)), out_shardings=split)
    return Setup(function, lambda: (normal(0, 64, 3 * 1024),), (split,))


@_pattern((N - 1) * 256 * 256 * F32, data=N)
def _layers(mesh: Mesh) -> Setup:
    """A scan over a stack of weights split by layer: each device receives the seven layers of the others once."""
    return layer_stack(mesh, "demo")


def _accumulated(mesh: Mesh, placed) -> Setup:
    turns, batch, width = 4, 64, 256

    def loss(weights, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ weights["a"]) @ weights["b"]))

    def gradient(weights, xs):
        def turn(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, x)), None

        zeros = jax.tree.map(jnp.zeros_like, weights)
        return jax.lax.scan(turn, zeros, xs)[0]

    def values():
        weights = {name: normal(at, width, width, scale=width**-0.5) for at, name in enumerate("ab")}
        return weights, normal(2, turns, batch, width)

    function = jax.jit(gradient, out_shardings=placed)
    return Setup(function, values, (layout(mesh), layout(mesh, None, "x")))


@_pattern(2 * 2 * 256 * 256 * F32 * (N - 1) // N)
def _accumulation(mesh: Mesh) -> Setup:
    """Gradients accumulated over four microbatches, weights replicated: one all-reduce behind the loop."""
    return _accumulated(mesh, layout(mesh))


@_pattern(2 * 256 * 256 * F32 * (N - 1) // N)
def _accumulation_zero(mesh: Mesh) -> Setup:
    """The same, the gradient split over all devices: one reduce-scatter behind the loop."""
    return _accumulated(mesh, layout(mesh, "x"))


@_pattern((N - 1) * 32 * F32)
def _cumsum(mesh: Mesh) -> Setup:
    """Sums of all that came before along a split dimension: each device needs the sum of each tile before its own."""
    split = layout(mesh, None, "x")
    return Setup(jax.jit(lambda x: jnp.cumsum(x, 1), out_shardings=split), lambda: (normal(0, 32, 4096),), (split,))


@_pattern((N - 1) * 16 * 8 * (F32 + F32))
def _top_k(mesh: Mesh) -> Setup:
    """The eight likeliest of a split vocabulary: eight candidates of each device, values and places."""
    function = jax.jit(lambda x: jax.lax.top_k(x, 8), out_shardings=layout(mesh))
    return Setup(function, lambda: (normal(0, 16, 32768),), (layout(mesh, None, "x"),))


@_pattern(0)
def _fft(mesh: Mesh) -> Setup:
    """A Fourier transform along a dimension that is not split: nothing moves."""
    split = layout(mesh, "x")
    return Setup(jax.jit(jnp.fft.fft, out_shardings=split), lambda: (normal(0, 64, 512),), (split,))


@_pattern(512 * 1024 * F32 * (N - 1) // N + 512 * F32 * (N - 1) // N)
def _embedding(mesh: Mesh) -> Setup:
    """Rows looked up in a table split by row, results split by batch: indices gathered, results reduce-scattered."""
    split = layout(mesh, "x")
    function = jax.jit(lambda table, ids: table[ids], out_shardings=split)
    return Setup(function, lambda: (normal(0, 4096, 1024), integers(1, 4096, 512)), (split, split))


@_pattern(512 * 1024 * F32 * (N - 1) // N + 512 * F32 * (N - 1) // N)
def _embedding_gradient(mesh: Mesh) -> Setup:
    """The gradient of a lookup, the table split by row: indices and rows gathered, each device adds up its own."""
    split = layout(mesh, "x")

    def gradient(rows, ids):
        return jnp.zeros((4096, 1024)).at[ids].add(rows)

    return Setup(jax.jit(gradient, out_shardings=split), lambda: (normal(0, 512, 1024), integers(1, 4096, 512)), split)


def _decode(mesh: Mesh, cache) -> Setup:
    batch, length, heads, features = 4, 1024, 16, 32

    def step(keys, values, key, value, query, at):
        keys = jax.lax.dynamic_update_slice(keys, key[:, None], (0, at, 0, 0))
        values = jax.lax.dynamic_update_slice(values, value[:, None], (0, at, 0, 0))
        keys, values = (constrain(each, mesh, *cache.spec) for each in (keys, values))
        scores = jnp.einsum("bhd,bthd->bht", query, keys)
        scores = jnp.where(jnp.arange(length) <= at, scores, -1e9)
        return jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), values), keys, values

    new = layout(mesh, *(cache.spec[d] for d in (0, 2, 3))) if len(cache.spec) > 2 else layout(mesh)

    def values():
        old = [normal(at, batch, length, heads, features) for at in range(2)]
        return (*old, *(normal(at, batch, heads, features) for at in range(2, 5)), jnp.int32(700))

    function = jax.jit(step, out_shardings=(new, cache, cache), donate_argnums=(0, 1))
    return Setup(function, values, (cache, cache, new, new, new, layout(mesh)))


@_pattern(0)
def _decode_by_heads(mesh: Mesh) -> Setup:
    """A step of decoding, the cache split by head: nothing moves."""
    return _decode(mesh, layout(mesh, None, None, "x", None))


@_pattern(2 * (4 * 16 * 32 + 2 * 4 * 16) * F32 * (N - 1) // N)
def _decode_by_length(mesh: Mesh) -> Setup:
    """A step of decoding, the cache split by position: the largest score, the sum and the result are all-reduced."""
    return _decode(mesh, layout(mesh, None, "x"))


_LSTM = 16, 8, 256  # batch, length, width


def _gates() -> int:
    """Returns the bytes of the four gates' parts of a step that a device lacks."""
    parts = [_columns(at * _LSTM[2], _LSTM[2]) for at in range(4)]
    want = [set().union(*(part[d] for part in parts)) for d in range(N)]
    return _between(_columns(0, 4 * _LSTM[2]), want, _LSTM[0] * F32)


@_pattern(_LSTM[1] * (_gates() + _LSTM[0] * _LSTM[2] * F32 * (N - 1) // N))
def _lstm(mesh: Mesh) -> Setup:
    """An LSTM, its state and its gates split: in each step the state is gathered, and the gates find their columns."""
    batch, length, width = _LSTM

    def run(inputs, recurrent, xs):
        def step(state, x):
            hidden, cell = state
            gates = constrain(x @ inputs + hidden @ recurrent, mesh, None, "x")
            i, f, g, o = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return tuple(constrain(each, mesh, None, "x") for each in (hidden, cell)), None

        start = constrain(jnp.zeros((batch, width)), mesh, None, "x")
        return jax.lax.scan(step, (start, start), xs)[0]

    def values():
        weights = [normal(at, width, 4 * width, scale=width**-0.5) for at in range(2)]
        return (*weights, normal(2, length, batch, width))

    split = layout(mesh, None, "x")
    return Setup(jax.jit(run, out_shardings=split), values, (split, split, layout(mesh)))


@_pattern(3 * (2 * 128 * 128 * F32 * (N - 1) // N))
def _newton_schulz(mesh: Mesh) -> Setup:
    """Three steps of Muon's orthogonalisation of [128, 1024] split by column: each sums products over all columns."""
    split = layout(mesh, None, "x")

    def steps(x):
        for _ in range(3):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        return x

    return Setup(jax.jit(steps, out_shardings=split), lambda: (normal(0, 128, 1024, scale=1 / 1024),), (split,))
