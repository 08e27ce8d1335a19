# SPDX-License-Identifier: Apache-2.0
"""One program under many placements: the same time as its collectives have on the mesh with these device ids."""

import numpy as np
import pytest

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network.program_time import LocalWork, program_time
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.placement.repricing import Repriced, renamed
from reshard.synthesis.programs.traffic import Collective


def collectives(mesh: Mesh, ids: np.ndarray) -> list[Collective]:
    """Returns collectives along each axis, of devices with these ids at the positions of the mesh."""
    found, places = [], ids.reshape([size for _, size in mesh.axes])
    for at, (_, size) in enumerate(mesh.axes):
        groups = np.moveaxis(places, at, -1).reshape(-1, size)
        some = tuple(map(tuple, groups.tolist()))
        found += [
            Collective(kind, 1 << 20, 1 << 22, groups=some, trip_count=at + 1) for kind in ("all_reduce", "all_gather")
        ]
        found.append(Collective("collective_permute", 3000, 3000, pairs=tuple((a[0], a[1]) for a in groups.tolist())))
    return [*found, found[0]]


@pytest.mark.parametrize(
    ("topology", "axes"),
    [("h100:2x4", "a=2,b=4"), ("v5e:4x4", "a=4,b=4"), ("v5p:2x2x4", "a=4,b=4"), ("v5e:2x2*2", "a=8")],
)
def test_the_time_under_a_placement_is_that_of_the_mesh_with_its_device_ids(topology, axes):
    network, mesh, work = Topology.parse(topology), Mesh.parse(axes), [LocalWork(10**9, 10**6, 3)]
    numbered = Repriced.of(mesh.size, collectives(mesh, np.arange(mesh.size)), work)
    times = set()
    for each in placements(network, mesh):
        real = program_time(network, mesh.size, collectives(mesh, np.array(each.device_ids)), work)
        assert numbered.seconds(renamed(network, each.device_ids)) == pytest.approx(real.seconds, rel=1e-12)
        times.add(round(real.seconds, 9))
    assert len(times) > 1 or axes == "a=8"


def test_collectives_with_the_same_groups_are_priced_once():
    mesh = Mesh.parse("a=2,b=4")
    program = Repriced.of(8, collectives(mesh, np.arange(8)) * 5)
    across = "all_reduce", ((0, 4), (1, 5), (2, 6), (3, 7)), ()
    assert len(program.tiles) == 6 and sum(program.tiles[across].values()) == 10
