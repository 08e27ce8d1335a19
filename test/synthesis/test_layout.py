# SPDX-License-Identifier: Apache-2.0
"""Digit layouts: digits, runs, invariants, device groups."""

from hypothesis import given, strategies as st
import numpy as np
import pytest

from reshard.synthesis.layout import UNREDUCED, Factor, Layout, LayoutError, Slot, blocked, coordinates, groups, layout_of, same_placement
from reshard.synthesis.mesh import Mesh
from reshard.synthesis.sharding import Sharding

X, Y, Z = Factor("x", 1, 2), Factor("y", 1, 3), Factor("z", 1, 2)


def test_digits_of_an_owned_middle_digit():
    layout = Layout((24,), ((Y, Slot(0, 2, 6)),))
    assert layout.digits(0) == ((2, None), (3, Y), (4, None))
    assert layout.tile_shape == (8,)


def test_owned_runs_join_neighbours_and_keep_gaps():
    layout = Layout((24, 4), ((X, Slot(0, 1, 2)), (Y, Slot(0, 2, 6)), (Z, Slot(1, 2, 4))))
    assert layout.owned_runs == (Slot(0, 1, 6), Slot(1, 2, 4))


def test_owners_are_sorted_by_slot_so_equal_layouts_compare_equal():
    a, b = (X, Slot(0, 1, 2)), (Y, Slot(0, 2, 6))
    assert Layout((12,), (a, b)) == Layout((12,), (b, a))


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (((X, Slot(0, 1, 3)),), "cannot own"),  # not the factor's size
        (((Y, Slot(0, 8, 24)), (X, Slot(0, 12, 24))), "collides"),  # 8..24 and 12..24 share digits
        (((X, Slot(0, 1, 2)), (Z, Slot(0, 1, 2))), "collides"),
        (((X, Slot(0, 1, 2)), (X, Slot(0, 2, 4))), "collides"),  # one factor, two digits
        (((X, Slot(0, 24, 48)),), "cannot own"),  # beyond the dimension
        (((X, Slot(0, 5, 10)),), "cannot own"),  # 10 does not divide 24
    ],
)
def test_impossible_layouts_are_refused(owners, message):
    with pytest.raises(LayoutError, match=message):
        Layout((24,), owners)


def test_misaligned_digits_do_not_agree():
    assert not Slot(0, 1, 2).agrees_with(Slot(0, 1, 3))
    assert not Slot(0, 2, 4).agrees_with(Slot(0, 3, 6))
    assert Slot(0, 1, 2).agrees_with(Slot(0, 2, 6))
    assert Slot(0, 1, 2).agrees_with(Slot(1, 1, 3))


def test_blocked_takes_leading_digits_in_order():
    layout = blocked((24,), ((X, Y),))
    assert (layout.slot_of(X), layout.slot_of(Y), layout.slot_of(Z)) == (Slot(0, 1, 2), Slot(0, 2, 6), None)


def test_blocked_names_the_dimension_that_does_not_divide():
    with pytest.raises(LayoutError, match="dimension 0 of size 9 does not divide into 6 shards"):
        blocked((9,), ((X, Y),))


def test_pieces_of_an_axis_that_touch_are_one_factor_and_size_one_is_none():
    mesh = Mesh.parse("x=4,one=1")
    pieces, whole = Sharding.parse('[{"x":(1)2, "x":(2)2, "one"}]'), Sharding.parse('[{"x"}]')
    assert layout_of(mesh, (8,), pieces) == layout_of(mesh, (8,), whole)
    assert same_placement(mesh, pieces, whole)
    assert not same_placement(mesh, whole, Sharding.parse('[{"x":(2)2, "x":(1)2}]'))


@given(st.permutations(range(12)), st.sampled_from([(X,), (Y,), (Z, X), (Y, Z), (X, Y, Z)]))
def test_groups_partition_the_devices_and_members_follow_the_coordinates(ids, factors):
    mesh = Mesh((("x", 2), ("y", 3), ("z", 2)), tuple(ids))
    members = groups(mesh, tuple(factors))
    assert sorted(members.ravel().tolist()) == list(range(12))
    position = {mesh.device_at(p): p for p in range(12)}
    for group in members:
        found = [[int(coordinates(mesh, f)[position[int(d)]]) for f in factors] for d in group]
        assert found == sorted(found)
        assert len({tuple(each) for each in found}) == len(group)


def test_coordinates_of_sub_axes_make_up_the_axis():
    mesh = Mesh.parse("a=3,x=8")
    parts = [coordinates(mesh, Factor("x", pre, 2)) for pre in (1, 2, 4)]
    assert np.array_equal(4 * parts[0] + 2 * parts[1] + parts[2], coordinates(mesh, Factor("x", 1, 8)))


def test_a_factor_is_unreduced_once_and_owns_nothing_then():
    layout = Layout((24,), ((X, Slot(0, 1, 2)),), (Z, Y))
    assert layout.unreduced == (Y, Z) and layout.tile_shape == (12,)
    assert (layout.slot_of(Y), layout.with_moved({Y: None}).unreduced) == (None, (Z,))
    assert layout.with_moved({X: UNREDUCED}) == Layout((24,), (), (X, Y, Z))
    for unreduced in ((X,), (Y, Y)):
        with pytest.raises(LayoutError, match="is unreduced"):
            Layout((24,), ((X, Slot(0, 1, 2)),), unreduced)


def test_unreduced_pieces_of_an_axis_that_touch_are_one_factor_in_any_order():
    mesh = Mesh.parse("x=8,y=2")
    a, b = Sharding.parse('[{}], unreduced={"y", "x":(2)4, "x":(1)2}'), Sharding.parse('[{}], unreduced={"x", "y"}')
    assert layout_of(mesh, (8,), a) == layout_of(mesh, (8,), b)
    assert same_placement(mesh, a, b) and not same_placement(mesh, a, Sharding.parse('[{}], unreduced={"y"}'))
    assert layout_of(mesh, (8,), b).text(mesh) == "[8] unreduced x, y"
