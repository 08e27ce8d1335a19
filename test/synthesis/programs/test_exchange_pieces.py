# SPDX-License-Identifier: Apache-2.0
"""Pieces of exchanges: each element that a device lacks is in one piece, and the sender of the piece holds it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.synthesis.layouts.blocks import Blocks
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.programs import exchange_pieces
from reshard.synthesis.programs.exchange_pieces import SourceBoxes, TooManyPieces, check_ends, refinement, with_senders

TEXTS = ('[{"x"},{}]', '[{},{"y"}]', '[{"y"},{"x"}]', '[{"x","y"},{}]', '[{},{"y","x"}]', "[{},{}]")
PLACEMENTS = st.tuples(st.sampled_from(["x=2,y=3", "x=3,y=2", "x=6,y=1"]), st.sampled_from(TEXTS))


def blocks(mesh: str, sharding: str, shape: tuple[int, ...] = (7, 6)) -> Blocks:
    return Blocks.of_sharding(Mesh.parse(mesh), shape, Sharding.parse(sharding))


def elements(starts, stops) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(a, b) for a, b in zip(starts, stops))))


@settings(max_examples=100, deadline=None)
@given(PLACEMENTS, PLACEMENTS, st.booleans())
def test_pieces_are_what_devices_lack_and_senders_hold_them(one, other, has_distance):
    source, target = blocks(*one), blocks(*other)
    boxes = SourceBoxes(source)
    moved, own = refinement(source, target, boxes, 1 << 10)
    distance = (lambda a, b: float(abs(a - b))) if has_distance else None
    moved = with_senders(moved, boxes, distance, 0)
    arrived: dict[int, list] = {device: [] for device in range(6)}
    for pieces in (moved, own):
        for src, dst, lo, hi in zip(pieces.src, pieces.dst, pieces.lo, pieces.hi):
            assert elements(lo, hi) <= elements(source.starts[src], source.stops[src])
            arrived[int(dst)] += elements(lo, hi)
    for device, found in arrived.items():
        assert sorted(found) == sorted(elements(target.starts[device], target.stops[device]))
    assert (own.src == own.dst).all() and (moved.src != moved.dst).all()


def test_the_nearest_replica_sends():
    source, target = blocks("x=2,y=2", '[{"x"},{}]', (4, 4)), blocks("x=2,y=2", '[{},{"x"}]', (4, 4))
    boxes = SourceBoxes(source)
    moved, _ = refinement(source, target, boxes, 99)
    near = with_senders(moved, boxes, lambda a, b: float((a ^ b) & 1), 0)  # only the last bit counts as far
    assert ((near.src ^ near.dst) == 2).all()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 3))
def test_sizes_are_spread_as_evenly_as_any_way(sizes, bins):
    sizes = sorted(sizes, reverse=True)

    def fullest(chosen) -> int:
        return max(sum(size for size, at in zip(sizes, chosen) if at == each) for each in range(bins))

    found = exchange_pieces._Spread().spread(sizes, bins)
    assert fullest(found) == min(map(fullest, itertools.product(range(bins), repeat=len(sizes))))


def test_boxes_that_are_no_grid_have_no_intervals():
    starts, stops = np.array([[0, 0], [0, 2], [2, 0]]), np.array([[2, 2], [2, 4], [4, 4]])
    assert SourceBoxes(Blocks((4, 4), (2, 4), starts, stops)).intervals() is None
    assert SourceBoxes(blocks("x=2,y=3", '[{"x"},{"y"}]')).intervals() is not None


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (blocks("x=2", "[{},{}]"), blocks("x=2", "[{},{}]", (7, 5)), r"shape \[7, 6\], target one of \[7, 5\]"),
        (blocks("x=2", "[{},{}]"), blocks("x=3", "[{},{}]"), "source is over 2 devices, target over 3"),
    ],
)
def test_ends_that_do_not_fit_are_refused(source, target, message):
    with pytest.raises(ValueError, match=message):
        check_ends(source, target, SourceBoxes(source))


def test_a_source_that_lacks_an_element_is_refused():
    part = Blocks((4,), (2,), np.array([[0], [0]]), np.array([[2], [2]]))
    with pytest.raises(ValueError, match="the source's boxes have 2 of 4 elements"):
        check_ends(part, part, SourceBoxes(part))


def test_too_many_pieces_are_refused():
    source, target = blocks("x=6,y=1", '[{"x"},{}]'), blocks("x=6,y=1", '[{},{"x"}]')
    boxes = SourceBoxes(source)
    most = sum(map(len, (each.src for each in refinement(source, target, boxes, 99))))
    refinement(source, target, boxes, most)
    with pytest.raises(TooManyPieces, match=f"has {most} pieces; at most {most - 1} are scheduled"):
        refinement(source, target, boxes, most - 1)
