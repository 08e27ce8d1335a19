# SPDX-License-Identifier: Apache-2.0
"""The leaves of a tree are checked and described before anything is planned."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from reshard.live.leaves import RedistributeError, bits_of, devices_of, ends_of, flattened, placement_of, targets_of

MESH = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
SPLIT = NamedSharding(MESH, PartitionSpec("x"))


def test_a_leaf_of_the_host_has_no_source():
    ends = ends_of("['a']", np.zeros((4, 2), np.float32), SPLIT)
    assert (ends.source, ends.target, ends.shape, ends.dtype) == (None, SPLIT, (4, 2), np.float32)


def test_an_entry_of_none_leaves_the_leaf_where_it_is():
    assert ends_of("['a']", np.zeros(4), None).target is None


def test_one_sharding_serves_all_leaves_below_it():
    tree = {"a": [1, 2], "b": 3}
    paths, leaves, _ = flattened(tree)
    assert paths == ["['a'][0]", "['a'][1]", "['b']"]
    assert targets_of({"a": SPLIT, "b": None}, tree, leaves) == [SPLIT, SPLIT, None]


def test_a_target_with_more_entries_than_dimensions_is_refused():
    with pytest.raises(RedistributeError, match="which has 2 entries"):
        ends_of("['a']", np.zeros(4), NamedSharding(MESH, PartitionSpec("x", None)))


def test_a_shape_without_a_sharding_is_refused():
    with pytest.raises(RedistributeError, match="a shape without a sharding"):
        ends_of("['a']", jax.ShapeDtypeStruct((4,), np.float32), SPLIT)


def test_a_placement_has_the_devices_of_the_mesh_and_their_boxes():
    placement = placement_of(SPLIT, (4, 2))
    assert placement.device_ids == tuple(device.id for device in devices_of(SPLIT))
    assert (placement.boxes, placement.axes) == ((((0, 4), (0, 2)),), (("x", 1),))


def test_an_unknown_type_has_no_bits():
    assert bits_of(np.dtype(np.float32)) == 32
    assert bits_of(np.dtype("datetime64[s]")) is None
