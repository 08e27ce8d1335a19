# SPDX-License-Identifier: Apache-2.0
"""The kernel for a product and the all_to_all of its result: each block leaves for its device once it is computed.

    result[b, m, n] = sum over k of left[b, m, k] * right[b, k, n]

is cut along one of its dimensions into a part for each member, and what a device gets is joined along one. Parts for
others come first, the own part last. A part is computed in blocks, each a product over the whole contracted dimension:
no element is added up in another order than in a product of that shape. While a block is computed, the last one is
copied out of VMEM into the result on its device, and the operands of the next one are read.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from . import exchanges
from .exchanges import SLOTS, multiplied
from .places import MEMBER
from .sizes import SentProduct


def sent_product(places, left, right, product: SentProduct, *, collective_id: int, interpret=False):
    """Returns what all_to_all makes of a product.

    Args:
      places: of this device. left: [batch, rows, inner]. right: [batch, inner, columns], or
        [batch, columns, inner] if `product.is_right_transposed`.
      interpret: `pltpu.InterpretParams()` to run it on CPU devices.
    """
    steps = product.members, *product.blocks
    block = product.block
    rows_block, columns_block = (block[0], block[1], product.inner), (block[0], product.inner, block[2])
    if product.is_right_transposed:
        columns_block = block[0], block[2], product.inner

    def at(number, b, i, j, places):
        """Returns the place of a block in the whole product, in blocks."""
        found = [b, i, j]
        found[product.split] += places[MEMBER, number] * product.blocks[product.split]
        return found

    def of_left(*step):
        b, i, _ = at(*step)
        return b, i, 0

    def of_right(*step):
        b, _, j = at(*step)
        return (b, j, 0) if product.is_right_transposed else (b, 0, j)

    return pl.pallas_call(
        partial(_kernel, product=product),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=steps,
            in_specs=[pl.BlockSpec(rows_block, of_left), pl.BlockSpec(columns_block, of_right)],
            out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
            scratch_shapes=[
                pltpu.VMEM((SLOTS, *block), jnp.dtype(product.dtype)),
                pltpu.SemaphoreType.DMA((SLOTS,)),
                pltpu.SemaphoreType.DMA((product.members,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(product.result, product.dtype),
        compiler_params=exchanges.params(collective_id, len(steps)),
        interpret=interpret,
        name="product_all_to_all",
    )(places, left, right)


def _kernel(places, left, right, result, leaving, left_sems, arrived, *, product: SentProduct):
    number, *at = (pl.program_id(dim) for dim in range(4))
    last = product.members - 1
    steps_of_part = product.blocks[0] * product.blocks[1] * product.blocks[2]
    step = ((number * product.blocks[0] + at[0]) * product.blocks[1] + at[1]) * product.blocks[2] + at[2]
    steps = product.members * steps_of_part
    slot = step % SLOTS

    @pl.when(step == 0)
    def _():
        exchanges.meet(places, product.members)

    @pl.when(step >= SLOTS)
    def _():
        exchanges.wait_for(leaving.at[slot], left_sems.at[slot])

    leaving[slot] = multiplied(left[0], right[0], product)[None]
    target = result.at[_where(product, places[MEMBER, last], at)]

    exchanges.pass_on(leaving.at[slot], target, left_sems.at[slot], arrived, places, number, last)

    @pl.when(step == steps - 1)
    def _():
        exchanges.wait_for_all(leaving, left_sems, arrived, steps, last, steps_of_part)


def _where(product: SentProduct, member, at) -> tuple:
    """Returns the slices of the result that a member's block fills."""
    starts = [each * size for each, size in zip(at, product.block)]
    starts[product.joined] += member * product.part[product.joined]
    return tuple(pl.ds(pl.multiple_of(start, size), size) for start, size in zip(starts, product.block))
