# SPDX-License-Identifier: Apache-2.0
"""Placements against brute force: digit orders made by permuting prime digits, and all orders of up to 8 devices."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator

import numpy as np
import pytest

from reshard.synthesis.layouts.layout import primes
from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.network.cost import coefficients
from reshard.synthesis.network.topology import Level, Topology, TopologyError
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.placement.recognition import placement_of


def network(*levels: Level, order: tuple[int, ...] | None = None) -> Topology:
    return Topology("test", levels, 1e12, 1e-6, device_order=order)


def switch(name: str, size: int, gbs: float, **more) -> Level:
    return Level(name, size, "switch", gbs * 1e9, 1e-6, **more)


def torus(*dims: int, wrap: bool = True) -> Level:
    return Level("chip", math.prod(dims), "torus", 5e9, 2e-6, dims=dims, wrap=(wrap,) * len(dims))


NETWORKS = {
    "one switch of 4": network(switch("gpu", 4, 10)),
    "2 nodes of 2": network(switch("node", 2, 1), switch("gpu", 2, 10)),
    "ring of 4": network(torus(4)),
    "2 nodes of 3": network(switch("node", 2, 1), switch("gpu", 3, 10)),
    "ring of 6": network(torus(6)),
    "torus of 2x3": network(torus(2, 3)),
    "2 nodes of 4, one card each": network(
        switch("node", 2, 10, shared_bandwidth_bytes_per_s=1e9), switch("gpu", 4, 100)
    ),
    "4 nodes of 2": network(switch("node", 4, 1), switch("gpu", 2, 10)),
    "3 levels of 2": network(switch("rack", 2, 1), switch("node", 2, 5), switch("gpu", 2, 100)),
    "a bus of 8": network(Level("process", 8, "bus", 1e9, 1e-6)),
    "2 nodes with rings of 4": network(switch("node", 2, 1), torus(4)),
    "ring of 8": network(torus(8)),
    "line of 8": network(torus(8, wrap=False)),
    "torus of 4x2": network(torus(4, 2)),
    "torus of 2x2x2": network(torus(2, 2, 2)),
    "2 nodes of 4, ids mixed": network(switch("node", 2, 1), switch("gpu", 4, 9), order=(3, 5, 0, 7, 2, 6, 1, 4)),
}


def has_lines(topology: Topology) -> bool:
    return any(level.kind in ("ring", "torus") for level in topology.levels)


def meshes(size: int) -> Iterator[Mesh]:
    """Yields the meshes of up to three axes, each larger than 1."""
    for rank in (1, 2, 3):
        for sizes in itertools.product(range(2, size + 1), repeat=rank):
            if math.prod(sizes) == size:
                yield Mesh(tuple(zip("abc", sizes)))


CASES = [
    pytest.param(each, mesh, id=f"{name}, mesh {dict(mesh.axes)}")
    for name, each in NETWORKS.items()
    for mesh in meshes(each.size)
]


def prime_orders(sizes: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Yields (axis, prime) digits for each way to order the primes of each axis, major to minor."""
    each = [sorted(set(itertools.permutations(primes(size)))) for size in sizes]
    for orders in itertools.product(*each):
        yield [(axis, prime) for axis, order in enumerate(orders) for prime in order]


def digit_orders(topology: Topology, mesh: Mesh) -> set[tuple[int, ...]]:
    """Returns the device ids of all orders in which each prime digit of the mesh is one of the network."""
    levels = [size for level in topology.levels for size in (level.dims or (level.size,))]
    ids = np.arange(topology.size) if topology.device_order is None else np.asarray(topology.device_order)
    found = set()
    for there in prime_orders(levels):
        of_network = ids.reshape([prime for _, prime in there])
        for here in prime_orders([size for _, size in mesh.axes]):
            for order in itertools.permutations(range(len(there))):
                if all(there[at][1] == prime for at, (_, prime) in zip(order, here)):
                    found.add(tuple(of_network.transpose(order).ravel().tolist()))
    return found


class Signatures:
    """What orders of devices cost: the times of three kinds of collectives over every set of axes.

    Groups that are equal as sets have one price, so that it pays to keep it.
    """

    def __init__(self, topology: Topology, mesh: Mesh):
        self.topology, self.sizes = topology, [size for _, size in mesh.axes]
        rank = len(self.sizes)
        self.subsets = [each for n in range(1, rank + 1) for each in itertools.combinations(range(rank), n)]
        self.known: dict[frozenset, tuple[float, ...]] = {}

    def of(self, device_ids: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
        ids = np.array(device_ids).reshape(self.sizes)
        return tuple(self._price(self._groups(ids, axes)) for axes in self.subsets)

    def _groups(self, ids: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        size = math.prod(self.sizes[axis] for axis in axes)
        return np.moveaxis(ids, axes, range(-len(axes), 0)).reshape(-1, size)

    def _price(self, groups: np.ndarray) -> tuple[float, ...]:
        key = frozenset(map(frozenset, groups.tolist()))
        if key not in self.known:
            kinds = ("all_gather", "all_reduce", "all_to_all")
            prices = [coefficients(self.topology, groups.size, kind, groups) for kind in kinds]
            self.known[key] = tuple(float(f"{part:.9g}") for price in prices for part in price)
        return self.known[key]


@pytest.mark.parametrize(("topology", "mesh"), CASES)
def test_placements_cost_what_all_digit_orders_cost(topology, mesh):
    signatures = Signatures(topology, mesh)
    ours = [each.device_ids for each in placements(topology, mesh)]
    brute = digit_orders(topology, mesh)
    assert set(ours) <= brute
    assert {signatures.of(each) for each in ours} == {signatures.of(each) for each in brute}


@pytest.mark.parametrize(("topology", "mesh"), CASES)
def test_on_switches_no_two_placements_cost_the_same_for_all_sets_of_axes(topology, mesh):
    """On lines they may, where both orders load the links alike."""
    if has_lines(topology):
        return
    signatures = Signatures(topology, mesh)
    ours = [signatures.of(each.device_ids) for each in placements(topology, mesh)]
    assert len(set(ours)) == len(ours)


def cheapest(found: list[tuple[tuple[float, ...], ...]]) -> np.ndarray:
    """Returns the least of each price, and of each sum of the prices of two sets of axes, alike weighed."""
    prices = np.unique(np.array(found), axis=0)  # (orders, sets of axes, prices)
    sums = prices[:, :, None] + prices[:, None, :]
    return np.concatenate([prices.min(0).ravel(), sums.min(0).ravel()])


EVERY_ORDER = [
    pytest.param(
        *case.values, id=case.id, marks=(pytest.mark.slow, pytest.mark.draws) if case.values[0].size > 6 else ()
    )
    for case in CASES
    if not has_lines(case.values[0]) and (case.values[0].size < 8 or len(case.values[1].axes) == 2)
]


@pytest.mark.parametrize(("topology", "mesh"), EVERY_ORDER)
def test_no_order_of_the_devices_is_cheaper_than_the_placements(topology, mesh):
    """Of 720 orders of 6 devices and 40,320 of 8, digit orders or not, for sets of axes alone and for any two.

    That is so for switches and buses; the next test has a ring.
    """
    signatures = Signatures(topology, mesh)
    every = {signatures.of(each) for each in itertools.permutations(range(topology.size))}
    ours = [signatures.of(each.device_ids) for each in placements(topology, mesh)]
    np.testing.assert_allclose(cheapest(ours), cheapest(list(every)), rtol=1e-9)


def test_around_a_ring_a_reflected_order_is_cheaper_than_every_placement():
    """What placements lack: in the Gray order 0, 1, 3, 2 both axes of a 2x2 mesh are one hop on a ring of 4."""
    topology, mesh = NETWORKS["ring of 4"], Mesh.parse("a=2,b=2")
    signatures = Signatures(topology, mesh)
    ours = [sum(price[0] for price in signatures.of(each.device_ids)[:2]) for each in placements(topology, mesh)]
    gray = sum(price[0] for price in signatures.of((0, 1, 3, 2))[:2])
    assert placement_of(topology, Mesh(mesh.axes, (0, 1, 3, 2))) is None
    assert gray < min(ours)


@pytest.mark.parametrize(("topology", "mesh"), CASES)
def test_row_major_order_is_among_the_placements_if_it_is_one(topology, mesh):
    found = list(placements(topology, mesh))
    default = placement_of(topology, mesh)
    ids = tuple(range(mesh.size))
    assert (default is None) == (ids not in digit_orders(topology, mesh))
    if topology.device_order is None and default is not None:
        assert default in found and default.device_ids == ids


@pytest.mark.parametrize(
    ("network_text", "mesh_text", "matrices", "with_orders"),
    [
        ("h100:2x2", "x=4", 1, 1),
        ("h100:2x2", "x=2,y=2", 2, 2),
        ("h100:4x4", "x=4,y=4", 3, 3),
        ("v5e:4x4", "x=4,y=4", 2, 4),  # one axis per dimension, or half of both in two orders, of which 3 pairs differ
        ("v5p:4x4x4", "a=4,b=4,c=4", 5, 18),
        ("h100:4x1", "x=2,y=2", 1, 1),
    ],
)
def test_counts(network_text, mesh_text, matrices, with_orders):
    topology, mesh = Topology.parse(network_text), Mesh.parse(mesh_text)
    assert len(list(placements(topology, mesh, with_orders=False))) == matrices
    assert len(list(placements(topology, mesh))) == with_orders


def test_every_placement_is_met_once():
    for topology, mesh in (("v5e:16x16", "a=4,b=8,c=8"), ("v5p:4x8x8", "a=4,b=8,c=8"), ("h100:16x16", "a=4,b=8,c=8")):
        found = [each.device_ids for each in placements(Topology.parse(topology), Mesh.parse(mesh))]
        assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("topology", "mesh"), [("h100:16x16", "a=16,b=4,c=4"), ("v5e:16x16", "a=4,b=8,c=8"), ("v5p:4x8x8", "a=4,b=8,c=8")]
)
def test_256_devices_with_three_axes_take_well_under_a_second(topology, mesh):
    start = time.process_time()
    assert all(each.digits for each in placements(Topology.parse(topology), Mesh.parse(mesh)))
    assert time.process_time() - start < 0.5


def test_sub_axes_are_placed_as_axes_of_their_own():
    topology = Topology.parse("v5e:2x4*2")
    cut = placements(topology, Mesh.parse("x=8,y=2"), {"x": (2, 4)})
    apart = placements(topology, Mesh.parse("x0=2,x1=4,y=2"))
    assert [each.device_ids for each in cut] == [each.device_ids for each in apart]


def test_a_minor_sub_axis_may_be_on_the_outer_level():
    found = placements(Topology.parse("h100:2x2"), Mesh.parse("x=4"), {"x": (2, 2)})
    assert [(each.text, each.device_ids) for each in found] == [
        ("x: node 2 x gpu 2", (0, 1, 2, 3)),
        ("x: gpu 2 x node 2", (0, 2, 1, 3)),
    ]


@pytest.mark.parametrize(("sub_axes", "says"), [({"x": (2, 3)}, "multiply to its size"), ({"y": (2,)}, 'axis "y"')])
def test_wrong_sub_axes_are_refused(sub_axes, says):
    with pytest.raises(MeshError, match=says):
        list(placements(Topology.parse("h100:2x2"), Mesh.parse("x=4"), sub_axes))


def test_a_topology_that_does_not_fit_is_refused():
    with pytest.raises(TopologyError, match="the mesh has 6"):
        list(placements(Topology.parse("h100:2x2"), Mesh.parse("x=6")))
