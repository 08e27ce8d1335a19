# SPDX-License-Identifier: Apache-2.0
"""Padded sizes are compared with a search through all sizes of one dimension."""

import itertools
import math

import pytest

from reshard.synthesis.layouts.padding import nearly_padded_shapes, padded_shape, whole_shape

CASES = list(itertools.product(range(1, 14), range(1, 7), range(1, 7)))  # size, shards before, shards after


def has_tiles(padded: int, size: int, shards: int) -> bool:
    """Returns whether `padded` elements in `shards` have the tiles that XLA gives to an array of `size` elements."""
    return shards == 1 or padded == shards * math.ceil(size / shards)


@pytest.mark.parametrize("size", range(1, 14))
def test_a_padded_size_is_the_least_with_the_tiles_of_both_ends(size):
    for before, after in itertools.product(range(1, 7), repeat=2):
        fitting = [p for p in range(size, 60) if has_tiles(p, size, before) and has_tiles(p, size, after)]
        expected = (fitting[0],) if fitting else None
        assert padded_shape((size,), (before,), (after,)) == expected


def test_dimensions_are_padded_each_by_itself_and_one_that_cannot_be_spoils_all():
    assert padded_shape((10, 7), (4, 1), (1, 2)) == (12, 8)
    assert padded_shape((10, 7), (4, 1), (2, 2)) is None


@pytest.mark.parametrize("size", range(1, 14))
def test_near_sizes_divide_and_the_last_is_the_least_that_does(size):
    for before, after in itertools.product(range(1, 7), repeat=2):
        found = nearly_padded_shapes((size,), (before,), (after,))
        assert len(found) == len(set(found)) and all(p % before == p % after == 0 for (p,) in found)
        assert found[-1][0] == min(found)[0] == next(p for p in range(size, 99) if p % before == p % after == 0)


@pytest.mark.draws
@pytest.mark.parametrize(("size", "before", "after"), [each for each in CASES if padded_shape(*zip(each)) is None])
def test_a_near_size_has_the_tiles_of_an_end_wherever_that_divides(size, before, after):
    found = [p for (p,) in nearly_padded_shapes((size,), (before,), (after,))]
    for mine, other in ((before, after), (after, before)):
        (whole,) = whole_shape((size,), (mine,))
        assert whole in found or whole % other


def test_a_whole_shape_is_tiles_without_a_rest():
    assert whole_shape((10, 3, 8), (4, 1, 8)) == (12, 3, 8)
    with pytest.raises(ValueError):
        whole_shape((10, 3), (4,))
