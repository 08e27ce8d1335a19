# SPDX-License-Identifier: Apache-2.0
"""Regions between custom calls that return tiles and custom calls that return arrays, as manual computations.

  %1 = custom_call @SPMDFullToShardShape(%0)         an entry: array to tile
  %2 = add %1, %1                                    inside
  %3 = custom_call @SPMDShardToFullShape(%2)         an exit: tile to array
==>
  %3 = sdy.manual_computation(%0) in_shardings=[...] out_shardings=[...] manual_axes={...} (%1: ...) {
    %2 = add %1, %1
    sdy.return %2
  }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir, sdy
from ..platform.typed import present

_CONSTANT_LIKE = frozenset({"stablehlo.constant", "stablehlo.iota", "sdy.constant", "chlo.constant"})
# The results of these ops are constants if their operands are constants.
_CHEAP = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert"})


class UnliftableError(ValueError):
    """A region that no manual computation can hold; `op` is the place, the message is the reason."""

    def __init__(self, op: ir.Operation, reason: str):
        super().__init__(reason)
        self.op = op


@dataclass
class Region:
    """Ops of one block that belong together, each list in the order of the block."""

    entries: list[ir.Operation] = field(default_factory=list)
    inner: list[ir.Operation] = field(default_factory=list)
    exits: list[ir.Operation] = field(default_factory=list)

    @property
    def ops(self) -> list[ir.Operation]:
        return [*self.entries, *self.inner, *self.exits]


def find_regions(
    block: ir.Block, is_entry: Callable[[ir.Operation], bool], is_exit: Callable[[ir.Operation], bool]
) -> list[Region]:
    """Returns the regions of a block: the ops that depend on an entry, up to the exits, and the ops that an exit needs.

    Raises: UnliftableError if a tile leaves its region otherwise than through an exit, or an array enters otherwise
    than through an entry.
    """
    ops = [op.operation for op in block.operations]
    roles = {op: _role(op, is_entry, is_exit) for op in ops}
    if not set(roles.values()) & {"entry", "exit"}:
        return []
    number_of: dict[ir.Value, int] = {result: number for number, op in enumerate(ops) for result in op.results}
    feeds = [sorted({number_of[value] for value in _values_from_outside(op) if value in number_of}) for op in ops]
    inside = _inside(ops, roles, feeds)
    _check(ops, roles, feeds, inside)
    return _connected(ops, roles, feeds, inside)


def lift(
    region: Region,
    in_shardings: Sequence[ir.Attribute],
    out_shardings: Sequence[ir.Attribute],
    manual_axes: Sequence[str],
) -> ir.Operation:
    """Replaces a region by a manual computation and returns the computation. Constants for the region are copied in.

    Args:
      in_shardings, out_shardings: one for each operand of the entries and each result of the exits, in order.
    Raises: UnliftableError, with the module unchanged, if no place in the block has all operands before and all users
    after it.
    """
    place = _place(region)
    operands = [value for entry in region.entries for value in entry.operands]
    results = [result for exit in region.exits for result in exit.results]
    with ir.InsertionPoint(place), place.location:
        computation = sdy.ManualComputationOp(
            [result.type for result in results],
            operands,
            sdy.TensorShardingPerValueAttr.get(list(in_shardings)),
            sdy.TensorShardingPerValueAttr.get(list(out_shardings)),
            sdy.ManualAxesAttr.get([ir.StringAttr.get(axis) for axis in manual_axes]),
        ).operation
    _move_into(computation, region, place.location)
    for result, new in zip(results, computation.results, strict=True):
        result.replace_all_uses_with(new)
    for op in [*region.exits, *region.entries]:
        op.erase()
    return computation


def _move_into(computation: ir.Operation, region: Region, location: ir.Location) -> None:
    """Moves the inner ops of a region into a manual computation, whose body has no block yet."""
    tiles = [result for entry in region.entries for result in entry.results]
    body = computation.regions[0].blocks.append(
        *[tile.type for tile in tiles], arg_locs=[tile.owner.location for tile in tiles]
    )
    for tile, argument in zip(tiles, body.arguments, strict=True):
        tile.replace_all_uses_with(argument)
    with ir.InsertionPoint(body), location:
        end = sdy.ReturnOp([value for exit in region.exits for value in exit.operands]).operation
    for op in region.inner:
        op.move_before(end)
    _copy_constants(body)


def inline(call: ir.Operation, function: ir.Operation) -> list[ir.Operation]:
    """Replaces a call by a copy of the function's body, and returns the ops of the copy."""
    copy = function.clone(ip=False).operation
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(block.arguments, call.operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, end = [op.operation for op in block.operations]
    for op in body:
        op.move_before(call)
    for result, value in zip(call.results, list(end.operands), strict=True):
        result.replace_all_uses_with(value)
    end.erase()
    call.erase()
    return body


def _role(op: ir.Operation, is_entry, is_exit) -> str:
    return "entry" if is_entry(op) else "exit" if is_exit(op) else ""


def _values_from_outside(op: ir.Operation) -> list[ir.Value]:
    """Returns the values that an op or an op in its regions uses, and that are defined outside of the op."""
    ops = ops_in(op)
    own = {result for each in ops for result in each.results}
    own |= {argument for each in ops for region in each.regions for block in region for argument in block.arguments}
    own -= set(op.results)
    return [value for each in ops for value in each.operands if value not in own]


def _inside(ops, roles, feeds) -> set[int]:
    """Returns the numbers of the ops that work on tiles: users of a tile, and producers for such users or for exits."""
    inside: set[int] = set()
    while True:
        before = len(inside)
        for number, op in enumerate(ops):
            if not roles[op] and any(source in inside or roles[ops[source]] == "entry" for source in feeds[number]):
                inside.add(number)
        for number in range(len(ops) - 1, -1, -1):
            if roles[ops[number]] == "exit" or number in inside:
                inside |= {
                    source for source in feeds[number] if not roles[ops[source]] and not _is_constant(ops[source])
                }
        if len(inside) == before:
            return inside


def _is_constant(op: ir.Operation) -> bool:
    """Returns whether an op may be copied into a region, together with all ops on which it depends."""
    if op.name in _CONSTANT_LIKE:
        return True
    owners = [value.owner for value in op.operands]
    return op.name in _CHEAP and all(
        not isinstance(owner, ir.Block) and _is_constant(owner.operation) for owner in owners
    )


def _check(ops, roles, feeds, inside: set[int]) -> None:
    if len(ops) - 1 in inside:
        raise UnliftableError(ops[-1], "a tile leaves the block other than through SPMDShardToFullShape")
    tiles = {
        result for number, op in enumerate(ops) if number in inside or roles[op] == "entry" for result in op.results
    }
    for number, op in enumerate(ops):
        if roles[op] == "entry" and any(value in tiles for value in op.operands):
            raise UnliftableError(op, "it takes a tile of what is a tile already")
        if roles[op] != "exit" and number not in inside:
            continue
        for value in _values_from_outside(op):
            owner = value.owner
            if value not in tiles and (isinstance(owner, ir.Block) or not _is_constant(owner.operation)):
                raise UnliftableError(op, "it works on a tile and on a value that is none")


def _connected(ops, roles, feeds, inside: set[int]) -> list[Region]:
    """Returns the regions: ops that share values other than constants, in the order of their first ops."""
    leader = list(range(len(ops)))

    def find(number: int) -> int:
        while leader[number] != number:
            number = leader[number]
        return number

    members = [number for number, op in enumerate(ops) if roles[op] or number in inside]
    for number in members:
        for source in feeds[number]:
            joins = source in inside or roles[ops[source]] == "entry"
            if roles[ops[number]] != "entry" and joins:
                first, second = sorted((find(number), find(source)))
                leader[second] = first
    regions: dict[int, Region] = {}
    for number in members:
        region = regions.setdefault(find(number), Region())
        role = roles[ops[number]]
        {"entry": region.entries, "exit": region.exits, "": region.inner}[role].append(ops[number])
    return list(regions.values())


def _place(region: Region) -> ir.Operation:
    """Returns the op before which the computation goes: the region's first exit, or its last op if it has no exit."""
    place = region.exits[0] if region.exits else _last(region.ops)
    for entry in region.entries:
        for owner in [value.owner for value in entry.operands]:
            if isinstance(owner, ir.Block) or owner.operation.block != place.block:
                continue
            if place.is_before_in_block(owner.operation):
                raise UnliftableError(entry, "its operand is computed after the first result of its region")
    return place


def _last(ops: Sequence[ir.Operation]) -> ir.Operation:
    last = ops[0]
    for op in ops[1:]:
        last = op if last.is_before_in_block(op) else last
    return last


def _copy_constants(body: ir.Block) -> None:
    first = body.operations[0].operation
    copies: dict[ir.Value, ir.Value] = {}

    def copied(value: ir.Value) -> ir.Value:
        if value not in copies:
            op = present(producer_of(value))
            operands = [copied(operand) for operand in op.operands]
            with ir.InsertionPoint(first):
                copy = op.clone().operation
            for number, operand in enumerate(operands):
                copy.operands[number] = operand
            copies.update(zip(op.results, copy.results, strict=True))
        return copies[value]

    ops = [each for op in body.operations for each in ops_in(op.operation)]
    inside = {result for op in ops for result in op.results}
    for op in ops:
        for number, value in enumerate(op.operands):
            if not isinstance(value.owner, ir.Block) and value not in inside:
                op.operands[number] = copied(value)
