# SPDX-License-Identifier: Apache-2.0
"""Layouts in which every dimension divides into its shards: arguments and results of a module written per device."""

from __future__ import annotations

from reshard.synthesis.layouts.mesh import Mesh
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..ir.functions import signature
from ..ir.ops import ops_in
from ..platform.bindings import ir, sdy
from ..shardings.sdy_shardings import SHARDING, mesh_of, module_meshes, sharding_from_attr, sharding_to_attr


def divide_signatures(module: ir.Operation) -> None:
    """Removes the axes that do not divide their dimension from each layout of arguments and results of functions."""
    meshes = module_meshes(module)
    for op in ops_in(module):
        if op.name == "func.func":
            _divide_signature(op, meshes)


def _divide_signature(function: ir.Operation, meshes: dict[str, Mesh]) -> None:
    kind = signature(function)
    for name, types in (("arg_attrs", kind.inputs), ("res_attrs", kind.results)):
        if name in function.attributes:
            stated = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[name])]
            function.attributes[name] = ir.ArrayAttr.get(
                [
                    with_sharding(each, evenly_divided(each[SHARDING], type_, meshes)) if SHARDING in each else each
                    for each, type_ in zip(stated, types, strict=True)
                ]
            )


def evenly_divided(attr: ir.Attribute, kind: ir.Type, meshes: dict[str, Mesh]) -> ir.Attribute:
    mesh, sharding = mesh_of(attr, meshes), sharding_from_attr(attr)
    if mesh is None or not isinstance(kind, ir.RankedTensorType) or not ir.RankedTensorType(kind).has_static_shape:
        return attr
    shape = list(ir.RankedTensorType(kind).shape)
    if sharding.rank != len(shape) or all(size % n == 0 for size, n in zip(shape, sharding.shards(mesh))):
        return attr
    dims = tuple(_dividing(axes, size, mesh) for axes, size in zip(sharding.dims, shape))
    return sharding_to_attr(Sharding(dims, unreduced=sharding.unreduced), sdy.TensorShardingAttr(attr).mesh_or_ref)


def _dividing(axes: tuple[AxisRef, ...], size: int, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Returns the longest list of leading axes that divides a dimension."""
    parts = 1
    for count, axis in enumerate(axes):
        parts *= axis.resolve(mesh)[1]
        if size % parts:
            return axes[:count]
    return axes


def with_sharding(attributes: ir.DictAttr, sharding: ir.Attribute) -> ir.DictAttr:
    return ir.DictAttr.get({**{each.name: each.attr for each in attributes}, SHARDING: sharding})
