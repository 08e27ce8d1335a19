# SPDX-License-Identifier: Apache-2.0
"""The time of each step of a plan in parts: latency, transfer, copies; and the level of the network that it crosses."""

from __future__ import annotations

from dataclasses import dataclass

from ..network import cost
from ..network.topology import Level, Topology
from ..plans.plan import Plan
from ..programs import steps
from ..programs.tile_program import collectives_by_step
from ..programs.traffic import Collective

_ROUNDING_S = 1e-11  # steps cost whole picoseconds


@dataclass(frozen=True, slots=True)
class StepCost:
    """The modelled time of one step, which is `latency_s + transfer_s + copies_s`.

    Attributes:
      level: the outermost level that its collectives cross; None for a step without collectives.
      collectives: the number of its collectives.
    """

    op: str
    collectives: int
    level: Level | None
    latency_s: float
    transfer_s: float
    copies_s: float


def step_costs(plan: Plan, topology: Topology) -> tuple[StepCost, ...]:
    """Returns the parts of each step of a plan.

    Args:
      topology: the topology that the plan was made for; it need not be fitted to the mesh.
    """
    by_step = collectives_by_step(plan.tile_program, plan.bits)
    return tuple(_step_cost(plan, topology, *each) for each in zip(plan.steps, by_step, strict=True))


def _step_cost(plan: Plan, topology: Topology, step, own: tuple[Collective, ...]) -> StepCost:
    devices, latency_s, transfer_s = plan.devices, 0.0, 0.0
    for each in own:
        start_s, seconds_per_byte = cost.coefficients(topology, devices, each.kind, each.groups or None, each.pairs)
        moved_s = seconds_per_byte * each.bytes_before
        least_s = cost.messages_time_s(topology, devices, each.kind, each.groups or None)
        latency_s += each.trip_count * max(start_s, least_s - moved_s)
        transfer_s += each.trip_count * moved_s
    crossed = {level for each in own if (level := cost.crossed_level(topology, devices, each))}
    level = next((level for level in topology.fitted(devices).levels if level in crossed), None)
    rest_s = step.time_s - latency_s - transfer_s
    return StepCost(
        step.op, steps.collectives(step.step), level, latency_s, transfer_s, rest_s if rest_s > _ROUNDING_S else 0.0
    )
