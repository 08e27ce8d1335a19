# SPDX-License-Identifier: Apache-2.0
"""The rows of the benchmark of live arrays, on a small tree; the measured numbers are not tested."""

import re

import pytest

from benchmarks import live_arrays
from benchmarks.live_arrays import leaves_of


def test_a_tree_has_as_many_leaves_and_bytes_as_asked_for():
    leaves = leaves_of(2 << 30, 300)
    assert len({leaf.name for leaf in leaves}) == len(leaves) == 300
    total = sum(leaf.shape[0] * (leaf.shape[1] if len(leaf.shape) > 1 else 1) * 4 for leaf in leaves)
    assert 2 << 30 <= total <= 2.2 * 2**30


@pytest.mark.slow
def test_a_row_for_each_method_and_every_tile_is_right(capsys):
    arguments = ["--size", "1MiB", "--leaves", "16", "--change", "training-inference", "--repeats", "1"]
    assert live_arrays.main([*arguments, "--methods", "reshard,device_put"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"training-inference: 16 leaves, \d+ MiB, 8 devices", lines[0])
    assert [(row[:10].strip(), row.split()[-1]) for row in lines[3:5]] == [("reshard", "yes"), ("device_put", "yes")]
