# SPDX-License-Identifier: Apache-2.0
"""The values of a module by the names that JAX gives them, which XLA's messages repeat."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import re

from .bindings import ir
from .diagnostics import place_of
from .propagation import ops_in

_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?!:\d)')  # a name, with or without a location in it; no file


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A value: its JAX name such as `jit(step)/sin`, `file:line` ("" if the module has none), and its MLIR type."""

    name: str
    place: str
    type: str


def named_values(module: ir.Module) -> tuple[NamedValue, ...]:
    """Returns the named arguments and results of a module's ops, in the order of the text."""
    return tuple(_values(module))


def _values(module: ir.Module) -> Iterator[NamedValue]:
    for op in ops_in(module.operation):
        for value in op.results:
            yield from _named(op.location, value)
        if op.name == "func.func":
            for block in op.regions[0].blocks:
                for value in block.arguments:
                    yield from _named(value.location, value)


def _named(location: ir.Location, value: ir.Value) -> Iterator[NamedValue]:
    name = _NAME.match(str(location))
    if name:
        place = place_of(location)
        yield NamedValue(name[1], f"{place.file}:{place.line}" if place else "", str(value.type))
