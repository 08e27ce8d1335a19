# SPDX-License-Identifier: Apache-2.0
"""A part of an array moves to its place in another array: checked by an interpreter of the exchange."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.layouts.blocks import Blocks, cut
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.moved import End, plan_move, plan_moves
from reshard.synthesis.programs.exchange import run_exchange

MESHES = [Mesh.parse(text) for text in ("x=2", "x=2,y=3", "x=4,y=2", '<["x"=2, "y"=2], device_ids=[3,1,0,2]>')]


@st.composite
def moves(draw):
    """A mesh, the size of a part, and two arrays that have it."""
    mesh, rank = draw(st.sampled_from(MESHES)), draw(st.integers(1, 3))
    size = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    return mesh, size, *(draw(ends(mesh, size)) for _ in range(2))


@st.composite
def ends(draw, mesh, size):
    axes, dims, shape, start = list(mesh.axis_names), [], [], []
    for each in size:
        own = [axes.pop() for _ in range(draw(st.integers(0, len(axes))))]
        dims.append(tuple(AxisRef(axis) for axis in own))
        at = draw(st.integers(0, 5))
        count = math.prod(mesh.axis_size(axis) for axis in own)
        start.append(at)
        shape.append(-(-(at + each + draw(st.integers(0, 5))) // count) * count)
    mirrored = tuple(draw(st.sets(st.integers(0, len(size) - 1))))
    return End(tuple(shape), Sharding(tuple(dims)), tuple(start), mirrored)


def part_of(array: np.ndarray, end: End, size) -> np.ndarray:
    return np.flip(array, end.mirrored)[tuple(slice(at, at + each) for at, each in zip(end.start, size))]


@settings(deadline=None)
@given(moves(), st.booleans())
def test_every_device_gets_what_its_tile_has_of_the_part(move, is_by_time):
    mesh, size, source, target = move
    how = {"objective": "time", "topology": Topology.parse("uniform")} if is_by_time else {}
    found = plan_move(mesh, 32, size, source, target, **how)
    array = np.arange(math.prod(source.shape), dtype=np.int64).reshape(source.shape)
    (operation,) = found.tile_program.operations
    exchange = operation.exchange
    tiles = cut(array, Blocks.of_sharding(mesh, source.shape, source.sharding))
    tiles = {device: np.flip(tile, source.mirrored) for device, tile in tiles.items()}
    results = run_exchange(exchange, tiles)
    wanted = cut(part_of(array, source, size), target.blocks(mesh, size), padding=-1)
    for device, tile in wanted.items():
        np.testing.assert_array_equal(results[device][tile >= 0], tile[tile >= 0])
    assert is_by_time or found.bytes_received == found.bound_bytes


def test_a_part_that_stays_where_it_is_moves_nothing():
    mesh, halves = Mesh.parse("x=2"), Sharding.parse('[{}, {"x"}]')
    found = plan_move(mesh, 32, (4, 8), End((8, 8), halves, (2, 0)), End((4, 8), halves, (0, 0)))
    assert found.bytes_received == found.bound_bytes == 0 and not found.tile_program.operations[0].exchange.rounds


@pytest.mark.parametrize("start, received", [(0, 4), (2, 0), (4, 4)])
def test_a_slice_of_a_split_dimension_receives_what_its_tiles_lack(start, received):
    """Three parts of a fused projection: each device has one of them already, or none."""
    mesh, split = Mesh.parse("x=2"), Sharding.parse('[{"x"}]')
    found = plan_move(mesh, 32, (2,), End((6,), split, (start,)), End((2,), split, (0,)))
    assert found.bytes_received == received


@settings(deadline=None)
@given(st.sampled_from(MESHES), st.integers(2, 4), st.integers(1, 40), st.integers(1, 3))
def test_parts_of_a_roll_move_together_in_no_more_rounds_than_alone(mesh, per_device, by, width):
    count = mesh.size * per_device
    by %= count
    sharding = Sharding((tuple(map(AxisRef, mesh.axis_names)), ()))

    def end(start: int) -> End:
        return End((count, width), sharding, (start, 0))

    parts = [((by, width), end(count - by), end(0)), ((count - by, width), end(0), end(by))]
    parts = tuple(each for each in parts if min(each[0]))
    found = plan_moves(mesh, 32, parts)
    alone = [plan_move(mesh, 32, *each) for each in parts]
    if found is None:  # a device copies from its own tile in both
        assert len(parts) == 2 and all(each.tile_program.operations[0].exchange.local is not None for each in alone)
        return
    array = np.arange(count * width, dtype=np.int64).reshape(count, width)
    placed = Blocks.of_sharding(mesh, array.shape, sharding)
    exchange = found.tile_program.operations[0].exchange
    results = run_exchange(exchange, cut(array, placed))
    for device, tile in cut(np.roll(array, by, 0), placed).items():
        np.testing.assert_array_equal(results[device], tile)
    assert found.collectives <= sum(each.collectives for each in alone)
    assert found.bytes_received <= sum(each.bytes_received for each in alone)
    assert found.bytes_received >= max(each.bytes_received for each in alone)


def test_a_roll_by_less_than_a_tile_takes_one_round():
    sharding = Sharding.parse('[{"x", "y"}]')
    parts = (
        ((3,), End((32,), sharding, (29,)), End((32,), sharding, (0,))),
        ((29,), End((32,), sharding, (0,)), End((32,), sharding, (3,))),
    )
    found = plan_moves(Mesh.parse("x=4,y=2"), 32, parts)
    assert found is not None and found.chain_text == "exchange in 1 round of [3]"
