# SPDX-License-Identifier: Apache-2.0
"""What planning returns: a chain of steps with its costs, its bounds and its tile program."""

from __future__ import annotations

from dataclasses import dataclass, field
import math

from . import plan_json, steps
from .mesh import Mesh
from .sharding import Sharding
from .steps import Step
from .tile_program import TileProgram


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with what it costs: bytes are per device, the busiest one; the time is modelled on the plan's topology.

    `inside`: where the step is a loop over chunks, its steps with what they cost on one chunk.
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
    """A chain with its costs and its certificate.

    Attributes:
      bits: bits of an element.
      steps: in execution order, relayouts included; empty if source and target place everything alike.
      bytes_received: R3's definition, the maximum over devices of the sum over steps; so is `bytes_sent`.
      bound_bytes: what the busiest device must receive whatever the method.
      largest_tile_bytes: the largest tile before, between and after the steps; by R2 that of source or target, unless a tile limit allowed more.
      peak_bytes: modelled peak: source and target tile with all temporaries; see `peak.py`.
      is_optimal: proved, by bytes, that no method receives less (the bound is met: by one collective, there are no fewer either), or
        that no chain within the digits that `problem.py` offers does; by time, that no such chain spends less in collectives.
        Copies on the device are outside of the proof, and so are exchanges where the bound is not met.
      proved_gap: by what factor, at most, such a chain receives less, or spends less time in collectives; 1 if optimal. Of a
        plan with an exchange, by what factor any method does, at most. None if nothing is proved.
      objective: "bytes" or "time". topology: its name. bound_time_s: what any method takes there, at least.
      dtype, seconds: what a caller who knows them adds: the element type's name, how long planning took.
      reduction: what makes an array of partial sums where source or target has unreduced axes.
      target_mesh: that of `target`, None if it is `mesh`.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    bits: int
    source: Sharding
    target: Sharding
    steps: tuple[PlannedStep, ...]
    tile_program: TileProgram
    bytes_received: int
    bytes_sent: int
    bound_bytes: int
    largest_tile_bytes: int
    peak_bytes: int
    is_optimal: bool
    objective: str
    topology: str
    bound_time_s: float
    proved_gap: float | None
    dtype: str = ""
    seconds: float = field(default=0.0, compare=False)
    reduction: str = "sum"
    target_mesh: Mesh | None = None

    @property
    def goal_mesh(self) -> Mesh:
        """Returns the mesh that `target` is on."""
        return self.target_mesh or self.mesh

    @property
    def devices(self) -> int:
        """Returns the number of devices of both meshes together."""
        return max(self.mesh.devices, self.goal_mesh.devices)

    def to_dict(self) -> dict:
        """Returns what `reshard plan --json` prints; see `plan_json`."""
        return plan_json.as_dict(self)

    @property
    def chain_text(self) -> str:
        """Returns the steps in one line, relayouts left out; "nothing" for the empty chain."""
        return "; ".join(s.text for s in self.steps if s.op != "relayout") or "nothing"

    @property
    def collectives(self) -> int:
        """Returns how many collectives run; those of chunks count as often as they do."""
        return sum([steps.collectives(s.step) for s in self.steps])

    @property
    def time_s(self) -> float:
        """Returns the modelled time of all steps, relayouts included."""
        return sum([s.time_s for s in self.steps])

    @property
    def ratio_to_bound(self) -> float:
        """Returns bytes received over the bound; 1 where both are zero, infinity where the bound alone is."""
        if not self.bound_bytes:
            return math.inf if self.bytes_received else 1.0
        return self.bytes_received / self.bound_bytes
