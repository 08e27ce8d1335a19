# SPDX-License-Identifier: Apache-2.0
"""Changes of the layouts that a program asks for: in annotations, and in the shape of its mesh."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.neighbours import divides
from reshard.synthesis.layouts.sharding import Sharding

from ..ir.functions import functions_of, public_functions, signature
from ..ir.ops import ops_in, producer_of, shape_of
from ..platform import compat
from ..platform.bindings import ir, sdy
from .annotations import Annotation, constraints_of
from .derived_types import derived_from, typed
from .sdy_shardings import SHARDING, mesh_of, mesh_reference, module_meshes, sharding_from_attr, sharding_to_attr
from .value_layouts import stated_arguments, stated_results

_MANUAL = "sdy.manual_computation"
_JAX_MESH = "stablehlo.mesh"
_MORE_THAN_AXES = re.compile(r'":\(\d|sharding<mesh<')  # a part of an axis; a mesh that a sharding brings along


@dataclass(frozen=True, slots=True)
class MeshShape:
    """The sizes of the axes of a module's only mesh, which has `symbol` as its name; `number` as of an annotation."""

    number: int
    symbol: str
    mesh: Mesh


Changed = Annotation | MeshShape
Changes = Mapping[Changed, Sharding | Mesh | None]


def mesh_shape_of(module: ir.Module, number: int) -> MeshShape | None:
    """Returns the mesh whose shape may change; None if there is none or several, or if more follows from its sizes.

    That is so for the bodies of manual computations, which have local shapes, and for parts of axes.
    """
    meshes = {symbol: mesh for symbol, mesh in module_meshes(module).items() if mesh.axes}
    depends = any(op.name == _MANUAL for op in ops_in(module.operation)) or _MORE_THAN_AXES.search(str(module))
    if len(meshes) != 1 or depends or len(public_functions(functions_of(module.operation))) != 1:
        return None
    ((symbol, mesh),) = meshes.items()
    return MeshShape(number, symbol, mesh)


def uneven_in(module: ir.Module) -> list[tuple[Sharding, tuple[int, ...]]]:
    """Returns the shardings of arguments, results and constraints that do not divide their shapes, with these."""
    meshes, found = module_meshes(module), {}
    main = _main(module)
    types = signature(main)
    stated = [
        *zip(stated_arguments(main), types.inputs, strict=True),
        *zip(stated_results(main), types.results, strict=True),
        *((op.attributes["sharding"], op.operands[0].type) for op in constraints_of(module)),
    ]
    for attr, type_ in stated:
        mesh, shape = attr and mesh_of(attr, meshes), shape_of(type_)
        if attr is not None and mesh is not None and shape is not None and min(shape, default=0) >= 0:
            sharding = sharding_from_attr(attr)
            if len(shape) == sharding.rank and not divides(sharding, mesh, tuple(shape)):
                found[sharding, tuple(shape)] = None
    return list(found)


def stated_positions(module: ir.Module) -> tuple[list[int], list[int]]:
    """Returns the numbers of the arguments, and of the results, that state a sharding."""
    main = _main(module)
    every = stated_arguments(main), stated_results(main)
    arguments, results = ([number for number, attr in enumerate(some) if attr is not None] for some in every)
    return arguments, results


def _main(module: ir.Module) -> ir.Operation:
    (main,) = public_functions(functions_of(module.operation))
    return main


def changed(module: ir.Module, changes: Changes, stated: Collection[int] = ()) -> bytes:
    """Returns a copy of the module, as bytecode, with other shardings in annotations, or another shape of its mesh.

    None takes constraints out. A line without a constraint gets one on each of its values. In explicit mode, types that
    follow from what changes are taken out.

    Args:
      stated: the numbers of all constraints that are annotations.
    """
    copy = ir.Module.parse(compat.bytecode(module), module.context)
    ops, every = constraints_of(copy), ops_in(copy.operation)
    derived = _derived(copy, changes, ops, {ops[number] for number in stated})
    meshes_last = sorted(changes.items(), key=lambda each: isinstance(each[0], MeshShape))  # others look for theirs
    for subject, new in meshes_last:
        if isinstance(subject, MeshShape):
            assert isinstance(new, Mesh)
            _reshape_mesh(copy, subject.symbol, new)
        else:
            assert not isinstance(new, Mesh)
            _change(copy, [ops[each] for each in subject.ops], subject, new)
            if new is not None:
                _constrain(copy, [_value(every[op], number) for op, number in subject.values], subject.mesh, new)
    for op in derived:
        _take_out(op)
    return compat.bytecode(copy)


def _derived(
    module: ir.Module, changes: Changes, ops: Sequence[ir.Operation], stated: Collection[ir.Operation]
) -> list[ir.Operation]:
    """Returns the constraints that say types which follow from what changes."""
    values, types = [], set()
    for subject in changes:
        if isinstance(subject, Annotation):
            constraints = [ops[number] for number in subject.ops]
            values += [each.results[0] for each in constraints]
            types |= {typed(each.operands[0], each.attributes["sharding"]) for each in constraints}
        if isinstance(subject, Annotation) and subject.arguments:
            main = _main(module)
            given, shardings = main.regions[0].blocks[0].arguments, stated_arguments(main)
            values += [given[number] for number in subject.arguments]
            types |= {typed(given[each], attr) for each in subject.arguments if (attr := shardings[each]) is not None}
    return derived_from(module, values, types, stated)


def _change(module: ir.Module, ops: Sequence[ir.Operation], annotation: Annotation, sharding: Sharding | None) -> None:
    if annotation.arguments and sharding is not None:
        _restate(_main(module), "arg_attrs", annotation.arguments, sharding)
        _restate(_main(module), "res_attrs", annotation.results, sharding)
    for op in ops:
        if sharding is None:
            _take_out(op)
        else:
            op.attributes["sharding"] = sharding_to_attr(sharding, mesh_reference(op.attributes["sharding"]))


def _take_out(op: ir.Operation) -> None:
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()


def _value(op: ir.Operation, number: int) -> ir.Value:
    return op.results[number] if number >= 0 else op.operands[-1 - number]


def _constrain(module: ir.Module, values: Sequence[ir.Value], mesh: Mesh, sharding: Sharding) -> None:
    """Puts a constraint on each value."""
    symbol = next(symbol for symbol, each in module_meshes(module).items() if each == mesh)
    for value in values:
        producer = producer_of(value)
        begin = ir.InsertionPoint.at_block_begin(ir.BlockArgument(value).owner) if producer is None else None
        where = module.operation if producer is None else producer
        with begin or ir.InsertionPoint.after(where), where.location:
            made = sdy.ShardingConstraintOp(value, sharding_to_attr(sharding, symbol))
        value.replace_all_uses_except(made.result, made.operation)


def _reshape_mesh(module: ir.Module, symbol: str, mesh: Mesh) -> None:
    (op,) = (
        each.operation
        for each in module.body.operations
        if each.operation.name == "sdy.mesh" and ir.StringAttr(each.attributes["sym_name"]).value == symbol
    )
    op.attributes["mesh"] = sdy.MeshAttr.get([sdy.MeshAxisAttr.get(name, size) for name, size in mesh.axes])
    if _JAX_MESH in op.attributes:  # the same once more, for those who read StableHLO alone
        del op.attributes[_JAX_MESH]


def _restate(function: ir.Operation, name: str, numbers: Sequence[int], sharding: Sharding) -> None:
    """Gives arguments or results of a function another sharding; those that have none keep none."""
    if name not in function.attributes:
        return
    attributes = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]
    for number in numbers:
        held = {entry.name: entry.attr for entry in attributes[number]}
        if SHARDING in held:
            held[SHARDING] = sharding_to_attr(sharding, mesh_reference(held[SHARDING]))
            attributes[number] = ir.DictAttr.get(held)
    function.attributes[name] = ir.ArrayAttr.get(attributes)
