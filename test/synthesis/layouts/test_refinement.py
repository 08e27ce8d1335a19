# SPDX-License-Identifier: Apache-2.0
"""Refinement cuts axes only where the two sides need a cut, and lists the slots that a chain may use."""

import pytest

from reshard.synthesis.layouts.layout import Factor, Slot
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import NoPlanError, refine
from reshard.synthesis.layouts.sharding import Sharding


def problem(mesh: str, shape, source: str, target: str, **options):
    return refine(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target), **options)


def test_axes_that_move_whole_stay_whole():
    found = problem("x=4,y=2", (16, 16, 16), '[{"y"}, {}, {"x"}]', '[{}, {"x", "y"}, {}]')
    assert found.movable == (Factor("x", 1, 4), Factor("y", 1, 2))


def test_a_place_of_one_side_inside_a_digit_of_the_other_cuts_the_axis():
    found = problem("x=4,y=2", (8, 8), '[{"x"}, {}]', '[{"y"}, {}]')
    assert found.movable == (Factor("x", 1, 2), Factor("x", 2, 2), Factor("y", 1, 2))


def test_cuts_spread_through_the_axis_to_the_other_side():
    found = problem("x=4,y=2,z=4", (8, 8), '[{"x"}, {"z"}]', '[{"y"}, {"x"}]')
    # y cuts x in dimension 0; the pieces of x are compared with z in dimension 1
    assert Factor("z", 1, 2) in found.movable and Factor("z", 2, 2) in found.movable


def test_sub_axes_cut_the_axis_on_both_sides():
    found = problem("x=8", (8, 8), '[{"x":(2)2}, {}]', '[{}, {"x"}]')
    assert found.movable == (Factor("x", 1, 2), Factor("x", 2, 2), Factor("x", 4, 2))


def test_factors_that_stay_in_aligned_places_are_fixed():
    found = problem("x=4,y=2,z=2", (8, 8, 8), '[{"x"}, {"y"}, {}]', '[{"x"}, {}, {"y"}]')
    assert found.movable == (Factor("y", 1, 2), Factor("z", 1, 2))
    assert found.source.slot_of(Factor("x", 1, 4)) == Slot(0, 1, 4)


def test_a_misaligned_dimension_gets_the_places_of_the_common_multiple():
    found = problem("x=2,y=3", (12, 4), '[{"x"}, {}]', '[{"y"}, {}]')
    slots = dict(zip(found.movable, found.slots))
    assert {Slot(0, 1, 2), Slot(0, 3, 6)} <= set(slots[Factor("x", 1, 2)])
    assert {Slot(0, 1, 3), Slot(0, 2, 6)} <= set(slots[Factor("y", 1, 3)])


def test_a_replicated_factor_gets_a_spare_digit():
    found = problem("x=2,y=2", (8, 8), '[{"x"}, {}]', '[{}, {"x"}]')
    slots = dict(zip(found.movable, found.slots))
    assert Slot(0, 2, 4) in slots[Factor("y", 1, 2)]


def test_into_primes_cuts_everything():
    found = problem("x=12", (12, 12), '[{"x"}, {}]', '[{}, {"x"}]', into_primes=True)
    assert [factor.size for factor in found.movable] == [2, 2, 3]


@pytest.mark.parametrize(
    ("mesh", "shape", "source", "target", "message"),
    [
        ("x=4", (6,), '[{"x"}]', "[{}]", "dimension 0 of size 6 does not divide into the 4 shards of"),
        (
            "x=6",
            (36,),
            '[{"x":(1)2}]',
            '[{"x":(1)3}]',
            'axis "x" is cut at 3 and at 2, which are places of different radices',
        ),
    ],
)
def test_problems_without_a_plan_say_why(mesh, shape, source, target, message):
    with pytest.raises(NoPlanError, match=message):
        problem(mesh, shape, source, target)


def test_unreduced_axes_are_cut_and_move():
    found = problem("x=8,y=2", (8, 8), '[{}, {"y"}], unreduced={"x"}', '[{"x":(1)2}, {"y"}], unreduced={"x":(4)2}')
    assert found.movable == (Factor("x", 1, 2), Factor("x", 2, 2), Factor("x", 4, 2))
    assert (found.source.unreduced, found.target.unreduced) == (found.movable, (Factor("x", 4, 2),))
    assert all(Slot(0, 2, 4) in slots for slots in found.slots[:2])  # spare digits, to reduce_scatter to
