# SPDX-License-Identifier: Apache-2.0
"""What the code generator of a compiler says of the local work of a final program.

XLA's compiler for TPUs writes the cycles of each fusion into the program, as the code that it generates takes them by
its own model: it knows the shapes of tiles, padding, and what fits into the memory on the chip. Its scheduler has other
prices, made before there is any code, and a roofline has none of this. Copies between memories that start and end
apart, and some small ops, have no price; their work stands beside the cycles.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from reshard.synthesis.network.program_time import LocalWork

from .text import Computation, HloModule, Instruction, parse_module
from .trip_counts import Scope
from .walk import branches, callees, loop_runs
from .work import pieces_of

_CYCLES = re.compile(r'"estimated_cycles":"([1-9]\d*)"')


@dataclass(frozen=True, slots=True)
class Generated:
    """The local work of one run of a program.

    Fields:
      cycles: of what has a price, with loops counted. others: the work of what has none, equal rows merged, sorted.
    """

    cycles: int
    others: tuple[LocalWork, ...]


def generated_in(hlo_text: str) -> Generated | None:
    """Returns what the code generator says of a final program; None if the text has no price at all.

    Args:
      hlo_text: of a scheduled program.

    Example:
      >>> generated_in('''HloModule m, is_scheduled=true
      ... %squared (p: f32[256]) -> f32[256] {
      ...   %p = f32[256]{0} parameter(0)
      ...   ROOT %m = f32[256]{0} multiply(%p, %p)
      ... }
      ... ENTRY %main (a: f32[256]) -> f32[256] {
      ...   %a = f32[256]{0} parameter(0)
      ...   %b = f32[256]{0} fusion(%a), kind=kLoop, calls=%squared, backend_config={"estimated_cycles":"700"}
      ...   ROOT %c = f32[256]{0} negate(%b)
      ... }''')
      Generated(cycles=700, others=(LocalWork(flops=0, bytes_moved=2048, runs=1, kernels=1),))
    """
    if not _CYCLES.search(hlo_text):
        return None
    module = parse_module(hlo_text)
    found = _Reader(module).runs_of(Scope(module, module.entry, ()))
    others = sorted(found.others.items())
    return Generated(found.cycles, tuple(LocalWork(*row[:2], runs, row[2]) for row, runs in others))


@dataclass
class _Sum:
    """Cycles, and the runs of each row (FLOPs, bytes, kernels) without a price."""

    cycles: int
    others: Counter[tuple[int, int, int]]

    def add(self, more: _Sum, runs: int = 1) -> None:
        self.cycles += runs * more.cycles
        for row, count in more.others.items():
            self.others[row] += runs * count


class _Reader:
    """Adds up the computations that a module runs. State: `_own`, what each of them runs itself, by name."""

    def __init__(self, module: HloModule):
        self._module = module
        self._own: dict[str, _Sum] = {}

    def runs_of(self, scope: Scope) -> _Sum:
        """Returns the sum of one run of a computation, with what it runs."""
        name = scope.computation.name
        if name not in self._own:
            self._own[name] = self._of_itself(scope.computation)
        found = _Sum(0, Counter())
        found.add(self._own[name])
        for each in scope.computation.instructions.values():
            self._add_called(found, scope, each)
        return found

    def _add_called(self, found: _Sum, scope: Scope, instruction: Instruction) -> None:
        match instruction.opcode:
            case "while":
                runs = loop_runs(scope, instruction)
                found.add(self.runs_of(runs.body), runs.body_runs)
            case "conditional":
                found.add(max(map(self.runs_of, branches(scope, instruction)), key=lambda each: each.cycles))
            case "call" | "async-start" | "custom-call":
                for callee in callees(scope, instruction):
                    found.add(self.runs_of(callee))

    def _of_itself(self, computation: Computation) -> _Sum:
        found = _Sum(0, Counter())
        for piece in pieces_of(self._module, computation):
            if priced := _CYCLES.search(computation.instructions[piece.names[-1]].attributes):
                found.cycles += int(priced[1])
            else:
                found.others[piece.flops, piece.bytes_moved, piece.kernels] += piece.runs
        return found
