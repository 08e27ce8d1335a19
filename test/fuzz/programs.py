# SPDX-License-Identifier: Apache-2.0
"""Random sharded JAX programs as data: `recipe(seed)` draws one, `Program(recipe)` is the function with its arguments.

A recipe is plain data (JSON), so that it can be stored, sent to a worker and reduced:

    {"seed": 7, "mesh": {"x": 4, "y": 2}, "device_order": null,
     "inputs": [{"name": "v0", "shape": [8, 16], "dtype": "float32", "spec": ["x", null]}],     spec null: left open
     "steps": [{"name": "v1", "op": "transpose", "args": ["v0"], "options": {"axes": [1, 0]}, "kind": [[16, 8],
     "float32"]}], "outputs": [{"value": "v1", "spec": null}], "donate": ["v0"], "grad": false}

An input with a `spread` holds whole numbers from -spread to spread without 0; other inputs hold those from -2 to 2.
Steps with a body (loops, branches, calls) have further steps in `options`; these may use values of the steps before.

A value is a whole number as long as it is exact (`Kind.is_exact`): any order of a sum gives the same bits. Operations
that jump (comparisons, sorting, remainders, and with gradients also operations with kinks) use only exact values, so
that rounding errors stay small elsewhere.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

UNCONSTRAINED = "?"  # in the spec of a constraint: the dimension is left to propagation
FLOATS, NUMBERS = ("float32", "bfloat16"), ("float32", "bfloat16", "int32", "complex64")
MESHES = ({"x": 2, "y": 2, "z": 2}, {"x": 4, "y": 2}, {"x": 8}, {"x": 2, "y": 4}, {"x": 3, "y": 2}, {"x": 2, "y": 3})
WIDE_MESHES = (
    {"x": 4}, {"x": 2, "y": 2}, {"x": 3, "y": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 4, "y": 2}, {"x": 2, "y": 4},
    {"x": 8}, {"x": 3, "y": 4}, {"x": 2, "y": 2, "z": 3}, {"x": 4, "y": 4}, {"x": 2, "y": 8},
    {"x": 2, "y": 4, "z": 2}, {"x": 16},
)  # fmt: skip
_MOST_EXACT = {"float32": 2.0**22, "bfloat16": 2.0**7, "complex64": 2.0**20}
_TAME = 64.0  # larger values are reduced before they are used again
_MOST_ELEMENTS = 8192
# Their gradients jump where two values are nearly equal.
_KINKED = frozenset(["maximum", "minimum", "abs", "relu", "max", "min", "sort", "top_k", "reduce_window"])

Spec = list  # per dimension: None, an axis, a list of axes, or UNCONSTRAINED


@dataclass(frozen=True)
class Kind:
    """The known facts about a value. bound: of its magnitude. is_exact: whether all its entries are small integers."""

    shape: tuple[int, ...]
    dtype: str
    bound: float = 0.0
    is_exact: bool = True

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def type(self) -> tuple[tuple[int, ...], str]:
        return self.shape, self.dtype


# ---------------------------------------------------------------------------------------------------------------------
# Operations: the draw of each operation, and the function that computes it
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Op:
    """One operation of recipes.

    Attributes:
      draw: (writer) -> (names of arguments, options), None if it fits no value there is.
      apply: (run, options, *arguments) -> value.
      bound: (kinds of the arguments, shape of the result) -> bound of the result.
      keeps_exact: whether whole numbers give whole numbers.
      weight: how often it is drawn.
      group: which programs it is drawn for, see `Writer.groups`; seeds of other groups give the recipes that they
        always gave.
    """

    draw: Callable[[Writer], tuple[list[str], dict] | None]
    apply: Callable[..., Any]
    bound: Callable[[list[Kind], tuple[int, ...]], float] = lambda kinds, shape: max(kind.bound for kind in kinds)
    keeps_exact: bool = True
    weight: float = 1.0
    has_gradient: bool = True
    group: str = "base"


OPS: dict[str, Op] = {}


def op(name: str, draw, **properties):
    """Registers a function (run, options, *arguments) as an operation."""

    def register(function):
        OPS[name] = Op(draw, function, **properties)
        return function

    return register


def any_of(*dtypes: str, rank: int = 0, exact: bool = False, divisible: bool = False):
    """Returns a draw of one value of one of these dtypes, of at least this rank."""

    def draw(writer: Writer):
        name = writer.pick(lambda kind: kind.dtype in dtypes and kind.rank >= rank and (kind.is_exact or not exact))
        return name and ([name], {})

    return draw


def two_alike(*dtypes: str, exact: bool = False):
    """Returns a draw of two values of the same shape and dtype."""

    def draw(writer: Writer):
        first = writer.pick(lambda kind: kind.dtype in dtypes and (kind.is_exact or not exact))
        if not first:
            return None
        kind = writer.kinds[first]
        second = writer.pick(lambda other: other.type == kind.type and (other.is_exact or not exact))
        return None if first == second else ([first, second], {})  # XLA makes x - x a 0 in a layout of its choice

    return draw


def _sum(kinds, shape):
    return sum(kind.bound for kind in kinds)


def _product(kinds, shape):
    return 2 * math.prod(kind.bound for kind in kinds)


def _reduced(kinds, shape):
    return kinds[0].bound * max(1, kinds[0].size // max(1, math.prod(shape)))


def _one(kinds, shape):
    return 1.0


# Elementwise

for _name, _function, _dtypes, _bound, _exact in (
    ("add", jnp.add, NUMBERS, _sum, True),
    ("subtract", jnp.subtract, NUMBERS, _sum, True),
    ("multiply", jnp.multiply, NUMBERS, _product, True),
    ("maximum", jnp.maximum, ("float32", "bfloat16", "int32"), max, True),
    ("minimum", jnp.minimum, ("float32", "bfloat16", "int32"), max, True),
    ("logical_xor", jnp.logical_xor, ("bool",), _one, True),
    ("logical_and", jnp.logical_and, ("bool",), _one, True),
    ("divide", lambda a, b: a / (1 + b * b), FLOATS, _sum, False),
):
    _bound = (lambda kinds, shape: max(kind.bound for kind in kinds)) if _bound is max else _bound
    op(_name, two_alike(*_dtypes), bound=_bound, keeps_exact=_exact, weight=2.0)(
        lambda run, options, a, b, function=_function: function(a, b)
    )

for _name, _function, _dtypes, _bound, _exact in (
    ("negate", jnp.negative, NUMBERS, _sum, True),
    ("abs", jnp.abs, ("float32", "bfloat16", "int32"), _sum, True),
    ("square", jnp.square, NUMBERS, lambda kinds, shape: 2 * kinds[0].bound ** 2, True),
    ("relu", jax.nn.relu, FLOATS, _sum, True),
    ("tanh", jnp.tanh, FLOATS, _one, False),
    ("sin", jnp.sin, FLOATS, _one, False),
    ("logistic", jax.nn.sigmoid, FLOATS, _one, False),
    ("erf", lax.erf, FLOATS, _one, False),
    ("exp", lambda a: jnp.exp(-a * a), FLOATS, _one, False),
    ("rsqrt", lambda a: lax.rsqrt(1 + a * a), FLOATS, _one, False),
    ("not", jnp.logical_not, ("bool",), _one, True),
    ("conj", jnp.conj, ("complex64",), _sum, True),
    ("real", jnp.real, ("complex64",), _sum, True),
    ("imag", jnp.imag, ("complex64",), _sum, True),
    ("barrier", lax.optimization_barrier, (*NUMBERS, "bool"), _sum, True),
    ("stop_gradient", lax.stop_gradient, NUMBERS, _sum, True),
    ("gelu", jax.nn.gelu, FLOATS, _sum, False),
):
    op(_name, any_of(*_dtypes), bound=_bound, keeps_exact=_exact)(
        lambda run, options, a, function=_function: function(a)
    )


@op("wrap", any_of("float32", "bfloat16", "int32", exact=True), bound=lambda kinds, shape: 6.0, weight=0.3)
def _(run, options, a):
    return jnp.remainder(a, 7)


@op("wrap_complex", any_of("complex64", exact=True), bound=lambda kinds, shape: 12.0, weight=0.1)
def _(run, options, a):
    return lax.complex(jnp.remainder(a.real, 7), jnp.remainder(a.imag, 7))


@op("shrink_complex", any_of("complex64"), bound=_one, keeps_exact=False, weight=0.1)
def _(run, options, a):
    return a / (1 + a.real**2 + a.imag**2)


@op("to_complex", two_alike("float32"), bound=_sum, weight=0.6)
def _(run, options, a, b):
    return lax.complex(a, b)


@op("less", two_alike("float32", "bfloat16", "int32", exact=True), bound=_one)
def _(run, options, a, b):
    return a < b


def _draw_convert(writer: Writer):
    drawn = any_of("float32", "bfloat16", "int32", "bool")(writer)
    if not drawn:
        return None
    kind = writer.kinds[drawn[0][0]]
    is_small = kind.is_exact and kind.dtype != "int32" and kind.bound < 100
    choices = FLOATS + (("int32",) if kind.is_exact else ()) if is_small else ("float32", "bfloat16")
    if kind.dtype == "int32":
        return None  # magnitudes of integers are unknown; see wrap_integer
    return drawn[0], {"dtype": writer.random.choice([each for each in choices if each != kind.dtype])}


@op("convert", _draw_convert)
def _(run, options, a):
    return a.astype(options["dtype"])


@op("wrap_integer", any_of("int32"), bound=lambda kinds, shape: 10.0)
def _(run, options, a):
    return jnp.remainder(a, 11).astype(jnp.float32)


def _draw_where(writer: Writer):
    pair = two_alike(*NUMBERS)(writer)
    shape = writer.kinds[pair[0][0]].shape if pair else None
    mask = pair and writer.pick(lambda kind: kind.dtype == "bool" and kind.shape in (shape, ()))
    return mask and ([mask, *pair[0]], {})


@op("where", _draw_where, weight=2.0)
def _(run, options, mask, a, b):
    return jnp.where(mask, a, b)


# Shapes


def _with_axes(writer: Writer, dtypes=(*NUMBERS, "bool"), exact=False):
    drawn = any_of(*dtypes, rank=1, exact=exact)(writer)
    return drawn and (drawn[0], writer.kinds[drawn[0][0]])


def _draw_transpose(writer: Writer):
    drawn = any_of(*NUMBERS, "bool", rank=2)(writer)
    if not drawn:
        return None
    axes = list(range(writer.kinds[drawn[0][0]].rank))
    writer.random.shuffle(axes)
    return drawn[0], {"axes": axes}


@op("transpose", _draw_transpose, weight=2.0)
def _(run, options, a):
    return jnp.transpose(a, options["axes"])


def _draw_reshape(writer: Writer):
    drawn = any_of(*NUMBERS, "bool", rank=1)(writer)
    if not drawn:
        return None
    shape = list(writer.kinds[drawn[0][0]].shape)
    for _ in range(writer.random.randint(1, 2)):
        if len(shape) > 1 and (len(shape) > 3 or writer.random.random() < 0.5):
            at = writer.random.randrange(len(shape) - 1)
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        else:
            at = writer.random.randrange(len(shape))
            divisors = [d for d in range(2, shape[at]) if shape[at] % d == 0]
            if divisors:
                part = writer.random.choice(divisors)
                shape[at : at + 1] = [part, shape[at] // part]
    return drawn[0], {"shape": shape}


@op("reshape", _draw_reshape, weight=3.0)
def _(run, options, a):
    return jnp.reshape(a, options["shape"])


def _draw_broadcast(writer: Writer):
    name = writer.pick(lambda kind: kind.rank < 4 and kind.size <= 512)
    if not name:
        return None
    target = writer.pick(lambda kind: 0 < kind.rank <= 4)
    kind = writer.kinds[name]
    if target and _broadcasts(kind.shape, writer.kinds[target].shape) and writer.random.random() < 0.7:
        return [name], {"shape": list(writer.kinds[target].shape)}
    return [name], {"shape": [writer.random.choice(writer.sizes), *kind.shape]}


def _broadcasts(shape, target) -> bool:
    padded = (1,) * (len(target) - len(shape)) + tuple(shape)
    return len(shape) <= len(target) and all(a in (1, b) for a, b in zip(padded, target))


@op("broadcast", _draw_broadcast, weight=2.0)
def _(run, options, a):
    return jnp.broadcast_to(a, options["shape"])


def _draw_dim(writer: Writer):
    drawn = _with_axes(writer)
    return drawn and (drawn[0], {"axis": writer.random.randrange(drawn[1].rank)})


@op("expand_dims", _draw_dim)
def _(run, options, a):
    return jnp.expand_dims(a, options["axis"])


@op("reverse", _draw_dim, weight=0.5)
def _(run, options, a):
    return jnp.flip(a, options["axis"])


@op("roll", _draw_dim, weight=0.5)
def _(run, options, a):
    return jnp.roll(a, 1, options["axis"])


def _draw_concatenate(writer: Writer):
    drawn = _draw_dim(writer)
    if not drawn:
        return None
    (first,), options = drawn
    kind, axis = writer.kinds[first], options["axis"]

    def fits(other: Kind) -> bool:
        rest = [(a, b) for dim, (a, b) in enumerate(zip(kind.shape, other.shape)) if dim != axis]
        return other.dtype == kind.dtype and other.rank == kind.rank and all(a == b for a, b in rest)

    others = [writer.pick(fits) for _ in range(writer.random.randint(1, 2))]
    return [first, *others], options


@op("concatenate", _draw_concatenate, weight=2.0)
def _(run, options, *arrays):
    return jnp.concatenate(arrays, options["axis"])


def _draw_slice(writer: Writer):
    drawn = _draw_dim(writer)
    if not drawn:
        return None
    size = writer.kinds[drawn[0][0]].shape[drawn[1]["axis"]]
    start = writer.random.choice([0, size // 2, writer.random.randrange(size)])
    stop = writer.random.choice([size, max(start + 1, size // 2), min(size, start + 1)])
    return drawn[0], {**drawn[1], "start": start, "stop": stop, "stride": writer.random.choice([1, 1, 1, 2])}


@op("slice", _draw_slice, weight=2.0)
def _(run, options, a):
    return lax.slice_in_dim(a, options["start"], options["stop"], options["stride"], options["axis"])


def _draw_pad(writer: Writer):
    drawn = _draw_dim(writer)
    return drawn and (
        drawn[0],
        {**drawn[1], "low": writer.random.choice([0, 1, 2]), "high": writer.random.choice([0, 1, 4])},
    )


@op("pad", _draw_pad)
def _(run, options, a):
    widths = [(0, 0, 0)] * a.ndim
    widths[options["axis"]] = (options["low"], options["high"], 0)
    return lax.pad(a, jnp.zeros((), a.dtype), widths)


def _draw_offset(writer: Writer):
    drawn = _draw_dim(writer)
    offset = drawn and writer.pick(lambda kind: kind.type == ((), "int32"))
    if not offset:
        return None
    size = writer.kinds[drawn[0][0]].shape[drawn[1]["axis"]]
    return [drawn[0][0], offset], {**drawn[1], "size": max(1, size // writer.random.choice([1, 2, 4]))}


@op("dynamic_slice", _draw_offset)
def _(run, options, a, offset):
    return lax.dynamic_slice_in_dim(a, offset % 8, options["size"], options["axis"])


@op("dynamic_update_slice", _draw_offset, weight=2.0)
def _(run, options, a, offset):
    part = lax.slice_in_dim(a, 0, options["size"], axis=options["axis"])
    return lax.dynamic_update_slice_in_dim(a, part, offset % 8, options["axis"])


# Reductions


def _draw_reduction(*dtypes, exact=False):
    def draw(writer: Writer):
        drawn = _with_axes(writer, dtypes, exact)
        if not drawn:
            return None
        count = writer.random.choice([1, 1, 1, drawn[1].rank])
        axes = sorted(writer.random.sample(range(drawn[1].rank), count))
        return drawn[0], {"axes": axes, "keepdims": writer.random.random() < 0.4}

    return draw


for _name, _function, _dtypes, _bound, _exact in (
    ("sum", jnp.sum, NUMBERS, _reduced, True),
    ("max", jnp.max, ("float32", "bfloat16", "int32"), _sum, True),
    ("min", jnp.min, ("float32", "int32"), _sum, True),
    ("any", jnp.any, ("bool",), _one, True),
    ("mean", jnp.mean, FLOATS, _sum, False),
    ("logsumexp", jax.nn.logsumexp, ("float32",), lambda kinds, shape: kinds[0].bound + 10, False),
):
    op(_name, _draw_reduction(*_dtypes), bound=_bound, keeps_exact=_exact)(
        lambda run, options, a, function=_function: function(
            a, axis=tuple(options["axes"]), keepdims=options["keepdims"]
        )
    )


def _draw_exact_dim(writer: Writer):
    drawn = _with_axes(writer, ("float32", "int32"), exact=True)
    return drawn and (drawn[0], {"axis": writer.random.randrange(drawn[1].rank)})


@op("argmax", _draw_exact_dim, bound=_one)
def _(run, options, a):
    return jnp.argmax(a, options["axis"]).astype(jnp.int32)


@op("sort", _draw_exact_dim)
def _(run, options, a):
    return jnp.sort(a, options["axis"])


@op("argsort", _draw_exact_dim, bound=_one, weight=0.5)
def _(run, options, a):
    return jnp.argsort(a, options["axis"]).astype(jnp.int32)


@op("top_k", any_of("float32", rank=1, exact=True), weight=0.5)
def _(run, options, a):
    return lax.top_k(a, max(1, a.shape[-1] // 2))[0]


def _draw_cumsum(writer: Writer):
    drawn = _with_axes(writer, ("float32", "int32"))
    return drawn and (drawn[0], {"axis": writer.random.randrange(drawn[1].rank)})


@op("cumsum", _draw_cumsum, bound=lambda kinds, shape: kinds[0].bound * max(shape), weight=1.0)
def _(run, options, a):
    return jnp.cumsum(a, options["axis"])


@op("softmax", _draw_cumsum, bound=_one, keeps_exact=False)
def _(run, options, a):
    return jax.nn.softmax(a.astype(jnp.float32), options["axis"])


@op("reduce_window", any_of("float32", rank=2), weight=0.5)
def _(run, options, a):
    window = (1,) * (a.ndim - 2) + (min(2, a.shape[-2]), min(2, a.shape[-1]))
    return lax.reduce_window(a, -jnp.inf, lax.max, window, window, "SAME")


@op(
    "fft",
    any_of("complex64", rank=1),
    bound=lambda kinds, shape: kinds[0].bound * shape[-1],
    keeps_exact=False,
    weight=0.5,
)
def _(run, options, a):
    return jnp.fft.fft(a, axis=-1)


# Products


def _draw_dot(writer: Writer):
    drawn = _with_axes(writer, NUMBERS)
    if not drawn:
        return None
    first, kind = drawn[0][0], drawn[1]
    second = writer.pick(lambda other: other.dtype == kind.dtype and bool(set(other.shape) & set(kind.shape)))
    other = writer.kinds[second]
    pairs = [(i, j) for i, a in enumerate(kind.shape) for j, b in enumerate(other.shape) if a == b]
    writer.random.shuffle(pairs)
    chosen: list[tuple[int, int]] = []
    for i, j in pairs:
        if i not in [a for a, _ in chosen] and j not in [b for _, b in chosen]:
            chosen.append((i, j))
    batch = chosen[1:] if writer.random.random() < 0.5 else []
    return [first, second], {"contract": list(chosen[0]), "batch": [list(each) for each in batch]}


def _contracted(kinds, shape):
    return 2 * kinds[0].bound * kinds[1].bound * max(*kinds[0].shape, *kinds[1].shape)


@op("dot", _draw_dot, bound=_contracted, weight=5.0)
def _(run, options, a, b):
    i, j = options["contract"]
    batch = [[pair[side] for pair in options["batch"]] for side in (0, 1)]
    return lax.dot_general(a, b, (([i], [j]), tuple(batch)))


def _draw_conv(writer: Writer):
    name = writer.pick(lambda kind: kind.dtype == "float32" and kind.rank == 3 and min(kind.shape) > 1)
    return name and ([name], {"outputs": writer.random.choice([2, 4, 8]), "stride": writer.random.choice([1, 2])})


@op("conv", _draw_conv, bound=lambda kinds, shape: kinds[0].bound * kinds[0].shape[1] * 6, weight=1.5)
def _(run, options, a):
    weights = (
        jnp.arange(options["outputs"] * a.shape[1] * 3, dtype=a.dtype).reshape(options["outputs"], a.shape[1], 3) % 3
        - 1
    )
    return lax.conv_general_dilated(a, weights, (options["stride"],), "SAME")


# Gathers


def _draw_take(writer: Writer):
    drawn = _draw_dim(writer)
    indices = drawn and writer.pick(lambda kind: kind.dtype == "int32" and kind.rank in (1, 2) and kind.size <= 64)
    return indices and ([drawn[0][0], indices], drawn[1])


@op("take", _draw_take, bound=lambda kinds, shape: kinds[0].bound, weight=1.5)
def _(run, options, a, indices):
    size = a.shape[options["axis"]]
    return jnp.take(a, jnp.remainder(indices, size), axis=options["axis"], mode="clip")


def _draw_scatter(writer: Writer):
    name = writer.pick(lambda kind: kind.dtype in ("float32", "int32") and kind.rank >= 1)
    indices = name and writer.pick(lambda kind: kind.dtype == "int32" and kind.rank == 1)
    return indices and ([name, indices], {})


@op("scatter_add", _draw_scatter, bound=lambda kinds, shape: kinds[0].bound * (1 + kinds[1].size))
def _(run, options, a, indices):
    rows = jnp.remainder(indices, a.shape[0])
    return a.at[rows].add(jnp.ones((indices.shape[0], *a.shape[1:]), a.dtype))


@op("iota", any_of("float32", "int32", rank=1), bound=lambda kinds, shape: kinds[0].bound + shape[-1], weight=0.7)
def _(run, options, a):
    return a + lax.broadcasted_iota(a.dtype, a.shape, a.ndim - 1)


@op("one_hot", any_of("int32", rank=1), bound=_one, weight=0.7)
def _(run, options, a):
    return jax.nn.one_hot(jnp.remainder(a, 8), 8)


@op("random_bits", any_of("int32", rank=1), bound=_one, weight=0.3)
def _(run, options, a):
    return jax.random.randint(jax.random.key(jnp.sum(a)), a.shape, -4, 4, dtype=a.dtype)


# Shardings


def _draw_constraint(writer: Writer):
    name = writer.pick(lambda kind: kind.rank > 0)
    if not name:
        return None
    is_uneven = writer.random.random() < 0.1
    return [name], {"spec": writer.spec(writer.kinds[name].shape, uneven=is_uneven, unconstrained=0.12)}


@op("constraint", _draw_constraint, weight=16.0)
def _(run, options, a):
    return run.constrained(a, options["spec"])


def _draw_island(writer: Writer):
    name = writer.pick(lambda kind: kind.rank > 0 and kind.dtype in ("float32", "int32"))
    if not name or writer.depth_in("vmap"):
        return None
    spec = writer.spec(writer.kinds[name].shape)
    used = [axis for entry in spec for axis in _axes(entry)]
    free = [axis for axis in writer.mesh if axis not in used]
    does = writer.random.choice(["double", "psum" if used else "double", "gather" if used else "double"])
    return [name], {
        "spec": spec,
        "does": does,
        "axis": used[-1] if used else None,
        "open": writer.random.choice([[], free]),
    }


@op("island", _draw_island, bound=lambda kinds, shape: kinds[0].bound * 16, weight=1.5)
def _(run, options, a):
    spec, axis = options["spec"], options["axis"]
    if run.is_unsharded:
        return _island_on_one_device(run, options, a)
    without = [[each for each in _axes(entry) if each != axis] for entry in spec]

    def body(tile):
        if options["does"] == "double":
            return tile * 2
        if options["does"] == "psum":
            return lax.psum(tile, axis)
        return lax.all_gather(
            tile, axis, axis=next(dim for dim, entry in enumerate(spec) if axis in _axes(entry)), tiled=True
        )

    out = spec if options["does"] == "double" else without
    names = set(run.mesh.axis_names) - set(options["open"])
    return jax.shard_map(
        body, mesh=run.mesh, in_specs=_partition(spec), out_specs=_partition(out), axis_names=names, check_vma=False
    )(a)


def _island_on_one_device(run, options, a):
    """Computes what an island does, without a mesh: XLA would partition the rest of the program, too."""
    if options["does"] == "double":
        return a * 2
    if options["does"] == "gather":
        return a
    dim, axes = next((dim, _axes(each)) for dim, each in enumerate(options["spec"]) if options["axis"] in _axes(each))
    counts = [run.mesh.shape[each] for each in axes]
    tiles = a.reshape(*a.shape[:dim], *counts, -1, *a.shape[dim + 1 :])
    summed = jnp.sum(tiles, axis=dim + axes.index(options["axis"]), dtype=a.dtype)
    return summed.reshape(*a.shape[:dim], -1, *a.shape[dim + 1 :])


# Control flow. Bodies: {"params": names, "steps": steps, "results": names, "bound": of the results, "exact": see
# `Kind`}


def _draw_loop(trips: Sequence[int]):
    def draw(writer: Writer):
        args = writer.several(writer.random.choice([1, 1, 2, 2, 3]), lambda kind: kind.rank > 0)
        if not args or writer.depth >= 2:
            return None
        is_exact = writer.random.random() < 0.5
        body = writer.body(args, is_loop=True, is_exact=is_exact)
        return args, {"body": body, "trips": writer.random.choice(trips), "take": writer.random.randrange(len(args))}

    return draw


@op("fori", _draw_loop((1, 2, 3)), weight=1.5)
def _(run, options, *carry):
    def body(_, carry):
        return run.body(options["body"], carry)

    return lax.fori_loop(0, options["trips"], body, tuple(carry))[options["take"]]


@op("while", _draw_loop((1, 2, 3)), weight=1.0, has_gradient=False)
def _(run, options, *carry):
    def body(state):
        return state[0] + 1, run.body(options["body"], state[1])

    return lax.while_loop(lambda state: state[0] < options["trips"], body, (jnp.int32(0), tuple(carry)))[1][
        options["take"]
    ]


def _draw_scan(writer: Writer):
    args = writer.several(writer.random.choice([1, 1, 2]), lambda kind: kind.rank > 0)
    scanned = writer.pick(lambda kind: kind.rank > 1 and kind.shape[0] <= 8)
    if not args or not scanned or writer.depth >= 2:
        return None
    kind = writer.kinds[scanned]
    body = writer.body(
        args, is_loop=True, is_exact=writer.random.random() < 0.5, slices=[replace(kind, shape=kind.shape[1:])]
    )
    return [*args, scanned], {
        "body": body,
        "reverse": writer.random.random() < 0.3,
        "take": writer.random.randrange(len(args)),
        "stacks": writer.random.random() < 0.4,
    }


@op("scan", _draw_scan, weight=2.5)
def _(run, options, *args):
    *carry, scanned = args

    def body(carry, element):
        results = run.body(options["body"], (*carry, element))
        return results, results[options["take"]]

    last, stacked = lax.scan(body, tuple(carry), scanned, reverse=options["reverse"])
    return stacked if options["stacks"] else last[options["take"]]


def _draw_state(writer: Writer):
    name = writer.pick(lambda kind: kind.rank > 1 and kind.shape[0] <= 8)
    if not name or writer.depth >= 2:
        return None
    _, *layer = writer.kinds[name].shape
    axis = writer.random.randrange(len(layer))
    return [name], {
        "axis": axis,
        "size": max(1, layer[axis] // writer.random.choice([1, 2, 4])),
        "spec": writer.spec(layer),
        "does": writer.random.choice(["write", "write in place", "leave"]),
    }


@op("state", _draw_state, weight=1.5)
def _(run, options, a):
    """Writes a part of each layer of a stack in a loop, or leaves it as it is."""

    def written(layer, turn):
        split = run.constrained(layer, options["spec"])
        part = lax.slice_in_dim(jnp.flip(split, options["axis"]), 0, options["size"], axis=options["axis"])
        return lax.dynamic_update_slice_in_dim(layer, part, turn, options["axis"])

    def in_place(turn, stack):
        layer = lax.dynamic_index_in_dim(stack, turn, keepdims=False)
        return lax.dynamic_update_index_in_dim(stack, written(layer, turn), turn, 0)

    def one_after_another(turn, layer):
        new = written(layer, turn)
        return turn + 1, (new, layer)

    if options["does"] == "write in place":
        return lax.fori_loop(0, a.shape[0], in_place, a)
    new, same = lax.scan(one_after_another, jnp.int32(0), a)[1]
    return same if options["does"] == "leave" else new


def _draw_branches(writer: Writer):
    args = writer.several(writer.random.choice([1, 2]), lambda kind: kind.rank > 0)
    index = writer.pick(lambda kind: kind.type == ((), "int32"))
    if not args or not index or writer.depth >= 2:
        return None
    branches = [writer.body(args, is_loop=True, is_exact=True) for _ in range(writer.random.choice([2, 2, 3]))]
    return [index, *args], {"branches": branches, "take": writer.random.randrange(len(args))}


@op("switch", _draw_branches, weight=1.5)
def _(run, options, index, *args):
    branches = [lambda *operands, body=body: run.body(body, operands) for body in options["branches"]]
    if len(branches) == 2:
        results = lax.cond(index % 2 == 1, branches[1], branches[0], *args)
    else:
        results = lax.switch(jnp.remainder(index, len(branches)), branches, *args)
    return results[options["take"]]


def _draw_call(writer: Writer):
    args = writer.several(writer.random.choice([1, 2]), lambda kind: kind.rank > 0)
    if not args or writer.depth >= 2:
        return None
    shape = writer.kinds[args[0]].shape
    between = [writer.spec(shape) if writer.random.random() < 0.7 else None for _ in range(writer.random.randint(0, 2))]
    body = writer.body(args, is_loop=True, is_exact=True, captures=writer.random.random() < 0.3)
    how = writer.random.choice(["jit", "jit", "jit", "checkpoint", "custom_vjp"])
    if how == "custom_vjp" and _outer_names(body):
        how = "jit"
    return args, {"body": body, "between": between, "how": how}


@op("call", _draw_call, weight=4.0)
def _(run, options, *args):
    called = run.function(options["body"], options["how"])
    results = called(*args)
    for spec in options["between"]:
        first = results[0] if spec is None else run.constrained(results[0], spec)
        results = called(first, *results[1:])
    return results[0]


def _draw_vmap(writer: Writer):
    name = writer.pick(lambda kind: kind.rank > 1)
    if not name or writer.depth >= 2:
        return None
    kind = writer.kinds[name]
    with writer.inside("vmap"):
        body = writer.body([], is_loop=False, is_exact=kind.is_exact, slices=[replace(kind, shape=kind.shape[1:])])
    return [name], {"body": body, "spmd_axis": writer.random.choice([None, None, *writer.mesh])}


@op("vmap", _draw_vmap, weight=1.5)
def _(run, options, a):
    spmd_axis = options["spmd_axis"]
    if spmd_axis in run.axes_in(options["body"]) or a.shape[0] % (run.mesh.shape[spmd_axis] if spmd_axis else 1):
        spmd_axis = None
    return jax.vmap(lambda row: run.body(options["body"], (row,))[0], spmd_axis_name=spmd_axis)(a)


def _outer_names(body: Mapping) -> set[str]:
    """Returns the names of the values that a body uses from outside of it."""
    own, used = set(body["params"]), set(body["results"])
    for step in body["steps"]:
        used |= set(step["args"])
        own.add(step["name"])
        for inner in bodies_of(step):
            used |= _outer_names(inner)
    return used - own


def bodies_of(step: Mapping) -> list[dict]:
    """Returns the bodies of a step, such as those of a loop or of branches."""
    options = step["options"]
    return [*([options["body"]] if "body" in options else []), *options.get("branches", [])]


# ---------------------------------------------------------------------------------------------------------------------
# Drawing
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Writer:
    """Draws the steps of one recipe.

    State: `kinds` of the values in sight, in the order in which they came; `steps` of the innermost body.
    Attributes:
      groups: of operations that are drawn.
    """

    random: random.Random
    mesh: dict[str, int]
    run: Run
    has_gradient: bool
    sizes: list[int]
    kinds: dict[str, Kind] = field(default_factory=dict)
    steps: list[dict] = field(default_factory=list)
    depth: int = 0
    only_exact: bool = False
    around: tuple[str, ...] = ()
    count: int = 0
    groups: tuple[str, ...] = ("base",)

    def new_name(self) -> str:
        self.count += 1
        return f"v{self.count - 1}"

    def pick(self, fits: Callable[[Kind], bool]) -> str | None:
        """Returns the name of a random value that fits, of a newer one more often; None if none of them fits."""
        fitting = [name for name, kind in self.kinds.items() if fits(kind)]
        if not fitting:
            return None
        return self.random.choices(fitting, [1 + 3 * (i / len(fitting)) ** 2 for i in range(len(fitting))])[0]

    def several(self, count: int, fits) -> list[str]:
        found = [self.pick(fits) for _ in range(count)]
        return [] if None in found else found

    def spec(self, shape: Sequence[int], *, uneven: bool = False, unconstrained: float = 0.0) -> Spec:
        """Returns a random spec of the mesh's axes; without `uneven`, one that divides the shape."""
        axes = list(self.mesh)
        self.random.shuffle(axes)
        dims: list[list[str]] = [[] for _ in shape]
        for axis in axes:
            if self.random.random() < 0.2:
                continue
            at = self.random.randrange(len(shape))
            shards = math.prod(self.mesh[each] for each in [*dims[at], axis])
            if shape[at] % shards == 0 or uneven:  # some devices may have no element
                dims[at].append(axis)
        spec = [None if not each else each[0] if len(each) == 1 else each for each in dims]
        return [UNCONSTRAINED if each is None and self.random.random() < unconstrained else each for each in spec]

    def depth_in(self, what: str) -> int:
        return self.around.count(what)

    @contextlib.contextmanager
    def inside(self, what: str) -> Iterator[None]:
        before, self.around = self.around, (*self.around, what)
        yield
        self.around = before

    def step(self) -> None:
        """Adds one random step."""
        names = [
            name
            for name, each in OPS.items()
            if each.group in self.groups and (each.has_gradient or not self.has_gradient)
        ]
        for _ in range(20):
            name = self.random.choices(names, [OPS[each].weight for each in names])[0]
            drawn = OPS[name].draw(self)
            if drawn and self.add(name, *drawn):
                return

    def add(self, name: str, args: list[str], options: dict) -> str | None:
        """Adds a step and returns its value; None if the value is too large, or not exact where it has to be."""
        args = [self._tamed(each) for each in args]
        kinds = [self.kinds[each] for each in args]
        if self.has_gradient and name in _KINKED and not all(kind.is_exact for kind in kinds):
            return None
        step = {"name": self.new_name(), "op": name, "args": args, "options": options}
        environment = {each: jax.ShapeDtypeStruct(kind.shape, kind.dtype) for each, kind in self.kinds.items()}
        try:
            result = jax.eval_shape(lambda values: self.run.apply(step, values), environment)
        except (TypeError, ValueError, ZeroDivisionError):
            return None
        dtype = str(result.dtype)
        kind = Kind(tuple(result.shape), dtype, *self._accuracy(OPS[name], kinds, tuple(result.shape), dtype, options))
        if kind.size > _MOST_ELEMENTS or kind.size == 0 or kind.rank > 5 or (self.only_exact and not kind.is_exact):
            return None
        self.kinds[step["name"]] = kind
        self.steps.append({**step, "kind": [list(kind.shape), dtype]})
        return step["name"]

    def _accuracy(
        self, op: Op, kinds: list[Kind], shape: tuple[int, ...], dtype: str, options: dict
    ) -> tuple[float, bool]:
        if dtype in ("int32", "bool"):
            return 1.0, True
        bodies = bodies_of({"options": options})
        bound = max([op.bound(kinds, shape), *(body["bound"] for body in bodies)])
        is_exact = op.keeps_exact and all(kind.is_exact for kind in kinds) and all(body["exact"] for body in bodies)
        return bound, is_exact and bound <= _MOST_EXACT[dtype]

    def _tamed(self, name: str) -> str:
        kind = self.kinds[name]
        if kind.bound <= _TAME:
            return name
        return self._add_quietly(_taming(kind), name)

    def _add_quietly(self, taming: str, name: str) -> str:
        kind = self.kinds[name]
        new = self.new_name()
        bound = {"wrap": 6.0, "wrap_complex": 12.0}.get(taming, 1.0)
        self.kinds[new] = replace(kind, bound=bound)
        self.steps.append(
            {"name": new, "op": taming, "args": [name], "options": {}, "kind": [list(kind.shape), kind.dtype]}
        )
        return new

    def body(
        self, args: list[str], *, is_loop: bool, is_exact: bool, slices: Sequence[Kind] = (), captures: bool = True
    ) -> dict:
        """Returns a body with a parameter for each argument and slice.

        Args:
          is_loop: whether its results have the types of the arguments; else it has one result of any type.
          is_exact: whether parameters count as exact where the arguments are, and everything in it stays so.
        """
        outer = replace(self)
        kinds = [*(self.kinds[name] for name in args), *slices]
        is_exact = is_exact and all(kind.is_exact for kind in kinds)
        params = [self.new_name() for _ in kinds]
        self.kinds = dict(self.kinds) if captures else {}
        if is_exact:
            self.kinds = {name: kind for name, kind in self.kinds.items() if kind.is_exact}
        for name, kind in zip(params, kinds):
            self.kinds[name] = replace(
                kind, bound=max(kind.bound, 12.0), is_exact=is_exact or kind.dtype in ("int32", "bool")
            )
        self.steps, self.depth, self.only_exact = [], self.depth + 1, is_exact or outer.only_exact
        for _ in range(self.random.randint(1, 4)):
            self.step()
        wanted = [self.kinds[name] for name in params[: len(args)]] if is_loop else [None]
        results = [self._result(kind, params) for kind in wanted]
        accuracy = {"bound": max(self.kinds[name].bound for name in results), "exact": is_exact}
        body = {"params": params, "steps": self.steps, "results": results, **accuracy}
        self.kinds, self.steps, self.depth, self.only_exact = outer.kinds, outer.steps, outer.depth, outer.only_exact
        return body

    def _result(self, wanted: Kind | None, params: list[str]) -> str:
        own = [*params, *(step["name"] for step in self.steps)]
        fitting = [
            name for name in own if name in self.kinds and (wanted is None or self.kinds[name].type == wanted.type)
        ]
        made = [name for name in fitting if name not in params]
        name = self.random.choice(made if made and self.random.random() < 0.8 else fitting)
        if wanted is None or self.kinds[name].bound <= wanted.bound:
            return name
        return (
            self._tamed(name) if self.kinds[name].bound > _TAME else self._add_quietly(_taming(self.kinds[name]), name)
        )


def _taming(kind: Kind) -> str:
    if kind.dtype == "complex64":
        return "wrap_complex" if kind.is_exact else "shrink_complex"
    return "wrap" if kind.is_exact else "tanh"


def recipe(seed: int, is_wide: bool = False) -> dict:
    """Returns the random program of a seed, on 6 or 8 devices; if it is wide, another one on 4 to 16."""
    rng = random.Random(seed)
    mesh = dict(rng.choice(WIDE_MESHES if is_wide else MESHES[:4] * 2 + MESHES))
    order = rng.sample(range(math.prod(mesh.values())), math.prod(mesh.values())) if rng.random() < 0.1 else None
    has_gradient = rng.random() < 0.3
    is_even = rng.random() < 0.8
    shards = math.prod(mesh.values())
    base = [6, 12, 18] if shards == 6 else [8, 16, 24] if shards <= 8 else [shards, 2 * shards, 3 * shards]
    sizes = [
        rng.choice([*base, base[0], base[1], shards // 2 if is_even else rng.choice([5, 7, 10])]) for _ in range(3)
    ]
    outline = {"seed": seed, "mesh": mesh, "device_order": order}
    writer = Writer(rng, mesh, Run(outline, is_abstract=True), has_gradient, sizes)
    inputs = [_draw_input(writer) for _ in range(rng.randint(2, 4))]
    if rng.random() < 0.7:
        name = writer.new_name()
        writer.kinds[name] = Kind((), "int32", 8.0)
        inputs.append({"name": name, "shape": [], "dtype": "int32", "spec": None})
    for _ in range(rng.randint(3, 11)):
        writer.step()
    outputs = _draw_outputs(writer)
    donated = [each["name"] for each in inputs if rng.random() < 0.1 and each["shape"]]
    return {
        **outline,
        "inputs": inputs,
        "steps": writer.steps,
        "outputs": outputs,
        "donate": donated,
        "grad": has_gradient,
    }


def _draw_input(writer: Writer) -> dict:
    rng = writer.random
    shape = [rng.choice(writer.sizes) for _ in range(rng.choice([1, 2, 2, 2, 3, 3]))]
    while math.prod(shape) > _MOST_ELEMENTS:
        shape.pop()
    dtype = rng.choice(["float32"] * 6 + ["int32", "int32", "bfloat16", "bool", "complex64"])
    name = writer.new_name()
    writer.kinds[name] = Kind(tuple(shape), dtype, 1.0 if dtype == "bool" else 4.0)
    spec = writer.spec(shape) if rng.random() < 0.8 else None
    return {"name": name, "shape": shape, "dtype": dtype, "spec": spec}


def _draw_outputs(writer: Writer) -> list[dict]:
    used = {each for step in writer.steps for each in step["args"]}
    used |= {each for step in writer.steps for body in bodies_of(step) for each in _outer_names(body)}
    ends = [name for name in writer.kinds if name not in used][-5:] or [list(writer.kinds)[-1]]
    if writer.random.random() < 0.3:
        ends.append(writer.random.choice(list(writer.kinds)))
    outputs = []
    for name in dict.fromkeys(ends):
        kind = writer.kinds[name]
        is_stated = kind.rank > 0 and writer.random.random() < 0.5
        outputs.append({"value": name, "spec": writer.spec(kind.shape) if is_stated else None, "exact": kind.is_exact})
    return outputs


# ---------------------------------------------------------------------------------------------------------------------
# Building
# ---------------------------------------------------------------------------------------------------------------------


def _axes(entry) -> list[str]:
    if entry is None or entry == UNCONSTRAINED:
        return []
    return [entry] if isinstance(entry, str) else list(entry)


def _partition(spec: Spec) -> PartitionSpec:
    def dim(entry):
        if entry == UNCONSTRAINED:
            return PartitionSpec.UNCONSTRAINED
        return tuple(entry) if isinstance(entry, list) else entry

    return PartitionSpec(*map(dim, spec))


@dataclass
class Run:
    """Applies steps to values.

    is_abstract: only shapes are computed, without devices. is_unsharded: constraints are left out.
    """

    outline: Mapping
    is_abstract: bool = False
    is_unsharded: bool = False
    functions: dict[int, Callable] = field(default_factory=dict)
    outer: list[dict[str, Any]] = field(default_factory=list)

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        axes = tuple(self.outline["mesh"].items())
        if self.is_abstract:
            sizes, names = zip(*((size, name) for name, size in axes))
            return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(axes))
        return _mesh(axes, tuple(self.outline["device_order"] or ()))

    def apply(self, step: Mapping, values: dict[str, Any]) -> Any:
        """Returns the result of a step on the values."""
        self.outer.append(values)
        try:
            return OPS[step["op"]].apply(self, step["options"], *(values[name] for name in step["args"]))
        finally:
            self.outer.pop()

    def steps(self, steps: Sequence[Mapping], values: dict[str, Any]) -> dict[str, Any]:
        for step in steps:
            values[step["name"]] = self.apply(step, values)
        return values

    def body(self, body: Mapping, arguments: Sequence[Any]) -> tuple:
        """Returns the results of a body, which may use the values of the steps before it."""
        values = {**self.outer[-1], **dict(zip(body["params"], arguments, strict=True))}
        values = self.steps(body["steps"], values)
        return tuple(values[name] for name in body["results"])

    def function(self, body: Mapping, how: str) -> Callable:
        """Returns a body as a function that jax traces only once, even if it is called several times."""

        def function(*arguments):
            return self.body(body, arguments)

        if how == "jit":
            return jax.jit(function)
        if how == "checkpoint":
            return jax.checkpoint(function)
        wrapped = jax.custom_vjp(function)
        wrapped.defvjp(
            lambda *arguments: jax.vjp(function, *arguments), lambda backward, gradients: backward(gradients)
        )
        return wrapped

    def constrained(self, value, spec: Spec):
        if self.is_unsharded:
            return value
        return lax.with_sharding_constraint(value, NamedSharding(self.mesh, _partition(spec)))

    def axes_in(self, body: Mapping) -> set[str]:
        """Returns the axes in the shardings of a body."""
        found: set[str] = set()
        for step in body["steps"]:
            specs = [step["options"].get("spec"), *step["options"].get("between", [])]
            found |= {axis for spec in specs if spec for entry in spec for axis in _axes(entry)}
            for inner in bodies_of(step):
                found |= self.axes_in(inner)
        return found


_MESHES: dict[tuple, Mesh] = {}


def _mesh(axes: tuple[tuple[str, int], ...], order: tuple[int, ...]) -> Mesh:
    if (axes, order) not in _MESHES:
        sizes = [size for _, size in axes]
        count = math.prod(sizes)
        devices = np.array([jax.devices()[i] for i in order or range(count)]).reshape(sizes)
        _MESHES[axes, order] = Mesh(devices, [name for name, _ in axes], axis_types=(AxisType.Auto,) * len(axes))
    return _MESHES[axes, order]


class Program:
    """A recipe as a function of jax.

    Attributes:
      names: of the inputs that are arguments; in this order.
      exact: for each result whether its bits are the same however XLA sums.
      epsilon: of the coarsest floating type that a value has; partial sums are rounded to it.
    """

    def __init__(self, recipe: Mapping):
        self.recipe = recipe
        self.names = [each["name"] for each in recipe["inputs"]]
        self.kinds = {each["name"]: each for each in recipe["inputs"]}
        self.differentiated = [n for n in self.names if recipe["grad"] and self.kinds[n]["dtype"] in FLOATS]
        self.exact = [each["exact"] for each in recipe["outputs"]] + [False] * len(self.differentiated)
        dtypes = {each["dtype"] for each in recipe["inputs"]} | set(_dtypes_of(recipe["steps"]))
        self.epsilon = max((float(jnp.finfo(each).eps) for each in dtypes & set(FLOATS)), default=0.0)

    def lower(self) -> jax.stages.Lowered:
        """Returns the lowered program, traced anew."""
        jax.clear_caches()
        open_ = None
        in_shardings = [self._sharding(self.kinds[name]["spec"]) for name in self.names]
        out_shardings = [self._sharding(each["spec"]) for each in self.recipe["outputs"]]
        out_shardings += [open_] * len(self.differentiated)
        jitted = jax.jit(
            partial(self.function, Run(self.recipe)),
            in_shardings=in_shardings,
            out_shardings=tuple(out_shardings),
            donate_argnums=[i for i, name in enumerate(self.names) if name in self.recipe["donate"]],
        )
        return jitted.lower(*(jax.ShapeDtypeStruct(self.kinds[n]["shape"], self.kinds[n]["dtype"]) for n in self.names))

    def unsharded(self) -> list[np.ndarray]:
        """Returns the results of the program on one device, where only manual computations have a mesh."""
        values = [jnp.asarray(each) for each in self.arguments()]
        return [
            np.asarray(each) for each in jax.jit(partial(self.function, Run(self.recipe, is_unsharded=True)))(*values)
        ]

    def arguments(self) -> list[np.ndarray]:
        """Returns whole numbers for the inputs."""
        return [_numbers(self.kinds[name], self.recipe["seed"] + i) for i, name in enumerate(self.names)]

    def _sharding(self, spec: Spec | None) -> NamedSharding | None:
        return None if spec is None else NamedSharding(Run(self.recipe).mesh, _partition(spec))

    def function(self, run: Run, *arguments) -> tuple:
        if not self.differentiated:
            return self._outputs(run, dict(zip(self.names, arguments)))
        given = dict(zip(self.names, arguments))
        free = {name: given[name] for name in self.differentiated}

        def loss(free):
            outputs = self._outputs(run, {**given, **free})
            floats = [each for each in outputs if each.dtype.name in (*FLOATS, "complex64")]
            return sum((jnp.sum(jnp.real(each).astype(jnp.float32)) for each in floats), jnp.float32(0)), outputs

        gradients, outputs = jax.grad(loss, has_aux=True)(free)
        return (*outputs, *(gradients[name] for name in self.differentiated))

    def _outputs(self, run: Run, values: dict[str, Any]) -> tuple:
        values = run.steps(self.recipe["steps"], dict(values))
        return tuple(values[each["value"]] for each in self.recipe["outputs"])


def _dtypes_of(steps: Sequence[Mapping]) -> Iterator[str]:
    for step in steps:
        yield step["kind"][1]
        for body in bodies_of(step):
            yield from _dtypes_of(body["steps"])


def _numbers(kind: Mapping, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape, dtype = tuple(kind["shape"]), kind["dtype"]
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    whole = rng.integers(-2, 3, shape)
    if "spread" in kind:  # without 0, since a factor of 0 would hide the other factor
        whole = rng.integers(1, kind["spread"] + 1, shape) * rng.choice([-1, 1], shape)
    if dtype == "complex64":
        return (whole + 1j * rng.integers(-2, 3, shape)).astype(np.complex64)
    return np.asarray(whole).astype(jnp.dtype(dtype))
