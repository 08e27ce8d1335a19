# SPDX-License-Identifier: Apache-2.0
"""Annotations of a program: its sharding constraints, grouped by the line of the program that writes them.

One line of a program writes many constraints: a layer's line writes one for each layer, and one for each gradient on
the way back. Whoever edits the line changes all of them. So an annotation is a line with one sharding; a line whose
layers ask for different shardings is several annotations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import Sharding

from ..ir.diagnostics import Place
from ..ir.ops import ops_in, shape_of
from ..ir.source_lines import SourceLines, frames_of
from ..platform import compat
from ..platform.bindings import ir
from ..platform.typed import present
from .sdy_shardings import mesh_of, mesh_reference, module_meshes, sharding_from_attr, sharding_to_attr

CONSTRAINT = "sdy.sharding_constraint"


@dataclass(frozen=True, slots=True)
class Annotation:
    """A line of a program with the sharding that it asks for.

    Attributes:
      number: the annotation's number in the module. place: the line; None if the module does not say it.
      mesh: the mesh of the sharding. types: the types of the values, each once.
      shapes: their global shapes in elements, each once. ops: the numbers of the constraints, in the module's order.
    """

    number: int
    place: Place | None
    sharding: Sharding
    mesh: Mesh
    types: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    ops: tuple[int, ...]


def annotations_of(module: ir.Module) -> list[Annotation]:
    """Returns the annotations of a module in the order of their first constraints.

    Constraints of several meshes, or of partial sums, are left out.
    """
    meshes, ops = module_meshes(module), _constraints(module)
    lines = SourceLines(map(frames_of, ops))
    groups: dict[tuple, list[int]] = {}
    for number, op in enumerate(ops):
        attr = op.attributes["sharding"]
        sharding, mesh = sharding_from_attr(attr), mesh_of(attr, meshes)
        if mesh is not None and not sharding.unreduced and shape_of(op.operands[0].type) is not None:
            groups.setdefault((lines.place(frames_of(op)), sharding, mesh), []).append(number)
    found = []
    for (place, sharding, mesh), members in groups.items():
        types = dict.fromkeys(ops[each].operands[0].type for each in members)
        shapes = dict.fromkeys(tuple(present(shape_of(each))) for each in types)
        found.append(
            Annotation(len(found), place, sharding, mesh, tuple(map(str, types)), tuple(shapes), tuple(members))
        )
    return found


def changed(module: ir.Module, changes: Mapping[Annotation, Sharding | None]) -> bytes:
    """Returns a copy of the module, as bytecode, with other shardings in annotations; None takes constraints out."""
    copy = ir.Module.parse(compat.bytecode(module), module.context)
    ops = _constraints(copy)
    for annotation, sharding in changes.items():
        for op in (ops[each] for each in annotation.ops):
            if sharding is None:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()
            else:
                op.attributes["sharding"] = sharding_to_attr(sharding, mesh_reference(op.attributes["sharding"]))
    return compat.bytecode(copy)


def _constraints(module: ir.Module) -> list[ir.Operation]:
    return [op for op in ops_in(module.operation) if op.name == CONSTRAINT]
