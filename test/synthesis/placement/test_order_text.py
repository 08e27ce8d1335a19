# SPDX-License-Identifier: Apache-2.0
"""Orders of devices as axes that change places."""

import numpy as np
import pytest

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.placement.order_text import as_transposed


@pytest.mark.parametrize(
    "topology, axes", [("h100:4x8", "x=4,y=2,z=4"), ("v5p:2x2x4", "x=8,y=2"), ("h100:2x6", "x=3,y=4")]
)
def test_every_placement_is_a_transpose(topology, axes):
    for each in placements(Topology.parse(topology), Mesh.parse(axes)):
        found = as_transposed(each.device_ids)
        assert found is not None
        sizes, order = found
        assert np.arange(len(each.device_ids)).reshape(sizes).transpose(order).ravel().tolist() == list(each.device_ids)


@pytest.mark.parametrize("ids", [(0, 1, 3, 2), (1, 0), (0, 2, 1, 3, 4, 5)])
def test_other_orders_are_none(ids):
    assert as_transposed(ids) is None
