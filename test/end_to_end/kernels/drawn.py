# SPDX-License-Identifier: Apache-2.0
"""Random calls of kernels, run on CPU devices in TPU interpret mode with its race detector, and what they have to give.

Operands stay below 100 kB on each device: larger ones are copied by threads that the interpreter keeps busy.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from math import prod

import jax
import jax._src.pallas.mosaic.interpret.interpret_pallas_call as interpreter
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from reshard.dialect_utils.kernels import places, sent_products, sent_rows, summed_products
from reshard.dialect_utils.kernels.sizes import SentProduct, SentRows, SummedProduct
from reshard.synthesis.overlap.rings import Rings, orders

TINY, ROOMY = 1, 2**20  # bytes of VMEM for blocks: the smallest blocks there are, and large ones
ID = 7
PATTERNS = ("product, all_to_all", "product, all_reduce", "lookup, all_to_all")
_DTYPES = ("float32", "bfloat16", "int32")


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a kernel: its sizes, the groups, and the shapes and element types of its operands.

    Attributes:
      kernel, stock: of the operands of a device; the latter is the same with collectives of StableHLO, whose groups it
        gets.
    """

    sizes: SentProduct | SummedProduct | SentRows
    rings: Rings
    devices: int
    operands: tuple[tuple[tuple[int, ...], str], ...]
    kernel: Callable
    stock: Callable


def drawn(pattern: str, seed: int, devices: int) -> Call:
    """Returns a random call on groups of any of the devices, in rings of any order."""
    rng = random.Random(f"{pattern} {seed} {devices}")
    rings = _rings(rng, devices)
    make = {PATTERNS[0]: _sent_product, PATTERNS[1]: _summed_product, PATTERNS[2]: _sent_rows}[pattern]
    return make(rng, rings, devices)


def run(call: Call, operands) -> tuple[np.ndarray, str]:
    """Returns what a kernel gives on all devices, and what the interpreter has against it: RACE for races, "non-zero
    count" for a semaphore that is not at zero in the end."""
    ours = partial(call.kernel, collective_id=ID, interpret=_interpret())
    table = places.places_of(call.rings, call.devices)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        found = _on_devices(lambda own_places, *own: ours(own_places, *own, call.sizes), call.devices, table, *operands)
    return found, said.getvalue() + ("RACE" if interpreter.races.races_found else "")


def _interpret() -> pltpu.InterpretParams:
    """Returns parameters with which races are found, and said at the end; newer versions of jax raise otherwise."""
    has_choice = any(field.name == "on_race" for field in fields(pltpu.InterpretParams))
    return pltpu.InterpretParams(detect_races=True, **({"on_race": "warn"} if has_choice else {}))


def run_stock(call: Call, operands) -> np.ndarray:
    """Returns what StableHLO's collectives give."""
    groups = [list(group) for group in call.rings.groups]
    return _on_devices(lambda *own: call.stock(*own, call.sizes, groups), call.devices, *operands)


def operands_of(call: Call, seed: int) -> list[np.ndarray]:
    """Returns small whole numbers, whose sums are exact in any order; some indices are outside of the table."""
    rng = np.random.default_rng(seed)
    found = [rng.integers(-2, 3, (call.devices, *shape)).astype(jnp.dtype(dtype)) for shape, dtype in call.operands]
    if isinstance(call.sizes, SentRows):
        found[0] = rng.integers(-3, call.sizes.entries + 3, found[0].shape).astype(np.int32)
    return found


def fractions_of(call: Call, seed: int) -> list[np.ndarray]:
    """Returns numbers whose sums are rounded."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((call.devices, *shape)).astype(jnp.dtype(dtype)) for shape, dtype in call.operands]


def _on_devices(function: Callable, devices: int, *operands) -> np.ndarray:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), ("device",))
    split = PartitionSpec("device")

    def body(*own):
        return function(*(each[0] for each in own))[None]

    mapped = jax.shard_map(body, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    return np.asarray(jax.jit(mapped)(*operands))


def _rings(rng: random.Random, devices: int) -> Rings:
    members = rng.choice([each for each in (2, 4, 8) if each <= devices])
    ids = list(range(devices))
    if rng.random() < 0.5:
        rng.shuffle(ids)
    groups = tuple(tuple(ids[start : start + members]) for start in range(0, devices, members))
    return Rings(groups, rng.choice(orders(members)))


def _sent_product(rng: random.Random, rings: Rings, devices: int) -> Call:
    members, split, joined = rings.members, rng.randrange(3), rng.randrange(3)
    part = [rng.choice((1, 2)), rng.choice((8, 16, 24, 5)), rng.choice((128, 7, 20))]
    while prod(part) * members * 4 > 90_000:
        part[1 if part[1] > 8 else 2] = 8 if part[1] > 8 else 16
    whole = tuple(size * members if dim == split else size for dim, size in enumerate(part))
    inner, dtype, is_transposed = rng.choice((1, 3, 16, 33)), rng.choice(_DTYPES), rng.random() < 0.5
    sizes = SentProduct(
        whole, inner, members, split, joined, dtype, dtype, is_transposed, vmem_bytes=rng.choice((TINY, ROOMY))
    )
    batch, rows, columns = whole
    right = (batch, columns, inner) if is_transposed else (batch, inner, columns)
    return Call(
        sizes, rings, devices, (((batch, rows, inner), dtype), (right, dtype)),
        sent_products.sent_product, _stock_sent_product,
    )  # fmt: skip


def _summed_product(rng: random.Random, rings: Rings, devices: int) -> Call:
    chunk = rng.choice((128, 256, 12))
    rows, inner, dtype = rng.choice((1, 3, 8)), rng.choice((1, 5, 8)), rng.choice(_DTYPES)
    columns, is_transposed = chunk * rings.members, rng.random() < 0.5
    sizes = SummedProduct(
        rows, columns, inner, rings.members, dtype, dtype, is_transposed, vmem_bytes=rng.choice((TINY, ROOMY))
    )
    right = (columns, inner) if is_transposed else (inner, columns)
    return Call(
        sizes, rings, devices, (((rows, inner), dtype), (right, dtype)),
        summed_products.summed_product, _stock_summed_product,
    )  # fmt: skip


def _sent_rows(rng: random.Random, rings: Rings, devices: int) -> Call:
    part, width, entries = rng.choice((8, 16, 5)), rng.choice((128, 10)), rng.choice((1, 6, 50))
    dtype, joined = rng.choice(_DTYPES), rng.randrange(2)
    sizes = SentRows(
        entries, width, part * rings.members, rings.members, joined, dtype, vmem_bytes=rng.choice((TINY, ROOMY))
    )
    return Call(
        sizes, rings, devices, (((sizes.count,), "int32"), ((entries, width), dtype)),
        sent_rows.sent_rows, _stock_sent_rows,
    )  # fmt: skip


def _stock_sent_product(left, right, sizes: SentProduct, groups):
    dims = (((2,), (2 if sizes.is_right_transposed else 1,)), ((0,), (0,)))
    made = lax.dot_general(left, right, dims, preferred_element_type=sizes.dtype)
    return lax.all_to_all(made, "device", sizes.split, sizes.joined, axis_index_groups=groups, tiled=True)


def _stock_summed_product(left, right, sizes: SummedProduct, groups):
    dims = (((1,), (1 if sizes.is_right_transposed else 0,)), ((), ()))
    term = lax.dot_general(left, right, dims, preferred_element_type=sizes.dtype)
    terms = lax.all_gather(term, "device", axis_index_groups=groups)
    return summed_products.in_order(terms, sizes.dtype)


def _stock_sent_rows(indices, table, sizes: SentRows, groups):
    numbers = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    rows = lax.gather(table, indices[:, None], numbers, (1, sizes.width), mode="promise_in_bounds")  # StableHLO's alone
    return lax.all_to_all(rows, "device", 0, sizes.joined, axis_index_groups=groups, tiled=True)
