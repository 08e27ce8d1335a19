# SPDX-License-Identifier: Apache-2.0
"""Prices of conversions: those of the planner's chains, or close to them, and equal where one collective does."""

import itertools
import math

import numpy as np
import pytest

from reshard.synthesis.assignment.moves import NOWHERE, PARTIAL, MovePrices, PlannedPrices, prices_for
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan

SHAPE = (64, 128, 256)


def sharding(places, mesh):
    names = mesh.axis_names
    dims = tuple(tuple(AxisRef(n) for n, place in zip(names, places) if place == dim) for dim in range(len(SHAPE)))
    return Sharding(dims, unreduced=tuple(AxisRef(n) for n, place in zip(names, places) if place == PARTIAL))


@pytest.mark.parametrize(
    ("network", "near"),
    [("h100:2x4", 0.35), ("v5e:2x4", 0.35), pytest.param("cpu:8", 0.9, marks=pytest.mark.slow)],
)
def test_prices_are_those_of_the_planners_chains(network, near):
    """On CPU devices copies count, and so does which of the dimensions is the last one; a table leaves that out."""
    mesh = Mesh.parse("x=2,y=4")
    topology = Topology.parse(network).fitted(8)
    places = (PARTIAL, NOWHERE, 0, 2)
    sources = np.array(list(itertools.product(places, repeat=2)))[::3]
    targets = np.array(list(itertools.product(places[1:], repeat=2)))[::2]
    planned = PlannedPrices(topology, mesh).seconds(4 * math.prod(SHAPE), sources, targets)
    closed = MovePrices(topology, mesh).seconds(4 * math.prod(SHAPE), sources, targets)
    ratios = []
    for (row, source), (column, target) in itertools.product(enumerate(sources), enumerate(targets)):
        ends = sharding(source, mesh), sharding(target, mesh)
        least = plan(mesh, SHAPE, 32, *ends, objective="time", topology=topology).time_s
        assert planned[row, column] == pytest.approx(least, rel=near, abs=2e-6), ends  # between two sizes it is a line
        if min(least, closed[row, column]) > 0:
            ratios.append(closed[row, column] / least)
            assert 0.4 < ratios[-1] < 3, ends
    assert 0.8 < math.exp(np.mean(np.log(ratios))) < 1.25


def test_meshes_of_two_axes_get_planned_prices():
    topology = Topology.parse("uniform")
    assert type(prices_for(topology.fitted(8), Mesh.parse("x=2,y=4,z=1"))) is PlannedPrices
    assert type(prices_for(topology.fitted(8), Mesh.parse("x=2,y=2,z=2"))) is MovePrices


def test_one_collective_costs_what_the_planner_says():
    mesh, topology = Mesh.parse("x=8"), Topology.parse("v5e:2x4").fitted(8)
    prices = MovePrices(topology, mesh)
    places = np.array([[NOWHERE], [0], [PARTIAL]])
    found = prices.seconds(4 * math.prod(SHAPE), places, np.array([[NOWHERE], [0]]))
    assert found[0, 0] == found[1, 1] == found[0, 1] == 0  # a slice is free
    for row, column in ((2, 0), (2, 1)):
        ends = sharding(places[row], mesh), sharding(places[column], mesh)
        assert found[row, column] == pytest.approx(
            plan(mesh, SHAPE, 32, *ends, objective="time", topology=topology).time_s, rel=0.05
        )


def test_nothing_becomes_partial_and_partial_sums_may_stay():
    prices = MovePrices(Topology.parse("uniform").fitted(8), Mesh.parse("x=8"))
    places = np.array([[NOWHERE], [0], [PARTIAL]])
    found = prices.seconds(1024.0, places, np.array([[PARTIAL]]))
    assert math.isinf(found[0, 0]) and math.isinf(found[1, 0]) and found[2, 0] == 0


def test_the_order_of_devices_counts():
    straight = Mesh.parse("node=2,gpu=4")
    turned = Mesh(straight.axes, (0, 4, 1, 5, 2, 6, 3, 7))  # the axis gpu crosses nodes
    topology = Topology.parse("h100:2x4")
    gathers = [
        MovePrices(topology, mesh).seconds(2**26, np.array([[NOWHERE, 0]]), np.array([[NOWHERE, NOWHERE]]))[0, 0]
        for mesh in (straight, turned)
    ]
    assert gathers[1] > 2 * gathers[0]


def test_small_tensors_pay_latency_too():
    mesh, topology = Mesh.parse("x=2,y=8"), Topology.parse("h100:2x8")
    source, target = np.array([[2, 1]]), np.array([[NOWHERE, 0]])
    found = PlannedPrices(topology, mesh).seconds(4.0 * 16**3, source, target)[0, 0]
    ends = sharding((2, 1), mesh), sharding((NOWHERE, 0), mesh)
    assert found > 0.3 * plan(mesh, (16, 16, 16), 32, *ends, objective="time", topology=topology).time_s > 0
