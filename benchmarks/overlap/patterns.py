# SPDX-License-Identifier: Apache-2.0
"""Small programs in shard_map of one collective and one product or lookup each, by size and by the ratio of their
times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "x"
NAMES = {
    "gather_rows": "all_gather, product: rows of activations",
    "gather_inner": "all_gather, product: the contracted dimension of weights",
    "scatter": "product, reduce_scatter",
    "combine": "product, all_to_all: experts, rows back",
    "dispatch": "all_to_all, product: rows to experts",
    "layer": "all_gather, two products, reduce_scatter: a layer whose rows are split outside of it",
    "embedding": "lookup, all_to_all: sums of rows of a table whose columns are split",
    "embedding_rows": "lookup, reduce_scatter: sums of rows of a table whose rows are split",
}
LOOKUPS = frozenset({"embedding", "embedding_rows"})
GRAIN = 128  # of sizes
_TABLE_ROWS = 65536  # of a device


@dataclass(frozen=True, slots=True)
class Pattern:
    """A program on some devices. Of `size` S and `width` w a device multiplies [S, S] by [S, w], or [S, w] by [w, S].

    The larger tile of an all_gather or a reduce_scatter is [S, S], and so is that of an all_to_all. A lookup is of S
    bags of `width` rows of S elements each; a bag is added up.

    Attributes:
      function: from the tiles of a device. specs, out: of its arguments and its result. shapes: of the arguments.
      has_indices: whether the last argument is of whole numbers.
    """

    name: str
    devices: int
    function: Callable
    specs: tuple[PartitionSpec, ...]
    out: PartitionSpec
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "bfloat16"
    has_indices: bool = False

    def lowered(self, *, has_marker: bool = False) -> jax.stages.Lowered:
        """Returns the lowered program. With a marker there is one tiny permute beside, so that a compiler which writes
        schedules of asynchronous programs alone writes one."""
        jax.clear_caches()
        mesh = Mesh(np.array(jax.devices()[: self.devices]), (AXIS,))
        function, specs, out = self.function, self.specs, self.out
        dtypes = [self.dtype] * (len(self.shapes) - 1) + ["int32" if self.has_indices else self.dtype]
        arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(self.shapes, dtypes)]
        if has_marker:
            ring = [(device, (device + 1) % self.devices) for device in range(self.devices)]
            specs, out = (*specs, PartitionSpec(AXIS)), (out, PartitionSpec(AXIS))
            arguments.append(jax.ShapeDtypeStruct((self.devices * GRAIN,), "float32"))

            def function(*tiles):
                return self.function(*tiles[:-1]), lax.ppermute(tiles[-1], AXIS, ring)

        mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
        return jax.jit(mapped, in_shardings=tuple(NamedSharding(mesh, spec) for spec in specs)).lower(*arguments)


def pattern(name: str, devices: int, size: int, width: int, dtype: str = "bfloat16") -> Pattern:
    """Returns the pattern of a name."""
    rows, columns = PartitionSpec(AXIS, None), PartitionSpec(None, AXIS)
    tall, wide = (size * devices, size), (size, width * devices)
    table, bags = (_TABLE_ROWS * devices, size), (size, width)
    function, specs, out, shapes = {
        "gather_rows": (_gather_rows, (rows, columns), columns, ((size, size), wide)),
        "gather_inner": (_gather_inner, (rows, rows), rows, ((width * devices, size), (size, size))),
        "scatter": (_scatter, (columns, rows), rows, (wide, (width * devices, size))),
        "combine": (_combine, (rows, rows), rows, ((size * devices, width), (width * devices, size))),
        "dispatch": (_dispatch, (rows, rows), rows, (tall, (size * devices, width))),
        "layer": (_layer, (rows, columns, rows), rows, ((size, size), wide, (width * devices, size))),
        "embedding": (_embedding, (rows, PartitionSpec()), rows, (table, bags)),
        "embedding_rows": (_embedding_rows, (rows, PartitionSpec()), rows, (table, bags)),
    }[name]
    return Pattern(name, devices, function, specs, out, shapes, dtype, name in LOOKUPS)


def _gather_rows(x, w):
    return lax.all_gather(x, AXIS, tiled=True) @ w


def _gather_inner(x, w):
    return x @ lax.all_gather(w, AXIS, tiled=True)


def _scatter(x, w):
    return lax.psum_scatter(x @ w, AXIS, scatter_dimension=0, tiled=True)


def _combine(x, w):
    return lax.all_to_all(x @ w, AXIS, 0, 0, tiled=True)


def _dispatch(x, w):
    return lax.all_to_all(x, AXIS, 0, 0, tiled=True) @ w


def _layer(x, up, down):
    hidden = jax.nn.gelu(lax.all_gather(x, AXIS, tiled=True) @ up)
    return x + lax.psum_scatter(hidden @ down, AXIS, scatter_dimension=0, tiled=True)


def _embedding(table, bags):
    """The tables of all devices are the columns of one."""
    found = table.at[bags].get(mode="promise_in_bounds")
    return lax.all_to_all(found.sum(axis=1), AXIS, 0, 1, tiled=True)


def _embedding_rows(table, bags):
    own = bags - lax.axis_index(AXIS) * len(table)
    is_here = (own >= 0) & (own < len(table))
    found = table.at[own].get(mode="clip")
    kept = lax.select(lax.broadcast_in_dim(is_here, found.shape, (0, 1)), found, lax.full_like(found, 0))
    return lax.psum_scatter(kept.sum(axis=1), AXIS, scatter_dimension=0, tiled=True)
