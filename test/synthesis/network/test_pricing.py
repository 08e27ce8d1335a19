# SPDX-License-Identifier: Apache-2.0
"""Prices by factors are those of `cost.py` device by device, and bounds on latency are bounds."""

import itertools

import pytest

from benchmarks.conversions.pairs import random_pairs
from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.network import cost
from reshard.synthesis.network.bounds import received_elements_bound
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import Topology

ONE_MESSAGE_TO_EACH = """
launch_latency_s = 1e-5
memory_bandwidth_bytes_per_s = 1e12

[[level]]
name = "node"
kind = "switch"
bandwidth_bytes_per_s = 1e9
message_s = 3e-6

[[level]]
name = "chip"
kind = "switch"
size = 4
bandwidth_bytes_per_s = 1e10
latency_s = 1e-6
message_s = 2e-6
"""
KINDS = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce")
CASES = [
    (mesh, topology)
    for mesh in (
        "x=2,y=4,z=2",
        "x=4,y=4",
        "x=2,y=2,z=2,w=2",
        '<["x"=4, "y"=4], device_ids=[3,1,2,0,7,5,6,4,11,9,10,8,15,13,14,12]>',
    )
    for topology in (
        "uniform",
        "h100",
        "h100:4x4",
        "a100:2x8",
        "v5e:2x4*2",
        "v4:2x2x2*2",
        "cpu",
        "ethernet",
        ONE_MESSAGE_TO_EACH,
    )
]


def factors_of(mesh: Mesh) -> list[Factor]:
    return [Factor(name, 1, size) for name, size in mesh.axes] + [
        Factor(name, 2, size // 2) for name, size in mesh.axes if size > 2
    ]


@pytest.mark.parametrize(("mesh_text", "topology"), CASES)
def test_prices_by_factors_are_those_device_by_device(mesh_text, topology):
    mesh, network = Mesh.parse(mesh_text), Topology.parse(topology)
    pricing = Pricing(network, mesh, 32)
    for count in (1, 2, 3):
        for chosen in itertools.combinations(factors_of(mesh), count):
            if len({factor.axis for factor in chosen}) < count:
                continue
            for kind in KINDS:
                expected = cost.coefficients(network, mesh, kind, groups(mesh, tuple(sorted(chosen))))
                assert pricing.coefficients(kind, chosen) == pytest.approx(expected, rel=1e-12), (kind, chosen)
                least_s = cost.messages_time_s(network, mesh, kind, groups(mesh, tuple(sorted(chosen))))
                assert abs(pricing.messages_picoseconds(kind, chosen) - least_s * 1e12) <= 1, (kind, chosen)


@pytest.mark.parametrize(("mesh_text", "topology"), CASES)
def test_a_bound_on_the_latency_of_a_group_is_one(mesh_text, topology):
    mesh = Mesh.parse(mesh_text)
    pricing = Pricing(Topology.parse(topology), mesh, 32)
    for factor in factors_of(mesh):
        latency_s, _ = pricing.coefficients("all_to_all", (factor,))
        assert pricing.least_latency_of_one_s(factor.size, pricing.hop_s(factor)) <= latency_s * (1 + 1e-12), factor


def test_a_factor_that_no_level_divides_has_no_shares():
    pricing = Pricing(Topology.parse("v5e:1x3*2"), Mesh.parse("x=3,y=2"), 32)
    assert pricing.shares(Factor("x", 1, 3)) is None


def test_an_axis_over_nodes_and_devices_has_its_share_of_both():
    pricing = Pricing(Topology.parse("h100:2x4"), Mesh.parse("x=4,y=2"), 32)
    assert pricing.shares(Factor("x", 1, 4)) == (2, 2)
    assert pricing.shares(Factor("y", 1, 2)) == (1, 2)


@pytest.mark.parametrize("pair", random_pairs(3, 30, (4, 6, 8, 12)), ids=str)
def test_on_one_switch_the_bound_on_time_follows_from_that_on_bytes(pair):
    pricing = Pricing(Topology.parse("uniform"), pair.mesh, 12)
    received = received_elements_bound(pair.mesh, pair.shape, pair.source, pair.target)
    expected = pricing.bound_seconds(pair.shape, pair.source, pair.target)
    assert pricing.flat_bound_seconds(received) == pytest.approx(expected, rel=1e-12)
