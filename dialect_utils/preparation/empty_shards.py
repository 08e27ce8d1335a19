# SPDX-License-Identifier: Apache-2.0
"""Constraints that split a dimension into more shards than it has elements, so that devices hold nothing.

    sdy.sharding_constraint %x <@mesh, [{"x"}, {}]> : tensor<1x8xf32>    // x=4: three of four devices hold nothing
    sdy.sharding_constraint %x <@mesh, [{}, {}]> : tensor<1x8xf32>       // as many bytes on each device

A batch of one prompt is of this form where a program splits batches. The tiles are as large if devices hold the same
elements in place of none, and then what they do next needs no communication. Elements are the same.
"""

from __future__ import annotations

from dataclasses import replace

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef

from ..ir.ops import CONSTRAINTS, ops_in
from ..platform.bindings import ir
from ..shardings.sdy_shardings import mesh_of, mesh_reference, module_meshes, sharding_from_attr, sharding_to_attr
from .notes import FILLED, Note, note

_CONSTRAINED = "sharding"  # the attribute of a constraint


def fill_empty_shards(module: ir.Operation, notes: list[Note]) -> None:
    """Changes the constraints of a module, a clone before propagation.

    Args:
      notes: what is done is noted there.
    """
    meshes = module_meshes(module)
    for op in [each for each in ops_in(module) if each.name in CONSTRAINTS]:
        kind, stated = op.results[0].type, op.attributes[_CONSTRAINED]
        if isinstance(kind, ir.RankedTensorType) and (kind := ir.RankedTensorType(kind)).has_static_shape:
            filled = _filled(stated, kind.shape, meshes)
            if filled != stated:
                op.attributes[_CONSTRAINED] = filled
                ends = " to ".join(str(sharding_from_attr(each)) for each in (stated, filled))
                notes.append(note(op, FILLED, f"{kind} goes from {ends}: else some devices would hold nothing"))


def _filled(attr: ir.Attribute, shape: list[int], meshes: dict[str, Mesh]) -> ir.Attribute:
    mesh = mesh_of(attr, meshes)
    if mesh is None:
        return attr
    sharding = sharding_from_attr(attr)
    if sharding.rank != len(shape):
        return attr  # all of it on one device
    dims = tuple(_with_elements(*each, mesh) for each in zip(sharding.dims, shape, strict=True))
    if dims == sharding.dims:
        return attr
    kept = tuple(each for each in sharding.priorities if dims[each[0]] or each[0] in sharding.open_dims)
    return sharding_to_attr(replace(sharding, dims=dims, priorities=kept), mesh_reference(attr))


def _with_elements(axes: tuple[AxisRef, ...], size: int, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Returns the major axes of a dimension, so that each shard has an element; all if that takes another number."""
    kept, left = [], size
    for axis in axes:
        pre, count = axis.resolve(mesh)
        if left % count == 0:
            kept.append(axis)
            left //= count
        elif count % left == 0:
            return (*kept, *([AxisRef(axis.name, pre, left)] if left > 1 else []))
        else:
            return axes
    return axes
