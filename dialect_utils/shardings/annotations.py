# SPDX-License-Identifier: Apache-2.0
"""Annotations of a program: its sharding constraints, grouped by the line of the program that writes them.

One line of a program writes many constraints: a layer's line writes one for each layer, and one for each gradient on
the way back. Whoever edits the line changes all of them. So an annotation is a line with one sharding; a line whose
layers ask for different shardings is several annotations.

JAX writes constraints of its own, too: for the results of a function that is jitted inside another one, and in explicit
mode for the type of each op's result (`derived_types`). Nobody can edit these. A constraint that somebody wrote has the
name of what writes it in its location, if there is a name. What `out_sharding=` tells an op looks like any other type
there: only the line itself says that it states one.

Arguments have shardings, too; `argument_groups` makes annotations of them, and `layout_changes` changes both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..ir.diagnostics import Place, is_in_library
from ..ir.ops import name_of, ops_in, parent_of, shape_of
from ..ir.source_lines import SourceLines, frames_of
from ..ir.way_back import WayBack
from ..platform.bindings import ir
from ..platform.typed import present
from .derived_types import CONSTRAINT, WRITTEN, is_type, is_type_of_gradient
from .sdy_shardings import mesh_of, module_meshes, sharding_from_attr

_MANUAL = "sdy.manual_computation"


@dataclass(frozen=True, slots=True)
class Annotation:
    """A line of a program with the sharding that it asks for, or arguments that have a sharding in common; or a line
    without a constraint, with the sharding that propagation finds.

    Attributes:
      number: the annotation's number in the module. place: the line; None if the module does not say it.
      is_own_call: whether the line itself writes the constraint, not a helper that it calls; of a line without one,
        whether what it would be put on is all that the line computes.
      mesh: the mesh of the sharding. types: the types of the values, each once.
      shapes: their global shapes in elements, each once. ops: the numbers of the constraints, in the module's order.
      bound: the axes that manual computations around them have taken, which no sharding here may use.
      names: of the arguments, with `*` for numbers of layers; empty for a line.
      arguments, results: the numbers of the arguments, and of the results that are their new values.
      values: of a line without a constraint, what one would be put on: the number of an op among all of the module, and
        that of its result, or -1 less that of its operand.
      is_out_sharding: whether the line says it with `out_sharding=`, so that it has to say something.
    """

    number: int
    place: Place | None
    is_own_call: bool
    sharding: Sharding
    mesh: Mesh
    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    ops: tuple[int, ...]
    bound: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    values: tuple[tuple[int, int], ...] = ()
    is_out_sharding: bool = False


def annotations_of(
    module: ir.Module, says_out_sharding: Callable[[Place], bool] = lambda place: False
) -> list[Annotation]:
    """Returns the annotations of a module in the order of their first constraints.

    Constraints that JAX writes, of partial sums, of single devices and of arrays without a shape are left out.

    Args:
      says_out_sharding: whether what the program calls at a place is given `out_sharding=`. In
        `einsum(..., out_sharding=P()) + b` two ops begin where the call does, and one ends where it does.
    """
    meshes, ops = module_meshes(module), constraints_of(module)
    lines, back = SourceLines(map(frames_of, ops), shows_packages=False), WayBack(module.operation)
    groups: dict[tuple, list[int]] = {}
    for number, op in enumerate(ops):
        attr = op.attributes["sharding"]
        sharding, mesh = sharding_from_attr(attr), mesh_of(attr, meshes)
        if mesh is not None and _has_shape(op, sharding):
            frames = frames_of(op)
            place = lines.place(frames)
            own = next((each.place for each in frames if not is_in_library(each.place.file)), None)
            is_own = place is not None and own == place
            is_stated = is_own and _is_for_others(op, lines, back) and says_out_sharding(present(place))
            if is_stated or _is_written(op, back):
                key = place, place and place.end, own == place, sharding, mesh, _bound(op), is_stated
                groups.setdefault(key, []).append(number)
    found = []
    for (place, _, is_own_call, sharding, mesh, bound, is_stated), members in groups.items():
        types = dict.fromkeys(ops[each].operands[0].type for each in members)
        shapes = dict.fromkeys(tuple(present(shape_of(each))) for each in types)
        found.append(
            Annotation(
                len(found),
                place,
                is_own_call,
                sharding,
                mesh,
                tuple(map(str, types)),
                tuple(shapes),
                tuple(members),
                bound,
                is_out_sharding=is_stated,
            )
        )
    return found


def _has_shape(op: ir.Operation, sharding: Sharding) -> bool:
    shape = shape_of(op.operands[0].type)
    return bool(shape) and len(shape) == sharding.rank and not sharding.unreduced and min(shape) >= 0


def _is_written(op: ir.Operation, back: WayBack) -> bool:
    name = name_of(op.location)
    return name is None or (name.rpartition("/")[2] in WRITTEN and not is_type_of_gradient(op, back))


def _is_for_others(op: ir.Operation, lines: SourceLines, back: WayBack) -> bool:
    """Returns whether a constraint says the type of what a line makes for other lines on the way forward."""
    if not is_type(op, back) or back.has(op):
        return False
    place = lines.place(frames_of(op))
    users = (lines.place(frames_of(use.owner.operation)) for use in op.results[0].uses)
    return any(each is None or place is None or (each, each.end) != (place, place.end) for each in users)


def _bound(op: ir.Operation) -> tuple[str, ...]:
    """Returns the axes that manual computations around an op have taken."""
    found, around = [], parent_of(op)
    while around.parent is not None:
        if around.name == _MANUAL:
            found += re.findall(r'"([^"]*)"', str(around.attributes["manual_axes"]))
        around = parent_of(around)
    return tuple(sorted(found))


def constraints_of(module: ir.Module) -> list[ir.Operation]:
    """Returns the constraints of a module; annotations have the numbers of theirs."""
    return [op for op in ops_in(module.operation) if op.name == CONSTRAINT]
