# SPDX-License-Identifier: Apache-2.0
"""How far collectives share links, held to a routing of every pair of devices hop by hop."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.synthesis.network import cost
from reshard.synthesis.network.link_sharing import shared_by_permutes, shared_links, wait_s
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.programs.traffic import Collective

KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_broadcast")


def torus(dims: tuple[int, ...], wraps: tuple[bool, ...], outer: int = 1) -> Topology:
    kind = "ring" if len(dims) == 1 else "torus"
    grid = Level("chip", math.prod(dims), kind, 1e9, dims=dims, wrap=wraps)
    levels = (Level("slice", outer, "switch", 1e8), grid) if outer > 1 else (grid,)
    return Topology("own", levels, 1e12)


def grouped(kind: str, groups: tuple[tuple[int, ...], ...]) -> Collective:
    factor = len(groups[0])
    before, after = {"all_gather": (8, 8 * factor), "reduce_scatter": (8 * factor, 8)}.get(kind, (8, 8))
    return Collective(kind, before, after, groups=groups)


def along(dims: tuple[int, ...], chosen: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices of a grid in groups, along some dimensions."""
    found: dict[tuple[int, ...], list[int]] = {}
    for device, place in enumerate(itertools.product(*map(range, dims))):
        found.setdefault(tuple(at for dim, at in enumerate(place) if dim not in chosen), []).append(device)
    return tuple(map(tuple, found.values()))


def routed(dims, wraps, pairs) -> Counter:
    """Returns the tiles on each link, (place, dimension, direction), if each pair is routed hop by hop."""
    places, load = list(itertools.product(*map(range, dims))), Counter()
    for source, target in pairs:
        here = list(places[source])
        for dim, size in enumerate(dims):
            there = places[target][dim]
            up, down = (there - here[dim]) % size, (here[dim] - there) % size
            if not wraps[dim]:
                ways = [(1, 1.0)] if there >= here[dim] else [(-1, 1.0)]
            else:
                ways = [(1, 0.5), (-1, 0.5)] if up == down else [(1, 1.0)] if up < down else [(-1, 1.0)]
            for step, share in ways:
                at = list(here)
                while at[dim] != there:
                    load[tuple(at), dim, step] += share
                    at[dim] = (at[dim] + step) % size
            here[dim] = there
    return load


def shared_by_hand(dims, wraps, one, other) -> float:
    """Returns the share from the links of both, each of which takes one second alone."""
    loads = [routed(dims, wraps, pairs) for pairs in (one, other)]
    one, other = ({link: tiles / max(load.values()) for link, tiles in load.items()} for load in loads)
    return max(0.0, max(one.get(link, 0.0) + other.get(link, 0.0) for link in one | other) - 1)


grids = st.lists(st.tuples(st.integers(2, 4), st.booleans()), min_size=2, max_size=3)


@given(grids, st.data())
def test_exchanges_and_permutes_share_what_their_pairs_do(grid, data):
    dims, wraps = (tuple(each) for each in zip(*grid))
    devices = math.prod(dims)
    subsets = st.frozensets(st.integers(0, len(dims) - 1), min_size=1)
    groups = along(dims, data.draw(subsets))
    other = along(dims, data.draw(subsets))
    exchange = [pair for group in groups for pair in itertools.permutations(group, 2)]
    order = data.draw(st.permutations(range(devices)))
    ring = tuple((here, order[(at + 1) % devices]) for at, here in enumerate(order))
    others = [pair for group in other for pair in itertools.permutations(group, 2)]
    topology, ours = torus(dims, wraps), grouped("all_to_all", groups)
    permute = Collective("collective_permute", 8, 8, pairs=ring)
    found = shared_links(topology, devices, ours, permute)
    assert found == pytest.approx(shared_by_hand(dims, wraps, exchange, ring))
    assert shared_links(topology, devices, permute, ours) == found
    both = shared_links(topology, devices, ours, grouped("all_to_all", other))
    assert both == pytest.approx(shared_by_hand(dims, wraps, exchange, others))


@given(grids, st.sampled_from(KINDS), st.sampled_from(KINDS), st.data())
def test_along_different_dimensions_nothing_is_shared_and_along_one_all(grid, kind, other, data):
    dims, wraps = (tuple(each) for each in zip(*grid))
    devices = math.prod(dims)
    topology = torus(dims, wraps)
    first, second = data.draw(st.permutations(range(len(dims))))[:2]
    one, two = (along(dims, frozenset({dim})) for dim in (first, second))
    assert shared_links(topology, devices, grouped(kind, one), grouped(other, two)) == 0
    assert shared_links(topology, devices, grouped(kind, one), grouped(kind, one)) == pytest.approx(1)
    gather, row = grouped("all_gather", along(dims, frozenset({first, second}))), grouped("all_reduce", one)
    assert shared_links(topology, devices, gather, row) == pytest.approx(1), "it uses both dimensions all the time"


@given(grids, st.sampled_from(KINDS), st.data())
def test_what_crosses_slices_and_what_does_not_share_nothing(grid, kind, data):
    dims, wraps = (tuple(each) for each in zip(*grid))
    size = math.prod(dims)
    topology = torus(dims, wraps, outer=2)
    inside = along(dims, data.draw(st.frozensets(st.integers(0, len(dims) - 1), min_size=1)))
    inside += tuple(tuple(size + each for each in group) for group in inside)
    across = tuple((each, size + each) for each in range(size))
    assert shared_links(topology, 2 * size, grouped(kind, inside), grouped(kind, across)) == 0
    assert shared_links(topology, 2 * size, grouped(kind, across), grouped("all_gather", across)) == 1


def test_groups_that_are_no_sub_grids_or_of_several_sizes_share_everything():
    topology = torus((2, 4), (False, False))
    odd, far = grouped("all_gather", ((0, 1, 6),)), grouped("all_gather", ((3, 7),))
    assert shared_links(topology, 8, odd, far) == shared_links(topology, 8, far, odd) == 1
    topology = torus((5, 4), (False, False))
    uneven = grouped("all_reduce", (tuple(range(4)), tuple(range(4, 20))))
    assert shared_links(topology, 20, uneven, grouped("all_gather", ((8, 9, 10, 11),))) == 1


def test_what_waits_for_two_waits_for_the_links_of_both():
    """Neither of the exchanges needs a link along the first dimension for more than 3/8 of its time."""
    dims = (4, 8, 8)
    topology, devices = torus(dims, (False,) * 3), math.prod(dims)
    exchanges = [grouped("all_to_all", along(dims, frozenset(each))) for each in ((0, 1), (0, 2))]
    gather = grouped("all_gather", along(dims, frozenset({0})))
    assert shared_links(topology, devices, *exchanges) == 0
    assert [shared_links(topology, devices, gather, each) for each in exchanges] == [0.375, 0.375]
    assert wait_s(topology, devices, gather, 2.0, [(each, 2.0) for each in exchanges]) == pytest.approx(1.5)
    assert wait_s(topology, devices, gather, 2.0, [(exchanges[0], 2.0), (gather, 1.0)]) == pytest.approx(1.75)


def test_what_is_under_way_in_another_slice_does_not_count():
    dims = (2, 4)
    topology, rows = torus(dims, (False, False), outer=2), along(dims, frozenset({1}))
    far_rows = tuple(tuple(8 + each for each in row) for row in rows)
    here, there, everywhere = (grouped("all_gather", each) for each in (rows, far_rows, rows + far_rows))
    assert shared_links(topology, 16, here, there) == 0 and shared_links(topology, 16, here, everywhere) == 1
    for others in ([(there, 1.0), (here, 0.5)], [(there, 0.5), (here, 1.0)]):
        assert wait_s(topology, 16, everywhere, 2.0, others) == 1.0, "they are under way at once"


def test_a_permute_one_way_shares_half_of_a_gather_along_its_ring():
    """A gather has half of its tiles go each way, so one way around both want the same links."""
    topology = torus((8,), (True,))
    gather = grouped("all_gather", (tuple(range(8)),))
    there, back = (
        Collective("collective_permute", 8, 8, pairs=tuple((at, (at + step) % 8) for at in range(8)))
        for step in (1, -1)
    )
    assert [shared_links(topology, 8, gather, each) for each in (there, back)] == [1, 1]
    assert shared_links(topology, 8, there, back) == 0


def test_of_a_collective_that_needs_a_slow_level_most_of_its_time_the_fast_ones_are_free():
    topology = torus((2, 4), (False, False), outer=2)
    whole = grouped("all_gather", (tuple(range(16)),))
    inside = grouped("all_gather", tuple(tuple(range(at, at + 4)) for at in range(0, 16, 4)))
    price = cost.price_on(cost.network_of(topology, 16), "all_gather", whole.groups)
    outer, inner = (each.seconds_per_byte for each in price.levels)
    assert inner < outer == price.seconds_per_byte
    assert shared_links(topology, 16, whole, inside) == pytest.approx(inner / outer)


def test_one_device_alone_shares_nothing():
    alone = replace(grouped("all_gather", ((0,), (1,))), bytes_after=8)
    assert shared_links(torus((2,), (False,)), 2, alone, grouped("all_gather", ((0, 1),))) == 0


def test_permutes_of_one_ring_share_what_they_take_longer():
    pairs = [(0, 1), (1, 2)]
    assert shared_by_permutes(torus((4,), (False,)), 4, pairs, [(2, 3)]) == 0
    assert shared_by_permutes(torus((4,), (False,)), 4, pairs, [(0, 2)]) == 1
