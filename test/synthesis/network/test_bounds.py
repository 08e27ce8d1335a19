# SPDX-License-Identifier: Apache-2.0
"""Rule R3: the bound equals a count of the elements, one by one."""

import math
import random

import numpy as np
import pytest

from benchmarks.conversions.pairs import random_pair, random_pairs
from reshard.synthesis.layouts.layout import Factor, Layout, Slot
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.bounds import lacking_elements, received_elements_bound
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.plans.plan_layouts import layouts
from reshard.synthesis.programs.interpreter import scatter


def counted(mesh, shape, source, target) -> int:
    """Returns max over devices of |target tile minus source tile|, both as sets of elements."""
    elements = np.arange(math.prod(shape)).reshape(shape)
    held, wanted = scatter(elements, mesh, source), scatter(elements, mesh, target)
    return max(len(set(wanted[d].flat) - set(held[d].flat)) for d in wanted)


@pytest.mark.parametrize("seed", range(60))
def test_r3_bound_counts_elements(seed):
    rng = random.Random(seed)
    pair = random_pair(rng, rng.choice((2, 4, 6, 8, 12)), max_rank=3)
    assert received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target) == counted(
        pair.mesh, pair.shape, pair.source, pair.target
    )


def test_r3_bound_is_zero_for_slices_and_for_nothing():
    mesh, rows = Mesh.parse("x=4,y=2"), Sharding.parse('[{"x"}, {}]')
    assert received_elements_bound(mesh, (8, 8), rows, Sharding.parse('[{"x"}, {"y"}]')) == 0
    assert received_elements_bound(mesh, (8, 8), rows, rows) == 0


def test_r3_bound_of_dimensions_that_do_not_divide():
    mesh = Mesh.parse("x=4")
    rows, whole = Sharding.parse('[{"x"}]'), Sharding.parse("[{}]")
    assert received_elements_bound(mesh, (9,), rows, whole) == 9  # tiles 3, 3, 3, 0: the last device has nothing
    assert received_elements_bound(mesh, (9,), whole, rows) == 0


@pytest.mark.parametrize(
    ("source", "target", "bound"),
    [
        (
            '[{}, {}], unreduced={"x"}',
            '[{"x"}, {}]',
            32,
        ),  # 16 (4 - 1 + 2 - 1) / 2: slice, reduce_scatter, gather the slices
        ('[{}, {}], unreduced={"x"}', '[{"x"}, {"y"}]', 24),  # T (n-1): slice, reduce_scatter
        ('[{}, {}], unreduced={"x"}', "[{}, {}]", 80),  # 64 (n-1 + r-1) / 8: slice, all_reduce, gather the slices
        ('[{}, {}], unreduced={"x", "y"}', "[{}, {}]", 112),  # all_reduce: 2 * 64 * 7/8
        (
            '[{"y"}, {}], unreduced={"x"}',
            '[{}, {"x", "y"}]',
            28,
        ),  # T (n-1), and the half of T that comes from the other y
        ("[{}, {}]", '[{}, {}], unreduced={"x"}', 0),
        ('[{"x"}, {}]', '[{}, {}], unreduced={"x"}', 0),
        ('[{}, {}], unreduced={"x", "y"}', '[{}, {}], unreduced={"y"}', 48),  # of 8 sums two are left
        (
            '[{"x"}, {}], unreduced={"y"}',
            '[{}, {}], unreduced={"y"}',
            24,
        ),  # one of the two sums is not zero, on 4 devices
    ],
)
def test_r3_bound_of_partial_sums_by_hand(source, target, bound):
    mesh = Mesh.parse("x=4,y=2")
    assert received_elements_bound(mesh, (8, 8), Sharding.parse(source), Sharding.parse(target)) == bound


@pytest.mark.parametrize("pair", random_pairs(91, 40, (4, 6, 8, 12)), ids=str)
def test_what_layouts_on_the_way_still_lack(pair):
    """The source lacks as many bytes as the bound, the target lacks none, and a step supplies at most what it receives.

    For a layout between them the number is that of an exchange from this layout to the target.
    """
    found = plan(pair.mesh, pair.shape, 32, pair.source, pair.target)
    at = layouts(found)
    lacking = [lacking_elements(pair.mesh, layout, at[-1]) for layout in at]
    assert lacking[0] * 4 == found.bound_bytes and lacking[-1] == 0
    received = [-(-step.bytes_received // 4) for step in found.steps]
    assert all(before - after <= moved for before, after, moved in zip(lacking, lacking[1:], received))


def test_too_many_digits_are_not_looked_at():
    wide = Layout((1 << 30,), ((Factor("x", 1, 1 << 10), Slot(0, 1 << 20, 1 << 30)),))
    assert lacking_elements(Mesh.parse("x=1024"), wide, wide) is None


def test_sums_along_an_axis_in_another_radix_than_the_source_have_a_bound_that_a_plan_meets():
    """Random pairs found it: of six devices, two pairs agree along both pieces of x, and two devices are alone."""
    mesh, sides = (
        Mesh.parse("x=6"),
        (Sharding.parse('[{}, {"x":(3)2}]'), Sharding.parse('[{}, {}], unreduced={"x":(1)2}')),
    )
    bound = received_elements_bound(mesh, (4, 4), *sides)
    assert bound * 4 <= plan(mesh, (4, 4), 32, *sides, with_exchange=True, objective="bytes").bytes_received
