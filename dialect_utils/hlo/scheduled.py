# SPDX-License-Identifier: Apache-2.0
"""The schedule of a final program, as `synthesis.network.schedule_time` runs it: work, and collectives that start and
end apart.

The instructions of scheduled HLO stand in the order in which a device runs them. A collective that is one instruction
starts and ends there. One that a TPU runs in pieces, inside of fusions with other work, goes on beside the work of
these fusions (`walk`). Of a conditional a branch with collectives counts, and then the one with the most work.

The steps of a program have all of its collectives and all of its work, each as often as it runs; if they have not, as
where another branch of a conditional counts for its traffic, there are no steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from reshard.synthesis.network.program_time import LocalWork
from reshard.synthesis.network.schedule_time import Done, Driving, Loop, Schedule, Start, Step, Work, runs_of
from reshard.synthesis.programs.traffic import Collective, merged

from .collectives import CollectiveOp
from .generated import PricedWork, cycles_of
from .text import HloModule, Instruction, parse_module
from .trip_counts import Scope
from .walk import DONE, START, AsyncPiece, async_pieces, branches, callees, loop_runs
from .work import ProgramWork, pieces_of

_RUN_ELSEWHERE = ("call", "async-start", "custom-call")  # whose work is that of what they call


def schedule_in(hlo_text: str, ops: Iterable[CollectiveOp], cycles_per_s: float | None = None) -> Schedule:
    """Returns the steps of a scheduled program; () if it has no schedule, or if they are not all of the program.

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
    module, ops = parse_module(hlo_text), tuple(ops)
    if not module.is_scheduled:
        return ()
    entry = Scope(module, module.entry, ())
    reader = _Reader(module, ops, cycles_per_s)
    schedule = reader.steps(entry)
    return schedule if reader.are_all(schedule, entry, ops) else ()


def _behind(each: Instruction) -> str:
    """Returns the name of what an instruction ends or goes on with, its first operand."""
    return each.operands[0].partition("#")[0] if each.operands else ""


class _Reader:
    """Reads the steps of computations.

    State: `_numbers`, how many collectives have started so far. `_steps`: of computations that were read, by their
    names and what they know of their arguments.
    """

    def __init__(self, module: HloModule, ops: Iterable[CollectiveOp], cycles_per_s: float | None):
        self._module, self._cycles_per_s = module, cycles_per_s
        self._collectives = {op.name: replace(op.collective, trip_count=1) for op in ops}
        self._weights = ProgramWork(module, reads_lines=False)
        self._numbers = 0
        self._steps: dict[tuple, Schedule] = {}

    def steps(self, scope: Scope) -> Schedule:
        """Returns the steps of one run of a computation."""
        key = scope.computation.name, tuple(scope.arguments)
        if key not in self._steps:
            self._steps[key] = tuple(self._read(scope))
        return self._steps[key]

    def are_all(self, schedule: Schedule, entry: Scope, ops: Iterable[CollectiveOp]) -> bool:
        """Returns whether a schedule of the program has all of its collectives, its work, and the cycles of that."""
        moved, work, generated_s = Counter[Collective](), Counter[tuple[int, ...]](), 0.0
        for step, runs in runs_of(schedule):
            if isinstance(step, Start):
                moved[step.collective] += runs
            elif isinstance(step, Work):
                work[step.row.flops, step.row.bytes_moved, step.row.kernels] += runs * step.row.runs
                generated_s += runs * step.row.runs * step.generated_s
        found = {replace(each, trip_count=1): each.trip_count for each in merged(op.collective for op in ops)}
        if moved != found or work != self._weights.work(entry):
            return False
        if not self._cycles_per_s:
            return True
        priced = PricedWork(self._module, reads_lines=False).work(entry)
        expected_s = sum(cycles * runs for (*_, cycles), runs in priced.items()) / self._cycles_per_s
        return abs(generated_s - expected_s) <= 1e-6 * expected_s

    def _read(self, scope: Scope) -> Iterator[Step]:
        under_way: dict[str, int] = {}  # the number of what started, by the name of the instruction
        in_pieces: dict[int, int] = {}  # by its channel
        work = self._work_of(scope)
        for each in scope.computation.instructions.values():
            if pieces := async_pieces(self._module, each):
                yield from self._moved_on(pieces, work.get(each.name), in_pieces)
            elif each.opcode.endswith("-start") and (collective := self._started(scope, each)):
                under_way[each.name] = self._numbers
                yield self._start(collective)
                if each.name not in self._collectives:  # what stands around it in its computation
                    for callee in callees(scope, each):
                        yield from (step for step in self.steps(callee) if not isinstance(step, Start | Done))
            elif each.opcode.endswith("-update") and (operand := _behind(each)) in under_way:
                under_way[each.name] = under_way.pop(operand)
            elif each.opcode.endswith("-done") and (operand := _behind(each)) in under_way:
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

    def _started(self, scope: Scope, instruction: Instruction) -> Collective | None:
        """Returns the collective that an instruction starts; None if it starts none, or several."""
        if instruction.name in self._collectives:
            return self._collectives[instruction.name]
        inside = [name for callee in callees(scope, instruction) for name in self._inside(callee)]
        return self._collectives[inside[0]] if len(inside) == 1 else None

    def _inside(self, scope: Scope) -> Iterator[str]:
        """Yields the collectives in a computation that is one op, and in those inside of it."""
        for each in scope.computation.instructions.values():
            if each.name in self._collectives:
                yield each.name
            for callee in callees(scope, each):
                yield from self._inside(callee)

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
                found = branches(scope, each)
                moving = [branch for branch in found if any(isinstance(step, Start) for step in self.steps(branch))]
                yield from self.steps(self._weights.heaviest(moving or found))
            case "fusion":
                for callee in callees(scope, each):
                    for name in self._inside(callee):
                        yield from self._both_ends(name)
            case opcode if opcode in _RUN_ELSEWHERE:
                for callee in callees(scope, each):
                    yield from self.steps(callee)
        if each.name in self._collectives:
            yield from self._both_ends(each.name)

    def _both_ends(self, name: str) -> Iterator[Step]:
        start = self._start(self._collectives[name])
        yield from (start, Done(start.number))
