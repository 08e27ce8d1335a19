# SPDX-License-Identifier: Apache-2.0
"""Rule R3: the one definition of bytes received and bytes sent."""

import pytest

from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.traffic import Collective, bytes_received, bytes_received_per_device, bytes_sent

ALL_OF_4 = ((0, 1, 2, 3),)


@pytest.mark.parametrize(
    ("kind", "after", "received", "sent"),
    [
        ("all_gather", 64, 48, 48),
        ("all_to_all", 16, 12, 12),
        ("reduce_scatter", 4, 12, 12),
        ("all_reduce", 16, 24, 24),
        ("collective_broadcast", 16, 16, 48),
        ("ragged_all_to_all", 40, 40, 16),
    ],
)
def test_group_of_four_with_a_tile_of_16_bytes(kind, after, received, sent):
    collective = Collective(kind, 16, after, groups=ALL_OF_4)
    assert bytes_received([collective], 4) == received
    assert bytes_sent([collective], 4) == sent


def test_permute_counts_targets_of_pairs_that_move():
    permute = Collective("collective_permute", 16, 16, pairs=((0, 0), (1, 2), (2, 1), (1, 3)))
    assert bytes_received_per_device([permute], 4).tolist() == [0, 16, 16, 16]
    assert bytes_sent([permute], 4) == 32


def test_maximum_is_over_devices_of_sums_not_a_sum_of_maxima():
    first = Collective("collective_permute", 8, 8, pairs=((0, 1),))
    second = Collective("collective_permute", 8, 8, pairs=((1, 0),))
    assert bytes_received([first, second], 2) == 8


def test_trip_counts_multiply():
    assert bytes_received([Collective("all_gather", 4, 16, groups=ALL_OF_4, trip_count=5)], 4) == 60


def test_groups_of_one_move_nothing():
    assert bytes_received([Collective("all_reduce", 4, 4, groups=((0,), (1,)))], 2) == 0


def test_fractions_round_up():
    assert bytes_received([Collective("all_reduce", 1, 1, groups=((0, 1, 2),))], 3) == 2  # 4/3


def test_broadcast_root_receives_nothing():
    broadcast = Collective("collective_broadcast", 8, 8, groups=((2, 0, 1),))
    assert bytes_received_per_device([broadcast], 3).tolist() == [8, 8, 0]


def test_nothing_moves_without_collectives():
    assert bytes_received([], 4) == bytes_sent([], 4) == 0


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="unknown kind of collective 'gossip'"):
        Collective("gossip", 1, 1)


@pytest.mark.parametrize(
    ("kind", "after"), [("all_gather", 40), ("reduce_scatter", 3), ("all_to_all", 10), ("collective_permute", 10)]
)
def test_tile_after(kind, after):
    assert traffic.tile_bytes_after(kind, 10, 4) == after
