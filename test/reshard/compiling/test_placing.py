# SPDX-License-Identifier: Apache-2.0
"""Which placement is taken: the fastest, or the program's own order where little is gained over it."""

import pytest

from reshard.compiling.placing import JAX, ROW_MAJOR, Place, fastest_first


def place(seconds: float, *names: str) -> Place:
    return Place((0, 1), f"{seconds}", names, seconds)


@pytest.mark.parametrize(
    "row_major_s, jax_s, taken",
    [
        (1.02, 1.05, ()),
        (1.005, 1.05, (ROW_MAJOR,)),
        (1.005, 1.005, (ROW_MAJOR,)),
        (1.005, 1.001, ()),  # a jax program would become slower
        (1.02, 1.001, ()),
    ],
)
def test_the_own_order_stays_unless_it_is_slower_than_the_fastest_or_than_jax(row_major_s, jax_s, taken):
    found = fastest_first([place(row_major_s, ROW_MAJOR), place(jax_s, JAX), place(1.0)], ROW_MAJOR)
    assert found[0].names == taken
    assert [each.stock_s for each in found[1:]] == sorted(each.stock_s for each in found[1:])
