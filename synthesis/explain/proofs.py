# SPDX-License-Identifier: Apache-2.0
"""What is proved about the cost of a plan, and among which ways to do the same.

There are two kinds of proof. A *bound* holds for every method: the bytes that a device must receive, the time in which
they can enter it. A *search* proves that no other chain costs less, but it sees only chains without exchanges, within
the tile limit (R2). Other ways may cost less than a plan that a search proves, so the words name the scope.

A search by time leaves out most copies on the device. What it proves is that no chain takes less time in all than the
plan takes in its collectives. The gap of the plan is its own time, copies included, over that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..plans.costing import gap_to_bounds
from ..plans.plan import Plan
from .step_costs import step_costs

EVERY_METHOD, CHAINS = "every method", "chains"
_ROUNDING = 1e-9  # larger than the rounding error of a sum of times
_LEAST = {"time": "least time", "bytes": "fewest bytes"}
_COSTS_LESS = {"time": "takes less time", "bytes": "receives fewer bytes"}


@dataclass(frozen=True, slots=True)
class Proof:
    """A plan costs at most `gap` times as much as any way in `scope`.

    Attributes:
      objective: the cost, "time" or "bytes".
      scope: `EVERY_METHOD`, or `CHAINS` for the chains without exchanges whose tiles are within the tile limit.
      gap: at least 1; it is 1 where the plan is the cheapest.
    """

    objective: str
    scope: str
    gap: float

    @property
    def text(self) -> str:
        """Returns the proof in words, e.g. `proved optimal by time` or `within 1.50x of the least time`."""
        if self.scope == EVERY_METHOD:
            if self.gap == 1:
                return f"proved optimal by {self.objective}"
            return f"within {_rounded_up(self.gap)}x of the {_LEAST[self.objective]}"
        if self.gap == 1:
            return f"proved: no chain within R2 and without exchanges {_COSTS_LESS[self.objective]}"
        return f"within {_rounded_up(self.gap)}x of the {_LEAST[self.objective]} of chains within R2, without exchanges"


def proof_of(plan: Plan) -> Proof | None:
    """Returns what is proved about a plan; None if nothing is. A proof for every method goes before one for chains."""
    of_any, of_chains = _gap_to_any(plan), _gap_to_chains(plan)
    if of_any is not None and (of_chains is None or of_any <= of_chains):
        return Proof(plan.objective, EVERY_METHOD, of_any)
    return None if of_chains is None else Proof(plan.objective, CHAINS, of_chains)


def _gap_to_any(plan: Plan) -> float | None:
    """Returns `gap_to_bounds`; None for a plan that copies without a collective: no bound holds for copies."""
    if not plan.collectives and plan.objective == "time" and plan.time_s:
        return None
    gap = gap_to_bounds(plan)
    return gap and _one_if_rounded(gap)


def _gap_to_chains(plan: Plan) -> float | None:
    gap = 1.0 if plan.is_optimal else plan.proved_gap
    if gap is None or plan.objective == "bytes":
        return gap
    copies_s = sum(each.copies_s for each in step_costs(plan, plan.request.topology))
    collectives_s = plan.time_s - copies_s
    if not copies_s:
        return _one_if_rounded(gap)
    return _one_if_rounded(gap * plan.time_s / collectives_s) if collectives_s > 0 else None


def _one_if_rounded(gap: float) -> float:
    return gap if gap > 1 + _ROUNDING else 1.0


def _rounded_up(gap: float) -> str:
    return f"{math.ceil(100 * gap) / 100:.2f}"
