# SPDX-License-Identifier: Apache-2.0
"""The modelled peak of a tile program: what a device holds at once, as XLA allocates it.

The caller's source tile and the result are there all the time. In between come *temporaries*: of each operation that copies,
the operand unless it is the source tile, the result unless it is the last one, and what the operation needs itself:

| operation | temporaries of its own |
|---|---|
| all_to_all | its operand cut into n pieces and as many that arrive, where operand and result are gone or not yet there; |
|            | one piece, where a program has pieces of several sizes, whose places do not fit each other |
| exchange | the pieces of all rounds, which XLA starts before it writes the first one down, and one on its way out; |
|          | or its result once more, where some device keeps what it has in a round: XLA writes that into a copy |
| loop | those of its body on one chunk, with the chunk and its result; |
|      | its result, where a reshape behind it ends in dimensions of size 1: XLA puts these elsewhere in memory, and copies |
|      | the source tile, if it is padded: XLA fills its padding in a copy, which no step of a loop can take in |
| to_unreduced of owned digits | its result, which XLA copies if it is the last one |
| others | none |

A reshape is no copy. XLA fuses copies, and shares the memory of the result while it is not written yet, so this is an upper
bound up to alignment and a few tables of numbers; `benchmarks/peaks.py` holds it against XLA's buffer assignment on CPU.
"""

from __future__ import annotations

import itertools
import math

from .exchange import Exchange
from .tile_program import Loop, On, PutOwn, Reshape, Rounds, Swap, TileProgram, shape_after


def peak_bytes(program: TileProgram, bits: int, *, is_padded: bool = False) -> int:
    """Returns the most that a device holds at once, in bytes. No operation: the source tile alone.

    Args:
      bits: of one element. is_padded: whether the source's tiles reach beyond the array's end, of interest where there is a loop.
    """
    source, target = (_bytes(math.prod(shape), bits) for shape in (program.in_shape, program.out_shape))
    if not program.operations:
        return source
    filled = source if is_padded and any([isinstance(each, Loop) for each in program.operations]) else 0
    return source + target + filled + _temporary_bytes(program, bits, holds_ends=False)


def _temporary_bytes(program: TileProgram, bits: int, holds_ends: bool) -> int:
    """Returns the most that temporaries take.

    Args:
      holds_ends: whether the first operand and the last result are temporaries too, as in the body of a loop.
    """
    held, pieces = _held_by_operation(program, bits, holds_ends)
    return max(held, default=0) + pieces


def temporary_bytes_by_step(program: TileProgram, bits: int) -> tuple[int, ...]:
    """Returns the most that temporaries take in each step of a program; `peak_bytes` is the largest of these and the two ends.

    The place of pieces of several sizes counts in every step: it is there all the time.
    """
    held, pieces = _held_by_operation(program, bits, holds_ends=False)
    found, at = [], 0
    for _, operations in program.steps:
        own = held[at : at + len(operations)]
        found.append(max(own, default=0) + pieces)
        at += len(operations)
    return tuple(found)


def _held_by_operation(program: TileProgram, bits: int, holds_ends: bool) -> tuple[list[int], int]:
    """Returns what the temporaries of each operation take, and what pieces of several sizes take beside them."""
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
    """Returns whether a dimension of size 1 lies behind a larger one."""
    sizes = list(itertools.dropwhile(lambda size: size == 1, shape))
    return 1 in sizes


def _exchange_bytes(exchange: Exchange, result: int, bits: int) -> int:
    """Returns the bytes of the pieces that all arrive before they are written, with one that leaves, or the copied result."""
    sizes = [each.piece_elements for each in exchange.rounds]
    arrived, leaving = _bytes(sum(sizes), bits), _bytes(max(sizes, default=0), bits)
    return arrived + max(leaving, result if _keeps_some(exchange) else 0)


def _keeps_some(exchange: Exchange) -> bool:
    """Returns whether a device writes no piece in some round, or a part of one: what it holds there is read, and the rest written."""
    return any(not each.is_exact or len(each.receivers) < exchange.source.devices for each in exchange.rounds)


def _bytes(elements: int, bits: int) -> int:
    return -(-elements * bits // 8)
