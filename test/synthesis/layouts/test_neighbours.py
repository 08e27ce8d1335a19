# SPDX-License-Identifier: Apache-2.0
"""Shardings one edit away: legal, even, and enough to reach every sharding of whole axes."""

import itertools
import math

import pytest

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.neighbours import divides, mesh_shapes, neighbours
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

MESH = Mesh.parse("x=2,y=4,z=2")


def every_sharding(rank: int) -> set[Sharding]:
    """Returns all shardings of whole axes."""
    found = set()
    for count in range(len(MESH.axes) + 1):
        for axes in itertools.permutations([AxisRef(name) for name, _ in MESH.axes], count):
            for cuts in itertools.combinations_with_replacement(range(count + 1), rank - 1):
                ends = (0, *cuts, count)
                found.add(Sharding(tuple(axes[a:b] for a, b in itertools.pairwise(ends))))
    return found


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_sharding_of_whole_axes_is_reached_by_edits(rank):
    shape, start = (16,) * rank, Sharding(((),) * rank)
    reached, open_ = {start}, [start]
    while open_:
        for each in neighbours(open_.pop(), MESH, [shape]):
            each.check(MESH, rank)
            if each not in reached:
                reached.add(each)
                open_.append(each)
    assert reached == every_sharding(rank)


def test_all_shapes_divide_and_no_sharding_is_its_own_neighbour():
    start = Sharding.parse('[{"x"}, {}]')
    found = neighbours(start, MESH, [(4, 6), (8, 2)])
    assert found and start not in found and len(set(found)) == len(found)
    assert all(divides(each, MESH, shape) for each in found for shape in ((4, 6), (8, 2)))
    assert Sharding.parse('[{"x"}, {"y"}]') not in found


def test_sub_axes_are_kept_or_dropped_and_partial_sums_have_no_neighbours():
    assert Sharding.parse('[{}, {"y":(1)2}]') in neighbours(Sharding.parse('[{"y":(1)2}, {}]'), MESH, [(8, 8)])
    assert neighbours(Sharding.parse('[{}], unreduced={"x"}'), MESH, [(8,)]) == []


def test_shapes_of_a_mesh_are_all_ways_to_share_its_devices_among_its_axes():
    shapes = mesh_shapes(Mesh.parse("x=2,y=3,z=2"))
    sizes = [tuple(size for _, size in shape.axes) for shape in shapes]
    every = [each for each in itertools.product(range(1, 13), repeat=3) if math.prod(each) == 12]
    assert sorted([*sizes, (2, 3, 2)]) == every and len(set(sizes)) == len(sizes)
    assert all(shape.axis_names == ("x", "y", "z") for shape in shapes)
    assert mesh_shapes(Mesh((("x", 2),), (1, 0))) == [] == mesh_shapes(Mesh.parse("x=8"))
