# SPDX-License-Identifier: Apache-2.0
"""Random requests to the planner with all combinations of options, and the checks of every answer.

`draw(seed)` gives a case; the same seed gives the same case in every process. `check(case)` asserts

- elements: in the numpy interpreter every device ends with the elements of the target;
- traffic: the bytes of the tile program's collectives are those of the plan and at least the bound; likewise time;
- limits: the plan keeps R2 and the memory limit, and its alternatives do not contradict its certificate;
- texts: the JSON, the explanations and the alternatives of the plan can be written.
"""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import dataclass

from reshard.synthesis.explain.alternatives import rejected
from reshard.synthesis.explain.step_costs import step_costs
from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding
from reshard.synthesis.network.cost import relayout_time_s
from reshard.synthesis.network.topology import Topology, TopologyError
from reshard.synthesis.planner.entry import NoPlanError, Plan, plan
from reshard.synthesis.plans.plan_json import bound_bytes_sent, bound_tile_bytes
from reshard.synthesis.programs import interpreter as semantics
from reshard.synthesis.programs import traffic
from reshard.synthesis.programs.tile_program import Resize, collectives

DEVICES = (*range(1, 25), 2, 4, 4, 6, 8, 8, 12, 16)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 16, 24)
BITS = (1, 2, 4, 8, 16, 32, 32, 64, 128)
NETWORKS = ("uniform", "uniform", "h100", "a100")
REDUCTIONS = ("sum", "prod", "min", "max", "and", "or")
_MOST_ELEMENTS = 20_000
_NAMES = ("x", "y", "z", "w", "u", "v")
_SLACK_S = 2e-12  # the model counts whole picoseconds


@dataclass(frozen=True, slots=True)
class Case:
    """One request; `limit` is a fraction of the peak of the plan without a limit; None means no limit."""

    seed: int
    mesh: Mesh
    shape: tuple[int, ...]
    bits: int
    source: Sharding
    target: Sharding
    target_mesh: Mesh | None
    objective: str
    network: str
    with_exchange: bool
    reduction: str
    effort: int
    limit: float | None

    @property
    def topology(self) -> Topology:
        return Topology.parse(self.network)

    def planned(self, **options) -> Plan:
        """Returns the plan without the memory limit. Raises: NoPlanError, TopologyError."""
        asked = {"objective": self.objective, "topology": self.topology, "with_exchange": self.with_exchange}
        asked |= {"reduction": self.reduction, "effort": self.effort, "target_mesh": self.target_mesh}
        return plan(self.mesh, self.shape, self.bits, self.source, self.target, **(asked | options))


# ---- drawing


def draw(seed: int, *, least_devices: int = 1, most_devices: int = 24) -> Case:
    """Returns the case of a seed."""
    rng = random.Random(seed)
    devices = rng.choice([each for each in DEVICES if least_devices <= each <= most_devices])
    mesh = _mesh(rng, devices)
    target_mesh = _other_mesh(rng, mesh) if rng.random() < 0.35 else None
    rank = rng.choice((0, 1, 1, 2, 2, 3, 4))
    sums = rng.random() < 0.3
    source = _sharding(rng, mesh, rank, 0.5 if sums else 0.0)
    target = _sharding(rng, target_mesh or mesh, rank, 0.3 if sums else 0.0)
    shape = _shape(rng, (source.shards(mesh), target.shards(target_mesh or mesh)), rank)
    return Case(
        seed=seed,
        mesh=mesh,
        shape=shape,
        bits=rng.choice(BITS),
        source=source,
        target=target,
        target_mesh=target_mesh,
        objective=rng.choice(("bytes", "time")),
        network=rng.choice(NETWORKS),
        with_exchange=rng.random() < 0.85,
        reduction=rng.choice(REDUCTIONS) if sums else "sum",
        effort=1,
        limit=rng.choice((None, None, 1.0, 0.9, 0.75, 0.6, 0.5)),
    )


def _mesh(rng: random.Random, devices: int) -> Mesh:
    sizes, rest = [], devices
    while rest > 1:
        sizes.append(rng.choice([size for size in range(2, rest + 1) if rest % size == 0]))
        rest //= sizes[-1]
    while len(sizes) < len(_NAMES) and rng.random() < 0.1:
        sizes.insert(rng.randint(0, len(sizes)), 1)
    rng.shuffle(sizes)
    ids = tuple(rng.sample(range(devices), devices)) if rng.random() < 0.15 else None
    return Mesh(tuple(zip(rng.sample(_NAMES, len(sizes)), sizes)), ids if sizes else None)


def _other_mesh(rng: random.Random, mesh: Mesh) -> Mesh | None:
    """Returns a mesh over the same devices, sometimes in another order, or over another number of devices.

    Sometimes it is a mesh of a single device.
    """
    kind = rng.random()
    if kind < 0.15:
        return Mesh((), (rng.randrange(mesh.devices),)) if rng.random() < 0.7 else Mesh(())
    if kind < 0.3:
        return Mesh(mesh.axes, tuple(rng.sample(range(mesh.size), mesh.size)))
    return _mesh(rng, mesh.size if kind < 0.75 else rng.choice((2, 3, 4, 6, 8)))


def _sharding(rng: random.Random, mesh: Mesh, rank: int, sums: float) -> Sharding:
    """Returns a sharding in which each piece of an axis splits a random dimension, has partial sums, or is unused."""
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    unreduced = []
    for name, size in mesh.axes:
        places = [1, size]
        if rng.random() < 0.35 and (inner := [d for d in range(2, size) if size % d == 0]):
            places.insert(1, rng.choice(inner))
        for start, end in zip(places, places[1:]):
            axis, chance = AxisRef(name, start, end // start), rng.random()
            if chance < sums:
                unreduced.append(axis)
            elif rank and chance < 0.8:
                axes = rng.choice(dims)
                axes.insert(rng.randint(0, len(axes)), axis)
    return Sharding(tuple(_joined(mesh, axes) for axes in dims), unreduced=_joined(mesh, unreduced))


def _joined(mesh: Mesh, axes: list[AxisRef]) -> tuple[AxisRef, ...]:
    """Returns the axes, with adjacent pieces of one axis joined, as Shardy's verifier requires."""
    found: list[tuple[str, int, int]] = []
    for axis in axes:
        pre, size = axis.resolve(mesh)
        if found and found[-1][0] == axis.name and found[-1][1] * found[-1][2] == pre:
            _, pre, before = found.pop()
            size *= before
        found.append((axis.name, pre, size))
    return tuple(AxisRef(n) if size == mesh.axis_size(n) else AxisRef(n, pre, size) for n, pre, size in found)


def _shape(rng: random.Random, shards, rank: int) -> tuple[int, ...]:
    is_even, has_none = rng.random() < 0.5, rng.random() < 0.02
    sizes = []
    for a, b in zip(*shards):
        size = math.lcm(a, b) * rng.choice((1, 1, 2, 3, 4)) if is_even or rng.random() < 0.3 else rng.choice(SIZES)
        sizes.append(size)
    while math.prod(sizes) > _MOST_ELEMENTS:
        at = sizes.index(max(sizes))
        sizes[at] = sizes[at] // 2
    if has_none and rank:
        sizes[rng.randrange(rank)] = 0
    return tuple(sizes)


# ---- checking


def check(case: Case) -> str:
    """Returns the outcome of a case: "planned", "limited", or "refused". Raises: AssertionError."""
    try:
        found = case.planned()
    except TopologyError:
        return "refused"
    except NoPlanError:
        _check_refusal(case)
        return "refused"
    check_plan(case, found, None)
    if case.limit is None:
        return "planned"
    return check_limit(case, found)


def _check_refusal(case: Case) -> None:
    if not case.with_exchange:
        return
    fewer = case.target_mesh is not None and case.target_mesh.size != case.mesh.size
    assert fewer and (case.source.unreduced or case.target.unreduced), "with exchanges every pair has a plan"


def check_limit(case: Case, unlimited: Plan) -> str:
    """Asserts that a plan keeps the limit, or else the higher limit in the refusal; returns "limited"."""
    limit = int(unlimited.peak_bytes * case.limit)
    try:
        found = case.planned(memory_limit=limit)
    except NoPlanError as error:
        least = int(str(error).rsplit(" ", 1)[1])
        assert least > limit, "refused though it fits"
        found = case.planned(memory_limit=least)
        assert found.peak_bytes == least, f"the least limit {least} is met with {found.peak_bytes}"
        limit = least
    check_plan(case, found, limit)
    assert _cost(found, case.objective) >= _cost(unlimited, case.objective) * (1 - 1e-9) or not unlimited.is_optimal, (
        "a limit makes a plan cheaper than an optimal one"
    )
    return "limited"


def check_plan(case: Case, found: Plan, limit: int | None) -> None:
    """Asserts everything that the docstring of this module lists."""
    check_program(found)
    check_costs(found, case.topology, limit)
    check_words(case, found, limit)


def check_program(found: Plan) -> None:
    semantics.check(found.tile_program, found.shape, found.source, found.target, found.target_mesh)


def check_costs(found: Plan, topology: Topology, limit: int | None) -> None:
    moved = collectives(found.tile_program, found.bits)
    assert traffic.bytes_received(moved, found.devices) == found.bytes_received
    assert traffic.bytes_sent(moved, found.devices) == found.bytes_sent
    assert sum(each.trip_count for each in moved) == found.collectives
    assert found.bound_bytes <= found.bytes_received <= sum(each.bytes_received for each in found.steps), "bytes"
    assert bound_bytes_sent(found) <= found.bytes_sent, f"sent: {found.bytes_sent}, bound {bound_bytes_sent(found)}"
    assert found.bound_time_s <= found.time_s + _SLACK_S, f"time {found.time_s}, bound {found.bound_time_s}"
    assert found.proved_gap is None or found.proved_gap >= 1, "gap"
    assert not found.is_optimal or found.proved_gap == 1
    assert limit is None or found.peak_bytes <= limit
    assert found.peak_bytes >= max(found.largest_tile_bytes, *tile_sizes(found)[:1])
    tiles = tile_sizes(found)
    if not _is_resized(found):
        assert found.largest_tile_bytes == max(tiles), f"R2: {found.largest_tile_bytes} of {tiles}"
        inner = [size for each in found.steps for size in (each.tile_bytes_before, each.tile_bytes_after)]
        assert max(inner, default=0) <= max(tiles), "R2"
    if found.steps:
        ends = found.steps[0].tile_bytes_before, found.steps[-1].tile_bytes_after
        assert ends == tiles, f"the first and the last step have tiles of {ends}, the ends {tiles}"
    for one, other in zip(found.steps, found.steps[1:]):
        assert one.tile_bytes_after == other.tile_bytes_before, f"{one.text} | {other.text}"
    parts = step_costs(found, topology)
    total = sum(each.latency_s + each.transfer_s + each.copies_s for each in parts)
    assert abs(total - found.time_s) <= 1e-6 * found.time_s + 1e-10, f"parts {total}, time {found.time_s}"
    for step in found.steps:
        if step.inside:
            assert step.bytes_received <= step.step.count * sum(each.bytes_received for each in step.inside)


def tile_sizes(found: Plan) -> tuple[int, int]:
    """Returns the bytes of the source tile and of the target tile."""
    shapes = found.source.tile_shape(found.mesh, found.shape), found.target.tile_shape(found.goal_mesh, found.shape)
    return tuple(-(-math.prod(shape) * found.bits // 8) for shape in shapes)


def _is_resized(found: Plan) -> bool:
    """Returns whether steps pad or cut tiles; then tiles may be larger than those at both ends."""
    shards = found.source.shards(found.mesh), found.target.shards(found.goal_mesh)
    is_padded = any(size % n for each in shards for size, n in zip(found.shape, each))
    return (
        is_padded
        or any(isinstance(each, Resize) for each in found.tile_program.operations)
        or any(each.inside for each in found.steps)
    )


def _cost(found: Plan, objective: str) -> float:
    return found.bytes_received if objective == "bytes" else _in_collectives_s(found) * 1e12


def _in_collectives_s(found: Plan) -> float:
    """Returns the time that the search counts.

    It is the time of the collectives and of the copies after gathers along several dimensions.
    """
    topology = Topology.parse(found.topology)
    joint = (
        each for each in found.steps if each.op == "all_gather" and len(set(re.findall(r"dim (\d+)", each.text))) > 1
    )
    copied_s = sum(relayout_time_s(topology.fitted(found.devices), each.tile_bytes_after) for each in joint)
    return copied_s + sum(each.latency_s + each.transfer_s for each in step_costs(found, topology))


def check_words(case: Case, found: Plan, limit: int | None) -> None:
    """Asserts that the texts of the plan can be written, and that no alternative contradicts its certificate."""
    said = found.to_dict()
    assert json.loads(json.dumps(said)) == said
    assert said["bounds"]["largest_tile_bytes"] == bound_tile_bytes(found)
    for other in rejected(found):
        json.dumps(other.as_dict())
        check_program(other.plan)
        keeps_rules = other.plan.largest_tile_bytes <= found.largest_tile_bytes and (
            limit is None or other.plan.peak_bytes <= limit
        )
        if keeps_rules:
            check_certificate(found, other.plan)


def check_certificate(found: Plan, other: Plan) -> None:
    """Asserts that another chain is not cheaper than the certificate allows; exchanges and chunks are not compared."""
    if (
        _has_exchange(other)
        or found.proved_gap is None
        or (found.bits % 8 and other.largest_tile_bytes * 8 % found.bits)
    ):
        return
    ours, theirs = (_cost(each, found.objective) for each in (found, other))
    assert theirs * found.proved_gap * (1 + 1e-9) + 2 >= ours, f"gap {found.proved_gap}, but {other.chain_text}"


def _has_exchange(found: Plan) -> bool:
    return any(each.op in ("exchange", "chunks") for each in found.steps)
