# SPDX-License-Identifier: Apache-2.0
"""Arrays that a loop copies slice by slice, unchanged or with a part of each slice written: no copy is made.

    %copy = stablehlo.while(%i = 0, %stack = zeros)   // as many turns as %array has slices
      %slice = dynamic_slice %array, %i
      dynamic_update_slice %stack, %slice, %i         // all of %stack is %array

    %copy = stablehlo.while(%i = 0, %stack = zeros)   ==>   stablehlo.while(%i = 0, %stack = %array)
      %slice = dynamic_slice %array, %i                       the same
      %new = dynamic_update_slice %slice, %part, %at          the same, for who reads it
      dynamic_update_slice %stack, %new, %i                   dynamic_update_slice %stack, %part, %i, %at

A `scan` over the layers of a model has both forms if it takes caches and returns them: that of a prompt as it is, and
that of what is decoded with one token more. An array that is not changed keeps its layout, whatever the layout is in
which the loop reads it, and of one that is changed no more than the part moves (`kept_states.py`). If the loop reads it
in the layout of the stack, `read_in_place` makes it read the stack, so that there is one array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..ir.loop_trips import constant_integer, counts_turns, known_trips_of
from ..ir.ops import (
    CONSTRAINTS,
    LOOPS,
    bits_of,
    is_inside,
    ops_around,
    ops_in,
    owner_of_argument,
    producer_of,
    terminator_of,
)
from ..platform.bindings import ir, stablehlo
from ..platform.typed import present
from ..shardings.sdy_shardings import states_nothing
from .notes import IN_PLACE, UNCOPIED, Note, note
from .serials import own_location

_SLICE, _UPDATE, _RESHAPE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice", "stablehlo.reshape"


@dataclass(frozen=True, slots=True)
class Stack:
    """A result of a loop that is made of slices of an array.

    Attributes:
      loop, number: which result it is. cut: takes the slice of a turn. update: writes it, or a part of it.
      written: writes a part of the slice, for who reads it; None if nothing does.
    """

    loop: ir.Operation
    number: int
    cut: ir.Operation
    update: ir.Operation
    written: ir.Operation | None

    @property
    def array(self) -> ir.Value:
        """Returns the array before constraints that state nothing, as they are where a loop takes it."""
        value = self.cut.operands[0]
        while (op := producer_of(value)) is not None and _is_open_constraint(op):
            value = op.operands[0]
        return value


def copy_no_stacks(module: ir.Operation, notes: list[Note]) -> list[Stack]:
    """Changes the loops of a module, a clone before propagation, and what uses their results.

    Args:
      notes: what is done is noted there.
    Returns: the stacks of which parts are written in place.
    """
    found: list[Stack] = []
    for loop in [op for op in ops_in(module) if op.name in LOOPS]:
        for stack in list(_stacks(loop)):
            kind = stack.array.type
            if stack.written is None:
                text = f"{kind} leaves the loop as it came, slice by slice: it is not copied"
                notes.append(note(stack.update, UNCOPIED, text))
                loop.results[stack.number].replace_all_uses_with(stack.array)
            elif stack.written in [each.written for each in found]:
                continue  # of two stacks of the same slices one is read
            elif (new := _written_in_place(stack, stack.written)) is not None:
                notes.append(note(new.update, IN_PLACE, f"{kind} is written in place, a part of a slice in each turn"))
                found.append(new)
    return found


def _stacks(loop: ir.Operation) -> Iterator[Stack]:
    """Yields the results of a loop that are such stacks."""
    body = loop.regions[1].blocks[0]
    for number, value in enumerate(terminator_of(body).operands):
        update = producer_of(value)
        if update is None or update.name != _UPDATE or update.operands[0] != body.arguments[number]:
            continue
        slice_type = update.operands[1].type
        cut, written = producer_of(_unshaped(update.operands[1])), None
        if cut is not None and cut.name == _UPDATE:
            cut, written = producer_of(_unshaped(cut.operands[0])), cut
        if cut is None or cut.name != _SLICE or cut.results[0].type != slice_type or cut.block != body:
            continue
        array = cut.operands[0]
        if array.type != loop.results[number].type or is_inside(array, loop):
            continue
        starts = list(cut.operands)[1:], list(update.operands)[2:]
        if all(_is_turn_by_turn(loop, slice_type, array.type, each) for each in starts):
            yield Stack(loop, number, cut, update, written)


def _unshaped(value: ir.Value) -> ir.Value:
    """Returns what a value is before reshapes and changes of layout."""
    while (op := producer_of(value)) is not None and op.name in CONSTRAINTS | {_RESHAPE}:
        value = op.operands[0]
    return value


def _is_open_constraint(op: ir.Operation) -> bool:
    return op.name in CONSTRAINTS and states_nothing(op.attributes["sharding"])


# Slices, turn by turn


def _is_turn_by_turn(loop: ir.Operation, part: ir.Type, whole: ir.Type, starts: Sequence[ir.Value]) -> bool:
    """Returns whether starts of slices, one in each turn, make up a whole array, each part once and in order."""
    kinds = ir.RankedTensorType(part), ir.RankedTensorType(whole)
    if not all(each.has_static_shape for each in kinds):
        return False
    sizes = zip(*(each.shape for each in kinds), starts, strict=True)
    cut = [(taken, size, start) for taken, size, start in sizes if taken < size]
    if len(cut) != 1:
        return False
    ((taken, size, start),) = cut
    return taken == 1 and size == known_trips_of(loop) and size < 1 << bits_of(start.type) - 1 and _is_turn(loop, start)


def _is_turn(loop: ir.Operation, start: ir.Value) -> bool:
    """Returns whether a value is the number of the turn, counted from 0, in a form that jax has for indices."""
    op = producer_of(start)
    if op is not None and op.name == "stablehlo.select":  # of one below 0 and of any other
        compare = producer_of(op.operands[0])
        if compare is None or compare.name != "stablehlo.compare" or compare.operands[0] != op.operands[2]:
            return False
        is_below_0 = "LT" in str(compare.attributes["comparison_direction"])
        return is_below_0 and constant_integer(compare.operands[1]) == 0 and _is_turn(loop, op.operands[2])
    if op is not None or owner_of_argument(start) != loop or ir.BlockArgument(start).owner != loop.regions[1].blocks[0]:
        return False
    return counts_turns(loop, ir.BlockArgument(start).arg_number)


# Parts of slices


def _written_in_place(stack: Stack, written: ir.Operation) -> Stack | None:
    """Makes a loop begin with the array and write parts of it; None if it cannot.

    What is computed of the slice itself is not written so: XLA's CPU compiler may overwrite rows that it reads later
    (docs/miscompilations.md).
    """
    update, part = stack.update, written.operands[1]
    if (placed := _placed(stack, written)) is None or len(_uses_in(stack.loop, stack.cut.operands[0])) > 1:
        return None
    if _follows(part, stack.cut) or not _is_only_written(stack):
        return None
    carried = stack.loop.regions[1].blocks[0].arguments[stack.number]
    starts, shape = placed
    stack.loop.operands[stack.number] = stack.array
    with ir.InsertionPoint(written), own_location(written):
        kind = ir.RankedTensorType.get(shape, ir.RankedTensorType(part.type).element_type)
        flat = stablehlo.ReshapeOp(kind, part).result
        new = ir.Operation.create(_UPDATE, [carried.type], [carried, flat, *starts], loc=update.location)
    between = producer_of(update.operands[1])
    update.results[0].replace_all_uses_with(new.results[0])
    update.erase()
    _erase_unused(between, until=written)
    return replace(stack, update=new)


def read_in_place(stack: Stack) -> None:
    """Makes a loop read a stack that it writes in place, and not the array that this begins with.

    No turn writes what a later one reads: each cuts its slice out of the stack before it writes to it.
    """
    cut, written = stack.cut, present(stack.written)
    cut.operands[0] = stack.loop.regions[1].blocks[0].arguments[stack.number]
    with ir.InsertionPoint(written):
        again = cut.clone().operation
        again.operands[0] = stack.update.results[0]
        layer = stablehlo.ReshapeOp(written.results[0].type, again.results[0], loc=written.location).result
    written.results[0].replace_all_uses_with(layer)
    _erase_unused(written, until=cut)
    if list(cut.results[0].uses):
        again.location = own_location(cut)  # the serial is of one op
    else:
        cut.erase()


def _is_only_written(stack: Stack) -> bool:
    """Returns whether nothing in a loop reads the stack: not what it begins with, and not what a turn leaves in it."""
    condition, body = (region.blocks[0] for region in stack.loop.regions)
    uses = [list(each.arguments[stack.number].uses) for each in (condition, body)]
    ends = [use.owner.operation for use in stack.update.results[0].uses]
    return not uses[0] and [use.owner.operation for use in uses[1]] == [stack.update] and ends == [terminator_of(body)]


def _placed(stack: Stack, written: ir.Operation) -> tuple[list[ir.Value], list[int]] | None:
    """Returns where a part is written to in the stack, and its shape there; None if the slice that is written to has
    other dimensions, or the part no elements."""
    starts, own = list(stack.cut.operands)[1:], list(written.operands)[2:]
    part, places = ir.RankedTensorType(written.operands[1].type).shape, _places(stack, written)
    is_alike = all(each.type == starts[0].type for each in own) and written.block == stack.cut.block
    if places is None or not is_alike or 0 in part:
        return None
    shape = [1] * len(starts)
    for place, dim in places.items():
        starts[place], shape[place] = own[dim], part[dim]
    return starts, shape


def _long(kind: ir.Type) -> list[tuple[int, int]]:
    """Returns the dimensions of more than one element, and their sizes."""
    return [(dim, size) for dim, size in enumerate(ir.RankedTensorType(kind).shape) if size != 1]


def _places(stack: Stack, written: ir.Operation) -> dict[int, int] | None:
    """Returns for each dimension of the stack that has more than one element in a slice which dimension that is of what
    is written to; None if they are not alike."""
    one, other = (_long(each.results[0].type) for each in (stack.cut, written))
    if [size for _, size in one] != [size for _, size in other]:
        return None
    return {place: dim for (place, _), (dim, _) in zip(one, other, strict=True)}


def _follows(value: ir.Value, first: ir.Operation) -> bool:
    """Returns whether an op, or one in it, takes part in what is computed in its block for a value."""
    left, seen = [value], set()
    while left:
        op = producer_of(left.pop())
        if op is None or op in seen or first.block not in (op.block, *(each.block for each in ops_around(op))):
            continue
        if op == first:
            return True
        seen.add(op)
        left += [operand for each in ops_in(op) for operand in each.operands]
    return False


def _uses_in(loop: ir.Operation, value: ir.Value) -> list[ir.OpOperand]:
    return [use for use in value.uses if loop in ops_around(use.owner.operation)]


def _erase_unused(op: ir.Operation | None, until: ir.Operation) -> None:
    """Erases an op that nobody uses, and before it reshapes and changes of layout of which only it was a user."""
    while op is not None and op != until and not list(op.results[0].uses):
        before = producer_of(op.operands[0])
        op.erase()
        op = before if before is not None and before.name in CONSTRAINTS | {_RESHAPE} else None
