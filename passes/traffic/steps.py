# SPDX-License-Identifier: Apache-2.0
"""The steps of a compiled program with their modelled times: work, collectives, loops.

In the model nothing overlaps, so a step begins when the one before ends, and the times of all steps add up to the
modelled time of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reshard.synthesis.network.occupancy import Occupancy
from reshard.synthesis.network.program_time import LocalWork

if TYPE_CHECKING:
    from reshard.passes.traffic.ledger import Entry


@dataclass(frozen=True, slots=True)
class WorkStep:
    """A row of local work.

    Attributes:
      op: the name of its last op, such as `dot_general`, or of the HLO instruction. place: the line of that op; "" if
        the module does not say.
      ops: how many HLO instructions it has. work, seconds: of one run.
    """

    op: str
    place: str
    ops: int
    work: LocalWork
    seconds: float


@dataclass(frozen=True, slots=True)
class MoveStep:
    """One run of a collective: its entry in the ledger, and the levels that it occupies."""

    entry: Entry
    occupancy: Occupancy

    @property
    def seconds(self) -> float:
        return self.occupancy.seconds


@dataclass(frozen=True, slots=True)
class LoopStep:
    """All trips of a loop.

    Attributes:
      place: the line of the loop; "" if the module does not say.
      trip_count: how often the body runs; None if XLA does not tell, and it is counted once.
      condition, body: the steps of one run of each. condition_runs, body_runs: how often they run.
    """

    name: str
    place: str
    trip_count: int | None
    condition: tuple[Step, ...]
    body: tuple[Step, ...]
    condition_runs: int
    body_runs: int

    @property
    def seconds(self) -> float:
        once = (sum(each.seconds for each in steps) for steps in (self.condition, self.body))
        return sum(runs * seconds for runs, seconds in zip((self.condition_runs, self.body_runs), once))


Step = WorkStep | MoveStep | LoopStep
