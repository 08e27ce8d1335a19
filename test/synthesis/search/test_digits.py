# SPDX-License-Identifier: Apache-2.0
"""Problems in whole numbers: states, tiles, and which slots are in each other's way."""

import pytest

from benchmarks.conversions.pairs import Pair, random_pairs, random_reductions
from reshard.synthesis.layouts.layout import Factor, Layout, Slot
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.refinement import Problem, refine
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.search.digits import FIXED, REPLICATED, UNREDUCED, Digits, local_part


def problem(mesh: str, shape, source: str, target: str, **options) -> Problem:
    return refine(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target), **options)


def refined(pair: Pair, **options) -> Problem:
    return refine(pair.mesh, pair.shape, pair.source, pair.target, **options)


@pytest.mark.parametrize("pair", [*random_pairs(41, 30, (8, 12)), *random_reductions(42, 10, (8,))], ids=str)
def test_both_ends_are_states_whose_layouts_and_tiles_are_those_of_the_problem(pair):
    asked = refined(pair, with_detours=True)
    digits = Digits(asked)
    for state, layout in ((digits.source, asked.source), (digits.target, asked.target)):
        assert set(digits.layout(state).owners) == set(layout.owners)
        assert set(digits.layout(state).unreduced) == set(layout.unreduced)
        assert digits.tile(state) == layout.tile_elements
    assert digits.target_tile == asked.target.tile_elements


@pytest.mark.parametrize("pair", random_pairs(43, 30, (8, 12, 36)), ids=str)
def test_slots_overlap_where_their_factors_cannot_own_both(pair):
    digits = Digits(refined(pair, with_detours=True, into_primes=True))
    for i, slot in enumerate(digits.slots):
        for j, other in enumerate(digits.slots):
            assert digits.overlap(i, j) == (not slot.agrees_with(other)) == digits.overlap(j, i)


@pytest.mark.parametrize("pair", random_pairs(44, 30, (8, 12, 36)), ids=str)
def test_no_factor_is_offered_a_slot_that_a_fixed_factor_is_in_the_way_of(pair):
    digits = Digits(refined(pair, with_detours=True))
    for offered in (*digits.candidates, *digits.spares):
        assert all(digits.slots[s].agrees_with(fixed) for s in offered for fixed in digits.fixed)


def test_places_of_factors():
    digits = Digits(problem("x=2,y=2,z=2", (8, 8), '[{"x"}, {}], unreduced={"y"}', '[{}, {"x"}], unreduced={"z"}'))
    axis = {factor.axis: i for i, factor in enumerate(digits.problem.movable)}
    assert (digits.source[axis["y"]], digits.source[axis["z"]]) == (UNREDUCED, REPLICATED)
    assert (digits.target[axis["y"]], digits.target[axis["z"]]) == (REPLICATED, UNREDUCED)
    assert digits.slots[digits.source[axis["x"]]].dim == 0 and digits.slots[digits.target[axis["x"]]].dim == 1
    assert digits.has_sums and digits.sums(digits.source) == 2
    assert digits.target_owner == {digits.target[axis["x"]]: axis["x"]}


def test_spare_slots_lie_behind_the_digits_of_both_sides():
    digits = Digits(problem("x=2,y=4", (64,), '[{"x"}]', '[{"y"}]', with_detours=True))
    spares = {s for offered in digits.spares for s in offered}
    assert spares and all(digits.slots[s].start >= 4 for s in spares)
    assert digits.is_spare == [slot.start >= 4 for slot in digits.slots]


def test_fixed_factors_bound_runs_of_owned_digits():
    digits = Digits(problem("x=2,y=2,z=2", (64, 8), '[{"x","y","z"}, {}]', '[{"x","y"}, {"z"}]'))
    assert [(slot.dim, slot.start, slot.end) for slot in digits.fixed] == [(0, 1, 2), (0, 2, 4)]
    assert digits.runs(digits.source) == ((0, 1, 8),)
    assert digits.runs(digits.target) == ((0, 1, 4), (1, 1, 2))
    assert digits.by_start[0, 1] == [(FIXED, FIXED, 2)]
    assert {slot for _, slot, _ in digits.by_start[1, 1]} == {digits.target[0]}


@pytest.mark.parametrize(
    ("slot", "owned", "part"),
    [
        (Slot(0, 1, 8), [], 8),
        (Slot(0, 1, 8), [Slot(0, 1, 8)], 1),
        (Slot(0, 1, 8), [Slot(1, 1, 8)], 8),  # of another dimension
        (Slot(0, 1, 4), [Slot(0, 2, 8)], 2),
        (Slot(0, 1, 6), [Slot(0, 1, 4)], 1),  # radices are mixed
    ],
)
def test_the_local_part_of_a_slot(slot, owned, part):
    owners = tuple((Factor("x", 1, each.end // each.start), each) for each in owned)
    assert local_part(slot, Layout((24, 24), owners)) == part
