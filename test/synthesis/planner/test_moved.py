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
from reshard.synthesis.planner.moved import End, plan_move
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
