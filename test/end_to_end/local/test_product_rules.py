# SPDX-License-Identifier: Apache-2.0
"""Any way to split a matrix product gives the values of one device, with partial sums or without."""

import numpy as np
import pytest
from jax import lax

from reshard.dialect_utils.partitioning.rule_choice import RuleChoice
from reshard.dialect_utils.tile_rules.product_rules import is_product
from test.end_to_end.local.drawn import Drawn, any_rule, checked, mesh, written

__all__ = ["any_rule", "mesh"]  # fixtures


@pytest.fixture
def compared(monkeypatch):
    """Makes the writer offer all ways to split a product."""
    monkeypatch.setattr(RuleChoice, "is_compared", lambda _, op: is_product(op))


def products(drawn: Drawn):
    draw, dtype = drawn.rng, drawn.rng.choice([np.float32, np.int32])
    batch, contracted, rows, columns = (draw.choice(sizes) for sizes in ([1, 2], [1, 2], [1, 2], [0, 1]))
    sizes = {"b": (4, 8)[:batch], "k": (16, 8)[:contracted], "m": (8, 4)[:rows], "n": (16,)[:columns]}
    lhs, rhs = [*"bkm"], [*"bkn"]
    draw.shuffle(lhs)
    draw.shuffle(rhs)
    tensors = [drawn.array([size for kind in kinds for size in sizes[kind]], dtype) for kinds in (lhs, rhs)]
    at = [{kind: _places(kinds, sizes, kind) for kind in kinds} for kinds in (lhs, rhs)]
    numbers = (at[0]["k"], at[1]["k"]), (at[0]["b"], at[1]["b"])
    return lambda args: lax.dot_general(args[tensors[0]], args[tensors[1]], numbers)


def sums_of_products(drawn: Drawn):
    """One array is taken by several products, and their results are added up."""
    taken = drawn.array((16, 32), np.float32)
    weights = [drawn.array((32, 8), np.float32) for _ in range(3)]
    return lambda args: sum((args[taken] @ args[each] for each in weights[1:]), args[taken] @ args[weights[0]])


def _places(kinds, sizes, kind: str) -> list[int]:
    before = sum(len(sizes[each]) for each in kinds[: kinds.index(kind)])
    return [*range(before, before + len(sizes[kind]))]


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", range(6))
def test_any_way_to_split_a_product_gives_the_values_of_one_device(seed, mesh, any_rule, compared):
    checked(mesh, seed, [products, products, sums_of_products])
    assert any("dot_general" in each for each in written)
