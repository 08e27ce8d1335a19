# SPDX-License-Identifier: Apache-2.0
"""Which forms of a module the compiler of a target is asked about.

A compiler for TPUs takes many times as long for a module as XLA takes for CPU devices until it has assigned buffers,
and both partition alike. So forms are compared as XLA partitions them for CPU devices, priced on the target's
network: a form's *promise*. What the target's compiler makes of collectives and copies afterwards is not in it. So
promises of one kind of form err alike, those of another kind in another way, and none is taken without a measurement:

- The target's compiler compiles the *finalists*, the form that promises most first.
- What it makes of a form, by that form's promise, is the **scale** of the promises of that kind from then on; at first
  it is that of the module as it came. A form is a finalist while its promise, scaled, is better than the best so far.
  A promise that is worse by the *slack* is enough: little for sets of sites, which differ in single conversions, more
  for forms that are written per device, which differ in everything. Those that split products in another way are of
  another kind.
- Once a set of sites has been measured, no other one is a finalist that is clearly slower than a form that is written
  per device, its *goal*.
- Of forms that promise the same in all costs one is asked about.
- A form that needs too much memory, or that fails, lets the next one try. The number of finalists is bounded. If none
  will do, forms that XLA does not compile for CPU devices are finalists, too.

Sets of sites keep their promises within a few percent where the target's compiler makes little of stock XLA's program:
they leave XLA's collectives around them as they are. Where it makes much of it, it may make more of some sets, or less.
A module that is written per device promises more than it keeps there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from reshard.passes.sites.oracle import is_same_time
from reshard.passes.whole_module.joint_choice import Outcome
from reshard.passes.whole_module.module_cost import is_better


@dataclass
class Finalists:
    """The finalists among some forms of a module.

    Args:
      promised: the outcome of each form as XLA partitions it for CPU devices.
      before, none: the module as it came, partitioned so, and as the target's compiler compiles it; both compile.
      most: the most finalists. slack: by how much, relatively, promises of one kind may err against each other.
      kinds: of each form; none: they are of one kind.
    State: `outcomes`, those of the finalists, by number; `scales`, see above, of the kinds that have been measured.
    """

    promised: Sequence[Outcome]
    before: Outcome
    none: Outcome
    most: int
    slack: float = 0.0
    kinds: Sequence[Hashable] = ()
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    scales: dict[Hashable, float] = field(default_factory=dict)

    def scale(self, kind: Hashable = None) -> float:
        """Returns the scale of the promises of a kind of forms."""
        first = self.none.seconds / self.before.seconds if self.before.seconds else 1.0
        return self.scales.get(kind, first)

    def seconds(self, number: int) -> float:
        """Returns what a form promises, scaled."""
        return self.promised[number].seconds * self.scale(self._kind(number))

    def _kind(self, number: int) -> Hashable:
        return self.kinds[number] if self.kinds else None

    @property
    def least_s(self) -> float:
        """Returns the seconds of the form that promises most."""
        return min((self.seconds(number) for number in range(len(self.promised))), default=float("inf"))

    @property
    def least_possible_s(self) -> float:
        """Returns the same if that promise errs by as much again as the scale of the module as it came, on the safe
        side."""
        scale = self.none.seconds / self.before.seconds if self.before.seconds else 1.0
        return self.least_s * min(scale, 1 / scale) if scale else 0.0

    def measure(self, measure: Callable[[int], Outcome], goal_s: float = float("inf")) -> None:
        """Measures finalists until no other form promises to be better than they and than the module as it came.

        Args:
          measure: returns the outcome of a form that the target's compiler compiles.
          goal_s: the time that has to be promised from the second finalist on.
        """
        for number in self._in_order():
            if len(self.outcomes) >= self.most:
                return
            if self._is_known(number) or not self._is_promising(number, goal_s if self.outcomes else float("inf")):
                continue
            outcome, promised = measure(number), self.promised[number]
            self.outcomes[number] = outcome
            if 0 < promised.seconds < float("inf") and 0 < outcome.seconds < float("inf"):
                self.scales[self._kind(number)] = outcome.seconds / promised.seconds

    def _in_order(self) -> list[int]:
        """Returns the numbers of the forms: what may be used first, then what promises most, then what only the
        target's compiler may compile."""
        keys = [(each.seconds == float("inf"), each.problem != "", _order(each)) for each in self.promised]
        return sorted(range(len(keys)), key=keys.__getitem__)

    def _is_known(self, number: int) -> bool:
        """Returns whether a finalist is the same program, as far as promises tell."""
        costs = self._costs(number)
        return costs[0] < float("inf") and any(self._costs(each) == costs for each in self.outcomes)

    def _costs(self, number: int) -> tuple[float, ...]:
        """Returns the costs of a form, without the number of its sites."""
        return self.promised[number].seconds, *self.promised[number].ties[:2]

    def _is_promising(self, number: int, goal_s: float) -> bool:
        usable = [each.seconds for each in self.outcomes.values() if not each.problem]
        if self.promised[number].seconds == float("inf"):
            return not usable
        if not self.outcomes:
            return is_better(replace(self.promised[number], problem=""), self.before)
        best_s = min([goal_s, *(usable or [self.none.seconds])])
        promised_s = self.seconds(number) / (1 + self.slack)
        return promised_s < best_s and not is_same_time(promised_s, best_s)


def _order(outcome: Outcome) -> tuple[float, tuple[float, ...]]:
    return outcome.seconds, outcome.ties
