# SPDX-License-Identifier: Apache-2.0
"""Instrumented forms of a module, to find the op that goes wrong when the module is partitioned.

    original   %1 = sin %0; %2 = sdy.sharding_constraint %1; %3 = add %2, %2; return %3
    unsharded  %1 = sin %0; %3 = add %1, %1; return %3                    the same function on one device
    watched    the original or its rewritten form, which also returns %1, %2, %3
    replayed   (%0, %1, %2) -> (sin %0, add %2, %2)           each op alone, unsharded, on recorded operands

Ops of the entry function are known by numbers in a discardable attribute, which every module made of the original
keeps. An op without a number was inserted, or only states a layout: it must return its operand. So the program goes
wrong at the first op whose recorded result differs from the replay, or at the first operand that differs from the
result of its producer. Nothing accumulates: no op is judged by the faults, or the rounding, of the ops before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..analysis.layout_check import FRONTEND, FRONTEND_ID
from ..ir.diagnostics import Place, error_at, place_of
from ..ir.ops import ops_in, producer_of
from ..platform.bindings import ir
from ..platform.typed import asm_of, present
from ..shardings.sdy_shardings import SHARDING
from ..shardings.value_layouts import nth_sharding, result_layouts

NUMBER = "reshard_verify.op"
LAYOUT_MODE = "mhlo.layout_mode"
ARGUMENT, RESULT, OPERAND = "argument", "result", "operand"
_HANDS_THROUGH = frozenset(
    {
        "sdy.sharding_constraint",
        "sdy.reshard",
        "sdy.propagation_barrier",
        "sdy.all_gather",
        "sdy.all_slice",
        "sdy.all_to_all",
        "sdy.collective_permute",
        "sdy.replicated_to_unreduced",
        "sdy.sharded_to_unreduced",
    }
)
_OF_DEVICES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "partition_id",
        "recv",
        "reduce_scatter",
        "replica_id",
        "send",
    )
)
_SHARDINGS = (SHARDING, "sdy.sharding_rule", "mhlo.sharding")


class NoUnshardedForm(ValueError):
    """An op that has a meaning on several devices only; `op` is its place, the message names the reason."""

    def __init__(self, op: ir.Operation, reason: str):
        super().__init__(reason)
        self.op = op


@dataclass(frozen=True, slots=True)
class Key:
    """A value: argument `number` of the program, or result or operand `number` of the op with number `op`."""

    kind: str
    op: int
    number: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A module that also returns the operands and results of its ops.

    Attributes:
      text: the module. keys: of the additional results, in order; a value that appears several times is returned once.
      aliases: other keys of the same values as `keys`.
    """

    text: str
    keys: tuple[Key, ...]
    aliases: tuple[tuple[Key, Key], ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A module that applies each op to recorded values. arguments, results: keys of its values, in order."""

    text: str
    arguments: tuple[Key, ...]
    results: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class WatchedOp:
    """An op of the entry function in the unsharded module.

    Attributes:
      name: for people; a call names the function that it calls.
      sources: keys of its operands. captured: keys of the values that its regions use besides the operands.
      results: keys of the results that are tensors, and their bytes.
    """

    number: int
    name: str
    place: Place | None
    sources: tuple[Key, ...]
    captured: tuple[Key, ...]
    results: tuple[Key, ...]
    bytes: int

    @property
    def takes(self) -> tuple[Key, ...]:
        return (*self.sources, *self.captured)


def entry_function(module: ir.Module) -> ir.Operation:
    """Returns the function `main`, or else the first function with a body. Raises: DiagnosedError if there is none."""
    found = [each.operation for each in module.body.operations if each.operation.name == "func.func"]
    functions = [each for each in found if len(each.regions[0].blocks)]
    if not functions:
        raise error_at(module.operation, "the module has no function to run")
    return next(
        (each for each in functions if ir.StringAttr(each.attributes["sym_name"]).value == "main"), functions[0]
    )


def number_ops(module: ir.Module) -> None:
    """Numbers, in place, the ops of the entry function, except those that return their operand.

    Layouts in memory (`mhlo.layout_mode`) are removed: they change no value, and inputs come row-major.
    """
    with module.context:
        _drop_layout_modes(entry_function(module))
        for number, op in enumerate(_body(module)):
            if not _hands_through(op):
                op.attributes[NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def _drop_layout_modes(function: ir.Operation) -> None:
    for name in ("arg_attrs", "res_attrs"):
        if name in function.attributes:
            sides = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]
            kept = [{each.name: each.attr for each in side if each.name != LAYOUT_MODE} for side in sides]
            function.attributes[name] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, kept)))


def without_numbers(module: ir.Module) -> str:
    """Returns the module as text, without the numbers that `number_ops` wrote."""
    clone = _copy(module)
    _remove_numbers(clone)
    return str(clone)


def unsharded(module: ir.Module) -> ir.Module:
    """Returns the same function for one device, numbers kept.

    Raises: NoUnshardedForm at a manual computation, a collective or a reduction of partial sums.
    """
    clone = _copy(module)
    with clone.context, ir.Location.unknown():
        for op in ops_in(clone.operation):
            if op.name in _OF_DEVICES or (op.name.startswith("sdy.") and not _is_removable(op)):
                raise NoUnshardedForm(op, f"{op.name} means something on several devices only")
        for op in ops_in(clone.operation):
            if op.name in _HANDS_THROUGH or _hands_through(op):
                for result in op.results:
                    result.replace_all_uses_with(op.operands[0])
                op.erase()
            elif op.name in ("sdy.mesh", "sdy.sharding_group"):
                op.erase()
            else:
                _strip_shardings(op)
        attributes = clone.operation.attributes
        if "mhlo.num_partitions" in attributes:
            attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1)
    return clone


def pinned(module: ir.Module, propagated_text: str) -> ir.Module:
    """Returns the module with the layouts that XLA propagates stated on the ops of its entry function.

    Propagation looks at how often a value is used. A value that is also returned may therefore get another layout, and
    the fault that is searched for disappears. `watched` returns values in the stated layouts.

    Args:
      propagated_text: the module that XLA dumped when it compiled `layout_check.tagged_text(module)`.
    """
    clone = _copy(module)
    with clone.context:
        propagated = ir.Module.parse(propagated_text)
        body = set(_body(clone))
        for seen, op in _counterparts(propagated, ops_in(clone.operation)):
            if SHARDING in seen.attributes and op in body:
                op.attributes[SHARDING] = seen.attributes[SHARDING]
        return clone if clone.operation.verify() else module


def _counterparts(propagated: ir.Module, ops: Sequence[ir.Operation]) -> list[tuple[ir.Operation, ir.Operation]]:
    """Returns pairs of an op as XLA propagates it and the op that it was.

    XLA keeps the ids of most ops, but old versions lose those of slices and some others: these are found as producers
    of operands of known ops.
    """
    known: dict[ir.Operation, ir.Operation] = {}
    for seen in ops_in(propagated.operation):
        own = ir.DictAttr(seen.attributes[FRONTEND]) if FRONTEND in seen.attributes else None
        if own is not None and FRONTEND_ID in own:
            op = ops[int(ir.StringAttr(own[FRONTEND_ID]).value)]
            if _are_alike(seen, op):
                known[seen] = op
    found = list(known.items())
    for seen, op in found:
        for theirs, ours in zip(seen.operands, op.operands, strict=False):
            if isinstance(theirs.owner, ir.Block) or isinstance(ours.owner, ir.Block):
                continue
            producer, original = theirs.owner.operation, ours.owner.operation
            if producer not in known and FRONTEND not in producer.attributes and _are_alike(producer, original):
                known[producer] = original
                found.append((producer, original))
    return found


def _are_alike(first: ir.Operation, second: ir.Operation) -> bool:
    return first.name == second.name and [each.type for each in first.results] == [each.type for each in second.results]


def watched_ops(reference: ir.Module) -> list[WatchedOp]:
    """Returns the numbered ops of an unsharded module in order; the last one is the return of the function."""
    origin = _origins(reference)
    return [_watched_op(op, origin) for op in _body(reference) if NUMBER in op.attributes]


def watched(module: ir.Module, ops: Sequence[WatchedOp], *, operands: bool = True) -> Watched:
    """Returns the module with the results of some ops as further results, with `operands` their operands too.

    Args:
      module: the original or a rewritten form of it, numbered.
    """
    clone = _copy(module)
    origin, by_number = _origins(clone), {number_of(op): op for op in _body(clone) if NUMBER in op.attributes}
    seen: dict[ir.Value, Key] = {}
    aliases: list[tuple[Key, Key]] = []

    def watch(value: ir.Value, key: Key) -> None:
        if not isinstance(value.type, ir.RankedTensorType):
            return
        known = origin.get(value) or seen.get(value)
        if known != key and known is not None:
            aliases.append((key, known))
        if known is None or known.kind != ARGUMENT:
            seen.setdefault(value, known or key)

    for each in ops:
        op = by_number.get(each.number)
        if op is None:
            continue
        if operands and len(op.operands) == len(each.sources):
            for number, value in enumerate(op.operands):
                watch(value, Key(OPERAND, each.number, number))
        for key in (*(each.captured if operands else ()), *each.results):
            producer = by_number.get(key.op)
            if key.kind == RESULT and producer is not None and key.number < len(producer.results):
                watch(producer.results[key.number], key)
    _return_also(clone, list(seen))
    _remove_numbers(clone)
    return Watched(str(clone), tuple(seen.values()), tuple(aliases))


def replayed(reference: ir.Module, ops: Sequence[WatchedOp], recorded: Sequence[Key]) -> Replayed:
    """Returns the unsharded module in which each of `ops` works on recorded values, if there are any.

    Args:
      reference: an unsharded module, numbered.
      recorded: results, and operands that differ from the result of their producer.
    """
    clone = _copy(reference)
    function = entry_function(clone)
    block = function.regions[0].blocks[0]
    arguments = [Key(ARGUMENT, 0, number) for number in range(len(block.arguments))]
    by_number = {number_of(op): op for op in _body(clone) if NUMBER in op.attributes}
    end = block.operations[len(block.operations) - 1].operation
    with clone.context, ir.Location.unknown():
        arguments += _take_as_arguments(block, recorded, by_number)
        results = [key for op in ops for key in op.results]
        returned = [by_number[key.op].results[key.number] for key in results]
        with ir.InsertionPoint(end):
            ir.Operation.create("func.return", operands=returned)
        end.erase()
        _set_signature(function, [argument.type for argument in block.arguments], [value.type for value in returned])
        for name in ("arg_attrs", "res_attrs"):
            if name in function.attributes:
                del function.attributes[name]
        _remove_numbers(clone)
    return Replayed(str(clone), tuple(arguments), tuple(results))


def _take_as_arguments(
    block: ir.Block, recorded: Sequence[Key], by_number: Mapping[int, ir.Operation]
) -> Iterator[Key]:
    """Replaces recorded values of numbered ops by new arguments of a block; yields the keys of the arguments."""
    for key in recorded:
        op = by_number.get(key.op)
        if key.kind == ARGUMENT or op is None:
            continue
        value = op.results[key.number] if key.kind == RESULT else op.operands[key.number]
        argument = block.add_argument(value.type, ir.Location.unknown())
        if key.kind == OPERAND:
            op.operands[key.number] = argument
        else:
            value.replace_all_uses_with(argument)
        yield key


def _watched_op(op: ir.Operation, origin: dict[ir.Value, Key]) -> WatchedOp:
    number = number_of(op)
    tensors = [value for value in op.results if isinstance(value.type, ir.RankedTensorType)]
    sources = tuple(origin.get(value, Key(OPERAND, number, at)) for at, value in enumerate(op.operands))
    keys = tuple(Key(RESULT, number, at) for at, value in enumerate(op.results) if value in tensors)
    captured = tuple(origin[value] for value in _captured(op) if value in origin)
    name = f"{op.name} {op.attributes['callee']}" if op.name == "func.call" else op.name
    return WatchedOp(number, name, place_of(op), sources, captured, keys, sum(map(_bytes, tensors)))


def _captured(op: ir.Operation) -> list[ir.Value]:
    """Returns the values from outside that the regions of an op use, each once."""
    nested = [each for each in ops_in(op) if each != op]
    inside = {result for each in nested for result in each.results}
    blocks = [block for each in (op, *nested) for region in each.regions for block in region.blocks]
    inside |= {argument for block in blocks for argument in block.arguments}
    return list(dict.fromkeys(value for each in nested for value in each.operands if value not in inside))


def _origins(module: ir.Module) -> dict[ir.Value, Key]:
    """Returns the keys of arguments and of results of numbered ops."""
    block = entry_function(module).regions[0].blocks[0]
    found = {argument: Key(ARGUMENT, 0, number) for number, argument in enumerate(block.arguments)}
    for op in _body(module):
        if NUMBER in op.attributes:
            found |= {result: Key(RESULT, number_of(op), number) for number, result in enumerate(op.results)}
    return found


def _body(module: ir.Module) -> list[ir.Operation]:
    return [each.operation for each in entry_function(module).regions[0].blocks[0].operations]


def number_of(op: ir.Operation) -> int:
    """Returns the number that `number_ops` wrote on an op of the entry function."""
    return ir.IntegerAttr(op.attributes[NUMBER]).value


def _copy(module: ir.Module) -> ir.Module:
    with module.context:
        return ir.Module.parse(asm_of(module.operation, enable_debug_info=True))


def _hands_through(op: ir.Operation) -> bool:
    if op.name in _HANDS_THROUGH:
        return True
    return op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == "Sharding"


def _is_removable(op: ir.Operation) -> bool:
    return op.name in _HANDS_THROUGH or op.name in ("sdy.mesh", "sdy.sharding_group")


def _strip_shardings(op: ir.Operation) -> None:
    for name in _SHARDINGS:
        if name in op.attributes:
            del op.attributes[name]
    for name in ("arg_attrs", "res_attrs"):
        if op.name == "func.func" and name in op.attributes:
            own = ir.ArrayAttr(op.attributes[name])
            op.attributes[name] = ir.ArrayAttr.get([_without_shardings(each) for each in own])


def _without_shardings(attributes: ir.Attribute) -> ir.Attribute:
    return ir.DictAttr.get({each.name: each.attr for each in ir.DictAttr(attributes) if each.name not in _SHARDINGS})


def _remove_numbers(module: ir.Module) -> None:
    for op in _body(module):
        if NUMBER in op.attributes:
            del op.attributes[NUMBER]


def _return_also(module: ir.Module, values: list[ir.Value]) -> None:
    """Makes the entry function return more values, in the layouts that their ops state; XLA chooses the others."""
    function = entry_function(module)
    block = function.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    with module.context, ir.Location.unknown():
        own: Sequence[ir.Attribute] = [ir.DictAttr.get({})] * len(end.operands)
        if "res_attrs" in function.attributes:
            own = list(ir.ArrayAttr(function.attributes["res_attrs"]))
        function.attributes["res_attrs"] = ir.ArrayAttr.get([*own, *map(_stated_layout, values)])
        held = [_held(value, end) for value in values]
        returned = [*end.operands, *held]
        with ir.InsertionPoint(end):
            ir.Operation.create("func.return", operands=returned)
        end.erase()
        _set_signature(function, [each.type for each in block.arguments], [each.type for each in returned])


def _held(value: ir.Value, end: ir.Operation) -> ir.Value:
    """Returns a value behind a barrier, for all its users: XLA might recompute it for some, with other rounding."""
    with ir.InsertionPoint(end):
        barrier = ir.Operation.create("stablehlo.optimization_barrier", operands=[value], results=[value.type])
    value.replace_all_uses_with(barrier.results[0])
    barrier.operands[0] = value
    barrier.move_after(present(producer_of(value)))
    return barrier.results[0]


def _stated_layout(value: ir.Value) -> ir.Attribute:
    """Returns the attributes of a function's result that is this value."""
    owner = value.owner
    layouts = None if isinstance(owner, ir.Block) else result_layouts(owner.operation)
    layout = layouts and nth_sharding(layouts, ir.OpResult(value).result_number)
    return ir.DictAttr.get({SHARDING: layout} if layout else {})


def _set_signature(function: ir.Operation, inputs: list[ir.Type], results: list[ir.Type]) -> None:
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def _bytes(value: ir.Value) -> int:
    """Returns the bytes of a tensor, elements of unknown width as eight bytes."""
    tensor = ir.RankedTensorType(value.type)
    return math.prod(tensor.shape) * max(1, getattr(tensor.element_type, "width", 64) // 8)
