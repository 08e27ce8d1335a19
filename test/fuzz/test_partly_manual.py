# SPDX-License-Identifier: Apache-2.0
"""Random programs in a `jax.shard_map` over some axes, written per device, in a process that may hang or abort."""

from pathlib import Path

import pytest
from test_shard_maps import assert_right, checked

WORKER = Path(__file__).with_name("partly_manual.py")
FOUND = {  # seeds of programs that once failed, and what was wrong
    20: "groups along a part of an axis",
    28: "a conversion in a branch that some devices do not take had a permute, for which it waited",
}


def assert_written(outcomes: list[dict]) -> None:
    assert_right(outcomes)
    assert sum(bool(row["refused"]) for row in outcomes) <= len(outcomes) // 20


@pytest.mark.mostly_slow
@pytest.mark.parametrize("seed", FOUND, ids=str)
def test_programs_that_once_failed(seed):
    assert_written(checked(WORKER, seed))


@pytest.mark.slow
def test_random_programs_give_the_same():
    outcomes = checked(WORKER, 20_000, 20)
    assert_written(outcomes)
    assert sum(row["conversions"] for row in outcomes) >= 10


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("start", range(30_000, 31_000, 25))
def test_many_random_programs_give_the_same(start):
    outcomes = checked(WORKER, start, 25)
    assert_written(outcomes)
    assert sum(row["conversions"] for row in outcomes) >= 12
