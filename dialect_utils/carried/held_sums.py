# SPDX-License-Identifier: Apache-2.0
"""Sums that loops add up, held whole while the loops run, so that devices add up their parts once, behind the loop.

    %sum = stablehlo.while(%total = %zeros)   // gradients of microbatches; the result is split over x
      %part = dot                             // partial sums over x, as large as the whole
      %total + %part

As propagation has it, the result's layout reaches into the loop: `%total` is split, and the partial sums of each turn
are reduced and scattered. If nothing is propagated into `%total` from outside, it has the layout of `%part`: whole, one
part of the sum on each device (`tile_rules/partial_sums.py`). The parts are reduced and scattered once, for the memory
of a whole gradient on each device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh

from ..analysis.propagation import propagate
from ..ir.functions import functions_of, public_functions, symbol
from ..ir.ops import LOOPS, ops_in
from ..platform.bindings import ir
from ..preparation.serials import own_location, serial_of
from ..shardings.sdy_shardings import mesh_of, module_meshes
from ..shardings.value_layouts import layout
from ..tile_rules.local_rules import Dims
from ..tile_rules.partial_sums import UPDATE, Accumulation, accumulation
from ..tiles.copied_ops import CONSTRAINTS, PASS_ON
from ..tiles.tiles import dims_of, tile_bytes

_BARRIER = "sdy.propagation_barrier"
_OURS = "reshard.held"  # the attribute of our barriers; a program may have its own
_IN_NO_DIRECTION = 0


@dataclass(frozen=True, slots=True)
class Carried:
    """A value that a loop carries, by the serial of the loop and the value's number."""

    loop: int | None
    number: int


@dataclass(frozen=True, slots=True)
class Holding:
    """A module after propagation, in which sums that loops add up are held whole.

    Attributes:
      module: the module. held: the bytes that a device holds more for each sum.
    """

    module: ir.Operation
    held: Mapping[Carried, float]


def propagate_holding(module: ir.Operation, spare_bytes: float, without: Collection[Carried] = ()) -> Holding:
    """Propagates in a copy of a module, and holds sums in it.

    Args:
      module: a clone before propagation, which stays as it is. spare_bytes: what a device may hold for sums.
      without: what is not to be held.
    """
    plain = module.clone().operation
    propagate(plain)
    split = {each: held for each, is_split, held in _sums(plain) if is_split and each not in without}
    chosen: Collection[Carried] = tuple(split)
    while chosen:
        found = module.clone().operation
        _state_signatures(found, plain)
        _propagate_apart(found, chosen)
        more = {each: held - split[each] for each, _, held in _sums(found) if each in chosen and held > split[each]}
        kept = _fitting(more, spare_bytes)
        if kept == list(chosen):
            return Holding(found, more)
        chosen = kept
    return Holding(plain, {})


def _state_signatures(module: ir.Operation, propagated: ir.Operation) -> None:
    """Gives the arguments and results of public functions the shardings that they have after propagation: what their
    callers see does not depend on what is held."""
    known = {symbol(each): each for each in public_functions(functions_of(propagated))}
    for function in public_functions(functions_of(module)):
        for name in ("arg_attrs", "res_attrs"):
            if name in known[symbol(function)].attributes:
                function.attributes[name] = known[symbol(function)].attributes[name]


def _fitting(more: dict[Carried, float], spare_bytes: float) -> list[Carried]:
    """Returns the values, in program order, of which a device can hold the bytes: the largest first."""
    kept = set()
    for each in sorted(more, key=more.__getitem__, reverse=True):
        if more[each] <= spare_bytes:
            spare_bytes -= more[each]
            kept.add(each)
    return [each for each in more if each in kept]


def _sums(module: ir.Operation) -> Iterator[tuple[Carried, bool, float]]:
    """Yields the sums of the loops of a module, whether they are split where turns add to them, and the bytes of their
    tiles."""
    meshes = module_meshes(module)
    for loop, number, how in _accumulations(module):
        value = loop.results[number]
        attr = layout(value)
        mesh = Mesh(()) if attr is None else mesh_of(attr, meshes)
        if mesh is not None:
            dims = dims_of(attr, value.type, mesh)
            yield Carried(serial_of(loop), number), _is_split(how.op, dims), tile_bytes(value.type, dims)


def _is_split(op: ir.Operation, dims: Dims) -> bool:
    """Returns whether what an op accumulates is split where each turn adds to it: nothing is gained behind the loop if
    turns write parts of it, each as it will be split."""
    if op.name != UPDATE:
        return any(dims)
    whole, part = (ir.RankedTensorType(each.type).shape for each in op.operands[:2])
    return any(axes for axes, size, written in zip(dims, whole, part, strict=True) if written < size)


def _accumulations(module: ir.Operation) -> Iterator[tuple[ir.Operation, int, Accumulation]]:
    """Yields what the loops of a module accumulate, but for that whose layout the program itself states there: each
    loop, the number of the value, and how."""
    for op in ops_in(module):
        if op.name in LOOPS and serial_of(op) is not None:
            for number in range(len(op.results)):
                found = accumulation(op, number, PASS_ON)
                if found is not None and not any(each.name in CONSTRAINTS for each in found.passed):
                    yield op, number, found


def _propagate_apart(module: ir.Operation, chosen: Collection[Carried]) -> None:
    """Propagates with no way into and out of values that loops carry."""
    barriers: list[ir.Operation] = []
    for loop, number in [each[:2] for each in _accumulations(module) if Carried(serial_of(each[0]), each[1]) in chosen]:
        with own_location(loop):
            with ir.InsertionPoint(loop):
                barriers.append(_barrier(loop.operands[number]))
            loop.operands[number] = barriers[-1].results[0]
            uses = list(loop.results[number].uses)
            with ir.InsertionPoint.after(loop):
                barriers.append(_barrier(loop.results[number]))
            for use in uses:
                use.owner.operation.operands[use.operand_number] = barriers[-1].results[0]
    propagate(module)
    for each in [op for op in ops_in(module) if op.name == _BARRIER and _OURS in op.attributes]:
        each.results[0].replace_all_uses_with(each.operands[0])
        each.erase()


def _barrier(value: ir.Value) -> ir.Operation:
    direction = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _IN_NO_DIRECTION)
    attributes: dict[str, ir.Attribute] = {"allowed_direction": direction, _OURS: ir.UnitAttr.get()}
    return ir.Operation.create(_BARRIER, results=[value.type], operands=[value], attributes=attributes)
