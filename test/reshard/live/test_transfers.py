# SPDX-License-Identifier: Apache-2.0
"""Transfers: the kind of each leaf's move, such as device_put, and its numbers."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from reshard.live.leaves import ends_of
from reshard.live.transfers import DEVICE_PUT, SHARES, STAYS, same_as_before, transfer_of

MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
SPLIT, WHOLE = NamedSharding(MESH, PartitionSpec("x")), NamedSharding(MESH, PartitionSpec())


def transfer(leaf, target):
    return transfer_of(ends_of("['a']", leaf, target), None, "time", None)


def test_a_leaf_of_the_host_is_put_by_jax():
    found = transfer(np.zeros(4, np.float32), SPLIT)
    assert (found.kind, found.text, found.goal) == (DEVICE_PUT, "device_put: held by the host", SPLIT)
    assert (found.source_bytes, found.target_bytes, found.peak_bytes) == (0, 16, 16)


def test_a_leaf_at_its_target_stays():
    array = jax.device_put(np.zeros(4, np.float32), SPLIT)
    assert transfer(array, SPLIT).kind == STAYS


def test_a_leaf_that_the_target_places_alike_shares_its_buffers():
    found = transfer(jax.device_put(np.zeros(4, np.float32), SPLIT), WHOLE)
    assert (found.kind, found.way, found.peak_bytes) == (SHARES, None, 16)


def test_the_same_array_with_the_same_target_is_moved_once():
    one, other = (jax.device_put(np.zeros(4, np.float32), SPLIT) for _ in range(2))
    assert same_as_before([one, other, one, one], [SPLIT, SPLIT, SPLIT, WHOLE]) == [None, None, 0, None]
