# SPDX-License-Identifier: Apache-2.0
"""Plans that have a name, each written twice: with its collectives, in `jax.shard_map`, and without a word of sharding.

Both compute the same from the same arguments. What a plan does by hand are hooks around the matrices of a layer, which
do nothing in the plain program; so the two cannot drift apart. Axes of arrays: b sequences, t positions, w features, h
heads, d features of a head, e experts, c places of an expert, v words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core.primitives import all_gather_p
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from benchmarks.programs.program import integers, normal

AXIS = "x"
DEVICES = 8
RATE = 0.01
_LONGER = 4  # times the length of the others: one sequence where a batch has as many as devices


@dataclass(frozen=True)
class Config:
    """Sizes of a model: `rows` sequences of `length`, `layers` of one kind, `experts` with places for `places` rows of
    each sequence."""

    width: int
    hidden: int
    heads: int
    layers: int
    rows: int
    length: int
    words: int
    experts: int = 8
    places: int = 16


CONFIGS = {
    "small": Config(width=32, hidden=64, heads=8, layers=2, rows=8, length=16, words=64, places=4),
    "demo": Config(width=1024, hidden=4096, heads=16, layers=4, rows=8, length=512, words=32768, places=128),
}


def _same(x):
    return x


@dataclass(frozen=True)
class Hooks:
    """What a plan does inside of a layer: with each matrix, and with activations before and after those of a block.

    `whole` is done with what all devices have whole, before the layers; `summed` with the loss of a device's part.
    """

    weight: Callable = _same
    enter: Callable = _same
    leave: Callable = _same
    whole: Callable = _same
    summed: Callable = _same
    sent: Callable = _same
    returned: Callable = _same
    checkpointed: Callable = _same


@dataclass(frozen=True)
class Plan:
    """A plan by name.

    Attributes:
      name: what the field calls it. tactics: what `reshard auto` calls it, for the axis `x`.
      step: `step(config, hooks, *arguments)` is the program. initial: `initial(config)` returns its arguments.
      hooks: of the program by hand. at, to: the PartitionSpecs of the arguments, and those of the results.
      is_one_sequence: whether the program has one long sequence in place of as many as devices, so that the batch
        cannot be split.
    """

    name: str
    tactics: str
    step: Callable
    initial: Callable[[Config], tuple]
    hooks: Hooks
    at: tuple
    to: tuple
    is_one_sequence: bool = False

    def config(self, size: str) -> Config:
        found = CONFIGS[size]
        return replace(found, rows=1, length=_LONGER * found.length) if self.is_one_sequence else found

    def by_hand(self, size: str) -> tuple[Callable, tuple]:
        """Returns the jitted step with its collectives, and its arguments as shapes."""
        mesh = jax.make_mesh((DEVICES,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES])
        body = partial(self.step, self.config(size), self.hooks)
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=self.at, out_specs=self.to)), self.shapes(size)

    def plain(self, size: str) -> tuple[Callable, tuple]:
        """Returns the jitted step for one device, and its arguments as shapes."""
        return jax.jit(partial(self.step, self.config(size), Hooks())), self.shapes(size)

    def arguments(self, size: str) -> tuple:
        return self.initial(self.config(size))

    def shapes(self, size: str) -> tuple:
        return jax.eval_shape(partial(self.arguments, size))


# ---- programs


def _normed(x, gain):
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * gain


def _attended(q, k, v):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tri(q.shape[1], dtype=bool), scores, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


def _block(hooks: Hooks, x, layer):
    (q, k, v, out, gate, up, down), gains = layer
    q, k, v, out, gate, up, down = (hooks.weight(each) for each in (q, k, v, out, gate, up, down))
    inner = hooks.enter(_normed(x, gains[0]))
    heads = (jnp.einsum("btw,whd->bthd", inner, each) for each in (q, k, v))
    x = x + hooks.leave(jnp.einsum("bthd,hdw->btw", _attended(*heads), out))
    inner = hooks.enter(_normed(x, gains[1]))
    x = x + hooks.leave((jax.nn.silu(inner @ gate) * (inner @ up)) @ down)
    return x, None


def _experts(hooks: Hooks, x, layer, *, places: int):
    """A layer of experts, each of which takes the first rows of a sequence that want it."""
    (up, down), router = layer
    wanted = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(jnp.argmax(wanted, -1), router.shape[-1], dtype=x.dtype)
    place = jnp.cumsum(chosen, 1) * chosen - 1
    given = jax.nn.one_hot(place.astype(jnp.int32), places, dtype=x.dtype)  # [b, t, e, c]
    rows = hooks.sent(jnp.einsum("btec,btw->ebcw", given, x))
    made = jnp.einsum("ebch,ehw->ebcw", jax.nn.gelu(jnp.einsum("ebcw,ewh->ebch", rows, up)), down)
    taken = given * (wanted * chosen).sum(-1)[..., None, None]
    return x + jnp.einsum("btec,ebcw->btw", taken, hooks.returned(made)), None


def _descended(weights, gradients):
    return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients)


def _trained(layer: Callable, hooks: Hooks, weights, x):
    """Returns new weights of stacked layers, (matrices, what all devices have whole), after a step."""

    def loss(weights):
        matrices, whole = weights
        stacked = matrices, hooks.whole(whole)
        made, _ = lax.scan(hooks.checkpointed(partial(layer, hooks)), x, stacked)
        return hooks.summed(jnp.mean(jnp.square(made)))

    return _descended(weights, jax.grad(loss)(weights))


def transformer(config: Config, hooks: Hooks, weights, x):
    return _trained(_block, hooks, weights, x)


def mixture(config: Config, hooks: Hooks, weights, x):
    return _trained(partial(_experts, places=config.places), hooks, weights, x)


def word_loss(config: Config, hooks: Hooks, head, x, words):
    """Returns the new head and the gradient of [b, t, w] of the loss of each next word."""

    def loss(head, x):
        logits = hooks.enter(x) @ head
        if hooks.summed is _same:
            most = lax.stop_gradient(logits.max(-1))
            total = jnp.exp(logits - most[..., None]).sum(-1)
            wanted = jnp.take_along_axis(logits, words[..., None], -1)[..., 0]
        else:
            most = lax.pmax(lax.stop_gradient(logits).max(-1), AXIS)
            total = hooks.summed(jnp.exp(logits - most[..., None]).sum(-1))
            place = words - lax.axis_index(AXIS) * logits.shape[-1]
            is_here = (place >= 0) & (place < logits.shape[-1])
            own = jnp.take_along_axis(logits, jnp.where(is_here, place, 0)[..., None], -1)[..., 0]
            wanted = hooks.summed(jnp.where(is_here, own, 0.0))
        return jnp.mean(jnp.log(total) + most - wanted)

    of_head, of_x = jax.grad(loss, (0, 1))(head, x)
    return _descended(head, of_head), of_x


# ---- arguments


def _transformer_arguments(c: Config) -> tuple:
    depth = c.width // c.heads
    heads = [normal(i, c.layers, c.width, c.heads, depth, scale=c.width**-0.5) for i in range(3)]
    out = normal(3, c.layers, c.heads, depth, c.width, scale=c.width**-0.5)
    inner = [normal(4 + i, c.layers, c.width, c.hidden, scale=c.width**-0.5) for i in range(2)]
    down = normal(6, c.layers, c.hidden, c.width, scale=c.hidden**-0.5)
    gains = jnp.ones((c.layers, 2, c.width))
    return ((*heads, out, *inner, down), gains), normal(99, c.rows, c.length, c.width)


def _mixture_arguments(c: Config) -> tuple:
    up = normal(0, c.layers, c.experts, c.width, c.hidden, scale=c.width**-0.5)
    down = normal(1, c.layers, c.experts, c.hidden, c.width, scale=c.hidden**-0.5)
    router = normal(2, c.layers, c.width, c.experts, scale=c.width**-0.5)
    return ((up, down), router), normal(99, c.rows, c.length, c.width)


def _word_loss_arguments(c: Config) -> tuple:
    head = normal(0, c.width, c.words, scale=c.width**-0.5)
    return head, normal(99, c.rows, c.length, c.width), integers(98, c.words, c.rows, c.length)


# ---- plans


def _varying(x):
    """Returns what all devices have, as what each has for itself: so its gradient is a sum over the devices."""
    return jax.tree.map(lambda each: lax.pcast(each, AXIS, to="varying"), x)


_sum = partial(lax.psum, axis_name=AXIS)
_mean = partial(lax.pmean, axis_name=AXIS)


def _gathered(weight):
    """Returns a matrix whole, of which each device has rows."""
    return lax.all_gather(weight, AXIS, tiled=True)


def _gathers_again(layer):
    """Returns a layer that keeps everything for the way back but what it gathers."""
    return jax.checkpoint(layer, policy=lambda primitive, *_, **__: primitive is not all_gather_p)


_BY_HEADS = (*[P(None, None, AXIS)] * 3, P(None, AXIS), *[P(None, None, AXIS)] * 2, P(None, AXIS))
_BY_ROWS = (P(None, AXIS),) * 7
_BY_EXPERT = (P(None, AXIS),) * 2

PLANS = (
    Plan(
        "data parallel",
        "data",
        transformer,
        _transformer_arguments,
        Hooks(whole=_varying, summed=_mean),
        (((P(),) * 7, P()), P(AXIS)),
        ((P(),) * 7, P()),
    ),
    Plan(
        "ZeRO-3",
        "zero3",
        transformer,
        _transformer_arguments,
        Hooks(weight=_gathered, whole=_varying, summed=_mean, checkpointed=_gathers_again),
        ((_BY_ROWS, P()), P(AXIS)),
        (_BY_ROWS, P()),
    ),
    Plan(
        "Megatron",
        "megatron",
        transformer,
        _transformer_arguments,
        Hooks(enter=_varying, leave=_sum),
        ((_BY_HEADS, P()), P()),
        (_BY_HEADS, P()),
        is_one_sequence=True,
    ),
    Plan(
        "Megatron, sequence parallel",
        "megatron+sequence",
        transformer,
        _transformer_arguments,
        Hooks(
            enter=partial(lax.all_gather, axis_name=AXIS, axis=1, tiled=True),
            leave=partial(lax.psum_scatter, axis_name=AXIS, scatter_dimension=1, tiled=True),
            whole=_varying,
            summed=_mean,
        ),
        ((_BY_HEADS, P()), P(None, AXIS)),
        (_BY_HEADS, P()),
        is_one_sequence=True,
    ),
    Plan(
        "expert parallel",
        "expert+data",
        mixture,
        _mixture_arguments,
        Hooks(
            whole=_varying,
            summed=_mean,
            sent=partial(lax.all_to_all, axis_name=AXIS, split_axis=0, concat_axis=1, tiled=True),
            returned=partial(lax.all_to_all, axis_name=AXIS, split_axis=1, concat_axis=0, tiled=True),
        ),
        ((_BY_EXPERT, P()), P(AXIS)),
        (_BY_EXPERT, P()),
    ),
    Plan(
        "vocabulary parallel loss",
        "megatron",
        word_loss,
        _word_loss_arguments,
        Hooks(enter=_varying, summed=_sum),
        (P(None, AXIS), P(), P()),
        (P(None, AXIS), P()),
        is_one_sequence=True,
    ),
)
