# SPDX-License-Identifier: Apache-2.0
"""Helpers for reading and writing ops: the op that makes a value, nested ops, numbers as attributes and as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..platform.bindings import ir, sdy, stablehlo
from ..platform.interrupts import DeferredInterrupts
from ..platform.typed import present

CONSTANTS = frozenset({"stablehlo.constant", "sdy.constant"})
LOOPS = frozenset({"stablehlo.while"})
CONSTRAINTS = frozenset({"sdy.sharding_constraint", "sdy.reshard"})  # of layouts; elements stay


def short_name(op: ir.Operation) -> str:
    """Returns the name of an op without its dialect, where that is clear: `tanh` of `stablehlo.tanh`."""
    return op.name.removeprefix("stablehlo.").removeprefix("func.").removeprefix("sdy.")


def producer_of(value: ir.Value) -> ir.Operation | None:
    """Returns the op that makes a value, None for an argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def owner_of_argument(value: ir.Value) -> ir.Operation:
    """Returns the op that has a value as an argument of one of its blocks; see `producer_of` for other values."""
    block = value.owner
    assert isinstance(block, ir.Block), "the value is the result of an op"
    return block.owner.operation


def ops_in(root: ir.Operation, order: ir.WalkOrder = ir.WalkOrder.PRE_ORDER) -> list[ir.Operation]:
    """Returns `root` and the ops nested in it, parents first or last."""
    if not len(root.regions):
        return [root.operation]  # to defer interrupts takes longer than most walks
    found: list[ir.Operation] = []
    append, advance = found.append, ir.WalkResult.ADVANCE

    def visit(op: ir.Operation) -> ir.WalkResult:
        append(op)
        return advance

    with DeferredInterrupts():  # the bindings turn an exception of a visitor into another error
        root.walk(visit, order)
    return found


def parent_of(op: ir.Operation) -> ir.Operation:
    """Returns the op around an op that is not the module itself."""
    return present(op.parent).operation


def ops_around(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops around an op, innermost first."""
    parent = op.parent
    while parent is not None:
        yield parent.operation
        parent = parent.operation.parent


def is_inside(value: ir.Value, around: ir.Operation) -> bool:
    """Returns whether a value is made in a region of an op, or is an argument of one."""
    producer = producer_of(value)
    parent = owner_of_argument(value) if producer is None else parent_of(producer)
    return parent == around or around in ops_around(parent)


def blocks_of(op: ir.Operation) -> Iterable[ir.Block]:
    """Yields the blocks of all regions of an op."""
    for region in op.regions:
        yield from region.blocks


def terminator_of(block: ir.Block) -> ir.Operation:
    """Returns the last op of a block."""
    return block.operations[len(block.operations) - 1].operation


def shape_of(kind: ir.Type) -> list[int] | None:
    """Returns the sizes of a ranked tensor type, dynamic ones as the bindings have them; None for any other type."""
    return list(ir.ShapedType(kind).shape) if isinstance(kind, ir.RankedTensorType) else None


def bits_of(tensor_type: ir.Type) -> int:
    """Returns the bits of an element of a ranked tensor. Raises: ValueError for types without a width (quantized)."""
    element = ir.RankedTensorType(tensor_type).element_type
    if isinstance(element, ir.ComplexType):
        part: Any = ir.ComplexType(element).element_type  # a float type
        return 2 * part.width
    width = getattr(element, "width", None)
    if width is None:
        raise ValueError(f"elements of type {element} have no width")
    return 8 if width == 1 else width


def replace_content(module: ir.Module, other: ir.Module) -> None:
    """Gives a module the ops and attributes of another one, which is left empty."""
    for view in list(module.body.operations):
        view.operation.erase()
    for view in list(other.body.operations):
        view.operation.detach_from_parent()
        module.body.append(view.operation)
    held, new = module.operation.attributes, other.operation.attributes
    for name in attribute_names(held):
        del held[name]
    for name in attribute_names(new):
        held[name] = new[name]


def attribute_names(attributes: Any) -> list[str]:
    """Returns the names of an op's attributes; some bindings go through names, others through pairs."""
    return [each if isinstance(each, str) else each.name for each in attributes]


def int64_attr(value: int) -> ir.Attribute:
    """Returns `value : i64`; there has to be a current context."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def int32_constant(value: int) -> ir.Value:
    """Returns the scalar `stablehlo.constant dense<value> : tensor<i32>`, written at the current insertion point."""
    import numpy as np  # here: the other functions are for runs too that need none

    return stablehlo.ConstantOp(dense_elements(np.array(value, np.int32))).result


def dense_elements(array: Any, kind: ir.Type | None = None) -> ir.DenseElementsAttr:
    """Returns a numpy array as an attribute, of the tensor type `kind` if it is given.

    The bindings take a buffer, and numpy declares its arrays as buffers for Python 3.12 and later only.
    """
    return ir.DenseElementsAttr.get(array, type=kind)


def manual_axes(attr: ir.Attribute) -> list[str]:
    """Returns the axis names in a `#sdy.manual_axes`; the bindings declare no iterator for it."""
    return [axis for axis in sdy.ManualAxesAttr(attr)]


def location_inside(location: Any) -> ir.Location:
    """Returns the location that a named location wraps; old bindings have one class for all kinds of locations."""
    return location.child_loc


def name_of(location: Any) -> str | None:
    """Returns the name of a named location; None for a location of another kind."""
    if _NAME_LOC is None:
        return location.name_str if location.is_a_name() else None
    return location.name_str if type(location) is _NAME_LOC else None


def names_of(location: ir.Location) -> Iterator[str]:
    """Yields the names around a location, the outermost first."""
    while (name := name_of(location)) is not None:
        yield name
        location = location_inside(location)


def has_place(location: ir.Location) -> bool:
    """Returns whether a location is more than names.

    Example:
      >>> from ..platform.bindings import make_context
      >>> with make_context():
      ...     named = ir.Location.name("gather", ir.Location.unknown())
      ...     has_place(named), has_place(ir.Location.name("gather", ir.Location.file("a.py", 3, 1)))
      (False, True)
    """
    for _ in names_of(location):
        location = location_inside(location)
    return location != ir.Location.unknown(location.context)


def placed(location: ir.Location, place: ir.Location) -> ir.Location:
    """Returns a location of names alone with a place in the program inside of them, any other one as it is.

    JAX writes functions of its own, such as `take_along_axis`, with names of ops alone: loc("gather"). Their ops get
    the place of the call through which they are inlined.

    Example:
      >>> from ..platform.bindings import make_context
      >>> with make_context():
      ...     print(placed(ir.Location.name("gather", ir.Location.unknown()), ir.Location.file("a.py", 3, 1)))
      loc("gather"("a.py":3:1))
    """
    if has_place(location) or not has_place(place):
        return location
    for name in reversed(list(names_of(location))):
        place = ir.Location.name(name, place)
    return place


_NAME_LOC = getattr(ir, "NameLoc", None)  # old bindings have one class for all kinds of locations
