# SPDX-License-Identifier: Apache-2.0
"""Blocks fit into VMEM and fill what is sent; what no kernel is for is said in words."""

from dataclasses import replace

import pytest

from reshard.dialect_utils.kernels.places import DEVICE, MEMBER, places_of
from reshard.dialect_utils.kernels.sizes import SentProduct, SentRows, SummedProduct
from reshard.synthesis.overlap.rings import Rings

PRODUCT = SentProduct((2, 1024, 512), 256, 4, 1, 2, "bfloat16", "bfloat16")
SUM = SummedProduct(3, 4096, 1024, 4, "float32", "bfloat16")
ROWS = SentRows(1000, 256, 512, 4, 1, "float32")


def test_what_is_sent_is_put_together_along_another_dimension():
    assert (PRODUCT.part, PRODUCT.result) == ((2, 256, 512), (2, 256, 2048))
    assert (SUM.chunk, ROWS.part, ROWS.result) == (1024, 128, (128, 1024))


@pytest.mark.parametrize("vmem_bytes", [1, 2**20, 2**25])
def test_blocks_fill_a_part(vmem_bytes):
    product, total, rows = (replace(each, vmem_bytes=vmem_bytes) for each in (PRODUCT, SUM, ROWS))
    assert tuple(a * b for a, b in zip(product.block, product.blocks, strict=True)) == product.part
    assert total.block * total.blocks == total.chunk and rows.block * rows.blocks == rows.part
    if vmem_bytes == 1:
        assert (product.block, total.block, rows.block) == ((1, 16, 128), 128, 8)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        (PRODUCT, ""),
        (replace(PRODUCT, whole=(2, 1024, 100)), "a part of 256 x 100 is no multiple of 16 x 128"),
        (replace(PRODUCT, whole=(2, 32, 512)), "a part of 8 x 512 is no multiple of 16 x 128"),
        (replace(PRODUCT, inner=100_000), "blocks over a contracted dimension of 100000 do not fit into VMEM"),
        (replace(PRODUCT, dtype="i32"), "its elements are i32, kernels are for float32 and bfloat16"),
        (
            replace(PRODUCT, members=128, whole=(2, 4096, 512)),
            "its groups have 128 members, kernels are for at most 64",
        ),
        (SUM, ""),
        (replace(SUM, columns=4096 + 128), "4224 columns are no multiple of 128 for each of 4 members"),
        (replace(SUM, rows=64, columns=65536), "a sum of 16.0 MiB does not stay in VMEM; the most is 8"),
        (ROWS, ""),
        (replace(ROWS, dtype="bfloat16"), "its elements are bfloat16, single rows can be copied of float32"),
        (replace(ROWS, width=100), "a part of 128 x 100 is no multiple of 8 x 128"),
        (
            replace(ROWS, count=2**18),
            "262144 indices do not fit into the memory of scalars; the most are 131072",
        ),
    ],
)
def test_what_no_kernel_is_for(sizes, problem):
    assert sizes.problem() == problem


def test_every_round_has_another_receiver():
    rings = Rings(((0, 2, 4, 6), (1, 3, 5, 7)), (0, 1, 3, 2))
    places = places_of(rings, 8)
    for number in range(4):
        assert sorted(places[:, DEVICE, number]) == list(range(8))
    for device in range(8):
        group = rings.groups[device % 2]
        assert [group[member] for member in places[device, MEMBER]] == places[device, DEVICE].tolist()
        assert places[device, DEVICE, -1] == device
