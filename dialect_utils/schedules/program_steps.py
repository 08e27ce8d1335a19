# SPDX-License-Identifier: Apache-2.0
"""The steps of a program in order: the rows of work, the collectives and the loops of which its modelled time consists.

The work is that of `hlo.work`, and the collectives are those of `hlo.collectives`, so the times of all steps add up to
that of the program. The order is that of the program's text, in which XLA lists an instruction behind its operands. A
loop that a compiler makes of several ops stands where the last of them does, or earlier if a step before needs it.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..hlo.collectives import HloCollectives
from ..hlo.text import Computation, HloModule, Instruction, op_name
from ..hlo.trip_counts import Scope
from ..hlo.walk import branches, callees, loop_runs, name_in_text, with_calls_inlined
from ..hlo.work import Piece, ProgramWork, operands_of, pieces_of, with_chosen_updates_in_place
from .independent_work import COLLECTIVES


@dataclass(frozen=True, slots=True)
class Work:
    """A row of work.

    Fields:
      opcode, op_name: of its last instruction. ops: the number of its instructions.
      flops, bytes_moved: of one run.
    """

    opcode: str
    op_name: str
    ops: int
    flops: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class Move:
    """A collective: the name of its instruction, and the names of the loops around it, outermost first."""

    name: str
    loops: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """A `while`.

    Fields:
      op_name: the name in its metadata. trip_count: how often the body runs; None if that could not be derived.
      condition, body: the steps of one run of each. body_runs, condition_runs: how often these are counted.
    """

    name: str
    op_name: str
    trip_count: int | None
    condition: "tuple[Step, ...]"
    body: "tuple[Step, ...]"
    body_runs: int
    condition_runs: int


Step = Work | Move | Loop


def steps_of(module: HloModule, found: HloCollectives) -> tuple[Step, ...]:
    """Returns the steps of a program; of a conditional the branch whose work, or whose collectives, are counted.

    Args:
      found: the collectives of the module.

    Example: the sort, and the sine and the product behind it as one loop, on both sides of the collective.
      >>> from ..hlo.collectives import collectives_in
      >>> from ..hlo.text import parse_module
      >>> text = '''HloModule m, num_partitions=4
      ... ENTRY %main (p: f32[8]) -> f32[32] {
      ...   %p = f32[8]{0} parameter(0)
      ...   %s = f32[8]{0} sort(%p), dimensions={0}
      ...   %g = f32[32]{0} all-gather(%s), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
      ...   %n = f32[32]{0} sine(%g)
      ...   ROOT %m = f32[32]{0} multiply(%n, %g)
      ... }'''
      >>> for step in steps_of(parse_module(text), collectives_in(text)):
      ...     print(step)
      Work(opcode='sort', op_name='', ops=1, flops=0, bytes_moved=64)
      Move(name='g', loops=())
      Work(opcode='multiply', op_name='', ops=2, flops=0, bytes_moved=256)
    """
    module = module if module.is_scheduled else with_chosen_updates_in_place(with_calls_inlined(module))
    return tuple(_Walk(module, found).visit(Scope(module, module.entry, ()), (), with_work=True))


class _Walk:
    """Lists the steps of computations.

    State: `_left` are the collectives that have no step yet. Those of branches that are not counted are not among them.
    """

    def __init__(self, module: HloModule, found: HloCollectives):
        self._module, self._work = module, ProgramWork(module, reads_lines=False)
        self._left = Counter((op.name, op.loops) for op in found.ops)
        self._added = {(op.name, op.loops): op.added_bytes for op in found.ops if op.added_bytes}
        self._orders: dict[str, list[Piece | Instruction]] = {}

    def visit(self, scope: Scope, loops: tuple[str, ...], *, with_work: bool) -> Iterator[Step]:
        computation = scope.computation
        if computation.name not in self._orders:
            self._orders[computation.name] = _ordered(self._module, computation)
        for each in self._orders[computation.name]:
            if isinstance(each, Instruction):
                yield from self._of_instruction(scope, each, loops, with_work)
            elif with_work:
                last = computation.instructions[each.names[-1]]
                yield Work(last.opcode, op_name(last), len(each.names), each.flops, each.bytes_moved * each.runs)

    def _of_instruction(
        self, scope: Scope, instruction: Instruction, loops: tuple[str, ...], with_work: bool
    ) -> Iterator[Step]:
        match instruction.opcode:
            case "while":
                yield from self._of_loop(scope, instruction, loops, with_work)
            case "conditional":
                inside = branches(scope, instruction)
                heaviest = self._work.heaviest(inside)
                for each in inside:
                    yield from self.visit(each, loops, with_work=with_work and each is heaviest)
            case opcode if opcode.removesuffix("-start") in COLLECTIVES:
                name = name_in_text(instruction)
                if self._left[name, loops]:
                    self._left[name, loops] -= 1
                    if added := self._added.get((name, loops)):
                        yield Work("add", op_name(instruction), 1, 0, added)
                    yield Move(name, loops)
            case opcode:
                for each in callees(scope, instruction):  # the work of a fusion is that of the whole
                    yield from self.visit(each, loops, with_work=with_work and opcode != "fusion")

    def _behind(self, body: Scope, loops: tuple[str, ...]) -> Iterator[Move]:
        """Yields the collectives of a loop's body that a compiler runs behind the loop."""
        for each in body.computation.instructions.values():
            name = name_in_text(each)
            if each.opcode in COLLECTIVES and self._left[name, loops]:
                self._left[name, loops] -= 1
                yield Move(name, loops)

    def _of_loop(self, scope: Scope, loop: Instruction, loops: tuple[str, ...], with_work: bool) -> Iterator[Step]:
        runs, name = loop_runs(scope, loop), name_in_text(loop)
        inside = (*loops, name)
        condition = tuple(self.visit(runs.condition, inside, with_work=with_work))
        body = tuple(self.visit(runs.body, inside, with_work=with_work))
        if condition or body:
            trips = runs.trip_count, condition, body, runs.body_runs, runs.condition_runs
            yield Loop(name, op_name(loop), *trips)
        yield from self._behind(runs.body, loops)


def _ordered(module: HloModule, computation: Computation) -> list[Piece | Instruction]:
    """Returns the pieces of work of a computation, and its other instructions that are no views: what something needs
    before it, else in the order of the text. An instruction that is a piece and has steps inside stands behind it."""
    operands = operands_of(module, computation)
    pieces = pieces_of(module, computation)
    part_of = {name: piece.names[-1] for piece in pieces for name in piece.names}
    number = {name: at for at, name in enumerate(operands)}
    needs: dict[str, set[str]] = {}
    users: dict[str, list[str]] = {}
    for name, read in operands.items():
        own = part_of.get(name, name)
        behind = {part_of.get(each, each) for each in (operand.partition("#")[0] for operand in read)} - {own}
        for each in behind - needs.setdefault(own, set()):
            needs[own].add(each)
            users.setdefault(each, []).append(own)
    steps: dict[str, list[Piece | Instruction]] = {name: [] for name in needs}
    for piece in pieces:
        steps[piece.names[-1]].append(piece)
    for name in operands:
        if name not in part_of or computation.instructions[name].opcode in ("fusion", "custom-call"):
            steps[part_of.get(name, name)].append(computation.instructions[name])
    return [step for name in _topological(needs, users, number) for step in steps[name]]


def _topological(needs: dict[str, set[str]], users: dict[str, list[str]], number: dict[str, int]) -> Iterable[str]:
    """Yields all names so that each comes behind what it needs, of several the one with the lowest number first.

    A loop that is made of ops before and behind another op needs that op, which needs the loop. Of such names the one
    with the lowest number goes first.
    """
    missing = {name: len(each) for name, each in needs.items()}
    ready = [(number[name], name) for name, count in missing.items() if not count]
    heapq.heapify(ready)
    waiting = sorted((name for name, count in missing.items() if count), key=lambda name: -number[name])
    while ready or waiting:
        if not ready:
            name = waiting.pop()
            if not missing[name]:
                continue
            missing[name] = 0
            ready = [(number[name], name)]
        _, name = heapq.heappop(ready)
        yield name
        for user in users.get(name, ()):
            if missing[user]:
                missing[user] -= 1
                if not missing[user]:
                    heapq.heappush(ready, (number[user], user))
