# SPDX-License-Identifier: Apache-2.0
"""The bytes that an HLO program copies on each device."""

from math import gcd, prod

from reshard.synthesis.programs.tile_program import Copies

from .text import (
    Computation,
    Instruction,
    dimensions_of,
    dtype_bits,
    parse_module,
    shape_arrays,
    shape_bytes,
    sizes_of,
)

LINE_BYTES = 64
CACHE_SETS, CACHE_WAYS = 2048, 8  # 1 MiB, a common second level; loops of XLA's CPU backend do not work in tiles
_COPYING = ("concatenate", "copy", "dynamic-update-slice", "gather", "pad", "reverse", "scatter", "select")
_SLICES = ("slice", "dynamic-slice")
_VIEWS = ("bitcast", "reshape")
_BRANCHING = ("while", "conditional", "call", "fusion")


def copies_in(hlo_text: str) -> Copies | None:
    """Returns the bytes that a device copies in its own memory, for a program that only moves data.

    The rules are those for the plans of this project. Transposes count, several in a row once, and so do copies,
    concatenations, padding and the like. Reshapes do not count; of a transpose that a slice follows, only what the
    slice keeps counts. Slices count by themselves, as plans count them, but for those of tables of constants.
    Collectives work on contiguous memory, so one along another dimension than the leading one needs copies too: of an
    all-to-all's operand, and of the result.

    Returns: None if the program has branches.

    Raises: ValueError if the text has no entry computation.

    Example:
      >>> copies_in('''HloModule m, num_partitions=4
      ... ENTRY %main (p: f32[8,4]) -> f32[4,8] {
      ...   %p = f32[8,4]{1,0} parameter(0)
      ...   ROOT %t = f32[4,8]{1,0} transpose(%p), dimensions={1,0}
      ... }''').relaid
      128
    """
    entry = parse_module(hlo_text).entry
    if any(each.opcode in _BRANCHING for each in entry.instructions.values()):
        return None
    return sum((_copies(entry, each) for each in entry.instructions.values()), Copies())


def _copies(within: Computation, instruction: Instruction) -> Copies:
    written, sliced = 0, 0
    match instruction.opcode:
        case "transpose":
            written = 0 if _keeps_order(within, instruction) else _bytes_put_in_order(within, instruction)
        case "all-to-all" if not _is_along_leading_dimension(within, instruction):
            operand_bytes = shape_bytes(within.shape_of(instruction.operands[0]))
            return Copies(relaid=_bytes_put_in_order(within, instruction), relaid_before=operand_bytes)
        case "all-gather" if not _is_along_leading_dimension(within, instruction):
            written = _bytes_put_in_order(within, instruction)
        case opcode if opcode in _COPYING:
            written = shape_bytes(instruction.shape)
        case opcode if opcode in _SLICES and not _is_constant(within, instruction.operands[0]):
            sliced = shape_bytes(instruction.shape)
    is_before = bool(written or sliced) and _is_before_all_to_all(within, instruction)
    return Copies(0, 0, written, sliced) if is_before else Copies(written, sliced)


def _is_constant(within: Computation, name: str) -> bool:
    while (found := within.instructions.get(name)) is not None and found.opcode in _VIEWS:
        name = found.operands[0]
    return found is not None and found.opcode == "constant"


def _is_before_all_to_all(within: Computation, instruction: Instruction) -> bool:
    """Returns whether the result goes to an all-to-all and nowhere else, with only copies on the way."""
    user = instruction
    while True:
        users = [each for each in within.instructions.values() if user.name in each.operands]
        if len(users) != 1:
            return False
        user = users[0]
        if user.opcode == "all-to-all":
            return True
        if user.opcode not in (*_VIEWS, *_SLICES, "transpose", "copy"):
            return False


def _bytes_put_in_order(within: Computation, instruction: Instruction) -> int:
    """Returns the bytes that are copied behind a collective or by a transpose.

    If its only user is a slice, these are the bytes of the slice. A transpose that uses it is charged by itself, and
    brings the result into order on the way: compilers make one loop of both. The same holds for an operand that is
    copied before an all-to-all.
    """
    user = instruction
    while user is instruction or _is_view(within, user):
        users = [each for each in within.instructions.values() if user.name in each.operands]
        if len(users) != 1:
            return shape_bytes(instruction.shape)
        user = users[0]
    if user.opcode == "transpose" or user.opcode == "all-to-all" and not _is_along_leading_dimension(within, user):
        return 0
    return shape_bytes((user if user.opcode in _SLICES else instruction).shape)


def _is_view(within: Computation, instruction: Instruction) -> bool:
    return instruction.opcode in _VIEWS or instruction.opcode == "transpose" and _keeps_order(within, instruction)


def _keeps_order(within: Computation, transpose: Instruction) -> bool:
    """Returns whether only dimensions of size 1 change their place."""
    sizes = sizes_of(within.shape_of(transpose.operands[0]))
    moved = [dim for dim in dimensions_of(transpose) if sizes[dim] > 1]
    return moved == sorted(moved)


def reads_of_lines(within: Computation, move: Instruction) -> float:
    """Returns how often a loop reads the memory of its operand, for a copy or transpose in the order of its result.

    It is 1 if a line of memory is used up before it has left the cache, else the lines read for the bytes of one.

    Example: the rows of 2,048 x 4,096 become columns. Between two elements of a line the loop reads 2,047 other lines.
      >>> entry = parse_module('''HloModule m
      ... ENTRY %main (p: f32[2048,4096]) -> f32[2048,4096] {
      ...   %p = f32[2048,4096]{1,0} parameter(0)
      ...   ROOT %c = f32[2048,4096]{0,1} copy(%p)
      ... }''').entry
      >>> reads_of_lines(entry, entry.instructions["c"])
      16.0
    """
    (before,), (after,) = shape_arrays(within.shape_of(move.operands[0])), shape_arrays(move.shape)
    dims = dimensions_of(move) if move.opcode == "transpose" else range(len(after.sizes))
    held = [dim for dim in before.minor_to_major if before.sizes[dim] > 1]
    taken = [dims[dim] for dim in after.minor_to_major if after.sizes[dim] > 1]
    same = next((count for count, (one, other) in enumerate(zip(held, taken)) if one != other), len(held))
    if same == len(held):
        return 1.0
    run_bytes = max(1, prod(before.sizes[dim] for dim in held[:same]) * dtype_bits(before.dtype) // 8)
    between = taken[same : taken.index(held[same])]
    steps = [run_bytes * prod(before.sizes[dim] for dim in held[same : held.index(each)]) for each in between]
    lines = prod(before.sizes[dim] for dim in between)
    return 1.0 if lines <= _lines_kept(steps) else max(1.0, LINE_BYTES / run_bytes)


def bytes_beside_updates(within: Computation, update: Instruction) -> int:
    """Returns the bytes of lines of memory that an in-place update has to read and write beside its own ones.

    Rows of an update that are shorter than a line lie in lines with elements of others.

    Example: rows of 8 floats in rows of 16, which have a line each.
      >>> entry = parse_module('''HloModule m
      ... ENTRY %main (p: f32[64,16], u: f32[64,8], i: s32[]) -> f32[64,16] {
      ...   %p = f32[64,16]{1,0} parameter(0)
      ...   %u = f32[64,8]{1,0} parameter(1)
      ...   %i = s32[] parameter(2)
      ...   ROOT %d = f32[64,16]{1,0} dynamic-update-slice(%p, %u, %i, %i)
      ... }''').entry
      >>> bytes_beside_updates(entry, entry.instructions["d"]) == 2 * 64 * 8 * 4
      True
    """
    (array,), (part,) = shape_arrays(update.shape), shape_arrays(within.shape_of(update.operands[1]))
    row_bytes = apart = dtype_bits(array.dtype) / 8
    for dim in array.minor_to_major:
        row_bytes, apart = row_bytes * part.sizes[dim], apart * array.sizes[dim]
        if part.sizes[dim] != array.sizes[dim]:
            break
    beside = min(LINE_BYTES, apart) - row_bytes
    return 2 * round(part.bytes * beside / row_bytes) if row_bytes and beside > 0 else 0


def _lines_kept(steps: list[int]) -> int:
    """Returns how many lines a cache keeps of those at multiples of some steps in bytes: powers of 2 share its sets."""
    apart = gcd(CACHE_SETS, *(max(1, step // LINE_BYTES) for step in steps))
    return CACHE_WAYS * CACHE_SETS // apart


def _is_along_leading_dimension(within: Computation, collective: Instruction) -> bool:
    """Returns whether all dimensions before the one that the collective works along have size 1; tuples have none."""
    return all(prod(sizes_of(within.shape_of(collective.operands[0]))[:dim]) == 1 for dim in dimensions_of(collective))


def _is_in_place(operand_bytes: list[int], instruction: Instruction) -> bool:
    """A collective-permute with `slice_sizes` takes (input, output, offsets...) and moves a slice of the input."""
    return len(operand_bytes) > 1 and "slice_sizes=" in instruction.attributes
