# SPDX-License-Identifier: Apache-2.0
"""The local work between start and end of each asynchronous collective of a scheduled program.

A device computes one op after the other, in the order of the schedule; what stands between the start of a collective
and its end runs beside it. Work hides one collective at a time, the one that started first, or a pair of permutes: they
go different ways. Loops and branches between the two count nothing.

A collective that a TPU runs in pieces, inside of fusions, hides behind the work of these fusions alone, which moves it
on (`walk`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from reshard.synthesis.network.program_time import Hidden

from .collectives import CollectiveOp
from .text import Computation, HloModule, Instruction, parse_module
from .walk import START, STEP, async_pieces
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
    return tuple(
        Hidden(op.collective, flops, moved)
        for computation in module.computations.values()
        for start, (flops, moved) in _between(module, computation, by_name)
        for op in by_name[start]
    )


def _between(
    module: HloModule, computation: Computation, ops: dict[str, list[CollectiveOp]]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yields the name of each collective of a computation and the work that runs beside it, if there is any."""
    running: dict[str, tuple[str, int, int]] = {}
    pieces: dict[int, tuple[str, int, int]] = {}  # by channel
    works = {piece.names[-1]: (piece.flops, piece.bytes_moved) for piece in pieces_of(module, computation)}
    for each in computation.instructions.values():
        for piece in (in_fusion := async_pieces(module, each)):
            name, flops, moved = pieces.pop(piece.channel, ("", 0, 0))
            if piece.role == START and piece.name in ops:
                pieces[piece.channel] = piece.name, 0, 0
            elif piece.role == STEP and name:
                more_flops, more_moved = works.get(each.name, (0, 0))
                pieces[piece.channel] = name, flops + more_flops, moved + more_moved
            elif flops or moved:
                yield name, (flops, moved)
        if in_fusion:
            continue
        if name := _started(module, each, ops):
            running[each.name] = name, 0, 0
        elif each.opcode.endswith("-done"):
            name, flops, moved = running.pop(each.operands[0].partition("#")[0], ("", 0, 0))
            if flops or moved:
                yield name, (flops, moved)
        elif running and (work := works.get(each.name)):
            for start in _hidden_by(running, ops):
                name, flops, moved = running[start]
                running[start] = name, flops + work[0], moved + work[1]


def _started(module: HloModule, instruction: Instruction, ops: dict[str, list[CollectiveOp]]) -> str:
    """Returns the name of the collective that an instruction starts; "" if it starts none."""
    if not instruction.opcode.endswith("-start"):
        return ""
    if instruction.name in ops:
        return instruction.name
    callee = instruction.callee("calls")
    inside = module.computations[callee].instructions if callee in module.computations else {}
    return next((name for name in inside if name in ops), "")


def _hidden_by(running: dict[str, tuple[str, int, int]], ops: dict[str, list[CollectiveOp]]) -> list[str]:
    """Returns the collectives behind which work that runs now is hidden."""
    first, *others = running
    collective = ops[running[first][0]][0].collective
    if collective.kind != _PERMUTE:
        return [first]
    for other in others:
        beside = ops[running[other][0]][0].collective
        if beside.kind == _PERMUTE and beside.pairs != collective.pairs:
            return [first, other]
    return [first]
