# SPDX-License-Identifier: Apache-2.0
"""The values of a module by the names that JAX gives them; XLA's messages repeat these names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from reshard.synthesis.layouts.sharding import Sharding

from ..ir.diagnostics import place_of
from ..ir.ops import ops_in
from ..platform.bindings import ir
from ..shardings.sdy_shardings import sharding_from_attr

_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?!:\d)')  # a name, with or without a location in it; no file


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A value of a module.

    Attributes:
      name: the name that JAX gave, such as `jit(step)/sin`. place: `file:line`, "" if the module has none.
      type: the type, as MLIR prints it.
      constraint: the sharding, if the value is the result of a sharding constraint.
    """

    name: str
    place: str
    type: str
    constraint: Sharding | None = None


def named_values(module: ir.Module) -> tuple[NamedValue, ...]:
    """Returns the named arguments and results of a module's ops, in the order of the text."""
    return tuple(_values(module))


def name_of(value: ir.Value) -> str:
    """Returns the name that JAX gave a value, such as `params['up']` of an argument; "" if it has none."""
    found = _NAME.match(str(value.location))
    return found[1] if found else ""


def _values(module: ir.Module) -> Iterator[NamedValue]:
    for op in ops_in(module.operation):
        for value in op.results:
            yield from _named(op.location, value, _constraint(op))
        if op.name == "func.func":
            for block in op.regions[0].blocks:
                for value in block.arguments:
                    yield from _named(value.location, value)


def _named(location: ir.Location, value: ir.Value, constraint: Sharding | None = None) -> Iterator[NamedValue]:
    name = _NAME.match(str(location))
    if name:
        place = place_of(location)
        yield NamedValue(name[1], f"{place.file}:{place.line}" if place else "", str(value.type), constraint)


def _constraint(op: ir.Operation) -> Sharding | None:
    return sharding_from_attr(op.attributes["sharding"]) if op.name == "sdy.sharding_constraint" else None
