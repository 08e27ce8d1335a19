# SPDX-License-Identifier: Apache-2.0
"""Plans: a chain of steps with its costs, its bounds and its tile program."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..layouts.mesh import Mesh
from ..layouts.sharding import Sharding
from ..programs import steps
from ..programs.steps import Step
from ..programs.tile_program import TileProgram
from . import plan_json
from .request import Request


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with its costs. Bytes are those of the busiest device; the time is modelled on the plan's topology.

    Attributes:
      inside: if the step is a loop over chunks, the steps of the loop with their costs on one chunk.
    """

    step: Step
    text: str
    bytes_received: int
    tile_bytes_before: int
    tile_bytes_after: int
    time_s: float
    inside: tuple[PlannedStep, ...] = ()

    @property
    def op(self) -> str:
        return steps.name(self.step)


@dataclass(frozen=True, slots=True)
class Plan:
    """A chain with its costs, its peak and its lower bounds.

    The attributes of its request are also attributes of the plan: `mesh`, `shape`, `bits`,
    `source`, `target`, `target_mesh`, `objective`, `reduction`, and `topology`, which here is the name of the network.

    Attributes:
      steps: in execution order, relayouts included; empty if source and target place the array in the same way. Each
        has `op`, `text`, `bytes_received`, `tile_bytes_before`, `tile_bytes_after` and `time_s`.
      bytes_received, bytes_sent: bytes that arrive at a device, or leave it, summed over the steps; the number is that
        of the busiest device.
      bound_bytes: the bytes that the busiest device must receive with any method.
      largest_tile_bytes: the largest tile before, between and after the steps, in bytes per device. It is the source
        tile or the target tile, unless a tile limit allowed more.
      peak_bytes: the most bytes that a device holds at once, as modelled: source tile, target tile and temporaries.
      is_optimal: whether it is proved that no chain of steps is cheaper. The cost is the received bytes, or the time in
        collectives, depending on the objective. The proof does not cover copies on the device. It covers exchanges only
        for the objective "bytes", and only if `bytes_received` equals `bound_bytes`.
      proved_gap: the plan costs at most `proved_gap` times as much as the cheapest chain of steps; for a plan with an
        exchange, as the best possible method. 1 if the plan is optimal, None if nothing is proved.
      bound_time_s: a lower bound on the time of any method on the topology, in seconds.
      dtype: the name of the element type; empty if the plan does not come from `reshard.plan` or `reshard.pareto`.
      seconds: the time that planning took; 0 in the same case.
    """

    request: Request
    steps: tuple[PlannedStep, ...]
    tile_program: TileProgram
    bytes_received: int
    bytes_sent: int
    bound_bytes: int
    largest_tile_bytes: int
    peak_bytes: int
    is_optimal: bool
    bound_time_s: float
    proved_gap: float | None
    dtype: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def mesh(self) -> Mesh:
        """Returns the mesh of the source."""
        return self.request.mesh

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the global shape, in elements."""
        return self.request.shape

    @property
    def bits(self) -> int:
        """Returns the number of bits of an element."""
        return self.request.bits

    @property
    def source(self) -> Sharding:
        """Returns the source sharding."""
        return self.request.source

    @property
    def target(self) -> Sharding:
        """Returns the target sharding."""
        return self.request.target

    @property
    def target_mesh(self) -> Mesh | None:
        """Returns the mesh of the target; None if it is the same as `mesh`."""
        return self.request.target_mesh

    @property
    def goal_mesh(self) -> Mesh:
        """Returns the mesh that `target` is on."""
        return self.request.goal_mesh

    @property
    def devices(self) -> int:
        """Returns the number of devices of both meshes together."""
        return self.request.devices

    @property
    def objective(self) -> str:
        """Returns the objective: "bytes" or "time"."""
        return self.request.objective

    @property
    def reduction(self) -> str:
        """Returns the operation that combines partial sums into the array, such as sum."""
        return self.request.reduction

    @property
    def topology(self) -> str:
        """Returns the name of the network."""
        return self.request.topology.name

    def to_dict(self) -> dict:
        """Returns the plan as plain data, as `reshard plan --json` prints it; docs/plan.md explains the fields."""
        return plan_json.as_dict(self)

    @property
    def chain_text(self) -> str:
        """Returns the steps without the relayouts in one line of text; "nothing" if there are none."""
        return "; ".join(s.text for s in self.steps if s.op != "relayout") or "nothing"

    @property
    def collectives(self) -> int:
        """Returns the number of collectives that run; a collective in a loop counts once for each chunk."""
        return sum([steps.collectives(s.step) for s in self.steps])

    @property
    def time_s(self) -> float:
        """Returns the modelled time of all steps, relayouts included."""
        return sum([s.time_s for s in self.steps])

    @property
    def ratio_to_bound(self) -> float:
        """Returns the received bytes divided by the bound; 1 if both are zero, infinity if only the bound is zero."""
        if not self.bound_bytes:
            return math.inf if self.bytes_received else 1.0
        return self.bytes_received / self.bound_bytes
