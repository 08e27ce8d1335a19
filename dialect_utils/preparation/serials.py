# SPDX-License-Identifier: Apache-2.0
"""Serials: the numbers by which the ops of a clone are traced back to the original.

A serial is one per instance, so an op of a function that is called twice has two. It is the name of the op's location,
around the location that the op came with: an attribute on each op would make everything that MLIR and Shardy do with
attributes much slower. Only ops that Shardy merges if their attributes are equal, or makes with the location of another
op, have the serial as the attribute `reshard.id` too; there the attribute decides.
"""

from __future__ import annotations

import functools
from typing import Any

from ..ir.ops import CONSTANTS, int64_attr, location_inside, name_of, ops_in
from ..platform.bindings import ir

ID = "reshard.id"
UNTAGGED = CONSTANTS | {"builtin.module", "sdy.mesh"}  # a tag on a constant would keep equal constants apart
_MERGED = "stablehlo.broadcast_in_dim"  # Shardy makes this op from scalars if it merges constants
_NUMBERED = f"{ID} "
_NUMBER = len(_NUMBERED)


def tagged_clone(module: ir.Module | ir.Operation) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Returns the ops of a module in walk order, and those of a clone, each with its serial."""
    originals = ops_in(module.operation)
    clone = originals[0].clone().operation
    clones = [clone, *ops_in(clone)[1:]]  # the bindings keep a clone alive as long as the result of `clone`
    with originals[0].context:
        for serial, op in enumerate(clones[index] for index in tagged_indices(clones)):
            tag(op, op.name, serial, op.location)
    return originals, clones


def tagged_indices(ops: list[ir.Operation]) -> list[int]:
    """Returns the indices of the ops that get a serial; the first gets 0, the next 1, and so on."""
    return [index for index, op in enumerate(ops) if op.name not in UNTAGGED]


def tag(op: ir.Operation, name: str, number: int, location: ir.Location) -> None:
    """Writes a serial onto an op.

    Args:
      name: the name of the op. location: the location that the op came with.
    """
    op.location = ir.Location.name(f"{_NUMBERED}{number}", location)
    if is_tagged_by_attribute(name):
        op.attributes[ID] = int64_attr(number)


@functools.cache
def is_tagged_by_attribute(name: str) -> bool:
    """Returns whether ops of this name carry their serial as an attribute too."""
    return name == _MERGED or name.startswith(("sdy.", "func."))


def serial_of(op: ir.Operation) -> int | None:
    """Returns the serial of an op of the clone; None for one that a pass inserted, and for constants."""
    return serial_of_named(op, op.name)


def serial_of_named(op: ir.Operation, name: str) -> int | None:
    """Returns the serial of an op whose name the caller has read already; see `serial_of`."""
    if is_tagged_by_attribute(name):
        attr: Any = op.attributes.get(ID)  # an IntegerAttr
        return None if attr is None else attr.value
    return None if name in UNTAGGED else serial_in(op.location)


def own_location(op: ir.Operation) -> ir.Location:
    """Returns the location that an op of the clone came with, or that of the op it is inserted for."""
    location = op.location
    return location if serial_in(location) is None else location_inside(location)


def serial_in(location: ir.Location) -> int | None:
    name = name_of(location)
    if name is None or not name.startswith(_NUMBERED):
        return None
    number = name[_NUMBER:]
    return int(number) if number.isdecimal() else None
