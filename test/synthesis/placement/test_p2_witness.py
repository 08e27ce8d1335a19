# SPDX-License-Identifier: Apache-2.0
"""The planner's reductions against P²'s: each is valid there, and no program of P²'s gathering kinds costs less.

What P² has and the planner lacks are Reduce and Broadcast, and with them the Master form: AllReduce, ReduceScatter and
AllGather of masters alone lead nowhere without a Broadcast. They win on none of the systems here, in 292 reductions of
three sizes: a ReduceScatter passes on less than a Reduce in as many steps, and leaves the ports of all devices to the
next level. They win only where a library's gathers are much slower than its broadcasts (a test below has such a network
made up). So the planner does without them.
What the planner has and P² lacks: a value that other axes replicate is striped over these (slice, reduce, gather); and
for small values partial sums first change places, so that one message crosses the slow level and fast links reduce.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
import p2_witness as p2
import pytest

from reshard.synthesis.layouts.layout import groups
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding
from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.placement.enumeration import placements
from reshard.synthesis.placement.placement import Placement
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.plans.plan import Plan
from reshard.synthesis.programs.steps import Slice
from reshard.synthesis.programs.tile_program import collectives_by_step
from reshard.synthesis.programs.traffic import Collective

NAMES = {"all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter", "all_gather": "AllGather"}
SIZES = (256, 1 << 14, 1 << 24)  # in elements of 4 bytes: latency, both, bandwidth


def system(*levels: tuple[str, int, float, float], shared_gbs: float | None = None) -> Topology:
    """Returns switches of (name, size, GB/s, latency in us) with relayouts for nothing, as P² has no relayouts."""
    made = [Level(name, size, "switch", gbs * 1e9, us * 1e-6) for name, size, gbs, us in levels]
    if shared_gbs:
        name, size, gbs, us = levels[0]
        made[0] = Level(name, size, "switch", gbs * 1e9, us * 1e-6, shared_gbs * 1e9)
    return Topology("test", tuple(made), 1e18, 2e-6)


SYSTEMS = {
    "2x2": system(("node", 2, 1, 10), ("gpu", 2, 50, 1)),
    "2x4": system(("node", 2, 1, 10), ("gpu", 4, 50, 1)),
    "2x4, one card": system(("node", 2, 50, 10), ("gpu", 4, 50, 1), shared_gbs=5),
    "4x2, one card": system(("node", 4, 50, 10), ("gpu", 2, 50, 1), shared_gbs=5),
    "2x4, rings": Topology(
        "test", (Level("node", 2, "switch", 1e9, 1e-5), Level("chip", 4, "ring", 2e10, 1e-6)), 1e18, 2e-6
    ),
    "torus of 2x4": Topology("test", (Level("chip", 8, "torus", 2e10, 1e-6, dims=(2, 4)),), 1e18, 2e-6),
    "2x2x2": system(("rack", 2, 1, 20), ("node", 2, 5, 10), ("gpu", 2, 50, 1)),
}


def meshes(size: int) -> Iterator[Mesh]:
    for rank in (1, 2, 3):
        for sizes in itertools.product(range(2, size + 1), repeat=rank):
            if math.prod(sizes) == size:
                yield Mesh(tuple(zip("abc", sizes)))


def reductions(name: str) -> Iterator[tuple[Placement, tuple[str, ...]]]:
    """Yields each placement of each mesh on a system with each set of axes to reduce over."""
    topology = SYSTEMS[name]
    for mesh in meshes(topology.size):
        for placed in placements(topology, mesh):
            for count in range(1, len(mesh.axes) + 1):
                for axes in itertools.combinations(mesh.axis_names, count):
                    yield placed, axes


def hierarchy(placed: Placement, axes: tuple[str, ...]) -> tuple[tuple[int, ...], np.ndarray]:
    """Returns the sizes of the levels that the axes span, and the members of each reduction group, row-major."""
    factors = [factor for digits in placed.digits for factor in digits]
    within = [at for at, factor in enumerate(factors) if factor.axis in axes]
    devices = np.arange(placed.topology.size).reshape([factor.size for factor in factors])
    members = np.moveaxis(devices, within, range(-len(within), 0))
    sizes = [math.prod(f.size for f in digits if f.axis in axes) for digits in placed.digits]
    return tuple(size for size in sizes if size > 1), members.reshape(-1, math.prod(sizes))


def best_of_p2(placed: Placement, axes: tuple[str, ...], elements: int, collectives) -> tuple[float, list]:
    """Returns the cheapest program of P², each instruction run by all reduction groups at the same time."""
    sizes, members = hierarchy(placed, axes)

    @functools.cache
    def price(each: p2.Instruction, chunks: int) -> float:
        places = each.groups(sizes)
        tile_bytes = 4 * elements * chunks // math.prod(sizes)
        kind = {each: kind for kind, each in NAMES.items()}.get(each.collective, "collective_broadcast")
        found = tuple(tuple(row[list(group)].tolist()) for row in members for group in places)
        return collective_time_s(placed.topology, placed.topology.size, Collective(kind, tile_bytes, 0, found))

    return p2.cheapest(sizes, collectives, price)


def planned(placed: Placement, axes: tuple[str, ...], elements: int) -> Plan:
    sums = Sharding.parse("[{}], unreduced={" + ", ".join(f'"{axis}"' for axis in axes) + "}")
    options = {"topology": placed.topology, "objective": "time"}
    return plan(placed.mesh, (elements,), 32, sums, Sharding.parse("[{}]"), **options)


def time_of(found: Plan, topology: Topology) -> float:
    runs = itertools.chain(*collectives_by_step(found.tile_program, found.bits))
    return sum(collective_time_s(topology, topology.size, each) for each in runs)


def state_after(found: Plan, state: p2.State) -> p2.State:
    """Returns the state after a plan, by the witness. A slice keeps parts of chunks, as a ReduceScatter does.

    Raises: InvalidProgram if a precondition does not hold.
    """
    for planned_step, runs in zip(found.steps, collectives_by_step(found.tile_program, found.bits), strict=True):
        if isinstance(planned_step.step, Slice):
            apart = groups(found.mesh, tuple(factor for factor, _ in planned_step.step.moves))
            parts = {int(device): part for group in apart for part, device in enumerate(group)}
            state = tuple(p2.kept(matrix, parts[at], apart.shape[1]) for at, matrix in enumerate(state))
        for each in runs:
            is_move = each.kind == "collective_permute"
            state = p2.moved(state, each.pairs) if is_move else p2.run(state, NAMES[each.kind], each.groups)
    return state


def start_of(placed: Placement, axes: tuple[str, ...]) -> tuple[p2.State, int]:
    """Returns the state of all devices; those that differ along other axes have the same contribution."""
    _, members = hierarchy(placed, axes)
    contribution = np.empty(members.size, int)
    contribution[members] = np.arange(members.shape[1])
    return p2.first(contribution.tolist(), members.size), members.shape[1]


# ---- the rules

HALVES = [(1, 1, 0, 0), (0, 0, 2, 2)]
BOTH = [(1, 1, 1, 1), (2, 2, 2, 2)]


@pytest.mark.parametrize(
    ("collective", "before", "after"),
    [
        ("AllReduce", BOTH, [(3, 3, 3, 3)] * 2),
        ("ReduceScatter", BOTH, [(3, 3, 0, 0), (0, 0, 3, 3)]),
        ("AllGather", HALVES, [(1, 1, 2, 2)] * 2),
        ("Reduce", BOTH, [(3, 3, 3, 3), (0, 0, 0, 0)]),
        ("Broadcast", [(3, 3, 3, 3), (2, 2, 2, 2)], [(3, 3, 3, 3)] * 2),
        ("AllReduce", HALVES, None),
        ("AllReduce", [(1, 1), (3, 3)], None),
        ("ReduceScatter", [(1, 0), (2, 0)], None),
        ("AllGather", BOTH, None),
        ("AllGather", [(1, 1, 0), (0, 0, 1)], None),
        ("Reduce", HALVES, None),
        ("Broadcast", BOTH, None),
        ("Broadcast", [(3, 3), (3, 3)], None),
    ],
)
def test_rules(collective, before, after):
    if after is None:
        with pytest.raises(p2.InvalidProgram):
            p2.after(collective, before)
    else:
        assert p2.after(collective, before) == after


def test_groups_of_the_forms():
    """On 2 nodes of 2x2: inside nodes, across nodes at all places, across nodes at the first place."""
    sizes = (2, 2, 2)
    assert p2.Instruction("AllReduce", "InsideGroup", 1, 3).groups(sizes) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert p2.Instruction("AllReduce", "Parallel", 0, 1).groups(sizes) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert p2.Instruction("AllReduce", "Parallel", 1, 2).groups(sizes) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert p2.Instruction("AllReduce", "Master", 0, 1).groups(sizes) == [(0, 4)]


def test_a_program_that_adds_twice_is_invalid():
    state = p2.run(p2.first(range(4), 4), "AllReduce", [(0, 1), (2, 3)])
    with pytest.raises(p2.InvalidProgram, match="twice"):
        p2.run(state, "AllReduce", [(0, 1), (2, 3)])
    assert not p2.is_done(state, 4)
    assert p2.is_done(p2.run(state, "AllReduce", [(0, 2), (1, 3)]), 4)


@pytest.mark.parametrize(
    ("sizes", "gathering", "all_kinds"),
    [((4,), 2, 3), ((2, 2), 20, 71), ((2, 4), 20, 71), ((2, 2, 2), 134, 385)],
)
def test_counts_of_programs_of_at_most_four_instructions(sizes, gathering, all_kinds):
    assert p2.programs(sizes, p2.GATHERS, 4) == gathering
    assert p2.programs(sizes, p2.GATHERS + p2.ROOTED, 4) == all_kinds


# ---- the planner


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("elements", SIZES)
def test_every_planned_reduction_is_valid_and_costs_at_most_the_best_of_p2(name, elements):
    worse = []
    for placed, axes in reductions(name):
        found = planned(placed, axes, elements)
        state, contributions = start_of(placed, axes)
        assert p2.is_done(state_after(found, state), contributions), (str(placed), axes, found.chain_text)
        ours, (best, program) = time_of(found, placed.topology), best_of_p2(placed, axes, elements, p2.GATHERS)
        if ours > best * (1 + 1e-6):
            worse.append((str(placed), axes, found.chain_text, ours, best, [*map(str, program)]))
    assert worse == []


def wins_of_rooted(topology: Topology, elements: int, found: Iterator[tuple[Placement, tuple[str, ...]]]) -> list:
    """Returns what Reduce and Broadcast make cheaper than both the plan and all programs of P² without them."""
    wins = []
    for placed, axes in found:
        ours = time_of(planned(placed, axes, elements), topology)
        best, program = best_of_p2(placed, axes, elements, p2.GATHERS + p2.ROOTED)
        if best < ours * (1 - 1e-6):
            wins.append((str(placed), axes, ours / best, [*map(str, program)]))
    return wins


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("elements", SIZES)
def test_reduce_broadcast_and_masters_win_nowhere(name, elements):
    assert wins_of_rooted(SYSTEMS[name], elements, reductions(name)) == []


def test_they_win_where_a_library_is_slow_at_everything_else():
    slower = tuple((kind, 8.0) for kind in ("all_gather", "all_reduce", "reduce_scatter"))
    levels = Level("node", 2, "switch", 5e10, 1e-5), Level("gpu", 4, "switch", 5e10, 1e-6, slowdown=slower)
    topology = Topology("test", levels, 1e18, 2e-6)
    placed = next(placements(topology, Mesh.parse("a=8")))
    [(_, _, ratio, program)] = wins_of_rooted(topology, SIZES[-1], iter([(placed, ("a",))]))
    assert ratio > 1.5 and program == ["Reduce(InsideGroup 0:2)", "Broadcast(InsideGroup 0:2)"]


def test_a_plan_without_its_last_step_is_refused():
    """The witness can fail: what is left out of a plan of three steps is missed."""
    placed = next(placements(SYSTEMS["2x4"], Mesh.parse("a=8")))
    found = planned(placed, ("a",), SIZES[-1])
    state, contributions = start_of(placed, ("a",))
    runs = [each for step in collectives_by_step(found.tile_program, 32) for each in step]
    for each in runs[:-1]:
        state = p2.run(state, NAMES[each.kind], each.groups)
    assert not p2.is_done(state, contributions)
