# SPDX-License-Identifier: Apache-2.0
"""Edge colourings are proper and have as many colours as the largest degree, with each way to find them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.programs import edge_colouring
from reshard.synthesis.programs.edge_colouring import by_number, edge_colours

DEVICES = 9


@st.composite
def graphs(draw) -> tuple[np.ndarray, np.ndarray]:
    edges = draw(st.lists(st.tuples(st.integers(0, DEVICES - 1), st.integers(0, DEVICES - 1)), min_size=1, max_size=60))
    src, dst = np.array(edges).T
    return src, dst


def assert_is_proper(src: np.ndarray, dst: np.ndarray, colour: np.ndarray) -> None:
    degree = max(np.bincount(src).max(), np.bincount(dst).max())
    assert len(colour) == len(src) and set(colour.tolist()) == set(range(degree))
    for each in range(degree):
        assert len(set(src[colour == each])) == len(set(dst[colour == each])) == (colour == each).sum()


@settings(max_examples=200, deadline=None)
@given(graphs(), st.booleans(), st.sampled_from([0, 1 << 12]))
def test_a_colour_has_no_device_twice_and_there_are_as_few_as_can_be(graph, are_alike, most_by_paths):
    src, dst = graph
    elements = np.ones_like(src) if are_alike else 1 + (src * 7 + dst) % 5
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(edge_colouring, "MOST_EDGES_BY_PATHS", most_by_paths)
        colour = edge_colours(src, dst, elements, are_alike, DEVICES)
    assert_is_proper(src, dst, colour)


def test_shifts_are_colours():
    src, dst = np.divmod(np.arange(DEVICES * DEVICES), DEVICES)  # all to all
    colour = edge_colours(src, dst, np.ones_like(src), True, DEVICES)
    assert_is_proper(src, dst, colour)
    assert all(len(set(((dst - src) % DEVICES)[colour == each])) == 1 for each in range(DEVICES))


@pytest.mark.parametrize("numbers", [[3, 1, 3, 0, 1], [1 << 20, 5, 1 << 20, 5], []])
def test_rows_of_one_number_keep_their_order(numbers):
    order = by_number(np.array(numbers, np.int64))
    assert order.tolist() == sorted(range(len(numbers)), key=numbers.__getitem__)


@pytest.mark.parametrize("width, degree", [(4, 4), (8, 7), (8, 5), (2, 1)])
def test_halves_colour_a_graph_of_any_degree(width, degree):
    devices = 9
    numbers = np.random.default_rng(0).permuted(np.tile(np.arange(devices), (degree, 1)), axis=1)
    src, dst = np.tile(np.arange(devices), degree), numbers.ravel()
    colour = edge_colouring._coloured_by_halves(src, dst, degree, width, devices)
    assert set(colour.tolist()) == set(range(degree))
    for each in range(degree):
        assert len(set(src[colour == each])) == len(set(dst[colour == each])) == (colour == each).sum()
