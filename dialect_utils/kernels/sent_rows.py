# SPDX-License-Identifier: Apache-2.0
"""The kernel for a lookup in a table and the all_to_all of the rows: each block leaves once it is looked up.

    result[..., r, ...] = table[indices[r]]

is cut along its rows into a part for each member. Parts for others come first, the own part last. The rows of a block
are copied out of the table one by one, all at once, while the last block travels. An index outside of the table is that
of the nearest row, as in StableHLO's gather.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from . import exchanges
from .exchanges import SLOTS
from .places import MEMBER
from .sizes import SentRows


def sent_rows(places, indices, table, rows: SentRows, *, collective_id: int, interpret=False):
    """Returns what all_to_all makes of rows of a table.

    Args:
      places: of this device. indices: int32[count]. table: [entries, width].
      interpret: `pltpu.InterpretParams()` to run it on CPU devices.
    """
    return pl.pallas_call(
        partial(_kernel, rows=rows),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(rows.members, rows.blocks),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
            scratch_shapes=[
                pltpu.VMEM((SLOTS, rows.block, rows.width), jnp.dtype(rows.dtype)),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA((SLOTS,)),
                pltpu.SemaphoreType.DMA((rows.members,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(rows.result, rows.dtype),
        compiler_params=exchanges.params(collective_id, 2),
        interpret=interpret,
        name="lookup_all_to_all",
    )(places, indices, table)


def _kernel(places, indices, table, result, leaving, found, left_sems, arrived, *, rows: SentRows):
    number, i = pl.program_id(0), pl.program_id(1)
    last = rows.members - 1
    step, steps = number * rows.blocks + i, rows.members * rows.blocks
    own, slot = places[MEMBER, last], step % SLOTS
    first = places[MEMBER, number] * rows.part + i * rows.block

    @pl.when(step == 0)
    def _():
        exchanges.meet(places, rows.members)

    @pl.when(step >= SLOTS)
    def _():
        exchanges.wait_for(leaving.at[slot], left_sems.at[slot])

    @pl.loop(0, rows.block)
    def _(row):
        index = jnp.clip(indices[first + row], 0, rows.entries - 1)
        exchanges.keep(table.at[pl.ds(index, 1)], leaving.at[slot, pl.ds(row, 1)], found)

    exchanges.wait_for(leaving.at[slot, pl.ds(0, 1)], found, times=rows.block)
    target = result.at[_where(rows, own, i)]

    exchanges.pass_on(leaving.at[slot], target, left_sems.at[slot], arrived, places, number, last)

    @pl.when(step == steps - 1)
    def _():
        exchanges.wait_for_all(leaving, left_sems, arrived, steps, last, rows.blocks)


def _where(rows: SentRows, member, i) -> tuple:
    """Returns the slices of the result that a member's block fills."""
    if rows.joined == 0:
        return pl.ds(pl.multiple_of(member * rows.part + i * rows.block, rows.block), rows.block), slice(None)
    columns = pl.ds(pl.multiple_of(member * rows.width, rows.width), rows.width)
    return pl.ds(pl.multiple_of(i * rows.block, rows.block), rows.block), columns
