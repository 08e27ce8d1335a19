# SPDX-License-Identifier: Apache-2.0
"""Random programs with operations that were wrong in adversarial tests; `recipe(seed)` draws one.

The programs are data like those of `programs`. A program has one scene: a few inputs that fit one family of operations
(`SCENES`). Each input is constrained, often in shards that do not divide it, and often twice with equal shardings.
Several operations of the family use the same constrained value with different attributes: other paddings, dimensions,
combiners. Some steps of any kind follow, with bodies of loops, branches and calls, which use operations of the scene
again.

Values are whole numbers without 0. Only integers are multiplied, since they wrap to the same value in every order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import lax
from programs import FLOATS, MESHES, NUMBERS, OPS, WIDE_MESHES, Kind, Run, Writer, _draw_outputs, op

GROUP = "extended"
_REAL = ("float32", "int32")
_SPREADS = {"float32": 8, "bfloat16": 3, "int32": 50, "complex64": 4, "bool": 1}
_SIZES = (4, 5, 6, 7, 8, 8, 9, 10, 10, 12, 16)
_PADDING_VALUES = (0, 0, 1, -1, 7, -5)


def extended(name: str, draw, **properties):
    """Registers an operation that only the programs of this file draw."""
    return op(name, draw, group=GROUP, **{"has_gradient": False, **properties})


# ---------------------------------------------------------------------------------------------------------------------
# Operations
# ---------------------------------------------------------------------------------------------------------------------


def _some(writer: Writer, *dtypes: str, rank: int = 1, exact: bool = False) -> tuple[str, Kind] | tuple[None, None]:
    name = writer.pick(lambda kind: kind.dtype in dtypes and kind.rank >= rank and (kind.is_exact or not exact))
    return (name, writer.kinds[name]) if name else (None, None)


def _first_bound(kinds, shape):
    return kinds[0].bound


def _draw_constraint(writer: Writer):
    name, kind = _some(writer, *NUMBERS, "bool")
    return name and ([name], {"spec": writer.spec(kind.shape, uneven=writer.random.random() < 0.6, unconstrained=0.1)})


@extended("uneven_constraint", _draw_constraint, weight=12.0, has_gradient=True)
def _(run, options, a):
    return run.constrained(a, options["spec"])


# Padding


def _draw_padding(writer: Writer):
    name, kind = _some(writer, *FLOATS, "int32")
    if not name:
        return None
    rng = writer.random
    widths = [
        [rng.choice([-1, 0, 0, 1, 2, 3]), rng.choice([-1, 0, 0, 1, 2, 4]), rng.choice([0, 0, 0, 1, 2])]
        if rng.random() < 0.7
        else [0, 0, 0]
        for _ in kind.shape
    ]
    return [name], {"widths": widths, "value": rng.choice(_PADDING_VALUES)}


@extended("padding", _draw_padding, bound=lambda kinds, shape: max(kinds[0].bound, 7.0), weight=3.0, has_gradient=True)
def _(run, options, a):
    return lax.pad(a, jnp.asarray(options["value"], a.dtype), [tuple(each) for each in options["widths"]])


# Running sums and windows

_RUNNING = {
    "sum": lax.cumsum,
    "prod": lax.cumprod,
    "max": lax.cummax,
    "min": lax.cummin,
    "logsumexp": lax.cumlogsumexp,
}


def _draw_running(which: Sequence[str]):
    def draw(writer: Writer):
        does = writer.random.choice(which)
        dtypes = {"prod": ("int32",), "logsumexp": ("float32",)}.get(does, _REAL)
        name, kind = _some(writer, *dtypes)
        if not name:
            return None
        return [name], {
            "does": does,
            "axis": writer.random.randrange(kind.rank),
            "reverse": writer.random.random() < 0.3,
        }

    return draw


def _run_running(run, options, a):
    return _RUNNING[options["does"]](a, axis=options["axis"], reverse=options["reverse"])


def _bound_of_running(kinds, shape):
    return kinds[0].bound * max(shape)


extended("running", _draw_running(["sum", "sum", "prod", "max", "min"]), bound=_bound_of_running, weight=3.0)(
    _run_running
)
extended("running_sum", _draw_running(["sum"]), bound=_bound_of_running, has_gradient=True)(_run_running)
extended(
    "running_logsumexp", _draw_running(["logsumexp"]), bound=lambda kinds, shape: kinds[0].bound + 4, keeps_exact=False
)(_run_running)


def _window(rng: random.Random, kind: Kind, *, dilates: bool) -> dict:
    sizes = [rng.choice([1, 1, 2, 3]) for _ in kind.shape]
    window_dilation = [rng.choice([1, 1, 1, 2]) if dilates else 1 for _ in kind.shape]
    most = [(size - 1) * dilation for size, dilation in zip(sizes, window_dilation)]
    return {
        "sizes": sizes,
        "strides": [rng.choice([1, 1, 2, 3]) for _ in kind.shape],
        "padding": [[rng.randint(0, each), rng.randint(0, each)] for each in most],
        "window_dilation": window_dilation,
    }


_MONOIDS = {"add": (lax.add, 0), "mul": (lax.mul, 1), "max": (lax.max, None), "min": (lax.min, None)}


def _draw_window(writer: Writer):
    does = writer.random.choice(["add", "add", "mul", "max", "min"])
    name, kind = _some(writer, *(("int32",) if does == "mul" else _REAL))
    if not name:
        return None
    dilates = does in ("add", "mul") and writer.random.random() < 0.3
    base = [writer.random.choice([1, 2]) if dilates else 1 for _ in kind.shape]
    return [name], {"does": does, "base_dilation": base, **_window(writer.random, kind, dilates=True)}


@extended("windows", _draw_window, bound=lambda kinds, shape: kinds[0].bound * 3 ** len(shape), weight=3.0)
def _(run, options, a):
    monoid, neutral = _MONOIDS[options["does"]]
    if neutral is None:
        extremes = (-jnp.inf, jnp.inf) if a.dtype.kind == "f" else (jnp.iinfo(a.dtype).min, jnp.iinfo(a.dtype).max)
        neutral = extremes[options["does"] == "min"]
    return lax.reduce_window(
        a,
        jnp.asarray(neutral, a.dtype),
        monoid,
        options["sizes"],
        options["strides"],
        [tuple(each) for each in options["padding"]],
        tuple(options["base_dilation"]),
        tuple(options["window_dilation"]),
    )


def _draw_pool(writer: Writer):
    name, kind = _some(writer, "float32", exact=True)
    if not name:
        return None
    options = {**_window(writer.random, kind, dilates=False), "does": writer.random.choice(["max", "min"])}
    return [name], {**options, "mode": writer.random.choice(["backward", "backward", "forward"])}


@extended(
    "pool_gradient", _draw_pool, bound=lambda kinds, shape: max(kinds[0].bound, 5 * 3.0 ** len(shape)), weight=2.0
)
def _(run, options, a):
    monoid, start = (lax.max, -jnp.inf) if options["does"] == "max" else (lax.min, jnp.inf)
    padding = [tuple(each) for each in options["padding"]]

    def pool(a):
        return lax.reduce_window(a, start, monoid, options["sizes"], options["strides"], padding)

    if options["mode"] == "forward":
        return jax.jvp(pool, (a,), (_ramp(a.shape, 5) + 1,))[1]
    pooled, backward = jax.vjp(pool, a)
    return backward(_ramp(pooled.shape, 5) + 1)[0]


def _ramp(shape: Sequence[int], period: int, dtype=jnp.float32):
    """Returns an array of the numbers 0, 1, ..., period - 1, repeated."""
    return jnp.remainder(lax.iota(jnp.int32, math.prod(shape)), period).astype(dtype).reshape(shape)


# Scatters and gathers


def _draw_scatter(writer: Writer):
    combiner = writer.random.choice(["add", "add", "min", "max", "multiply", "set"])
    name, kind = _some(writer, *(("int32",) if combiner == "multiply" else _REAL))
    if not name:
        return None
    axis = writer.random.randrange(kind.rank)
    indices, index_kind, is_batched = _pick_indices(writer, kind)
    if not indices:
        return None
    axis = 0 if is_batched else axis
    rows = kind.shape[1:] if is_batched else kind.shape
    wanted = (*rows[:axis], index_kind.shape[-1], *rows[axis + 1 :])
    wanted = (kind.shape[0], *wanted) if is_batched else wanted
    updates = combiner != "set" and writer.pick(lambda other: other.type == (wanted, kind.dtype))
    options = {
        "combiner": combiner,
        "axis": axis,
        "is_batched": is_batched,
        "mode": writer.random.choice(["drop", "clip", "in"]),
    }
    return [name, indices, *([updates] if updates else [])], options


def _pick_indices(writer: Writer, kind: Kind) -> tuple[str | None, Kind | None, bool]:
    """Returns indices into a value, their kind, and whether they are batched, with a list for each row of the value."""
    rows = writer.pick(lambda other: other.dtype == "int32" and other.rank == 2 and other.shape[0] == kind.shape[0])
    if kind.rank > 1 and rows and writer.random.random() < 0.6:
        return rows, writer.kinds[rows], True
    flat = writer.pick(lambda other: other.dtype == "int32" and other.rank == 1 and other.size <= 64)
    return (flat, writer.kinds[flat], False) if flat else (None, None, False)


def _positions(indices, size: int, mode: str):
    """Returns the indices modulo the size of a dimension; in the mode `drop` some are beyond its end."""
    return jnp.remainder(indices, size + 3 if mode == "drop" else size)


_MODES = {"drop": "drop", "clip": "clip", "in": "promise_in_bounds"}


def _bound_of_scatter(kinds, shape):
    return kinds[0].bound + kinds[1].size * max([5.0, *(kind.bound for kind in kinds[2:])])


@extended("scatter", _draw_scatter, bound=_bound_of_scatter, weight=3.0)
def _(run, options, a, indices, *updates):
    axis, mode = options["axis"], options["mode"]

    def scatter(a, indices, *updates):
        positions = _positions(indices, a.shape[axis], mode)
        shape = (*a.shape[:axis], positions.shape[0], *a.shape[axis + 1 :])
        given = updates[0] if updates else _along(jnp.remainder(positions, 5) + 1, axis, shape).astype(a.dtype)
        place = a.at[(slice(None),) * axis + (positions,)]
        return getattr(place, options["combiner"])(given, mode=_MODES[mode])

    return (jax.vmap(scatter) if options["is_batched"] else scatter)(a, indices, *updates)


def _along(row, axis: int, shape: Sequence[int]):
    return jnp.broadcast_to(row.reshape([-1 if dim == axis else 1 for dim in range(len(shape))]), shape)


def _draw_scatter_add(writer: Writer):
    drawn = _draw_scatter(writer)
    return drawn and (drawn[0], {**drawn[1], "combiner": "add"})


extended("scatter_rows", _draw_scatter_add, bound=_bound_of_scatter, has_gradient=True)(OPS["scatter"].apply)


def _draw_gather(writer: Writer):
    name, kind = _some(writer, *NUMBERS)
    indices, index_kind, is_batched = _pick_indices(writer, kind) if name else (None, None, False)
    if not indices:
        return None
    how = "batched" if is_batched else writer.random.choice(["take", "take", "along", "points"])
    return [name, indices], {
        "how": how,
        "axis": 0 if is_batched else writer.random.randrange(kind.rank),
        "mode": writer.random.choice(["drop", "clip", "in"]),
    }


@extended("gather", _draw_gather, bound=lambda kinds, shape: max(kinds[0].bound, 3.0), weight=3.0, has_gradient=True)
def _(run, options, a, indices):
    axis, mode = options["axis"], options["mode"]
    fill = {"mode": "fill", "fill_value": 3} if mode == "drop" else {"mode": _MODES[mode]}
    if options["how"] == "batched":
        return jax.vmap(lambda a, i: a.at[_positions(i, a.shape[0], mode)].get(**fill))(a, indices)
    positions = _positions(indices, a.shape[axis], mode)
    if options["how"] == "take":
        return a.at[(slice(None),) * axis + (positions,)].get(**fill)
    if options["how"] == "along":
        shape = (*a.shape[:axis], positions.shape[0], *a.shape[axis + 1 :])
        return jnp.take_along_axis(a, _along(positions, axis, shape), axis, **fill)
    return a.at[tuple(_positions(indices * (dim + 1), size, mode) for dim, size in enumerate(a.shape[:2]))].get(**fill)


def _draw_segments(writer: Writer):
    does = writer.random.choice(["sum", "sum", "max", "min", "prod"])
    name, kind = _some(writer, *(("int32",) if does == "prod" else _REAL), exact=True)
    ids = name and writer.pick(lambda other: other.dtype == "int32" and other.shape == kind.shape[:1])
    return ids and ([name, ids], {"does": does, "segments": writer.random.choice(_SIZES)})


@extended(
    "segments", _draw_segments, bound=lambda kinds, shape: max(64.0, kinds[0].bound * kinds[0].shape[0]), weight=2.0
)
def _(run, options, a, ids):
    count = options["segments"]
    found = getattr(jax.ops, f"segment_{options['does']}")(a, jnp.remainder(ids, count), count)
    return jnp.clip(found, -64, 64) if options["does"] in ("max", "min") else found


# Sorting


def _draw_sort(writer: Writer):
    name, kind = _some(writer, *_REAL, exact=True)
    if not name:
        return None
    others = [
        writer.pick(lambda other: other.shape == kind.shape and other.dtype in (*FLOATS, "int32") and other.is_exact)
    ]
    others = others if writer.random.random() < 0.6 else []
    return [name, *others], {
        "axis": writer.random.randrange(kind.rank),
        "keys": writer.random.choice([1, 1, 2]),
        "take": writer.random.randrange(2 + len(others)),
    }


@extended("sort_several", _draw_sort, weight=3.0)
def _(run, options, *operands):
    axis = options["axis"]
    operands = (*operands, lax.broadcasted_iota(jnp.int32, operands[0].shape, axis))
    keys = min(options["keys"], len(operands))
    return lax.sort(operands, dimension=axis, is_stable=True, num_keys=keys)[options["take"]]


def _draw_top_k(writer: Writer):
    name, kind = _some(writer, *_REAL, exact=True)
    return name and ([name], {"k": writer.random.randint(1, kind.shape[-1]), "take": writer.random.randrange(2)})


@extended("top_k_or_where", _draw_top_k, weight=2.0)
def _(run, options, a):
    return lax.top_k(a, options["k"])[options["take"]]


# Convolutions


def _draw_convolution(writer: Writer):
    name = writer.pick(lambda kind: kind.dtype == "float32" and kind.rank in (3, 4))
    if not name:
        return None
    rng, kind = writer.random, writer.kinds[name]
    space = kind.rank - 2
    groups = rng.choice([each for each in (1, 1, 2) if kind.shape[1] % each == 0])
    kernel = writer.pick(lambda other: _is_kernel(other, kind, groups)) if rng.random() < 0.6 else None
    sizes = [rng.choice([1, 2, 3]) for _ in range(space)]
    return [name, *([kernel] if kernel else [])], {
        "kernel": [rng.choice([2, 4, 6]) * groups, kind.shape[1] // groups, *sizes],
        "groups": groups,
        "strides": [rng.choice([1, 1, 2]) for _ in range(space)],
        "padding": rng.choice(["SAME", "VALID", [[rng.randint(0, 2), rng.randint(0, 2)] for _ in range(space)]]),
        "lhs_dilation": [rng.choice([1, 1, 1, 2]) for _ in range(space)],
        "rhs_dilation": [rng.choice([1, 1, 1, 2]) for _ in range(space)],
        "gradient": rng.choice([None, None, 0, 1]),
    }


def _is_kernel(other: Kind, kind: Kind, groups: int) -> bool:
    is_small = other.rank == kind.rank and max((*other.shape[2:], 0)) <= 5
    return (
        is_small
        and other.dtype == "float32"
        and other.shape[1] * groups == kind.shape[1]
        and other.shape[0] % groups == 0
    )


def _bound_of_convolution(kinds, shape):
    return kinds[0].bound * max([3.0, *(kind.bound for kind in kinds[1:])]) * kinds[0].size


@extended("convolution", _draw_convolution, bound=_bound_of_convolution, weight=3.0, has_gradient=True)
def _(run, options, a, *kernels):
    kernel = kernels[0] if kernels else _ramp(options["kernel"], 3) - 1
    padding = (
        options["padding"] if isinstance(options["padding"], str) else [tuple(each) for each in options["padding"]]
    )

    def convolve(*operands):
        return lax.conv_general_dilated(
            *operands,
            options["strides"],
            padding,
            lhs_dilation=options["lhs_dilation"] if not isinstance(padding, str) or padding == "VALID" else None,
            rhs_dilation=options["rhs_dilation"],
            feature_group_count=options["groups"],
        )

    if options["gradient"] is None:
        return convolve(a, kernel)
    result, backward = jax.vjp(convolve, a, kernel)
    return backward(_ramp(result.shape, 3) - 1)[options["gradient"]]


# Slices


def _draw_window_of(writer: Writer):
    name, kind = _some(writer, *NUMBERS, "bool")
    offset = name and writer.pick(lambda other: other.type == ((), "int32"))
    if not offset:
        return None
    sizes = [writer.random.randint(1, size) if writer.random.random() < 0.7 else size for size in kind.shape]
    return [name, offset], {"sizes": sizes}


@extended("dynamic_window", _draw_window_of, weight=2.0, has_gradient=True)
def _(run, options, a, offset):
    return lax.dynamic_slice(a, _starts(offset, a.shape), options["sizes"])


def _starts(offset, shape) -> list:
    """Returns an offset for each dimension; some are slightly too large, so that they are clamped."""
    return [jnp.remainder(offset * (dim + 1), size + 2) for dim, size in enumerate(shape)]


def _draw_update(writer: Writer):
    drawn = _draw_window_of(writer)
    if not drawn:
        return None
    kind = writer.kinds[drawn[0][0]]

    def fits(other: Kind) -> bool:
        return (
            other.rank == kind.rank
            and other.dtype == kind.dtype
            and all(b <= a for a, b in zip(kind.shape, other.shape))
        )

    return [*drawn[0], writer.pick(fits)], drawn[1]


@extended("dynamic_update", _draw_update, weight=2.0, has_gradient=True)
def _(run, options, a, offset, update):
    part = lax.slice(update, [0] * a.ndim, [min(sizes) for sizes in zip(options["sizes"], update.shape)])
    return lax.dynamic_update_slice(a, part, _starts(offset, a.shape))


def _draw_dims(writer: Writer):
    name, kind = _some(writer, *NUMBERS, "bool")
    dims = name and sorted(writer.random.sample(range(kind.rank), writer.random.randint(1, kind.rank)))
    return name and ([name], {"dims": dims, "shift": writer.random.randint(-7, 7)})


@extended("reverse_dims", _draw_dims, weight=1.5, has_gradient=True)
def _(run, options, a):
    return lax.rev(a, options["dims"])


@extended("roll_dims", _draw_dims, weight=1.5, has_gradient=True)
def _(run, options, a):
    return jnp.roll(a, [options["shift"]] * len(options["dims"]), options["dims"])


def _draw_roll_by(writer: Writer):
    drawn = _draw_dims(writer)
    offset = drawn and writer.pick(lambda other: other.type == ((), "int32"))
    return offset and ([drawn[0][0], offset], drawn[1])


@extended("roll_by", _draw_roll_by)
def _(run, options, a, offset):
    return jnp.roll(a, offset + options["shift"], options["dims"][0])


def _draw_joined(writer: Writer):
    name, kind = _some(writer, *NUMBERS)
    return name and ([name], {"axis": writer.random.randrange(kind.rank), "part": writer.random.randint(1, 3)})


@extended("joined_with_itself", _draw_joined, weight=1.5, has_gradient=True)
def _(run, options, a):
    axis = options["axis"]
    part = lax.slice_in_dim(a, 0, min(options["part"], a.shape[axis]), axis=axis)
    return jnp.concatenate([part, a, part], axis)


# Transforms and random numbers


def _draw_transform(writer: Writer):
    name, kind = _some(writer, "complex64", "float32")
    return name and (
        [name],
        {"dims": writer.random.randint(1, min(2, kind.rank)), "is_inverse": writer.random.random() < 0.4},
    )


@extended(
    "transform",
    _draw_transform,
    bound=lambda kinds, shape: kinds[0].bound * kinds[0].size,
    keeps_exact=False,
    weight=2.0,
)
def _(run, options, a):
    axes = tuple(range(a.ndim - options["dims"], a.ndim))
    if a.dtype.kind == "f":
        return jnp.fft.rfftn(a, axes=axes)
    return (jnp.fft.ifftn if options["is_inverse"] else jnp.fft.fftn)(a, axes=axes)


def _draw_bits(writer: Writer):
    name, kind = _some(writer, *_REAL)
    return name and (
        [name],
        {"key": writer.random.randrange(1 << 16), "how": writer.random.choice(["generator", "keys"])},
    )


@extended("bits", _draw_bits, bound=lambda kinds, shape: kinds[0].bound + 11, weight=2.0)
def _(run, options, a):
    if options["how"] == "keys":
        bits = jax.random.bits(jax.random.key(options["key"]), a.shape)
    else:
        key = jnp.asarray([options["key"], 1, 2, 3], jnp.uint32)
        bits = lax.rng_bit_generator(key, a.shape, algorithm=lax.RandomAlgorithm.RNG_THREE_FRY)[1]
    return a + jnp.remainder(bits, jnp.uint32(11)).astype(a.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Scenes
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """Operations of one family, and inputs that fit them.

    inputs: rng -> (shape, dtype) of each.
    """

    ops: tuple[str, ...]
    inputs: Callable[[random.Random], list[tuple[tuple[int, ...], str]]]


def _one_array(*dtypes: str, ranks: Sequence[int] = (1, 2, 2, 3)):
    def inputs(rng: random.Random):
        return [(tuple(rng.choice(_SIZES) for _ in range(rng.choice(ranks))), rng.choice(dtypes))]

    return inputs


def _two_arrays(*dtypes: str):
    def inputs(rng: random.Random):
        shape = tuple(rng.choice(_SIZES) for _ in range(rng.choice([1, 2, 2, 3])))
        return [(shape, rng.choice(dtypes)) for _ in range(2)]

    return inputs


def _array_and_indices(rng: random.Random):
    rows, count, batch, rest = (
        rng.choice(_SIZES),
        rng.choice(_SIZES),
        rng.choice(_SIZES),
        rng.choice([(), (4,), (6,), (8,)]),
    )
    dtype = rng.choice(["float32", "int32", "int32"])
    if rng.random() < 0.5:
        return [((batch, rows, *rest), dtype), ((batch, count), "int32"), ((batch, count, *rest), dtype)]
    return [((rows, *rest), dtype), ((count,), "int32"), ((count, *rest), dtype)]


def _array_and_segments(rng: random.Random):
    rows, rest = rng.choice(_SIZES), rng.choice([(), (5,), (8,)])
    return [((rows, *rest), rng.choice(_REAL)), ((rows,), "int32")]


def _image_and_kernel(rng: random.Random):
    channels = rng.choice([2, 4, 6, 8])
    space = [rng.choice([5, 6, 8, 10]) for _ in range(rng.choice([1, 1, 2]))]
    kernel = [rng.choice([1, 2, 3]) for _ in space]
    return [
        ((rng.choice([2, 4, 6, 8]), channels, *space), "float32"),
        ((rng.choice([2, 4, 6]), channels, *kernel), "float32"),
    ]


def _array_and_part(rng: random.Random):
    shape = tuple(rng.choice(_SIZES) for _ in range(rng.choice([1, 2, 2, 3])))
    part = tuple(rng.randint(1, size) for size in shape)
    dtype = rng.choice(["float32", "int32", "bfloat16"])
    return [(shape, dtype), (part, dtype)]


SCENES = {
    "padding": Scene(
        ("padding", "padding", "padding", "joined_with_itself"), _one_array("float32", "int32", "bfloat16")
    ),
    "running": Scene(("running", "running", "running", "running_logsumexp"), _one_array("float32", "int32")),
    "windows": Scene(("windows", "windows", "running", "padding"), _one_array("float32", "int32")),
    "pools": Scene(("pool_gradient", "pool_gradient", "windows"), _one_array("float32", ranks=(2, 3, 4))),
    "scatters": Scene(("scatter", "scatter", "scatter", "gather"), _array_and_indices),
    "gathers": Scene(("gather", "gather", "scatter"), _array_and_indices),
    "segments": Scene(("segments",), _array_and_segments),
    "sorts": Scene(("sort_several", "sort_several", "top_k_or_where", "argmax"), _two_arrays("float32", "int32")),
    "convolutions": Scene(("convolution",), _image_and_kernel),
    "slices": Scene(
        ("dynamic_window", "dynamic_update", "slice", "joined_with_itself", "reverse_dims", "roll_dims", "roll_by"),
        _array_and_part,
    ),
    "transforms": Scene(("transform", "padding"), _one_array("complex64", "float32")),
    "bits": Scene(("bits", "sort_several"), _one_array("float32", "int32")),
    "gradients": Scene(
        (
            "padding",
            "running_sum",
            "scatter_rows",
            "gather",
            "convolution",
            "dynamic_window",
            "dynamic_update",
            "roll_dims",
        ),
        lambda rng: [*_array_and_indices(rng), *_image_and_kernel(rng)[:1]],
    ),
    "reductions": Scene(("sum", "max", "min", "argmax", "mean", "dot"), _two_arrays("float32", "int32")),
}
_WITH_BODIES = ("fori", "while", "scan", "switch", "call", "vmap")
_SCENES_BY_WEIGHT = (*SCENES, "padding", "running", "windows", "scatters", "scatters", "gathers", "sorts", "slices")


@dataclass
class SceneWriter(Writer):
    """Draws the steps of a scene.

    Attributes:
      favourites: operations that come up more often than others.
      shared: values that several steps are to use.
    """

    favourites: tuple[str, ...] = ()
    shared: list[str] = field(default_factory=list)

    def pick(self, fits: Callable[[Kind], bool]) -> str | None:
        fitting = [name for name in self.shared if name in self.kinds and fits(self.kinds[name])]
        if fitting and self.random.random() < 0.75:
            return self.random.choice(fitting)
        return super().pick(fits)

    def step(self) -> None:
        if self.random.random() > 0.4 or not self.act():
            super().step()

    def act(self) -> str | None:
        """Adds a step of the scene and returns its value; None if no operation fits."""
        for _ in range(6):
            name = self.random.choice(self.favourites)
            drawn = OPS[name].draw(self)
            if drawn and None not in drawn[0] and (added := self.add(name, *drawn)):
                return added
        return None

    def enter(self) -> str | None:
        """Adds a loop, a branch, a call or a batch of the scene and returns its value; None if none of them fits."""
        names = [name for name in _WITH_BODIES if OPS[name].has_gradient or not self.has_gradient]
        for name in self.random.sample(names, len(names)):
            drawn = OPS[name].draw(self)
            if drawn and None not in drawn[0] and (added := self.add(name, *drawn)):
                return added
        return None

    def share(self, name: str) -> None:
        """Constrains a value, sometimes twice in the same layout, so that the next steps use the constrained values."""
        name = self._tamed(name)
        spec = self.spec(self.kinds[name].shape, uneven=self.random.random() < 0.9)
        for _ in range(self.random.choice([1, 1, 2])):
            self.shared.append(self.add("constraint", [name], {"spec": spec}))


def recipe(seed: int, is_wide: bool = False) -> dict:
    """Returns the random program of a seed, on 4 to 8 devices; if it is wide, another one on 4 to 16."""
    rng = random.Random(f"{GROUP} {seed} {is_wide}")
    mesh = dict(rng.choice(WIDE_MESHES if is_wide else (*MESHES[:4] * 2, *MESHES, {"x": 4}, {"x": 2, "y": 2})))
    devices = math.prod(mesh.values())
    outline = {
        "seed": seed,
        "mesh": mesh,
        "device_order": rng.sample(range(devices), devices) if rng.random() < 0.06 else None,
    }
    name = rng.choice(_SCENES_BY_WEIGHT)
    has_gradient = name == "gradients"
    scene, run = SCENES[name], Run(outline, is_abstract=True)
    writer = SceneWriter(
        rng,
        mesh,
        run,
        has_gradient,
        list(_SIZES),
        groups=("base", GROUP),
        favourites=tuple(_allowed(scene.ops, has_gradient)),
    )
    inputs = [_input(writer, shape, dtype) for shape, dtype in scene.inputs(rng)]
    inputs.append(_input(writer, (), "int32"))
    for each in inputs[:-1]:
        if rng.random() < 0.85:
            writer.share(each["name"])
    acted = [writer.act() for _ in range(rng.choice([2, 2, 3]))]
    if rng.random() < 0.5 and any(acted):
        results = [each for each in acted if each and writer.kinds[each].rank]
        writer.share(rng.choice(results or writer.shared or [inputs[0]["name"]]))
        writer.act()
    if rng.random() < 0.3:
        writer.enter()
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        writer.step()
    outputs = _draw_outputs(writer)
    for each in inputs:
        _state_what_does_not_divide(each, each["shape"], devices)
    for each in outputs:
        _state_what_does_not_divide(each, writer.kinds[each["value"]].shape, devices)
    return {
        **outline,
        "scene": name,
        "inputs": inputs,
        "steps": writer.steps,
        "outputs": outputs,
        "donate": [each["name"] for each in inputs if each["shape"] and rng.random() < 0.05],
        "grad": has_gradient and rng.random() < 0.7,
    }


def _state_what_does_not_divide(end: dict, shape: Sequence[int], devices: int) -> None:
    """Makes an input or output replicated if XLA might otherwise split it unevenly, which jax refuses."""
    if end["spec"] is None and any(size % devices for size in shape):
        end["spec"] = [None] * len(shape)


def _allowed(ops: Sequence[str], has_gradient: bool) -> list[str]:
    return [name for name in ops if OPS[name].has_gradient or not has_gradient]


def _input(writer: Writer, shape: tuple[int, ...], dtype: str) -> dict:
    name, spread = writer.new_name(), _SPREADS[dtype]
    writer.kinds[name] = Kind(shape, dtype, float(2 * spread if dtype == "complex64" else spread))
    spec = writer.spec(shape) if shape and writer.random.random() < 0.5 else None
    return {"name": name, "shape": list(shape), "dtype": dtype, "spec": spec, "spread": spread}
