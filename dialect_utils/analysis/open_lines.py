# SPDX-License-Identifier: Apache-2.0
"""Lines of a program that write no sharding constraint, where one could stand.

    h = x @ w          the line's values are those that other lines take
    y = tanh(h)

A constraint behind `h` would be written on each value that the line makes on the way forward, once for each layer that
runs it, and once more where it is computed again for the way back. JAX also writes it on the gradients of these values:
those are what the line's ops on the way back take from ops of other lines there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..ir.diagnostics import DiagnosedError, Place, is_in_library
from ..ir.functions import FUNCTION
from ..ir.ops import CONSTANTS, CONSTRAINTS, LOOPS, name_of, ops_in, parent_of, producer_of, shape_of, terminator_of
from ..ir.source_lines import SourceLines, frames_of
from ..ir.way_back import WayBack
from ..platform.bindings import ir
from ..platform.typed import present
from ..shardings.annotations import Annotation, constraints_of
from ..shardings.sdy_shardings import module_meshes, sharding_from_attr
from ..shardings.value_layouts import nth_sharding
from .module_analysis import Analysis, analyse

_AROUND = LOOPS | {FUNCTION, "stablehlo.case", "stablehlo.if"}
_MAPPED = "vmap("  # in the names that JAX gives ops
_NO_LINES = CONSTANTS | CONSTRAINTS | {"stablehlo.iota", "func.call"}


def open_lines(module: ir.Module, number: int, most: int) -> list[Annotation]:
    """Returns the lines without a constraint whose values have most elements, as annotations from `number` on.

    Their sharding is the one that propagation finds. Lines are left out whose values have fewer than two dimensions,
    or all have a constraint behind them, and those inside manual computations. A module that has not one mesh has no
    lines.
    """
    meshes = {symbol: mesh for symbol, mesh in module_meshes(module).items() if mesh.axes}
    if len(meshes) != 1:
        return []
    try:
        analysis = analyse(module)
    except DiagnosedError:
        return []
    program = _Program(module)
    groups = [each for each in program.lines() if not all(map(_is_constrained, each.forward))]
    groups.sort(key=lambda each: -sum(map(_elements, each.forward)))
    (mesh,) = meshes.values()
    return [_annotation(number + n, each, program, mesh, analysis) for n, each in enumerate(groups[:most])]


@dataclass(frozen=True, slots=True)
class _OpenLine:
    """A line with the values of one type that it makes on the way forward, and their gradients.

    `is_plain` says whether these are all that it makes, and have the shapes that its names have.
    """

    place: Place
    is_plain: bool
    forward: tuple[ir.Value, ...]
    gradients: tuple[ir.Value, ...]


class _Program:
    """The ops of a module with their lines.

    State: `where`, how to find a value in a copy of the module, as `Annotation.values` has it.
    """

    def __init__(self, module: ir.Module):
        self.ops = ops_in(module.operation)
        lines = SourceLines(map(frames_of, self.ops), shows_packages=False)
        self._places = {op: lines.place(frames_of(op)) for op in self.ops}
        self._back = WayBack(module.operation)
        self._numbers = {op: number for number, op in enumerate(self.ops)}
        self._constrained = {self._line(each) for each in constraints_of(module)}
        self.where: dict[ir.Value, tuple[int, int]] = {}

    def lines(self) -> Iterator[_OpenLine]:
        """Yields the lines without a constraint."""
        by_line: dict[tuple[str, int], list[ir.Operation]] = {}
        for op in self.ops:
            if (line := self._line(op)) is not None and line not in self._constrained:
                by_line.setdefault(line, []).append(op)
        for members in by_line.values():
            made = [each for each in members if self._is_made_for_others(each)]
            if not made:
                continue
            kind = made[-1].results[0].type  # what the whole line computes comes last
            is_plain = all(each.results[0].type == kind and _MAPPED not in _name(each) for each in made)
            forward = [each.results[0] for each in made if each.results[0].type == kind]
            for value in forward:
                self.where[value] = self._numbers[value.owner.operation], 0
            place = present(self._places[made[-1]])
            yield _OpenLine(place, is_plain, tuple(forward), tuple(self._gradients(members, kind)))

    def _line(self, op: ir.Operation) -> tuple[str, int] | None:
        place = self._places.get(op)
        return None if place is None or is_in_library(place.file) else (place.file, place.line)

    def _is_made_for_others(self, op: ir.Operation) -> bool:
        if not _may_have_constraint(op) or self._back.has(op):
            return False
        return any(self._line(use.owner.operation) != self._line(op) for use in op.results[0].uses)

    def _is_of_others(self, producer: ir.Operation | None, op: ir.Operation) -> bool:
        return producer is None or self._line(producer) != self._line(op)

    def _gradients(self, members: Sequence[ir.Operation], kind: ir.Type) -> Iterator[ir.Value]:
        """Yields the gradients of a line's values of one type."""
        for op in members:
            if not self._back.has(op) or not _is_outside_of_computations(op):
                continue
            for number, value in enumerate(op.operands):
                if value.type != kind or value in self.where:
                    continue
                producer = producer_of(value)
                made_by = _carried_by(ir.BlockArgument(value)) if producer is None else producer
                if made_by is not None and self._back.has(made_by) and self._is_of_others(producer, op):
                    self.where[value] = self._numbers[op], -1 - number
                    yield value


def _carried_by(argument: ir.BlockArgument) -> ir.Operation | None:
    """Returns the op that makes what a loop carries on in an argument of its body; None for other arguments."""
    block, loop = argument.owner, argument.owner.owner.operation
    if loop.name not in LOOPS or block != loop.regions[1].blocks[0]:  # the first region is the condition
        return None
    return producer_of(terminator_of(block).operands[argument.arg_number])


def _name(op: ir.Operation) -> str:
    return name_of(op.location) or ""


def _may_have_constraint(op: ir.Operation) -> bool:
    if op.name in _NO_LINES or op.name.startswith("sdy.") or len(op.results) != 1:
        return False
    shape = shape_of(op.results[0].type)
    if shape is None or len(shape) < 2 or min(shape) < 0:
        return False
    return _is_outside_of_computations(op)


def _is_outside_of_computations(op: ir.Operation) -> bool:
    """Returns whether an op is in functions, loops and branches alone."""
    around = parent_of(op)
    while around.parent is not None:
        if around.name not in _AROUND:
            return False
        around = parent_of(around)
    return True


def _is_constrained(value: ir.Value) -> bool:
    return any(use.owner.operation.name in CONSTRAINTS for use in value.uses)


def _elements(value: ir.Value) -> int:
    return math.prod(shape_of(value.type) or ())


def _annotation(number: int, line: _OpenLine, program: _Program, mesh: Mesh, analysis: Analysis) -> Annotation:
    kind = line.forward[0].type
    shape = tuple(shape_of(kind) or ())
    values = tuple(program.where[each] for each in (*line.forward, *line.gradients))
    sharding = _found(values[0][0], analysis, len(shape))
    return Annotation(number, line.place, line.is_plain, sharding, mesh, (str(kind),), (shape,), (), values=values)


def _found(at: int, analysis: Analysis, rank: int) -> Sharding:
    """Returns the layout that propagation finds for the result of an op; replicated if it finds none."""
    for serial in analysis.instances.get(at, ()):
        for attr in analysis.layouts.get(serial, ()):
            first = attr and nth_sharding(attr, 0)
            if first is not None and not (sharding := sharding_from_attr(first)).unreduced:
                return sharding.closed()
    return Sharding(((),) * rank)
