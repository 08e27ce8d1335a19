# SPDX-License-Identifier: Apache-2.0
"""The local work between start and end of each asynchronous collective of a scheduled program.

A device computes one op after the other, in the order of the schedule; what stands between the start of a collective
and its end runs beside it. Work hides one collective at a time, the one that started first, or a pair of permutes: they
go different ways. Of permutes that go the same way it hides the largest; a small one may start early and end late.
Loops and branches between the two count nothing.

A permute that is under way while the device waits for another one, which goes the other way round, moves on meanwhile:
they share no link. So one of such a pair is hidden by the other, as far as that one is waited for.

A collective that a TPU runs in pieces, inside of fusions, hides behind the work of these fusions alone, which moves it
on (`walk`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from reshard.synthesis.network.program_time import Hidden

from .collectives import CollectiveOp
from .text import Computation, HloModule, Instruction, parse_module
from .walk import START, STEP, AsyncPiece, async_pieces
from .work import pieces_of

_PERMUTE = "collective_permute"


def hidden_in(hlo_text: str, ops: Iterable[CollectiveOp]) -> tuple[Hidden, ...]:
    """Returns the collectives that something runs beside.

    Args:
      ops: the collectives of the program.

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
      >>> [(each.collective.kind, each.flops, each.bytes_moved) for each in hidden_in(text, collectives_in(text).ops)]
      [('collective_permute', 1024, 768)]
    """
    module = parse_module(hlo_text)
    if not module.is_scheduled:
        return ()
    by_name: dict[str, list[CollectiveOp]] = {}
    for op in ops:
        by_name.setdefault(op.name, []).append(op)
    found: list[Hidden] = []
    for computation in module.computations.values():
        place: dict[str, int] = {}
        for each in _between(module, computation, by_name):
            place[each.name] = len(found)
            beside = each.flops, each.bytes_moved, place[each.awaited] if each.awaited else None
            found += [Hidden(op.collective, *beside) for op in by_name[each.name]]
    return tuple(found)


@dataclass
class _UnderWay:
    """A collective that has started, the work that runs beside it so far, and the name of the permute that was awaited
    meanwhile, which goes the other way round."""

    name: str
    flops: int = 0
    bytes_moved: int = 0
    awaited: str = ""

    def add(self, work: tuple[int, int]) -> None:
        self.flops, self.bytes_moved = self.flops + work[0], self.bytes_moved + work[1]

    @property
    def is_hidden(self) -> bool:
        return bool(self.flops or self.bytes_moved or self.awaited)


def _between(module: HloModule, computation: Computation, ops: dict[str, list[CollectiveOp]]) -> Iterator[_UnderWay]:
    """Yields the collectives of a computation that something runs beside, each at its end."""
    running: dict[str, _UnderWay] = {}
    pieces: dict[int, _UnderWay] = {}  # by channel
    works = {piece.names[-1]: (piece.flops, piece.bytes_moved) for piece in pieces_of(module, computation)}
    for each in computation.instructions.values():
        if in_fusion := async_pieces(module, each):
            yield from _moved_on(in_fusion, works.get(each.name, (0, 0)), pieces, ops)
            continue
        if name := _started(module, each, ops):
            running[each.name] = _UnderWay(name)
        elif each.opcode.endswith("-done"):
            op = running.pop(each.operands[0].partition("#")[0], None)
            if op is None:
                continue
            if _hides_another(op, running.values(), ops) or op.is_hidden:
                yield op
        elif running and (work := works.get(each.name)):
            for start in _hidden_by(running, ops):
                running[start].add(work)


def _moved_on(
    in_fusion: Iterable[AsyncPiece],
    work: tuple[int, int],
    pieces: dict[int, _UnderWay],
    ops: dict[str, list[CollectiveOp]],
) -> Iterator[_UnderWay]:
    """Moves collectives on that run in pieces, inside of a fusion with some work, and yields those that end."""
    for piece in in_fusion:
        op = pieces.pop(piece.channel, None)
        if piece.role == START and piece.name in ops:
            pieces[piece.channel] = _UnderWay(piece.name)
        elif piece.role == STEP and op:
            op.add(work)
            pieces[piece.channel] = op
        elif op and op.is_hidden:
            yield op


def _hides_another(op: _UnderWay, others: Iterable[_UnderWay], ops: dict[str, list[CollectiveOp]]) -> bool:
    """Notes at a permute that is under way the other way round that the device waits for this one now, and returns
    whether there is one."""
    around = {(b, a) for a, b in ops[op.name][0].collective.pairs}
    for other in others:
        if around and not other.awaited and set(ops[other.name][0].collective.pairs) == around:
            other.awaited = op.name
            return True
    return False


def _started(module: HloModule, instruction: Instruction, ops: dict[str, list[CollectiveOp]]) -> str:
    """Returns the name of the collective that an instruction starts; "" if it starts none."""
    if not instruction.opcode.endswith("-start"):
        return ""
    if instruction.name in ops:
        return instruction.name
    callee = instruction.callee("calls")
    inside = module.computations[callee].instructions if callee in module.computations else {}
    return next((name for name in inside if name in ops), "")


def _hidden_by(running: dict[str, _UnderWay], ops: dict[str, list[CollectiveOp]]) -> list[str]:
    """Returns the collectives behind which work that runs now is hidden."""
    of_way: dict[object, str] = {}  # the largest of those that go one way, in the order in which ways are first taken
    for start, each in running.items():
        collective = ops[each.name][0].collective
        way = collective.pairs if collective.kind == _PERMUTE else start
        largest = of_way.setdefault(way, start)
        if collective.bytes_before > ops[running[largest].name][0].collective.bytes_before:
            of_way[way] = start
    first, *others = of_way.values()
    collective = ops[running[first].name][0].collective
    if collective.kind != _PERMUTE:
        return [first]
    for other in others:
        beside = ops[running[other].name][0].collective
        if beside.kind == _PERMUTE and beside.pairs != collective.pairs:
            return [first, other]
    return [first]
