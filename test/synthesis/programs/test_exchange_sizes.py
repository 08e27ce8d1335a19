# SPDX-License-Identifier: Apache-2.0
"""Classes of pieces: cutting and merging keep every element, and the classes cost at most as much as simple ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.programs import exchange_sizes
from reshard.synthesis.programs.exchange_pieces import Pieces
from reshard.synthesis.programs.exchange_sizes import PieceClasses

DEVICES = 5


@st.composite
def pieces(draw) -> Pieces:
    device = st.integers(0, DEVICES - 1)
    rows = draw(st.lists(st.tuples(device, device, st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=10))
    src, dst, *extents = map(np.array, zip(*rows))
    lo = np.stack([100 * np.arange(len(rows)), np.zeros(len(rows), int)], axis=1)  # far apart, so that none overlap
    return Pieces(src, dst, lo, lo + np.stack(extents, axis=1))


def covered(found: Pieces) -> dict[tuple[int, int, int], int]:
    """Returns the number of pieces that contain each (element, sender, receiver)."""
    count: dict = {}
    for src, dst, lo, hi in zip(found.src.tolist(), found.dst.tolist(), found.lo, found.hi):
        for first in range(lo[0], hi[0]):
            for second in range(lo[1], hi[1]):
                key = (first, second, src, dst)
                count[key] = count.get(key, 0) + 1
    return count


def cost(classes: list[Pieces], round_elements: float) -> float:
    """Returns the cost of the classes in rounds of their largest shape, counted by hand."""
    in_rounds, received = 0.0, np.zeros(DEVICES, int)
    for each in classes:
        rounds, elements = (
            max(np.bincount(each.src).max(), np.bincount(each.dst).max()),
            each.extents.max(axis=0).prod(),
        )
        in_rounds += rounds * (round_elements + elements)
        received += np.bincount(each.dst, minlength=DEVICES) * elements
    return in_rounds if round_elements else received.max()


@settings(max_examples=150, deadline=None)
@given(pieces(), st.sampled_from([0, 1, 5, 1000]))
def test_classes_have_every_element_once(found, round_elements):
    before = covered(found)
    after: dict = {}
    for each in PieceClasses(found, DEVICES).cheapest(round_elements):
        for key, count in covered(each).items():
            after[key] = after.get(key, 0) + count
    assert after == before


@settings(max_examples=150, deadline=None)
@given(pieces(), st.sampled_from([0, 1, 5, 1000]))
def test_neither_one_class_nor_one_for_each_shape_is_cheaper(found, round_elements):
    shapes = [tuple(extent) for extent in found.extents.tolist()]
    apart = [found.at(np.flatnonzero([shape == each for shape in shapes])) for each in sorted(set(shapes))]
    chosen = cost(PieceClasses(found, DEVICES).cheapest(round_elements), round_elements)
    assert chosen <= min(cost([found], round_elements), cost(apart, round_elements))


@settings(max_examples=100, deadline=None)
@given(pieces())
def test_without_a_price_of_rounds_nobody_receives_padding(found):
    classes = PieceClasses(found, DEVICES).cheapest(0)
    needed = np.bincount(found.dst, weights=found.elements, minlength=DEVICES).max()
    assert cost(classes, 0) == needed


@pytest.mark.parametrize(
    ("extent", "unit", "bits", "sizes"),
    [(7, 1, 3, [4, 2, 1]), (7, 1, 1, [1] * 7), (12, 4, 2, [8, 4]), (5, 1, 2, [2, 2, 1])],
)
def test_extents_are_cut_into_powers_of_two_of_the_unit(extent, unit, bits, sizes):
    one = Pieces(np.array([0]), np.array([1]), np.array([[3]]), np.array([[3 + extent]]))
    found = exchange_sizes._Cut(0, unit, bits).of_pieces(one)
    assert found.extents.ravel().tolist() == sizes
    assert found.lo.ravel().tolist() == [3, *(3 + np.cumsum(sizes)[:-1]).tolist()]


def test_nothing_to_move_has_no_class():
    nothing = np.zeros(0, int)
    none = Pieces(nothing, nothing, np.zeros((0, 1), int), np.zeros((0, 1), int))
    assert PieceClasses(none, DEVICES).cheapest(0) == []


@settings(max_examples=150, deadline=None)
@given(pieces())
def test_chunks_that_are_counted_by_shape_are_those_of_the_pieces_that_are_cut(found):
    """The classes of a way of cutting follow from shapes alone; cutting the pieces themselves is the witness."""
    whole, *ways = PieceClasses(found, DEVICES)._ways if not found.are_alike else [None]
    for way in ways:
        chunks = found
        for cut in way.cuts:
            chunks = cut.of_pieces(chunks)
        cut_first = exchange_sizes._Classes.of_pieces(chunks, DEVICES)
        assert (way.shapes == cut_first.shapes).all()
        assert all((one == other).all() for one, other in zip(way.degree, cut_first.degree, strict=True))
