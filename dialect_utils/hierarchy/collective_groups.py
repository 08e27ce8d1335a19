# SPDX-License-Identifier: Apache-2.0
"""The groups of devices of a StableHLO collective, which lists device ids or names axes of a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from reshard.synthesis.hierarchy.device_groups import Groups
from reshard.synthesis.layouts.layout import Factor, groups
from reshard.synthesis.layouts.mesh import Mesh, MeshError

from ..platform.bindings import ir, stablehlo


def groups_of(op: ir.Operation, meshes: Mapping[str, Mesh]) -> Groups | None:
    """Returns the groups of device ids of a collective; None if it has groups of another kind.

    Without a channel, or without global ids where the op has both kinds, groups are of replicas of the whole program.

    Args:
      meshes: those that the module declares, by symbol name.
    """
    attributes = op.attributes
    is_global = op.name == "stablehlo.all_to_all" or "use_global_device_ids" in attributes
    if "channel_handle" not in attributes or not is_global:
        return None
    attr = attributes["replica_groups"]
    if not isinstance(attr, ir.DenseIntElementsAttr):
        return _along_axes(stablehlo.ReplicaGroupMeshAxesAttr(attr), meshes)
    listed = np.array(attr)
    return _as_groups(listed) if listed.min(initial=0) >= 0 else None  # uneven groups are filled with -1


def _along_axes(attr, meshes: Mapping[str, Mesh]) -> Groups | None:
    """Returns the groups whose members differ along the axes that are named, the first the major one."""
    try:
        mesh = _mesh(attr.mesh, meshes)
        return None if mesh is None else _as_groups(groups(mesh, _factors(ir.ArrayAttr(attr.axes), mesh)))
    except MeshError:
        return None


def _mesh(attr: ir.Attribute, meshes: Mapping[str, Mesh]) -> Mesh | None:
    if isinstance(attr, ir.FlatSymbolRefAttr):
        return meshes.get(ir.FlatSymbolRefAttr(attr).value)
    mesh = stablehlo.MeshAttr(attr)
    axes = tuple((axis.name, axis.size) for axis in map(stablehlo.MeshAxisAttr, ir.ArrayAttr(mesh.axes)))
    ids = mesh.device_ids
    return Mesh(axes, tuple(map(int, np.array(ids).flat)) if isinstance(ids, ir.DenseIntElementsAttr) else None)


def _factors(axes: Iterable[ir.Attribute], mesh: Mesh) -> tuple[Factor, ...]:
    return tuple(_factor(stablehlo.AxisRefAttr(axis), mesh) for axis in axes)


def _factor(axis, mesh: Mesh) -> Factor:
    """Returns an axis, or the part of one that is written `(pre)size`, as the mesh's factor."""
    if axis.sub_axis_info is None:
        return Factor(axis.name, 1, mesh.axis_size(axis.name))
    pre, size = map(int, str(axis.sub_axis_info).rpartition("(")[2].rstrip(">").split(")"))
    if mesh.axis_size(axis.name) % (pre * size):
        raise MeshError(f'"{axis.name}" of {mesh} has no part ({pre}){size}')
    return Factor(axis.name, pre, size)


def _as_groups(listed: np.ndarray) -> Groups:
    return tuple(tuple(map(int, group)) for group in listed.tolist())
