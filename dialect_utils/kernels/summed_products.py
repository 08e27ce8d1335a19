# SPDX-License-Identifier: Apache-2.0
"""The kernel for a product of few rows and the all_reduce of its result: each block leaves once it is computed.

Each member adds up one chunk of the columns. A device computes the chunks of the others first, its own last, in blocks;
a block goes to who adds it up once it is computed, while the weights of the next one are read. When all terms of its
chunk are there a member adds them, and sends the sum to all others.

The order of a sum is that of the members: ((term 0 + term 1) + term 2) + ... Terms have the result's element type, as
the product that an all_reduce adds up; they are added as float32, and the sum is rounded once. `in_order` is the same
in operations of jax, and what the kernel is compared with, bit for bit. So all members have the same sum.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from . import exchanges
from .exchanges import SLOTS, multiplied
from .places import DEVICE, MEMBER
from .sizes import SummedProduct


def summed_product(places, left, right, product: SummedProduct, *, collective_id: int, interpret=False):
    """Returns the sum of the members' products, [rows, columns].

    Args:
      places: of this device. left: [rows, inner]. right: [inner, columns], or [columns, inner] if
        `product.is_right_transposed`.
      interpret: `pltpu.InterpretParams()` to run it on CPU devices.
    """
    members, rows, columns = product.members, product.rows, product.block

    def of_right(number, j, places):
        at = places[MEMBER, number] * product.blocks + j
        return (at, 0) if product.is_right_transposed else (0, at)

    of_block = (columns, product.inner) if product.is_right_transposed else (product.inner, columns)
    chunks = pltpu.VMEM((members, rows, product.chunk), jnp.dtype(product.dtype))
    return pl.pallas_call(
        partial(_kernel, product=product),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(members, product.blocks),
            in_specs=[pl.BlockSpec((rows, product.inner), lambda *_: (0, 0)), pl.BlockSpec(of_block, of_right)],
            out_specs=pl.BlockSpec((rows, product.columns), lambda *_: (0, 0)),
            scratch_shapes=[
                chunks,  # terms of this device's chunk, by member
                chunks,  # sums
                pltpu.VMEM((SLOTS, rows, columns), jnp.dtype(product.dtype)),
                pltpu.SemaphoreType.DMA((SLOTS,)),
                pltpu.SemaphoreType.DMA((members,)),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA((members,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((rows, product.columns), product.dtype),
        compiler_params=exchanges.params(collective_id, 2),
        interpret=interpret,
        name="product_all_reduce",
    )(places, left, right)


def in_order(terms, dtype):
    """Returns the sum of terms [members, ...] in the order and precision of the kernel."""
    total = terms[0].astype(_summing(dtype))
    for term in terms[1:]:
        total = total + term.astype(total.dtype)
    return total.astype(dtype)


def _summing(dtype):
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) else dtype


def _kernel(
    places, left, right, result, terms, sums, leaving, left_sems, arrived, sums_left, sums_arrived,
    *, product: SummedProduct,
):  # fmt: skip
    number, j = pl.program_id(0), pl.program_id(1)
    last = product.members - 1
    step, steps = number * product.blocks + j, product.members * product.blocks
    own, slot = places[MEMBER, last], step % SLOTS
    columns = pl.ds(pl.multiple_of(j * product.block, product.block), product.block)

    @pl.when(step == 0)
    def _():
        exchanges.meet(places, product.members)

    block = multiplied(left[...], right[...], product)

    @pl.when(number == last)
    def _():
        terms[own, :, columns] = block

    @pl.when(number < last)
    def _():
        @pl.when(step >= SLOTS)
        def _():
            exchanges.wait_for(leaving.at[slot], left_sems.at[slot])

        leaving[slot] = block
        target = terms.at[own, :, columns]
        exchanges.send(leaving.at[slot], target, left_sems.at[slot], arrived.at[number], places[DEVICE, number])

    @pl.when(step == steps - 1)
    def _():
        exchanges.wait_for_all(leaving, left_sems, arrived, last * product.blocks, last, product.blocks)
        sums[own] = in_order(terms, product.dtype)
        for other in range(last):
            exchanges.send(sums.at[own], sums.at[own], sums_left, sums_arrived.at[other], places[DEVICE, other])
        exchanges.wait_for(sums.at[0], sums_left, times=last)
        for other in range(last):
            exchanges.wait_for(sums.at[0], sums_arrived.at[other])
        for member in range(product.members):
            result[:, pl.ds(member * product.chunk, product.chunk)] = sums[member]
