# SPDX-License-Identifier: Apache-2.0
"""A plan over some axes of a mesh, lifted to all axes, moves data only among devices that agree on the other axes."""

import itertools

import numpy as np
import pytest

from reshard.synthesis.layouts.layout import groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import NoPlanError, plan
from reshard.synthesis.programs.submesh import lifted, without
from reshard.synthesis.programs.tile_program import Gather, Rounds, Send, Swap

MESHES = ["x=4,y=2", "y=2,x=4", "a=2,x=4,b=3", '<["x"=4, "y"=2], device_ids=[3, 1, 4, 7, 5, 0, 2, 6]>']


def settings(mesh: Mesh, axis: str = "x") -> list[set[int]]:
    """Returns the sets of devices that differ only along `axis`."""
    ids = np.array([mesh.device_at(position) for position in range(mesh.size)]).reshape([size for _, size in mesh.axes])
    return [
        set(row) for row in np.moveaxis(ids, mesh.axis_names.index(axis), -1).reshape(-1, mesh.axis_size(axis)).tolist()
    ]


def over_x(source: str, target: str, shape=(16, 16), **options):
    return plan(Mesh.parse("x=4"), shape, 32, Sharding.parse(source), Sharding.parse(target), **options)


@pytest.mark.parametrize("text", MESHES)
def test_groups_are_the_devices_along_the_axis(text):
    mesh = Mesh.parse(text)
    assert str(without(mesh, set(mesh.axis_names) - {"x"})) == '<["x"=4]>'
    for target, kind in (('[{}, {"x"}]', Swap), ("[{}, {}]", Gather)):
        program = lifted(over_x('[{"x"}, {}]', target).tile_program, mesh)
        (collective,) = (each for each in program.operations if isinstance(each, kind))
        members = [set(row) for row in groups(program.mesh, collective.factors).tolist()]
        assert sorted(map(sorted, members)) == sorted(map(sorted, settings(mesh)))


@pytest.mark.parametrize("text", MESHES)
def test_a_permute_stays_within_each_setting_and_does_there_what_it_did(text):
    mesh = Mesh.parse(text)
    alone = over_x('[{"x"}, {}]', '[{"x":(2)2, "x":(1)2}, {}]').tile_program
    (before,), (after,) = (
        [each.pairs for each in p.operations if isinstance(each, Send)] for p in (alone, lifted(alone, mesh))
    )
    assert sorted(sender for sender, _ in after) == sorted(receiver for _, receiver in after) == list(range(mesh.size))
    ids = np.array([mesh.device_at(position) for position in range(mesh.size)]).reshape([size for _, size in mesh.axes])
    rows = np.moveaxis(ids, mesh.axis_names.index("x"), -1).reshape(-1, 4)
    assert set(after) == {
        (row[sender], row[receiver]) for row, (sender, receiver) in itertools.product(rows.tolist(), before)
    }


def test_an_exchange_is_refused():
    program = over_x('[{"x"}, {}]', '[{"x":(1)2}, {}]', (10, 16), with_exchange=True, objective="bytes").tile_program
    assert any(isinstance(each, Rounds) for each in program.operations)
    with pytest.raises(
        NoPlanError, match="an exchange among the devices along some axes of a mesh only is not supported"
    ):
        lifted(program, Mesh.parse("x=4,y=2"))


def test_on_its_own_mesh_a_program_is_what_it_was():
    program = over_x('[{"x"}, {}]', '[{}, {"x"}]').tile_program
    assert lifted(program, Mesh.parse("x=4")) is program
