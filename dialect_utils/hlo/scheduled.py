# SPDX-License-Identifier: Apache-2.0
"""The schedule of a final program, as `synthesis.network.schedule_time` runs it: work, and collectives that start and
end apart.

The instructions of scheduled HLO stand in the order in which a device runs them. A collective that is one instruction
starts and ends there. One that a TPU runs in pieces, inside of fusions with other work, goes on beside the work of
these fusions (`walk`). Of a conditional the branch with the most work counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from reshard.synthesis.network.program_time import LocalWork
from reshard.synthesis.network.schedule_time import Done, Driving, Loop, Schedule, Start, Step, Work
from reshard.synthesis.programs.traffic import Collective

from .collectives import CollectiveOp
from .generated import cycles_of
from .text import HloModule, Instruction, parse_module
from .trip_counts import Scope
from .walk import DONE, START, AsyncPiece, async_pieces, branches, callees, loop_runs
from .work import ProgramWork, pieces_of

_RUN_ELSEWHERE = ("call", "async-start", "custom-call")  # whose work is that of what they call


def schedule_in(hlo_text: str, ops: Iterable[CollectiveOp], cycles_per_s: float | None = None) -> Schedule:
    """Returns the steps of a scheduled program; () if it has no schedule.

    Args:
      ops: the collectives of the program.
      cycles_per_s: in which the code generator counts, if known.

    Example:
      >>> from .collectives import collectives_in
      >>> text = '''HloModule m, is_scheduled=true, num_partitions=2
      ... ENTRY %main (a: f32[8,8]) -> f32[8,8] {
      ...   %a = f32[8,8]{1,0} parameter(0)
      ...   %s = (f32[8,8]{1,0}, f32[8,8]{1,0}) collective-permute-start(%a), source_target_pairs={{0,1},{1,0}}
      ...   %d = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ...   %e = f32[8,8]{1,0} collective-permute-done(%s)
      ...   ROOT %r = f32[8,8]{1,0} add(%d, %e)
      ... }'''
      >>> [type(each).__name__ for each in schedule_in(text, collectives_in(text).ops)]
      ['Start', 'Work', 'Done', 'Work']
    """
    module = parse_module(hlo_text)
    if not module.is_scheduled:
        return ()
    return _Reader(module, ops, cycles_per_s).steps(Scope(module, module.entry, ()))


class _Reader:
    """Reads the steps of computations.

    State: `_numbers`, how many collectives have started so far. `_steps`: of computations that were read, by name.
    """

    def __init__(self, module: HloModule, ops: Iterable[CollectiveOp], cycles_per_s: float | None):
        self._module, self._cycles_per_s = module, cycles_per_s
        self._collectives = {op.name: replace(op.collective, trip_count=1) for op in ops}
        self._weights = ProgramWork(module, reads_lines=False)
        self._numbers = 0
        self._steps: dict[str, Schedule] = {}

    def steps(self, scope: Scope) -> Schedule:
        """Returns the steps of one run of a computation."""
        name = scope.computation.name
        if name not in self._steps:
            self._steps[name] = tuple(self._read(scope))
        return self._steps[name]

    def _read(self, scope: Scope) -> Iterator[Step]:
        under_way: dict[str, int] = {}  # the number of what started, by the name of the instruction
        in_pieces: dict[int, int] = {}  # by its channel
        work = self._work_of(scope)
        for each in scope.computation.instructions.values():
            if pieces := async_pieces(self._module, each):
                yield from self._moved_on(pieces, work.get(each.name), in_pieces)
            elif each.opcode.endswith("-start") and (collective := self._started(each)):
                under_way[each.name] = self._numbers
                yield self._start(collective)
            elif each.opcode.endswith("-done") and (operand := each.operands[0].partition("#")[0]) in under_way:
                yield Done(under_way.pop(operand))
            else:
                yield from self._at_once(scope, each)
                if each.name in work:
                    yield work[each.name]

    def _work_of(self, scope: Scope) -> dict[str, Work]:
        """Returns the work of the instructions of a computation, without that of the computations that it runs."""
        found = {}
        for piece in pieces_of(self._module, scope.computation):
            last = scope.computation.instructions[piece.names[-1]]
            generated_s = cycles_of(last) / self._cycles_per_s if self._cycles_per_s else 0.0
            row = LocalWork(piece.flops, piece.bytes_moved, piece.runs, piece.kernels)
            found[last.name] = Work(row, generated_s)
        return found

    def _start(self, collective: Collective, *, is_driven: bool = False) -> Start:
        self._numbers += 1
        return Start(self._numbers - 1, collective, is_driven)

    def _started(self, instruction: Instruction) -> Collective | None:
        """Returns the collective that an instruction starts; None if it starts none."""
        if instruction.name in self._collectives:
            return self._collectives[instruction.name]
        callee = self._module.computations.get(instruction.callee("calls") or "")
        inside = callee.instructions if callee else {}
        return next((self._collectives[name] for name in inside if name in self._collectives), None)

    def _moved_on(self, pieces: list[AsyncPiece], work: Work | None, in_pieces: dict[int, int]) -> Iterator[Step]:
        """Yields the steps of a fusion with pieces of collectives in it."""
        driven = tuple(in_pieces[piece.channel] for piece in pieces if piece.channel in in_pieces)
        for piece in pieces:
            if piece.role == START and piece.name in self._collectives:
                in_pieces[piece.channel] = self._numbers
                yield self._start(self._collectives[piece.name], is_driven=True)
            elif piece.role == DONE and piece.channel in in_pieces:
                yield Done(in_pieces.pop(piece.channel))
        if work:
            yield Driving(driven, work) if driven else work

    def _at_once(self, scope: Scope, each: Instruction) -> Iterator[Step]:
        """Yields what an instruction runs beside its own work: a collective, or other computations."""
        match each.opcode:
            case "while":
                runs = loop_runs(scope, each)
                yield Loop(runs.condition_runs, self.steps(runs.condition))
                yield Loop(runs.body_runs, self.steps(runs.body))
            case "conditional":
                yield from self.steps(self._weights.heaviest(branches(scope, each)))
            case "fusion":
                inside = (callee.computation.instructions for callee in callees(scope, each))
                for name in (name for names in inside for name in names if name in self._collectives):
                    yield from self._both_ends(name)
            case opcode if opcode in _RUN_ELSEWHERE:
                for callee in callees(scope, each):
                    yield from self.steps(callee)
        if each.name in self._collectives:
            yield from self._both_ends(each.name)

    def _both_ends(self, name: str) -> Iterator[Step]:
        start = self._start(self._collectives[name])
        yield from (start, Done(start.number))
