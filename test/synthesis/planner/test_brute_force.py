# SPDX-License-Identifier: Apache-2.0
"""Rule R4: a plan costs as much as the cheapest chain of an exhaustive search over all layouts and all steps.

The search is slow and simple and shares no code with the planner's search: it has no refinement, no heuristic and no
pruning. Axes are cut into primes, every factor may own every digit of every dimension, and a step is one that
`steps.apply` accepts. A gather is along one dimension.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from reshard.synthesis.layouts.layout import UNREDUCED, Factor, Layout, LayoutError, Slot, blocked, groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.network import cost
from reshard.synthesis.network.bounds import received_elements_bound
from reshard.synthesis.network.pricing import Pricing
from reshard.synthesis.network.topology import MAY_BE_RINGS, Level, Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.plans.request import Request
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs import steps
from reshard.synthesis.programs.steps import (
    AllGather,
    AllReduce,
    AllToAll,
    Permute,
    ReduceScatter,
    RuleError,
    Slice,
    ToUnreduced,
)
from reshard.synthesis.programs.tile_program import permute_pairs
from reshard.synthesis.search.find_chain import find_chain


def prime_factors(mesh: Mesh) -> tuple[Factor, ...]:
    """Returns the axes of a mesh, cut into prime factors; the smallest prime is the major one."""
    found = []
    for axis, size in mesh.axes:
        pre = 1
        while pre < size:
            prime = next(p for p in range(2, size + 1) if size // pre % p == 0)
            found.append(Factor(axis, pre, prime))
            pre *= prime
    return tuple(found)


def blocked_layouts(shape: tuple[int, ...], factors: tuple[Factor, ...]) -> Iterator[tuple[tuple[Factor, ...], ...]]:
    """Yields every way to shard the dimensions by some of the factors, as factors per dimension."""
    rank = len(shape)
    for count in range(len(factors) + 1):
        for order in itertools.permutations(factors, count):
            for ends in itertools.combinations_with_replacement(range(count + 1), rank - 1):
                edges = (0, *ends, count)
                pieces = tuple(order[a:b] for a, b in zip(edges, edges[1:]))
                try:
                    blocked(shape, pieces)
                except LayoutError:
                    continue
                yield pieces


def sharding_of(mesh: Mesh, pieces: tuple[tuple[Factor, ...], ...]) -> Sharding:
    """Returns the sharding that splits each dimension by the given factors."""
    return Sharding(tuple(tuple(AxisRef(f.axis, f.pre, f.size) for f in dim) for dim in pieces))


class Graph:
    """All layouts of a shape on a mesh and all steps between them.

    `layouts[i]` is node i; `edges[i]` lists (node after, cost), found on first use. A cost is (received elements,
    collectives).
    """

    NOTHING: tuple[int, ...] = (0, 0)

    def __init__(self, mesh: Mesh, shape: tuple[int, ...]):
        self.mesh = mesh
        self.shape = shape
        self.factors = prime_factors(mesh)
        self.slots = {f: list(_slots(shape, f.size)) for f in self.factors}
        self.layouts = list(self._all_layouts())
        self.number = {layout: i for i, layout in enumerate(self.layouts)}
        self.same_runs: dict[tuple[Slot, ...], list[Layout]] = {}
        for layout in self.layouts:
            self.same_runs.setdefault(layout.owned_runs, []).append(layout)
        self.edges: list[list[tuple[int, tuple[int, ...]]] | None] = [None] * len(self.layouts)

    def least_costs(self, source: Layout, largest_tile: int) -> dict[int, tuple[int, ...]]:
        """Returns for each node the cost of the cheapest chain whose tiles are at most `largest_tile` elements."""
        start = self.number[source]
        best = {start: self.NOTHING}
        queue = [(self.NOTHING, start)]
        while queue:
            cost, node = heapq.heappop(queue)
            if cost > best[node]:
                continue
            for after, more in self._edges_of(node):
                total = tuple(map(operator.add, cost, more))
                if self.layouts[after].tile_elements <= largest_tile and (after not in best or total < best[after]):
                    best[after] = total
                    heapq.heappush(queue, (total, after))
        return best

    def _all_layouts(self) -> Iterator[Layout]:
        for choice in itertools.product(*([None, *self.slots[f]] for f in self.factors)):
            try:
                yield Layout(self.shape, tuple((f, s) for f, s in zip(self.factors, choice) if s is not None))
            except LayoutError:
                continue

    def _edges_of(self, node: int) -> list[tuple[int, tuple[int, ...]]]:
        if self.edges[node] is None:
            before = self.layouts[node]
            cheapest: dict[int, tuple[int, ...]] = {}
            for step in self._steps(before):
                try:
                    layout = steps.apply(before, step)
                except RuleError:
                    continue
                after, cost = self.number[layout], self._cost(before, step, layout)
                cheapest[after] = min(cost, cheapest.get(after, cost))
            self.edges[node] = list(cheapest.items())
        return self.edges[node]

    def _cost(self, before: Layout, step: steps.Step, after: Layout) -> tuple[int, ...]:
        return steps.received_elements(before, step), steps.collectives(step)

    def _steps(self, layout: Layout) -> Iterator[steps.Step]:
        owned = [f for f, _ in layout.owners]
        for factor in self.factors:
            if factor not in owned:
                yield from (Slice(((factor, slot),)) for slot in self.slots[factor])
        for chosen in _non_empty_subsets(owned):
            if len({layout.slot_of(f).dim for f in chosen}) == 1:
                yield AllGather(chosen)
            for goals in itertools.product(*(self._local_slots(layout, f) for f in chosen)):
                yield AllToAll(tuple(zip(chosen, goals)))
        yield from (Permute(after) for after in self.same_runs[layout.owned_runs] if after != layout)

    def _local_slots(self, layout: Layout, factor: Factor) -> list[Slot]:
        return [s for s in self.slots[factor] if all(s.agrees_with(taken) for _, taken in layout.owners)]


def _slots(shape: tuple[int, ...], size: int) -> Iterator[Slot]:
    for dim, length in enumerate(shape):
        for start in range(1, length + 1):
            if length % (start * size) == 0:
                yield Slot(dim, start, start * size)


def _non_empty_subsets(items: list) -> Iterator[tuple]:
    for count in range(1, len(items) + 1):
        yield from itertools.combinations(items, count)


# Meshes of up to 24 devices. An element has 8 bits, so that the number of bytes is the number of elements.
CASES = (
    ("x=2,y=2,z=2", (8, 8)),
    ("x=2,y=2,z=2", (4, 4, 4)),
    ("x=2,y=2,z=2", (64,)),
    ("x=2,y=2,z=2", (2, 2, 8)),
    ("x=2,y=4", (16, 4)),
    ("x=8", (8, 8, 2)),
    ("x=2,y=3", (12, 12)),
    ("x=3,y=2", (18, 6)),
    ("x=6", (6, 6, 6)),
    ("x=2,y=2", (8, 8, 4)),
    ("x=4", (4, 8, 2)),
    ("x=7", (7, 14)),
    ("x=2,y=2,z=3", (12, 12)),
    ("x=4,y=3", (12, 24)),
    ("x=4,y=6", (6, 12)),
)


def compare(mesh_text: str, shape: tuple[int, ...], sources: int, targets: int) -> tuple[int, list[str]]:
    """Returns how many pairs were compared, and those whose plan is not the cheapest chain."""
    mesh, rng = Mesh.parse(mesh_text), random.Random(f"{mesh_text} {shape}")
    graph = Graph(mesh, shape)
    everything = list(blocked_layouts(shape, graph.factors))
    compared, worse = 0, []
    for start in rng.sample(everything, min(sources, len(everything))):
        before, costs = blocked(shape, start), {}
        for goal in rng.sample(everything, min(targets, len(everything))):
            after = blocked(shape, goal)
            largest = max(before.tile_elements, after.tile_elements)
            if largest not in costs:
                costs[largest] = graph.least_costs(before, largest)
            found = plan(mesh, shape, 8, sharding_of(mesh, start), sharding_of(mesh, goal))
            cost = (sum(step.bytes_received for step in found.steps), found.collectives)
            cheapest = costs[largest][graph.number[after]]
            compared += 1
            if cost != cheapest:
                worse.append(f"{found.source} -> {found.target}: {cost} {found.chain_text}, cheapest {cheapest}")
    return compared, worse


@pytest.mark.mostly_slow
@pytest.mark.parametrize(("mesh_text", "shape"), CASES)
def test_r4_plans_are_the_cheapest_chains(mesh_text, shape):
    compared, worse = compare(mesh_text, shape, sources=5, targets=8)
    print(f"{compared} pairs")
    assert not worse


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh_text", "shape"),
    [
        *CASES,
        ("x=4,y=6", (24, 12)),
        ("x=2,y=2,z=2", (16, 16)),
        ("x=2,y=2,z=2", (32, 8)),
        ("x=2,y=2,z=2", (8, 4, 2)),
        ("x=2,y=2,z=3", (12, 6, 6)),
        ("x=2,y=2,z=2,w=2", (16, 4)),
    ],
)
def test_r4_plans_are_the_cheapest_chains_of_thousands(mesh_text, shape):
    compared, worse = compare(mesh_text, shape, sources=20, targets=40)
    print(f"{compared} pairs")
    assert not worse


@pytest.mark.mostly_slow
@pytest.mark.parametrize(("mesh_text", "shape"), [("x=2,y=2", (8, 8)), ("x=2,y=3", (6, 12)), ("x=2,y=2,z=2", (8, 8))])
def test_r4_with_a_tile_limit_chains_are_the_cheapest_up_to_that_tile(mesh_text, shape):
    """The limit is the whole array or half of it; the chains are compared by their time on one switch."""
    mesh, rng, network = Mesh.parse(mesh_text), random.Random(mesh_text), Topology.parse("uniform")
    graph, pricing = TimedGraph(mesh, shape, network), Pricing(network, mesh, 8)
    everything, gained = list(blocked_layouts(shape, graph.factors)), 0
    for start, goal in ((rng.choice(everything), rng.choice(everything)) for _ in range(40)):
        before, sides = blocked(shape, start), (sharding_of(mesh, start), sharding_of(mesh, goal))
        within_r2 = find_chain(Request(mesh, shape, 8, *sides, "time", network, False, "sum"), pricing)
        for limit in (math.prod(shape) // 2, math.prod(shape)):
            request = Request(mesh, shape, 8, *sides, "time", network, False, "sum", tile_limit=limit)
            found = find_chain(request, pricing)
            largest = max(before.tile_elements, blocked(shape, goal).tile_elements, limit)
            cheapest = graph.least_costs(before, largest)[graph.number[blocked(shape, goal)]]
            assert abs(found.cost[0] - cheapest[0]) <= 5 and found.cost[1:] == cheapest[1:], f"{sides} {limit}"
            assert found.least_cost <= found.cost
            gained += found.cost < within_r2.cost
    assert gained


def test_the_brute_force_itself_finds_worked_example_ii():
    mesh, shape = Mesh.parse("x=2,y=2,z=2"), (16, 4)
    graph = Graph(mesh, shape)
    x, y, z = graph.factors
    costs = graph.least_costs(blocked(shape, ((), (x,))), 32)
    assert costs[graph.number[blocked(shape, ((x, y, z), ()))]] == (4, 1)


# All pairs of up to 3 prime factors on up to 8 devices, by bytes and by time


class TimedGraph(Graph):
    """The same graph with costs by modelled time: (picoseconds, received elements, collectives).

    A gather may be along several dimensions at once.
    """

    NOTHING = (0, 0, 0)

    def __init__(self, mesh: Mesh, shape: tuple[int, ...], topology: Topology):
        super().__init__(mesh, shape)
        self.topology = topology
        self.coefficients: dict = {}

    def _steps(self, layout: Layout) -> Iterator[steps.Step]:
        yield from super()._steps(layout)
        yield from (AllGather(chosen) for chosen in _non_empty_subsets([f for f, _ in layout.owners]))

    def _cost(self, before: Layout, step: steps.Step, after: Layout) -> tuple[int, ...]:
        return self._picoseconds(before, step, after), *super()._cost(before, step, after)

    def _picoseconds(self, before: Layout, step: steps.Step, after: Layout) -> int:
        """Returns the picoseconds of a step as `cost.py` computes them device by device, for elements of 8 bits."""
        if isinstance(step, Slice):
            return math.ceil(cost.slice_time_s(self.topology, after.tile_elements) * 10**12)
        key = (before, after) if isinstance(step, Permute) else (steps.name(step), tuple(sorted(step.factors)))
        if key not in self.coefficients:
            if isinstance(step, Permute):
                members = {"kind": "collective_permute", "pairs": permute_pairs(self.mesh, before, after)}
            else:
                members = {"kind": steps.name(step), "groups": groups(self.mesh, step.factors)}
            self.coefficients[key] = cost.coefficients(self.topology, self.mesh, **members)
        latency_s, seconds_per_byte = self.coefficients[key]
        seconds = latency_s + seconds_per_byte * before.tile_elements
        if not isinstance(step, Permute):
            members = groups(self.mesh, step.factors)
            seconds = max(seconds, cost.messages_time_s(self.topology, self.mesh, steps.name(step), members))
        dims = {before.slot_of(f).dim for f in step.factors} if isinstance(step, AllGather) else ()
        copied_s = cost.relayout_time_s(self.topology, after.tile_elements) if len(dims) > 1 else 0.0
        return math.ceil(seconds * 10**12) + math.ceil(copied_s * 10**12)


Pieces = tuple[tuple[Factor, ...], ...]


def classes(
    factors: tuple[Factor, ...], everything: list[Pieces], alike: tuple[Factor, ...]
) -> dict[tuple[Pieces, Pieces], int]:
    """Returns one pair of each class and the number of pairs in the class.

    Two pairs are in one class if one becomes the other by exchanging dimensions, or factors of `alike`.
    """
    renamings = [dict(zip(alike, order)) for order in itertools.permutations(alike)]
    rank = len(everything[0])

    def renamed(pieces: Pieces, dims: tuple[int, ...], to: dict[Factor, Factor]) -> Pieces:
        return tuple(tuple(to.get(f, f) for f in pieces[dim]) for dim in dims)

    counts: dict[tuple[Pieces, Pieces], int] = {}
    for pair in itertools.product(everything, repeat=2):
        images = (
            tuple(renamed(side, dims, to) for side in pair)
            for dims in itertools.permutations(range(rank))
            for to in renamings
        )
        least = min(images)
        counts[least] = counts.get(least, 0) + 1
    return counts


MESHES = ("x=2", "x=3", "x=2,y=2", "x=5", "x=2,y=3", "x=3,y=2", "x=7", "x=2,y=2,z=2")
NETWORKS = {  # by number of devices, a network on levels
    2: "h100:2x1",
    3: "h100:3x1",
    4: "h100:2x2",
    5: "h100:5x1",
    6: "v5e:1x3*2",
    7: "h100:7x1",
    8: "h100:2x4",
}


def compare_all(mesh_text: str, rank: int, topology: str | None) -> tuple[int, int, list[str]]:
    """Returns the number of pairs, the number of their classes, and the pairs whose plan is not the cheapest chain."""
    mesh = Mesh.parse(mesh_text)
    shape = (mesh.size,) * rank
    network = Topology.parse(topology or "uniform")
    graph = TimedGraph(mesh, shape, network) if topology else Graph(mesh, shape)
    pricing = Pricing(network, mesh, 8)
    alike = (
        graph.factors
        if topology in (None, "uniform")
        else tuple(f for f in graph.factors if f.axis in "yz" and mesh.size == 8)
    )
    alike = tuple(f for f in alike if f.size == alike[0].size)
    counts = classes(graph.factors, list(blocked_layouts(shape, graph.factors)), alike)
    wrong, costs, at = [], {}, None
    for start, goal in sorted(counts):
        before, after = blocked(shape, start), blocked(shape, goal)
        if start != at:
            costs, at = {}, start
        largest = max(before.tile_elements, after.tile_elements)
        if largest not in costs:
            costs[largest] = graph.least_costs(before, largest)
        sides = sharding_of(mesh, start), sharding_of(mesh, goal)
        objective = "time" if topology else "bytes"
        request = Request(mesh, shape, 8, *sides, objective, network, False, "sum")
        found = find_chain(request, pricing, received_elements_bound(mesh, shape, *sides))
        cheapest = costs[largest][graph.number[after]]
        rounding = 5 if topology else 0  # picoseconds, rounded up per step
        is_cheapest = abs(found.cost[0] - cheapest[0]) <= rounding and found.cost[1:] == cheapest[1:]
        if not is_cheapest or not found.least_cost <= found.cost or found.least_cost[0] > cheapest[0] + rounding:
            wrong.append(f"{sides[0]} -> {sides[1]}: {found.cost} at least {found.least_cost}, cheapest {cheapest}")
        made = plan(mesh, shape, 8, *sides, objective=objective, topology=network)
        semantics.check(made.tile_program, shape, *sides)
    return sum(counts.values()), len(counts), wrong


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("objective", ["bytes", "time, uniform", "time, levels"])
def test_r4_all_pairs_of_three_factors_on_up_to_eight_devices(objective, mesh):
    pairs = distinct = 0
    wrong: list[str] = []
    topologies = {"bytes": None, "time, uniform": "uniform", "time, levels": NETWORKS[Mesh.parse(mesh).size]}
    for rank in (1, 2, 3):
        more, classes_here, worse = compare_all(mesh, rank, topologies[objective])
        pairs, distinct, wrong = pairs + more, distinct + classes_here, wrong + worse
    print(f"{pairs} pairs, {distinct} of them different")
    assert not wrong, wrong[:10]


def around_rings(topology: str) -> str:
    """Returns the network with slow swaps and all_to_alls, and with collectives that may run around rings."""
    network = Topology.parse(topology)
    slowdown = (("all_to_all", 1.3), ("swap", 1.9))
    return replace(
        network, levels=tuple(replace(level, slowdown=slowdown) for level in network.levels), rings=MAY_BE_RINGS
    ).to_toml()


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(
    ("mesh", "topology"),
    [("x=2,y=2", "h100:2x2"), ("x=3,y=2", "h100:2x3"), ("x=2,y=2,z=2", "h100:2x4"), ("x=2,y=2,z=2", "h100:1x8")],
)
def test_r4_all_pairs_by_time_on_rings_and_with_slow_swaps(mesh, topology, rank):
    _, _, worse = compare_all(mesh, rank, around_rings(topology))
    assert not worse, worse[:10]


def slow_in_pairs(topology: str) -> str:
    """Returns the network of `around_rings` in which gathers and all_to_alls in groups of two are slower."""
    network, in_pairs = Topology.parse(around_rings(topology)), (("all_gather", 1.5), ("all_to_all", 1.9))
    return replace(
        network, levels=tuple(replace(level, slowdown_in_pairs=in_pairs) for level in network.levels)
    ).to_toml()


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize(("topology", "rank"), [("h100:1x8", 1), ("h100:2x4", 1), ("uniform:8", 2)])
def test_r4_all_pairs_by_time_where_groups_of_two_are_slow(topology, rank):
    _, _, worse = compare_all("x=2,y=2,z=2", rank, slow_in_pairs(topology))
    assert not worse, worse[:10]


def one_message_to_each(topology: str) -> str:
    """Returns the network in which two hops with their second launch are cheaper than messages to all others."""
    network = Topology.parse(topology)
    return replace(network, levels=tuple(replace(level, message_s=5e-5) for level in network.levels)).to_toml()


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize(("topology", "rank"), [("h100:1x8", 1), ("h100:2x4", 1), ("h100:4x2", 1), ("uniform:8", 2)])
def test_r4_all_pairs_by_time_where_all_to_alls_pay_for_each_message(topology, rank):
    _, _, worse = compare_all("x=2,y=2,z=2", rank, one_message_to_each(topology))
    assert not worse, worse[:10]


def one_memory(devices: int) -> str:
    """Returns the network of devices that share one memory, in which own parts and slices are copied too."""
    slowdown = (("all_gather", 1.6), ("all_to_all", 4.9), ("collective_permute", 1.7))
    level = Level("device", devices, "switch", 2e9, slowdown=slowdown, copies_own=True)
    return Topology("one memory", (level,), 1.4e9, 4e-5, slice_bandwidth_bytes_per_s=2.5e9).to_toml()


@pytest.mark.slow
def test_r4_all_pairs_by_time_where_slices_and_own_parts_are_copies():
    pairs, wrong = 0, []
    for mesh in ("x=2,y=2", "x=5", "x=2,y=2,z=2"):
        for rank in (1, 2):
            more, _, worse = compare_all(mesh, rank, one_memory(Mesh.parse(mesh).size))
            pairs, wrong = pairs + more, wrong + worse
    print(f"{pairs} pairs")
    assert not wrong, wrong[:10]


# Partial sums, on meshes of up to 8 devices

Side = tuple[tuple[tuple[Factor, ...], ...], tuple[Factor, ...]]  # factors per dimension, and the unreduced ones


class GraphWithSums(Graph):
    """All layouts, those with partial sums too, and all steps between them."""

    def _all_layouts(self) -> Iterator[Layout]:
        for choice in itertools.product(*([None, UNREDUCED, *self.slots[f]] for f in self.factors)):
            try:
                yield Layout(self.shape, ()).with_moved(dict(zip(self.factors, choice)))
            except LayoutError:
                continue

    def _steps(self, layout: Layout) -> Iterator[steps.Step]:
        yield from super()._steps(layout)
        for chosen in _non_empty_subsets(list(layout.unreduced)):
            yield AllReduce(chosen)
            for goals in itertools.product(*(self._local_slots(layout, f) for f in chosen)):
                yield ReduceScatter(tuple(zip(chosen, goals)))
        yield from (ToUnreduced((f,)) for f in self.factors if f not in layout.unreduced)


def sides(shape: tuple[int, ...], factors: tuple[Factor, ...]) -> list[Side]:
    """Returns every way to shard the dimensions by some factors and to have partial sums along some others."""
    found = []
    for pieces in blocked_layouts(shape, factors):
        left = [f for f in factors if not any(f in dim for dim in pieces)]
        found += [
            (pieces, unreduced) for count in range(len(left) + 1) for unreduced in itertools.combinations(left, count)
        ]
    return found


def with_sums(mesh: Mesh, side: Side) -> Sharding:
    return Sharding(sharding_of(mesh, side[0]).dims, unreduced=tuple(AxisRef(f.axis, f.pre, f.size) for f in side[1]))


CASES_WITH_SUMS = (
    ("x=2,y=2", (8, 8)),
    ("x=2,y=2", (4,)),
    ("x=2,y=2,z=2", (8,)),
    ("x=2,y=2,z=2", (4, 4)),
    ("x=4", (4, 4)),
    ("x=4,y=2", (16,)),
    ("x=2,y=3", (6, 6)),
    ("x=3,y=2", (12,)),
    ("x=6", (6, 6)),
    ("x=3", (2, 3)),
    ("x=7", (7,)),
)


def compare_with_sums(mesh_text: str, shape: tuple[int, ...], sources: int, targets: int) -> tuple[int, list[str]]:
    """Returns how many pairs were compared, and those whose plan is not the cheapest chain."""
    mesh, rng = Mesh.parse(mesh_text), random.Random(f"{mesh_text} {shape}")
    graph = GraphWithSums(mesh, shape)
    everything = sides(shape, graph.factors)
    compared, worse = 0, []
    for start in rng.sample(everything, min(sources, len(everything))):
        before, costs = blocked(shape, *start), {}
        for goal in rng.sample(everything, min(targets, len(everything))):
            if not start[1] and not goal[1]:
                continue
            after = blocked(shape, *goal)
            largest = max(before.tile_elements, after.tile_elements)
            if largest not in costs:
                costs[largest] = graph.least_costs(before, largest)
            found = plan(mesh, shape, 8, with_sums(mesh, start), with_sums(mesh, goal))
            cost = (sum(step.bytes_received for step in found.steps), found.collectives)
            cheapest = costs[largest][graph.number[after]]
            compared += 1
            semantics.check(found.tile_program, shape, found.source, found.target)
            if cost != cheapest or found.bound_bytes > cheapest[0]:
                what = f"{cost} {found.chain_text}, cheapest {cheapest}, bound {found.bound_bytes}"
                worse.append(f"{found.source} -> {found.target}: {what}")
    return compared, worse


@pytest.mark.mostly_slow
@pytest.mark.parametrize(("mesh_text", "shape"), CASES_WITH_SUMS)
def test_r4_plans_with_partial_sums_are_the_cheapest_chains(mesh_text, shape):
    compared, worse = compare_with_sums(mesh_text, shape, sources=8, targets=12)
    print(f"{compared} pairs")
    assert not worse


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh_text", "shape"), [*CASES_WITH_SUMS, ("x=2,y=2,z=2", (8, 4)), ("x=2,y=2,z=2", (16,)), ("x=8", (8, 2))]
)
def test_r4_plans_with_partial_sums_are_the_cheapest_chains_of_thousands(mesh_text, shape):
    compared, worse = compare_with_sums(mesh_text, shape, sources=30, targets=40)
    print(f"{compared} pairs")
    assert not worse


def test_the_brute_force_itself_finds_a_sum_that_is_reduced_for_the_gather_alone():
    mesh, shape = Mesh.parse("x=4,y=2"), (8, 8)
    graph = GraphWithSums(mesh, shape)
    (x0, x1, y) = graph.factors
    costs = graph.least_costs(blocked(shape, ((x0, x1), ()), (y,)), 64)
    assert costs[graph.number[blocked(shape, ((), ()), (y,))]] == (32, 2)  # gathering partial sums costs 48
