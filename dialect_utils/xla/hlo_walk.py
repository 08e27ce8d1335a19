# SPDX-License-Identifier: Apache-2.0
"""Which computations an HLO instruction runs, and how often: the step of every walk through a program.

Loops run their body as often as their trip count says, conditionals one of their branches, and calls, fusions and
asynchronous operations what they call. The computations that reductions, sorts and scatters apply to elements are not
among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .hlo_text import Instruction
from .hlo_trip_counts import Scope, trip_count

_CALLS = frozenset(("call", "fusion", "async-start", "custom-call"))


@dataclass(frozen=True, slots=True)
class LoopRuns:
    """A `while` with what it runs.

    Fields:
      condition, body: its computations, with the values that they may know.
      trip_count: how often the body runs; None if that could not be derived.
    """

    condition: Scope
    body: Scope
    trip_count: int | None

    @property
    def body_runs(self) -> int:
        """Returns how often the body is counted: once if nobody knows."""
        return 1 if self.trip_count is None else self.trip_count

    @property
    def condition_runs(self) -> int:
        return self.body_runs + 1


def loop_runs(scope: Scope, loop: Instruction) -> LoopRuns:
    """Returns what a `while` of `scope` runs."""
    known, state = trip_count(scope, loop)
    condition = scope.callee(loop.callee("condition"), (state,))
    return LoopRuns(condition, scope.callee(loop.callee("body"), (state,)), known)


def branches(scope: Scope, conditional: Instruction) -> list[Scope]:
    """Returns the computations of which a `conditional` of `scope` runs one."""
    names = conditional.callees("branch_computations") or [
        conditional.callee("true_computation"),
        conditional.callee("false_computation"),
    ]
    arguments = scope.values(conditional.operands)[1:]
    return [scope.callee(name, (argument,)) for name, argument in zip(names, arguments, strict=True)]


def callees(scope: Scope, instruction: Instruction) -> Iterator[Scope]:
    """Yields the computations that a call, a fusion or the like runs once; nothing for any other instruction."""
    if instruction.opcode not in _CALLS:
        return
    callee = instruction.callee("to_apply") or instruction.callee("calls")
    names = [callee] if callee else instruction.callees("called_computations")
    arguments = scope.values(instruction.operands) if names else ()
    yield from (scope.callee(name, arguments) for name in names)
