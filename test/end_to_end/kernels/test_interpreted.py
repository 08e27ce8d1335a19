# SPDX-License-Identifier: Apache-2.0
"""Kernels in interpret mode on 4 and 8 devices: without races, and bit for bit what StableHLO's collectives give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reshard.dialect_utils.kernels import exchanges, sent_products, summed_products
from reshard.dialect_utils.kernels.places import DEVICE
from reshard.dialect_utils.kernels.sizes import SentProduct, SentRows, SummedProduct
from reshard.synthesis.overlap.rings import Rings
from test.end_to_end.kernels.drawn import PATTERNS, TINY, Call, drawn, fractions_of, operands_of, run, run_stock


def check(pattern: str, seed: int, devices: int) -> None:
    call = drawn(pattern, seed, devices)
    operands = operands_of(call, seed)
    found, problems = run(call, operands)
    assert not problems, call
    wanted = run_stock(call, operands)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted, err_msg=str(call))


@pytest.mark.mostly_slow
@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_kernel_gives_what_the_collective_gives(pattern, devices):
    check(pattern, 0, devices)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(1, 101, 5))
@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_shapes_give_what_the_collective_gives(pattern, start):
    for seed in range(start, start + 5):
        check(pattern, seed, 4 if seed % 2 else 8)


def blocks_of(call: Call, left, right) -> np.ndarray:
    """Returns the product of one device, block by block as a kernel computes it."""
    sizes = call.sizes
    if isinstance(sizes, SummedProduct):
        right = right if sizes.is_right_transposed else right.T
        parts = np.split(right, sizes.members * sizes.blocks)
        parts = parts if sizes.is_right_transposed else [each.T for each in parts]
        return np.concatenate([exchanges.multiplied(left, each, sizes) for each in parts], axis=1)
    whole = np.zeros(sizes.whole, jnp.dtype(sizes.dtype))
    right = right.swapaxes(1, 2) if sizes.is_right_transposed else right
    _, rows, columns = sizes.block
    for b, i, j in np.ndindex(sizes.whole[0], sizes.whole[1] // rows, sizes.whole[2] // columns):
        at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
        operand = right[b][:, at[1]]
        whole[b][at] = exchanges.multiplied(left[b][at[0]], operand.T if sizes.is_right_transposed else operand, sizes)
    return whole


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 212))
@pytest.mark.parametrize("pattern", PATTERNS[:2])
def test_sums_that_are_rounded_have_the_order_that_is_stated(pattern, seed):
    call = drawn(pattern, seed, 8)
    operands = fractions_of(call, seed)
    found, problems = run(call, operands)
    assert not problems, call
    products = [blocks_of(call, *own) for own in zip(*operands)]
    for group in call.rings.groups:
        if isinstance(call.sizes, SentProduct):
            parts = [np.split(products[device], len(group), axis=call.sizes.split) for device in group]
            for member, device in enumerate(group):
                wanted = np.concatenate([each[member] for each in parts], axis=call.sizes.joined)
                np.testing.assert_array_equal(found[device], wanted, err_msg=str(call))
        else:
            wanted = summed_products.in_order(jnp.stack([products[device] for device in group]), call.sizes.dtype)
            for device in group:
                np.testing.assert_array_equal(found[device], wanted, err_msg=str(call))


def early_reader(places, operand, sizes, *, collective_id, interpret):
    """Reads what the member ahead sends before it waits for it."""

    def kernel(places, operand, result, came, left, arrived):
        exchanges.meet(places, 2)
        exchanges.send(operand, came, left, arrived, places[DEVICE, 0])
        result[...] = came[...]
        exchanges.wait_for(operand, left)
        exchanges.wait_for(came, arrived)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(operand.shape, operand.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        scratch_shapes=[
            pltpu.VMEM(operand.shape, operand.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id),
        interpret=interpret,
    )(places, operand)


PAIRS = Rings(((0, 1), (2, 3)), (0, 1))


def test_a_kernel_that_reads_too_early_has_a_race():
    call = Call(SentRows(1, 128, 8, 2, 0, "float32"), PAIRS, 4, (((8, 128), "float32"),), early_reader, early_reader)
    assert "RACE" in run(call, fractions_of(call, 0))[1]


@pytest.mark.slow
def test_a_kernel_that_does_not_wait_for_what_leaves_has_a_race(monkeypatch):
    """Blocks are computed into two places in turn, so the third one overwrites what may still be read."""
    sizes = SentProduct((1, 48, 8), 4, 2, 1, 1, "float32", "float32", vmem_bytes=TINY)
    operands = ((1, 48, 4), "float32"), ((1, 4, 8), "float32")
    call = Call(sizes, PAIRS, 4, operands, sent_products.sent_product, sent_products.sent_product)
    assert not run(call, fractions_of(call, 0))[1]
    waits, forgotten = exchanges.wait_for, []

    def forgetful(like, semaphore, times=1):
        if forgotten:
            waits(like, semaphore, times)
        else:
            forgotten.append(semaphore)

    monkeypatch.setattr(exchanges, "wait_for", forgetful)
    problems = run(call, fractions_of(call, 0))[1]
    assert "RACE" in problems and "non-zero count" in problems
