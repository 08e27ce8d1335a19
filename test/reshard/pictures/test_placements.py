# SPDX-License-Identifier: Apache-2.0
"""The elements on each device after each step: at both ends they agree with blocks, in between with the interpreter."""

import itertools

import numpy as np
import pytest

from reshard.pictures.placements import differing, originals, part_names, placements
from reshard.planning.entry import plan
from reshard.synthesis.layouts.blocks import both_ends
from reshard.synthesis.programs.interpreter import run, scatter
from reshard.synthesis.programs.tile_program import On, TileProgram

CASES = {
    "one all_to_all": dict(
        source='[{"y"}, {}, {"x"}]', target='[{}, {"x","y"}, {}]', mesh="x=4,y=2", shape=(16, 16, 16)
    ),
    "middle digit": dict(source='[{}, {"x"}]', target='[{"x","y","z"}, {}]', mesh="x=2,y=2,z=2", shape=(16, 4)),
    "uneven": dict(source='[{"x"}, {}]', target='[{}, {"x"}]', mesh="x=4", shape=(10, 3)),
    "two radices": dict(source='[{"x"}]', target='[{"y"}]', mesh="x=2,y=3", shape=(10,)),
    "gathered": dict(source='[{"x","y"}, {}]', target="[{}, {}]", mesh="x=4,y=2", shape=(16, 3)),
    "device order": dict(
        source='[{"x"}, {}]', target='[{}, {"x"}]', mesh='<["x"=4, "y"=2], device_ids=[7,6,5,4,3,2,1,0]>', shape=(8, 8)
    ),
    "two meshes": dict(
        source='[{"x"}, {}]',
        target='[{}, {"a"}]',
        mesh="x=4,y=2",
        target_mesh='<["a"=2,"b"=4], device_ids=[7,1,2,3,4,5,6,0]>',
        shape=(8, 8),
    ),
    "one device": dict(source='[{"x"}, {}]', target="[]", mesh="x=4", target_mesh="<[], device_ids=[3]>", shape=(8, 8)),
    "in chunks": dict(
        source='[{"x"},{}]', target='[{},{"x"}]', mesh="x=4,y=2", shape=(1024, 1024), memory_limit="2560KiB"
    ),
    "nothing": dict(source='[{"x"}]', target='[{"x"}]', mesh="x=4", shape=(8,)),
}


def held_elements(found, state, device) -> set[int]:
    """Returns the elements that a device holds, as row-major numbers."""
    if not all(each[device].any() for each in state.holds):
        return set()
    along = [
        np.concatenate([np.arange(edges[c], edges[c + 1]) for c in np.flatnonzero(holds[device])])
        for edges, holds in zip(found.edges, state.holds)
    ]
    return set(np.ravel_multi_index(np.ix_(*along), found.shape).ravel().tolist())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ends_are_those_of_the_shardings(case):
    planned = plan(**case)
    found = placements(planned)
    numbers = np.arange(np.prod(planned.shape)).reshape(planned.shape)
    for state, blocks in zip(
        (found.states[0], found.states[-1]),
        both_ends(planned.mesh, planned.shape, planned.source, planned.target, planned.target_mesh),
    ):
        for device in range(planned.devices):
            box = numbers[tuple(map(slice, blocks.starts[device], blocks.stops[device]))]
            assert held_elements(found, state, device) == set(box.ravel().tolist())


@pytest.mark.parametrize("name", ["one all_to_all", "middle digit", "gathered", "uneven", "two meshes"])
def test_states_between_are_what_the_interpreter_has(name):
    planned = plan(**CASES[name])
    found = placements(planned)
    assert not found.left_out
    program = planned.tile_program
    tiles = scatter(np.arange(1, np.prod(planned.shape) + 1).reshape(planned.shape), planned.mesh, planned.source)
    tiles = {device: np.maximum(tile, 0) for device, tile in tiles.items()}
    mesh, by_number = planned.mesh, {each.number: each for each in found.states}
    for number, (_, operations) in enumerate(program.steps[:-1], 1):
        tiles = run(TileProgram(mesh, (), (), ((None, operations),)), tiles)
        mesh = next((each.mesh for each in reversed(operations) if isinstance(each, On)), mesh)
        for device, tile in tiles.items():
            assert held_elements(found, by_number[number], device) == set((tile[tile > 0] - 1).ravel().tolist())


def test_a_tile_has_one_letter_before_and_one_number_after():
    found = placements(plan(**CASES["one all_to_all"]))
    for device in range(8):
        before, after = (
            list(itertools.chain(*itertools.chain(*part_names(found, state, device))))
            for state in (found.states[0], found.states[-1])
        )
        assert len({name[0] for name in before}) == 1 and len({name[1:] for name in before}) == 8
        assert len({name[0] for name in after}) == 8 and len({name[1:] for name in after}) == 1


def test_replicas_are_known_and_partial_sums_kept_apart():
    found = placements(plan('[{"x"}, {}], unreduced={"y"}', '[{}, {"x"}]', mesh="x=4,y=2", shape=(8, 8)))
    assert originals(found.states[0]) == {device: device for device in range(8)}
    assert found.states[0].partial_sum.tolist() == [0, 1] * 4
    assert originals(found.states[-1]) == {device: device // 2 * 2 for device in range(8)}
    assert found.states[-1].partial_sum is None


def test_partial_sums_are_known_between_steps_that_pad():
    found = placements(plan('[{"x"}, {}], unreduced={"y"}', '[{"y"}, {}]', mesh="x=4,y=2", shape=(9, 8)))
    sums = [None if each.partial_sum is None else int(each.partial_sum.max()) for each in found.states]
    reduced = next(i for i, each in enumerate(found.states) if each.title.startswith("reduce_scatter"))
    assert sums == [1] * reduced + [None] * (len(sums) - reduced)


def test_relayouts_are_left_out_where_nothing_changes_hands():
    planned = plan(**CASES["one all_to_all"])
    assert [each.number for each in placements(planned).states] == [0, 1, 2, 3]
    assert [each.number for each in differing(placements(planned)).states] == [0, 2]


def test_a_step_whose_result_is_too_large_to_find_out_is_named():
    planned = plan('[{"x"}, {}]', '[{}, {"x"}]', mesh="x=4", shape=(10001, 4003))
    found = placements(planned)
    assert found.states[0].number == 0 and found.states[-1].number == len(planned.steps)
    assert found.left_out == tuple(range(1, len(planned.steps)))
