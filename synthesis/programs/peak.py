# SPDX-License-Identifier: Apache-2.0
"""The modelled peak of a tile program: the most bytes that a device holds at once, as XLA allocates them.

The source tile and the result are allocated from beginning to end. Besides them there are *temporaries*. For each
operation that copies, these are its operand (unless that is the source tile), its result (unless that is the result of
the program), and the memory that the operation itself needs:

| operation | temporaries of its own |
|---|---|
| all_to_all | the n pieces that leave and the n that arrive, in place of operand and result; |
|            | if the program has pieces of several sizes, the largest piece once, from beginning to end |
| exchange | the pieces of all rounds, which XLA starts before it writes the first piece, and one that leaves; |
|          | or, in place of that one, the result again, if a device keeps old elements in some round: XLA copies |
| loop | the temporaries of its body on one chunk, the chunk, and the chunk's result; |
|      | its result, if a reshape after it ends in dimensions of size 1: XLA places such arrays elsewhere and copies; |
|      | the source tile, if it is padded: XLA fills the padding in a copy, and cannot fuse that copy with a loop |
| to_unreduced of owned digits | its result, which XLA copies if it is the last one |
| others | none |

A reshape copies nothing. XLA fuses copies, and uses the memory of the result for temporaries until the result is
written. So this model is an upper bound, except for alignment and a few tables of numbers. `benchmarks/peaks.py`
compares it with XLA's buffer assignment on CPU.
"""

from __future__ import annotations

import itertools
import math

from .exchange import Exchange
from .tile_program import Loop, On, PutOwn, Reshape, Rounds, Swap, TileProgram, shape_after


def peak_bytes(program: TileProgram, bits: int, *, is_padded: bool = False) -> int:
    """Returns the most bytes that a device holds at once. For a program without operations these are the source tile's.

    Args:
      bits: the bits of one element.
      is_padded: whether the source tiles reach beyond the end of the array. It matters only for programs with a loop.
    """
    source, target = (_bytes(math.prod(shape), bits) for shape in (program.in_shape, program.out_shape))
    if not program.operations:
        return source
    filled = source if is_padded and any([isinstance(each, Loop) for each in program.operations]) else 0
    return source + target + filled + _temporary_bytes(program, bits, holds_ends=False)


def _temporary_bytes(program: TileProgram, bits: int, holds_ends: bool) -> int:
    """Returns the most bytes that temporaries take at once.

    Args:
      holds_ends: whether the first operand and the last result are temporaries too, as they are in the body of a loop.
    """
    held, pieces = _held_by_operation(program, bits, holds_ends)
    return max(held, default=0) + pieces


def temporary_bytes_by_step(program: TileProgram, bits: int) -> tuple[int, ...]:
    """Returns the most bytes that temporaries take in each step of a program.

    `peak_bytes` is the largest of these plus the source tile and the result. The memory for pieces of several sizes
    counts in every step, since XLA keeps it from beginning to end.
    """
    held, pieces = _held_by_operation(program, bits, holds_ends=False)
    found, at = [], 0
    for _, operations in program.steps:
        own = held[at : at + len(operations)]
        found.append(max(own, default=0) + pieces)
        at += len(operations)
    return tuple(found)


def _held_by_operation(program: TileProgram, bits: int, holds_ends: bool) -> tuple[list[int], int]:
    """Returns the bytes of the temporaries of each operation, and the bytes kept for pieces of several sizes."""
    copying = [i for i, operation in enumerate(program.operations) if not isinstance(operation, (Reshape, On))]
    before = _bytes(math.prod(program.in_shape), bits)
    operand = before if holds_ends else 0
    found, shape, pieces = [], program.in_shape, set()
    for i, operation in enumerate(program.operations):
        shape = shape_after(operation, shape)
        if isinstance(operation, (Reshape, On)):
            found.append(0)
            continue
        after = _bytes(math.prod(shape), bits)
        result = 0 if i == copying[-1] and not holds_ends else after
        match operation:
            case Swap(factors):
                held = 2 * before
                pieces.add(-(-before // math.prod(factor.size for factor in factors)))
            case Rounds(exchange):
                held = operand + result + _exchange_bytes(exchange, after, bits)
            case PutOwn():
                held = operand + after
            case Loop(body=body):
                copied = after if shape != program.out_shape and has_inner_one(program.out_shape) else 0
                held = operand + result + copied + _temporary_bytes(body, bits, holds_ends=True)
            case _:
                held = operand + result
        found.append(held)
        operand, before = result, after
    return found, max(pieces) if len(pieces) > 1 else 0


def has_inner_one(shape: tuple[int, ...]) -> bool:
    """Returns whether a dimension of size 1 comes after a larger one."""
    sizes = list(itertools.dropwhile(lambda size: size == 1, shape))
    return 1 in sizes


def exchange_peak_bytes(exchange: Exchange, bits: int) -> int:
    """Returns the peak of a plan that is nothing but this exchange."""
    source, target = (_bytes(end.tile_elements, bits) for end in (exchange.source, exchange.target))
    return source + target + _exchange_bytes(exchange, target, bits)


def _exchange_bytes(exchange: Exchange, result: int, bits: int) -> int:
    """Returns the bytes of all pieces that arrive and of one that leaves, or of the copied result."""
    sizes = [each.piece_elements for each in exchange.rounds]
    arrived, leaving = _bytes(sum(sizes), bits), _bytes(max(sizes, default=0), bits)
    return arrived + max(leaving, result if _keeps_some(exchange) else 0)


def _keeps_some(exchange: Exchange) -> bool:
    """Returns whether in some round a device writes no piece, or only a part of its window."""
    return any(not each.is_exact or len(each.receivers) < exchange.source.devices for each in exchange.rounds)


def _bytes(elements: int, bits: int) -> int:
    return -(-elements * bits // 8)
