# SPDX-License-Identifier: Apache-2.0
"""The planner's chain for a collective that a program has, and whether it is faster on a network."""

from __future__ import annotations

from dataclasses import dataclass

from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.plans.plan import Plan
from reshard.synthesis.programs.tile_program import collectives
from reshard.synthesis.programs.traffic import bytes_received

from .explicit_collectives import ExplicitCollective

LEAST_GAIN = 0.1  # share of the modelled time of a collective; below, the model may be wrong about it


@dataclass(frozen=True, slots=True)
class InPlace:
    """A collective, a chain in its place, and the modelled times of both in seconds, as a module has them."""

    collective: ExplicitCollective
    chain: Plan
    chain_s: float
    flat_s: float

    @property
    def is_faster(self) -> bool:
        """Returns whether the chain is faster by more than the model may be wrong."""
        return self.chain_s < (1 - LEAST_GAIN) * self.flat_s

    @property
    def flat_bytes(self) -> int:
        """Returns the bytes that the busiest device receives as it is."""
        return bytes_received([self.collective.flat], self.collective.mesh.devices)

    @property
    def is_strict(self) -> bool:
        """Returns whether no cost of the chain is larger."""
        return self.chain.collectives <= 1 and self.chain.bytes_received <= self.flat_bytes


def chain_in_place(collective: ExplicitCollective, topology: Topology, memory_limit: int | None = None) -> InPlace:
    """Returns the fastest chain in place of a collective. Raises: NoPlanError."""
    asked, devices = collective.redistribution, collective.mesh.devices
    chain = plan(
        collective.mesh,
        asked.shape,
        collective.bits,
        asked.source,
        asked.target,
        objective="time",
        topology=topology,
        reduction=collective.reduction,
        memory_limit=memory_limit,
    )
    # Plans know no order of the members of a group. In the order that their tiles need, a ring may take longer.
    written = collectives(chain.tile_program, collective.bits)
    chain_s = max(chain.time_s, sum(collective_time_s(topology, devices, each) for each in written))
    return InPlace(collective, chain, chain_s, collective_time_s(topology, devices, collective.flat))
