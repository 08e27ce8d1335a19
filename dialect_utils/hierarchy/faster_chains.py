# SPDX-License-Identifier: Apache-2.0
"""The planner's chain for a collective that a program has, and whether it is faster on a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from reshard.synthesis.forms.in_place import for_platform
from reshard.synthesis.forms.platforms import CPU, FORMS
from reshard.synthesis.forms.whole_tiles import as_run, is_kept
from reshard.synthesis.network.cost import collective_time_s
from reshard.synthesis.network.topology import Topology
from reshard.synthesis.planner.entry import plan
from reshard.synthesis.plans.plan import Plan
from reshard.synthesis.programs.tile_program import collectives
from reshard.synthesis.programs.traffic import Collective, bytes_received

from .explicit_collectives import ExplicitCollective

LEAST_GAIN = 0.1  # share of the modelled time of a collective; below, the model may be wrong about it


@dataclass(frozen=True, slots=True)
class InPlace:
    """A collective, a chain in its place, and the modelled times of both in seconds, as a module has them.

    Attributes:
      flat: the collective as the platform's compiler runs it, which may sum whole what it cannot scatter.
    """

    collective: ExplicitCollective
    chain: Plan
    flat: Collective
    chain_s: float
    flat_s: float

    @property
    def is_faster(self) -> bool:
        """Returns whether the chain is faster by more than the model may be wrong."""
        return self.chain_s < (1 - LEAST_GAIN) * self.flat_s

    @property
    def flat_bytes(self) -> int:
        """Returns the bytes that the busiest device receives as it is."""
        return bytes_received([self.flat], self.collective.mesh.devices)

    @property
    def is_strict(self) -> bool:
        """Returns whether no cost of the chain is larger."""
        return self.chain.collectives <= 1 and self.chain.bytes_received <= self.flat_bytes


def chain_in_place(
    collective: ExplicitCollective, topology: Topology, memory_limit: int | None = None, platform: str = CPU
) -> InPlace:
    """Returns the fastest chain in place of a collective.

    Args:
      platform: the one of `platforms.PLATFORMS` whose compiler runs both.
    Raises: NoPlanError.
    """
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
    written = _written(chain, collective.bits, platform)
    chain_s = max(chain.time_s, sum(collective_time_s(topology, devices, each) for each in written))
    flat = _flat(collective, platform)
    return InPlace(collective, chain, flat, chain_s, collective_time_s(topology, devices, flat))


def _written(chain: Plan, bits: int, platform: str) -> Iterable[Collective]:
    """Returns the collectives of a chain as the compiler for a platform runs them."""
    if FORMS[platform].has_whole_tiles:
        return as_run(for_platform(chain.tile_program, platform, bits), bits)
    return collectives(chain.tile_program, bits)


def _flat(collective: ExplicitCollective, platform: str) -> Collective:
    """Returns a collective of a program as the compiler for a platform runs it."""
    flat, how = collective.flat, collective.in_groups
    if how.kind != "reduce_scatter" or not FORMS[platform].has_whole_tiles:
        return flat
    if is_kept(how.tile, how.dim, how.members, collective.bits):
        return flat
    return replace(flat, kind="all_reduce", bytes_after=flat.bytes_before)
