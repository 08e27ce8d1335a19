# SPDX-License-Identifier: Apache-2.0
"""Digit layouts: digits, runs, invariants, device groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.layouts.layout import (
    UNREDUCED,
    Factor,
    Layout,
    LayoutError,
    Slot,
    blocked,
    coordinates,
    groups,
    joined,
    layout_of,
    places_by_axis,
    same_placement,
)
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

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


# ---- factors and their pieces


@pytest.mark.parametrize(
    ("factor", "places", "pieces"),
    [
        (Factor("x", 1, 8), [], [(1, 8)]),
        (Factor("x", 1, 8), [1, 2, 8, 16], [(1, 2), (2, 4)]),
        (Factor("x", 2, 12), [4, 12], [(2, 2), (4, 3), (12, 2)]),
        (Factor("x", 1, 12), [4, 6], [(1, 4), (4, 3)]),  # after a cut at 4, a cut at 6 is impossible
        (Factor("x", 4, 2), [2, 6], [(4, 2)]),
    ],
)
def test_a_factor_is_cut_where_a_piece_can_begin(factor, places, pieces):
    assert [(piece.pre, piece.size) for piece in factor.cut(places)] == pieces


@pytest.mark.parametrize("largest_first, sizes", [(False, [2, 2, 3]), (True, [3, 2, 2])])
def test_pieces_of_prime_size_make_up_the_factor(largest_first, sizes):
    pieces = Factor("x", 5, 12).primes(largest_first)
    assert [piece.size for piece in pieces] == sizes
    assert joined(pieces) == (Factor("x", 5, 12),)
    assert Factor("x", 5, 1).primes() == []


def test_the_major_part_and_the_rest_make_up_the_factor():
    assert Factor("x", 2, 12).split(3) == (Factor("x", 2, 3), Factor("x", 6, 4))


def test_cutting_the_factors_of_a_layout_moves_nothing():
    x, y, z = Factor("x", 1, 12), Factor("y", 1, 4), Factor("z", 1, 2)
    layout = Layout((24, 8), ((x, Slot(0, 2, 24)), (z, Slot(1, 2, 4))), (y,))
    cut = layout.with_factors_cut(places_by_axis([Factor("x", 2, 3), Factor("y", 2, 2)]))
    assert [(factor.size, slot.start) for factor, slot in cut.owners] == [(2, 2), (3, 4), (2, 12), (2, 2)]
    assert cut.unreduced == (Factor("y", 1, 2), Factor("y", 2, 2))
    assert cut.tile_shape == layout.tile_shape and cut.owned_runs == layout.owned_runs
    assert cut.with_whole_factors() == layout.with_whole_factors() == layout
