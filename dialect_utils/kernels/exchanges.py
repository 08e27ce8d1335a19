# SPDX-License-Identifier: Apache-2.0
"""What the kernels share: who gets which part, the meeting before it, and copies into the memory of others.

A kernel runs on all devices of a group at once, and writes into buffers of the others. That is correct because

- **nobody writes too early**: a kernel first tells all members that it runs, and waits until all of them do. The
  buffers of one call are at one place on all devices, and nothing else uses them once the call runs;
- **nobody reads too early**: what comes in each round is counted by a semaphore of its own, in the sizes in which it is
  sent, and waited for;
- **nobody leaves too early**: a kernel ends when all that it sends has left, and all that it gets is there. So its
  semaphores are at zero; and who runs the same call again has heard from all members in between, so that its next
  signal cannot count for this meeting.

Calls with different groups need different collective ids: a member of both would take a signal of one for the other's.
Between programs XLA keeps them apart, as its own collectives.

Devices are numbered by their positions in a mesh of one axis, under which a kernel is traced (`jax.shard_map`); groups
are whatever the `places` say.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .places import DEVICE
from .sizes import SentProduct, SummedProduct

SLOTS = 2  # for blocks that leave: one is computed while the other is read
VMEM_LIMIT_BYTES = 56 * 2**20  # v5p has 64 MiB


def meet(places, members: int) -> None:
    """Waits until all members run this call."""
    barrier = pltpu.get_barrier_semaphore()
    for number in range(members - 1):
        pl.semaphore_signal(barrier, 1, device_id=(places[DEVICE, number],))
    pl.semaphore_wait(barrier, members - 1)


def send(source, target, left, arrived, device) -> None:
    """Starts a copy into the same buffer of another device."""
    pltpu.make_async_remote_copy(source, target, left, arrived, device_id=(device,)).start()


def keep(source, target, left) -> None:
    """Starts a copy on this device."""
    pltpu.make_async_copy(source, target, left).start()


def wait_for(like, semaphore, times: int = 1) -> None:
    """Waits for copies of the size of `like`, whichever they are."""
    copy = pltpu.make_async_copy(like, like, semaphore)
    if times == 1:
        copy.wait()
    else:
        pl.loop(0, times)(lambda _: copy.wait())


def pass_on(block, target, left, arrived, places, number, last: int) -> None:
    """Starts the copy of a block into the result of whom it is for: of another member in round `number`, of this device
    in the last one. `arrived` has a semaphore for each round."""

    @pl.when(number < last)
    def _():
        send(block, target, left, arrived.at[number], places[DEVICE, number])

    @pl.when(number == last)
    def _():
        keep(block, target, left)


def wait_for_all(leaving, left_sems, arrived, steps: int, rounds: int, blocks: int) -> None:
    """Waits until all that is sent in `steps` has left, and the blocks of each round are there."""
    for slot in range(min(SLOTS, steps)):
        wait_for(leaving.at[slot], left_sems.at[slot])
    for number in range(rounds):
        wait_for(leaving.at[0], arrived.at[number], times=blocks)


def params(collective_id: int, dimensions: int) -> pltpu.CompilerParams:
    """Returns the compiler's parameters of a kernel whose steps run one after the other."""
    return pltpu.CompilerParams(
        dimension_semantics=("arbitrary",) * dimensions,
        collective_id=collective_id,
        vmem_limit_bytes=VMEM_LIMIT_BYTES,
    )


def multiplied(left, right, product: SentProduct | SummedProduct):
    """Returns the product of two matrices in VMEM, added up as float32 if they are floating-point numbers."""
    dims = (((1,), (1 if product.is_right_transposed else 0,)), ((), ()))
    summing = jnp.float32 if jnp.issubdtype(left.dtype, jnp.floating) else left.dtype
    precision = lax.Precision.HIGHEST if product.is_precise else None
    made = lax.dot_general(left, right, dims, precision=precision, preferred_element_type=summing)
    return made.astype(product.dtype)
