# SPDX-License-Identifier: Apache-2.0
"""The time of each step of a plan in its parts: latency, transfer, copies on the device; and the level that it crosses."""

from __future__ import annotations

from dataclasses import dataclass

from . import cost, steps
from .planned import Plan
from .tile_program import collectives_by_step
from .topology import Level, Topology
from .traffic import Collective

_ROUNDING_S = 1e-11  # steps cost whole picoseconds


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step's modelled time is `latency_s + transfer_s + copies_s`.

    Attributes:
      level: the outermost one that its collectives cross; None without collectives.
      collectives: how many it is.
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
      topology: the one that the plan was made for, fitted to its mesh or not.
    """
    by_step = collectives_by_step(plan.tile_program, plan.bits)
    return tuple(_step_cost(plan, topology, *each) for each in zip(plan.steps, by_step, strict=True))


def _step_cost(plan: Plan, topology: Topology, step, own: tuple[Collective, ...]) -> StepCost:
    devices, latency_s, transfer_s = plan.devices, 0.0, 0.0
    for each in own:
        start_s, seconds_per_byte = cost.coefficients(topology, devices, each.kind, each.groups or None, each.pairs)
        latency_s += each.trip_count * start_s
        transfer_s += each.trip_count * seconds_per_byte * each.bytes_before
    crossed = {level for each in own if (level := cost.crossed_level(topology, devices, each))}
    level = next((level for level in topology.fitted(devices).levels if level in crossed), None)
    rest_s = step.time_s - latency_s - transfer_s
    return StepCost(step.op, steps.collectives(step.step), level, latency_s, transfer_s, rest_s if rest_s > _ROUNDING_S else 0.0)
