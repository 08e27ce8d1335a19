# SPDX-License-Identifier: Apache-2.0
"""Plans: what they say of their chain and of their request."""

import dataclasses
import math

import pytest

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.planner.entry import Plan, plan


def planned(source: str, target: str, shape=(64, 64), **options) -> Plan:
    return plan(Mesh.parse("x=4,y=2"), shape, 32, Sharding.parse(source), Sharding.parse(target), **options)


def test_relayouts_take_time_and_are_no_part_of_the_chains_text():
    found = planned('[{"x"}, {}]', '[{}, {"x"}]')
    assert [step.op for step in found.steps].count("relayout") > 0
    assert found.chain_text == "all_to_all x: dim 0 -> 1" and found.collectives == 1
    assert found.time_s == math.fsum(step.time_s for step in found.steps) > max(step.time_s for step in found.steps)


def test_nothing_is_done_where_the_array_is_in_place():
    found = planned('[{"x"}, {}]', '[{"x"}, {}]')
    assert (found.chain_text, found.steps, found.collectives, found.time_s) == ("nothing", (), 0, 0)
    assert found.ratio_to_bound == 1.0


@pytest.mark.parametrize(("received", "bound", "ratio"), [(6, 4, 1.5), (0, 0, 1.0), (1, 0, math.inf)])
def test_the_ratio_to_a_bound_of_nothing(received, bound, ratio):
    found = dataclasses.replace(planned("[{}, {}]", "[{}, {}]"), bytes_received=received, bound_bytes=bound)
    assert found.ratio_to_bound == ratio


def test_a_collective_in_a_loop_counts_once_for_each_chunk():
    least = planned('[{"x"}, {}]', '[{}, {"x"}]').peak_bytes
    found = planned('[{"x"}, {}]', '[{}, {"x"}]', memory_limit=least - 1)
    (loop,) = [step for step in found.steps if step.inside]
    assert found.collectives == loop.step.count > 1
    assert [step.op for step in loop.inside].count("all_to_all") == 1


def test_how_long_planning_took_is_no_part_of_a_plan():
    found = planned('[{"x"}, {}]', '[{}, {"x"}]')
    assert dataclasses.replace(found, seconds=9.0) == found != dataclasses.replace(found, dtype="f32")
