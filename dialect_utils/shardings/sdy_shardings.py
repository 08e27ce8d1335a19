# SPDX-License-Identifier: Apache-2.0
"""Shardy's attributes <-> `Mesh` and `Sharding`.

A mesh is a symbol (`@mesh`) or inlined (`#sdy.sharding<mesh<["x"=2]>, ...>`); both become the same `Mesh`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from reshard.synthesis.layouts.mesh import Mesh, MeshError
from reshard.synthesis.layouts.sharding import AxisRef, Sharding

from ..platform.bindings import ir, sdy
from ..platform.typed import present

SHARDING = "sdy.sharding"


def mesh_from_attr(attr: ir.Attribute) -> Mesh:
    """Returns the mesh of an `#sdy.mesh` attribute. A maximal (single-device) mesh has no axes and one device id.

    Raises: UnsupportedSharding for a maximal mesh on another device than 0, and for more devices than a `Mesh` may
    have.
    """
    mesh = sdy.MeshAttr(attr)
    axes = tuple((axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, mesh.axes))
    ids = tuple(mesh.device_ids)
    if not axes and ids and ids != (0,):
        raise UnsupportedSharding(f"maximal mesh on device {ids[0]}")
    try:
        return Mesh(axes, ids or None)
    except MeshError as error:
        raise UnsupportedSharding(str(error)) from None


class UnsupportedSharding(ValueError):
    """A valid sharding of Shardy that no `Layout` expresses; the message describes it."""


def module_meshes(module: ir.Module | ir.Operation) -> dict[str, Mesh]:
    """Returns the meshes that a module declares, by symbol name; maximal meshes and those too large are left out."""
    meshes = {}
    for op in module.operation.regions[0].blocks[0].operations:
        if op.operation.name != "sdy.mesh":
            continue
        try:
            meshes[ir.StringAttr(op.attributes["sym_name"]).value] = mesh_from_attr(op.attributes["mesh"])
        except UnsupportedSharding:
            pass
    return meshes


def mesh_of(attr: ir.Attribute, meshes: dict[str, Mesh]) -> Mesh | None:
    """Returns the mesh that a sharding attribute names or carries inline; None if `meshes` lacks it."""
    reference = sdy.TensorShardingAttr(attr).mesh_or_ref
    if isinstance(reference, ir.FlatSymbolRefAttr):
        return meshes.get(ir.FlatSymbolRefAttr(reference).value)
    try:
        return mesh_from_attr(reference)
    except UnsupportedSharding:
        return None


def sharding_from_attr(attr: ir.Attribute) -> Sharding:
    """Returns the `Sharding` of an `#sdy.sharding` attribute."""
    sharding = sdy.TensorShardingAttr(attr)
    dims = [sdy.DimensionShardingAttr(dim) for dim in sharding.dimension_shardings]
    return Sharding(
        dims=tuple(_axes(dim.axes) for dim in dims),
        open_dims=frozenset(i for i, dim in enumerate(dims) if not dim.is_closed),
        replicated=_axes(sharding.replicated_axes),
        unreduced=_axes(sharding.unreduced_axes),
        priorities=tuple((i, dim.priority) for i, dim in enumerate(dims) if dim.priority is not None),
    )


class Shardings(dict[ir.Attribute, Sharding]):
    """A memo of `sharding_from_attr` by attribute, for as long as a module is looked at."""

    def __missing__(self, attr: ir.Attribute) -> Sharding:
        self[attr] = sharding_from_attr(attr)
        return self[attr]


def sharding_to_attr(sharding: Sharding, mesh: str | ir.Attribute) -> ir.Attribute:
    """Returns `#sdy.sharding<@mesh, ...>` in the current context.

    Args:
      mesh: the symbol's name, or a mesh attribute or symbol reference to carry as it is.
    """
    priorities = dict(sharding.priorities)
    dims = [
        sdy.DimensionShardingAttr.get(
            [_axis_attr(axis) for axis in axes], is_closed=i not in sharding.open_dims, priority=priorities.get(i)
        )
        for i, axes in enumerate(sharding.dims)
    ]
    reference = ir.FlatSymbolRefAttr.get(mesh) if isinstance(mesh, str) else mesh
    return sdy.TensorShardingAttr.get(
        reference,
        dims,
        replicated_axes=[_axis_attr(axis) for axis in sharding.replicated],
        unreduced_axes=[_axis_attr(axis) for axis in sharding.unreduced],
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of an array's elements: a sharding without advice to propagation and without synonyms.

    Attributes:
      mesh: None if nothing is split or unreduced, since a replicated array is the same on every mesh.
      dims: for each dimension (axis, pre-size, size), major to minor; adjacent pieces of an axis are one, size 1 is
        left out.
      unreduced: the unreduced axes in the same form, sorted.
      digits: the same without names; equality rests on them: the devices in their order, if they have one, and their
        number; then for each dimension (pre-size, size) of the digits of the position in that order, with adjacent
        ones merged; then the unreduced digits.
    Two placements are equal only if no data moves between them, whatever their axes are called, and on meshes that have
    the devices in one order if none does. In two orders they may still place an array alike.
    """

    mesh: Mesh | None = field(compare=False)
    dims: tuple[tuple[tuple[str, int, int], ...], ...] = field(compare=False)
    unreduced: tuple[tuple[str, int, int], ...] = field(compare=False)
    digits: tuple

    def shards(self) -> tuple[int, ...]:
        """Returns the number of shards of each dimension."""
        return tuple(math.prod(size for _, _, size in axes) for axes in self.dims)

    def __str__(self) -> str:
        return str(Sharding(tuple(map(self._axes, self.dims)), unreduced=self._axes(self.unreduced)))

    def _axes(self, pieces) -> tuple[AxisRef, ...]:
        whole = dict(self.mesh.axes) if self.mesh else {}
        return tuple(AxisRef(name) if whole[name] == size else AxisRef(name, pre, size) for name, pre, size in pieces)


def placement(attr: ir.Attribute | None, rank: int, meshes: dict[str, Mesh]) -> Placement:
    """Returns the placement of an array of `rank`; no sharding means replicated.

    Raises: UnsupportedSharding for a maximal sharding, which puts the whole array on one device.
    """
    if attr is None:
        return Placement(None, ((),) * rank, (), (rank,))
    sharding, mesh = sharding_from_attr(attr), mesh_of(attr, meshes)
    if mesh is None or (not mesh.axes and mesh.device_ids):
        raise UnsupportedSharding(f"sharding {attr} is maximal")
    dims = tuple(_merged(axes, mesh) for axes in sharding.dims)
    unreduced = _merged(tuple(sorted(sharding.unreduced, key=lambda axis: (axis.name, axis.pre_size or 1))), mesh)
    if not any(dims) and not unreduced:
        return Placement(None, dims, (), (rank,))
    digits = (
        mesh.size,
        mesh.device_ids,
        tuple(_digits(pieces, mesh) for pieces in dims),
        tuple(sorted(_digits(unreduced, mesh))),
    )
    return Placement(mesh, dims, unreduced, digits)


def _digits(pieces, mesh: Mesh) -> tuple[tuple[int, int], ...]:
    """Returns the digits (pre-size, size) of the row-major position that pieces of axes are, adjacent ones as one."""
    digits: list[tuple[int, int]] = []
    names = mesh.axis_names
    for name, pre, size in pieces:
        pre *= math.prod([each for _, each in mesh.axes[: names.index(name)]])
        if digits and math.prod(digits[-1]) == pre:
            pre, size = digits[-1][0], digits.pop()[1] * size
        digits.append((pre, size))
    return tuple(digits)


def _merged(axes: tuple[AxisRef, ...], mesh: Mesh) -> tuple[tuple[str, int, int], ...]:
    pieces: list[tuple[str, int, int]] = []
    for axis in axes:
        pre, size = axis.resolve(mesh)
        if size == 1:
            continue
        if pieces and pieces[-1][0] == axis.name and pieces[-1][1] * pieces[-1][2] == pre:
            pre, size = pieces[-1][1], pieces.pop()[2] * size
        pieces.append((axis.name, pre, size))
    return tuple(pieces)


def states_nothing(attr: ir.Attribute) -> bool:
    """Returns whether a sharding has no axes and all dimensions open, as a value has it before a loop takes it."""
    sharding = sharding_from_attr(attr)
    return sharding == Sharding(((),) * sharding.rank, frozenset(range(sharding.rank)))


def mesh_reference(attr: ir.Attribute) -> ir.Attribute:
    """Returns the symbol reference or the inlined mesh of a sharding attribute, as an attribute."""
    return sdy.TensorShardingAttr(attr).mesh_or_ref


def replicated_like(attr: ir.Attribute, rank: int) -> ir.Attribute:
    """Returns the closed, fully replicated sharding of an array of `rank` on the mesh of `attr`."""
    return sharding_to_attr(Sharding(((),) * rank), mesh_reference(attr))


def per_value(op: ir.Operation, name: str = SHARDING) -> list[ir.Attribute] | None:
    """Returns the shardings of an op's results from its `sdy.sharding_per_value`, or None if it has none."""
    if name not in op.attributes:
        return None
    return list(sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings)


def _axes(attrs) -> tuple[AxisRef, ...]:
    return tuple(_axis(sdy.AxisRefAttr(attr)) for attr in attrs)


def _axis(attr) -> AxisRef:
    if attr.sub_axis_info is None:
        return AxisRef(attr.name)
    info = sdy.SubAxisInfoAttr(attr.sub_axis_info)
    return AxisRef(attr.name, info.pre_size, info.size)


def _axis_attr(axis: AxisRef) -> ir.Attribute:
    if axis.size is None:
        return sdy.AxisRefAttr.get(axis.name)
    return sdy.AxisRefAttr.get(axis.name, sdy.SubAxisInfoAttr.get(present(axis.pre_size), axis.size))
