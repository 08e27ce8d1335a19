# SPDX-License-Identifier: Apache-2.0
"""Blocks that go around rings: each device meets every block once, and a scattered sum has every term once."""

import itertools
import random

import pytest

from reshard.synthesis.overlap.rings import Hops, Rings, nearest, orders

SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16)


def passed_on(rings: Rings, held: dict, offset: int) -> dict:
    """Returns what devices hold after all of them have sent what they held."""
    return {target: held[source] for source, target in rings.pairs(offset)}


def rings_of(members: int) -> list[Rings]:
    groups = tuple(tuple(range(start, 2 * members, 2)) for start in range(2))
    return [Rings(groups, order) for order in orders(members)]


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("members", SIZES)
def test_each_block_is_met_once_and_is_the_one_of_the_member_that_is_said(members, both_ways):
    for rings in rings_of(members):
        member = {device: at for group in rings.groups for at, device in enumerate(group)}
        held = {way: dict(member) for way in (1, -1)}
        met = {device: [member[device]] for device in member}
        for offsets in Hops.of(members, both_ways=both_ways).rounds():
            for offset in offsets:
                way = 1 if offset < 0 else -1
                held[way] = passed_on(rings, held[way], way)
                said = dict(zip(rings.devices, rings.members_at(offset), strict=True))
                assert held[way] == said
                for device, block in held[way].items():
                    met[device].append(block)
        assert all(sorted(blocks) == list(range(members)) for blocks in met.values())


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("members", SIZES)
def test_a_scattered_sum_has_the_term_of_every_member_for_the_own_block(members, both_ways):
    hops = Hops.of(members, both_ways=both_ways)
    for rings in rings_of(members):
        ahead = {offset: dict(zip(rings.devices, rings.members_at(offset))) for offset in range(-members, members)}
        sums: dict[int, dict] = {}
        for way, count in ((1, hops.forward), (-1, hops.backward)):
            for hop in range(count):
                terms = {device: [(device, block)] for device, block in ahead[way * (count - hop)].items()}
                added = {device: sums.get(way, {}).get(device, []) + terms[device] for device in terms}
                sums[way] = passed_on(rings, added, way)
        for group in rings.groups:
            for at, device in enumerate(group):
                terms = [*sums.get(1, {}).get(device, []), *sums.get(-1, {}).get(device, []), (device, at)]
                assert sorted(terms) == [(each, at) for each in sorted(group)]


@pytest.mark.parametrize("members", SIZES)
def test_what_goes_directly_to_a_member_comes_from_as_far_behind(members):
    for rings in rings_of(members):
        ahead = dict(zip(rings.devices, rings.members_at(1)))
        assert all(rings.groups[source % 2].index(target) == ahead[source] for source, target in rings.pairs(1))
        assert sorted(rings.pairs(-1)) == sorted((target, source) for source, target in rings.pairs(1))


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 4), (4, 2), (3, 4), (4, 3), (2, 8), (4, 4), (6, 3), (8, 8)])
def test_a_grid_with_an_even_side_has_a_ring_of_neighbours(rows, columns):
    def hops(pairs) -> int:
        places = [[divmod(device, columns) for device in pair] for pair in pairs]
        return max(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in places)

    rings = nearest([tuple(range(rows * columns))], hops)
    assert hops(rings.pairs(1)) == 1
    assert sorted(rings.order) == list(range(rows * columns))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sides", [(2, 4), (4, 2), (3, 4), (2, 2, 2), (2, 4, 4), (3, 2, 3), (1, 4, 2), (4, 4, 4)])
def test_members_of_a_grid_in_any_order_have_a_ring_of_neighbours(sides, seed):
    places = list(itertools.product(*map(range, sides)))
    random.Random(seed).shuffle(places)

    def hops(pairs) -> int:
        return max(sum(abs(a - b) for a, b in zip(places[one], places[other])) for one, other in pairs)

    rings = nearest([tuple(range(len(places)))], hops, places)
    assert hops(rings.pairs(1)) == 1 and sorted(rings.order) == list(range(len(places)))


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8])
def test_on_a_line_no_hop_of_a_ring_is_longer_than_two(length):
    line = [(3, at) for at in range(length)]
    assert any(
        all(abs(one - other) <= 2 for one, other in Rings((tuple(range(length)),), order).pairs(1))
        for order in orders(length, line)
    )


@pytest.mark.parametrize("places", [[(0, 0), (0, 1), (1, 0)], [(0,), (0,)], [(0, 0), (1, 1)]])
def test_members_that_fill_no_grid_have_no_further_orders(places):
    assert orders(len(places), places) == orders(len(places))


@pytest.mark.parametrize("members", SIZES)
def test_orders_are_permutations_and_the_listed_one_is_first(members):
    found = orders(members)
    assert found[0] == tuple(range(members))
    assert all(sorted(order) == list(range(members)) for order in found)
    assert len(set(found)) == len(found)


def test_the_listed_order_stays_if_no_other_is_nearer():
    assert nearest([(0, 1, 2, 3), (4, 5, 6, 7)], lambda pairs: 1.0).order == (0, 1, 2, 3)


def test_all_pairs_of_a_swap_are_different():
    for rings in rings_of(6):
        pairs = list(itertools.chain(*(rings.pairs(offset) for offset in range(1, 6))))
        assert len(set(pairs)) == len(pairs) == 2 * 6 * 5
