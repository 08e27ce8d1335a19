# SPDX-License-Identifier: Apache-2.0
"""Rule R4: plans cost what an exhaustive search over all layouts by all steps finds; it is slow, simple and on its own.

It knows no problem refinement, no heuristic and no pruning. Axes are cut into primes, every factor may own every digit
of every dimension, and a step is what `steps.apply` lets through; a gather is of one dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
import heapq
import itertools
import random

import pytest

from reshard.synthesis import semantics, steps
from reshard.synthesis.layout import UNREDUCED, Factor, Layout, LayoutError, Slot, blocked
from reshard.synthesis.mesh import Mesh
from reshard.synthesis.plan import plan
from reshard.synthesis.sharding import AxisRef, Sharding
from reshard.synthesis.steps import AllGather, AllReduce, AllToAll, Permute, ReduceScatter, RuleError, Slice, ToUnreduced


def prime_factors(mesh: Mesh) -> tuple[Factor, ...]:
    """Returns the axes of a mesh cut into primes, the small ones major."""
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

    `layouts[i]` is node i; `edges[i]` lists (node after, received elements, collectives), found on first use.
    """

    def __init__(self, mesh: Mesh, shape: tuple[int, ...]):
        self.shape = shape
        self.factors = prime_factors(mesh)
        self.slots = {f: list(_slots(shape, f.size)) for f in self.factors}
        self.layouts = list(self._all_layouts())
        self.number = {layout: i for i, layout in enumerate(self.layouts)}
        self.same_runs: dict[tuple[Slot, ...], list[Layout]] = {}
        for layout in self.layouts:
            self.same_runs.setdefault(layout.owned_runs, []).append(layout)
        self.edges: list[list[tuple[int, int, int]] | None] = [None] * len(self.layouts)

    def least_costs(self, source: Layout, largest_tile: int) -> dict[int, tuple[int, int]]:
        """Returns (received elements, collectives) of the cheapest chain to each node over tiles up to a size."""
        start = self.number[source]
        best = {start: (0, 0)}
        queue = [((0, 0), start)]
        while queue:
            cost, node = heapq.heappop(queue)
            if cost > best[node]:
                continue
            for after, elements, collectives in self._edges_of(node):
                total = (cost[0] + elements, cost[1] + collectives)
                if self.layouts[after].tile_elements <= largest_tile and total < best.get(after, (total[0] + 1, 0)):
                    best[after] = total
                    heapq.heappush(queue, (total, after))
        return best

    def _all_layouts(self) -> Iterator[Layout]:
        for choice in itertools.product(*([None, *self.slots[f]] for f in self.factors)):
            try:
                yield Layout(self.shape, tuple((f, s) for f, s in zip(self.factors, choice) if s is not None))
            except LayoutError:
                continue

    def _edges_of(self, node: int) -> list[tuple[int, int, int]]:
        if self.edges[node] is None:
            before = self.layouts[node]
            cheapest: dict[int, tuple[int, int]] = {}
            for step in self._steps(before):
                try:
                    after = self.number[steps.apply(before, step)]
                except RuleError:
                    continue
                cost = (steps.received_elements(before, step), steps.collectives(step))
                cheapest[after] = min(cost, cheapest.get(after, cost))
            self.edges[node] = [(after, *cost) for after, cost in cheapest.items()]
        return self.edges[node]

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


# Meshes of up to 24 devices. 8 bits per element, so that bytes are elements.
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


@pytest.mark.parametrize(("mesh_text", "shape"), CASES)
def test_r4_plans_are_the_cheapest_chains(mesh_text, shape):
    compared, worse = compare(mesh_text, shape, sources=5, targets=8)
    print(f"{compared} pairs")
    assert not worse


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh_text", "shape"),
    [*CASES, ("x=4,y=6", (24, 12)), ("x=2,y=2,z=2", (16, 16)), ("x=2,y=2,z=2", (32, 8)), ("x=2,y=2,z=2", (8, 4, 2)), ("x=2,y=2,z=3", (12, 6, 6)), ("x=2,y=2,z=2,w=2", (16, 4))],
)
def test_r4_plans_are_the_cheapest_chains_of_thousands(mesh_text, shape):
    compared, worse = compare(mesh_text, shape, sources=20, targets=40)
    print(f"{compared} pairs")
    assert not worse


def test_the_brute_force_itself_finds_worked_example_ii():
    mesh, shape = Mesh.parse("x=2,y=2,z=2"), (16, 4)
    graph = Graph(mesh, shape)
    x, y, z = graph.factors
    costs = graph.least_costs(blocked(shape, ((), (x,))), 32)
    assert costs[graph.number[blocked(shape, ((x, y, z), ()))]] == (4, 1)


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
        found += [(pieces, unreduced) for count in range(len(left) + 1) for unreduced in itertools.combinations(left, count)]
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


@pytest.mark.parametrize(("mesh_text", "shape"), CASES_WITH_SUMS)
def test_r4_plans_with_partial_sums_are_the_cheapest_chains(mesh_text, shape):
    compared, worse = compare_with_sums(mesh_text, shape, sources=8, targets=12)
    print(f"{compared} pairs")
    assert not worse


@pytest.mark.slow
@pytest.mark.parametrize(("mesh_text", "shape"), [*CASES_WITH_SUMS, ("x=2,y=2,z=2", (8, 4)), ("x=2,y=2,z=2", (16,)), ("x=8", (8, 2))])
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
