# SPDX-License-Identifier: Apache-2.0
"""The greedy chain reaches the target within R2.

A plan by time is at most as slow as this chain, and at the same time it has at most as many collectives.
"""

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.layout import layout_of
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import forget, plan
from reshard.synthesis.planner.planner import chain_plan
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import steps
from reshard.synthesis.search.greedy_chain import greedy_chain

SIZES = (4, 6, 8, 12, 16, 24, 30, 36, 64)


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")


def chain_of(mesh: str, shape, source: str, target: str):
    return greedy_chain(Mesh.parse(mesh), shape, Sharding.parse(source), Sharding.parse(target))


def names(found) -> list[str]:
    return [steps.name(step) for step in found]


def layouts(found):
    return found.layouts


@pytest.mark.draws
@pytest.mark.parametrize("pair", random_pairs(71, 150, SIZES), ids=str)
def test_random_pair(pair):
    found = greedy_chain(pair.mesh, pair.shape, pair.source, pair.target)
    if found is None:
        return
    path = layouts(found)
    source, target = (layout_of(pair.mesh, pair.shape, side) for side in (pair.source, pair.target))
    assert path[0].tile_shape == source.tile_shape and path[-1].tile_shape == target.tile_shape
    assert max(each.tile_elements for each in path) <= max(source.tile_elements, target.tile_elements)
    together = found.with_joint_moves()
    assert together.target == path[-1] and len(together) <= len(found)


def test_few_pairs_have_none():
    pairs = random_pairs(72, 300, SIZES)
    assert sum(greedy_chain(each.mesh, each.shape, each.source, each.target) is None for each in pairs) <= 6


@pytest.mark.draws
@pytest.mark.parametrize("topology", ["uniform", "ethernet", "v5e"])
@pytest.mark.parametrize("pair", random_pairs(73, 25, (8, 16, 24)), ids=str)
def test_no_plan_by_time_is_slower(pair, topology):
    found = greedy_chain(pair.mesh, pair.shape, pair.source, pair.target)
    if found is None:
        return
    network = Topology.parse(topology)
    request = Request(pair.mesh, pair.shape, 32, pair.source, pair.target, "time", network, True, "sum")
    greedy = chain_plan(request, found)
    forget()
    ours = plan(
        pair.mesh, pair.shape, 32, pair.source, pair.target, objective="time", topology=network, with_exchange=True
    )
    assert ours.time_s <= greedy.time_s * (1 + 1e-9)
    assert ours.time_s < greedy.time_s * (1 - 1e-9) or ours.collectives <= greedy.collectives


def test_what_is_replicated_is_sliced_where_it_is_wanted():
    assert names(chain_of("x=2,y=4", (16, 16), "[{}, {}]", '[{"x"}, {"y"}]')) == ["slice"]


def test_axes_of_one_dimension_that_go_to_two_need_two_all_to_alls_and_one_at_once():
    found = chain_of("x=2,y=2", (8, 8, 8), '[{"x","y"}, {}, {}]', '[{}, {"x"}, {"y"}]')
    assert names(found) == ["all_to_all", "all_to_all"]
    assert len(found.with_joint_moves()) == 1


def test_what_moves_on_waits_behind_what_is_gathered():
    assert names(chain_of("x=2,y=2", (8, 8), '[{"x","y"}, {}]', '[{}, {"x"}]')) == [
        "permute",
        "all_to_all",
        "all_gather",
    ]


def test_an_axis_that_is_larger_than_the_room_goes_in_part():
    found = chain_of("x=4,y=2", (16, 16), '[{"y"}, {}]', '[{"x"}, {}]')
    assert names(found) == ["slice", "permute"]
    assert layouts(found)[1].tile_shape == (4, 16)


def test_a_chain_that_would_have_to_pad_is_none():
    """Dimension 1 has 24 elements and would have to divide among z, y and x."""
    assert chain_of("x=3,y=3,z=4", (36, 24), '[{"x"}, {"z"}]', '[{"z", "y"}, {"x"}]') is None
