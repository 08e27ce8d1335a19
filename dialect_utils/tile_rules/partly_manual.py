# SPDX-License-Identifier: Apache-2.0
"""Manual computations over some axes of a mesh: their bodies work on tiles along these, and are split along the others.

    %0 = sdy.manual_computation(%x) in_shardings=[<[{"data", "model"}, {}]>] manual_axes={"data"} (%tile) {
      %1 = op %tile                     // a tile along data; propagation splits it further, along model
      %2 = "stablehlo.all_reduce"(%1)   // in groups along data
    }

Along the manual axes the tiles are parts of different arrays, of which the body knows nothing. So each value of the
body is one tile of an array with one more dimension in front, of the size of the manual axes, which own it and keep it:
a plan for this array never mixes what devices along these axes have. The layouts of the body's values say nothing of
the manual axes. The collectives of the body run along the manual axes alone: each device of the others has a part of
their tile, and runs them on that part.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reshard.synthesis.hierarchy.device_groups import Groups
from reshard.synthesis.layouts.layout import Factor
from reshard.synthesis.layouts.mesh import Mesh

from ..hierarchy.collective_groups import groups_of
from ..ir.ops import manual_axes
from ..platform.bindings import ir, stablehlo
from . import local_rules
from .local_rules import Axes, Dims, NotLocal, Rule, Site

_ALIKE = frozenset(f"stablehlo.{each}" for each in ("all_reduce", "collective_permute", "collective_broadcast"))
_ALONG = {
    "stablehlo.all_gather": ("all_gather_dim",),
    "stablehlo.reduce_scatter": ("scatter_dimension",),
    "stablehlo.all_to_all": ("split_dimension", "concat_dimension"),
}
COLLECTIVES = _ALIKE | _ALONG.keys()


@dataclass(frozen=True, slots=True)
class ManualAxes:
    """The axes of the manual computations around tiles, major to minor; none outside of manual computations.

    An array with the tiles of all devices has a dimension more in front, if there are axes.
    """

    axes: Axes = ()

    @classmethod
    def of(cls, island: ir.Operation, mesh: Mesh) -> ManualAxes:
        """Returns those of a manual computation, in the order of the mesh."""
        named = manual_axes(island.attributes["manual_axes"])
        return cls(tuple(Factor(name, 1, size) for name, size in mesh.axes if name in named and size > 1))

    def with_those_in(self, inner: ManualAxes) -> ManualAxes:
        return ManualAxes((*self.axes, *inner.axes))

    def are_all_of(self, mesh: Mesh) -> bool:
        return {each.axis for each in self.axes} >= {name for name, size in mesh.axes if size > 1}

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (local_rules.shards(self.axes), *shape) if self.axes else tuple(shape)

    def start(self, start: Sequence[int]) -> tuple[int, ...]:
        return (0, *start) if self.axes else tuple(start)

    def dimensions(self, dimensions: Sequence[int]) -> tuple[int, ...]:
        return tuple(each + bool(self.axes) for each in dimensions)

    def dims(self, dims: Dims) -> Dims:
        return (self.axes, *dims) if self.axes else dims

    def tensor(self, kind: ir.Type) -> ir.Type:
        """Returns the type of the array for that of a value of the body."""
        tensor = ir.RankedTensorType(kind)
        return ir.RankedTensorType.get(self.shape(tensor.shape), tensor.element_type) if self.axes else kind

    def as_part(self, tile: ir.Value) -> ir.Value:
        """Writes a tile of the body as a tile of the array."""
        kind = ir.RankedTensorType(tile.type)
        return _reshaped(tile, (1, *kind.shape), kind.element_type) if self.axes else tile

    def from_part(self, tile: ir.Value) -> ir.Value:
        """Writes a tile of the array as a tile of the body."""
        kind = ir.RankedTensorType(tile.type)
        return _reshaped(tile, kind.shape[1:], kind.element_type) if self.axes else tile

    def ends(self, values: Iterable[ir.Value], outside: Iterable[Dims]) -> tuple[list[Dims], list[Dims]]:
        """Returns the layouts of values where they enter or leave the body, outside of it and in it.

        Where other axes split a value of the body unevenly, its tiles end elsewhere than those of the value outside, so
        these axes do not split that dimension at the ends.

        Args:
          values: in the body. outside: the layouts that propagation found.
        """
        pairs = [self._end(ir.RankedTensorType(value.type).shape, dims) for value, dims in zip(values, outside)]
        return [outer for outer, _ in pairs], [inner for _, inner in pairs]

    def _end(self, shape: Sequence[int], outside: Dims) -> tuple[Dims, Dims]:
        names = {each.axis for each in self.axes}  # of which an end may have parts
        own = [tuple(each for each in axes if each.axis in names) for axes in outside]
        others = (tuple(each for each in axes if each.axis not in names) for axes in outside)
        inside = tuple(
            axes if not manual or local_rules.is_even(size, axes) else ()
            for size, axes, manual in zip(shape, others, own, strict=True)
        )
        return tuple(map(operator.add, own, inside)), inside

    def rules(self, site: Site, mesh: Mesh, meshes: Mapping[str, Mesh]) -> list[Rule]:
        """Returns the rules of a collective of the body, in the layouts of its results and in those of its operands.

        Raises: NotLocal if it runs along other axes.
        """
        if not self._has(site.op, mesh, meshes):
            raise NotLocal("it does not run in equal groups along the axes of the manual computations around it alone")
        along = [site.int(each) for each in _ALONG.get(site.op.name, ())]
        said = f"it runs along {local_rules.named(list(dict.fromkeys(along)))}" if along else ""
        layouts = dict.fromkeys(
            tuple(tuple(() if d in along else axes for d, axes in enumerate(dims)) for dims in each)
            for each in (site.results, site.operands)
        )
        return [Rule(each, each, whole=said) for each in layouts]

    def _has(self, op: ir.Operation, mesh: Mesh, meshes: Mapping[str, Mesh]) -> bool:
        """Returns whether a collective runs along the axes alone, and all devices along other axes do the same."""
        if "channel_handle" not in op.attributes:
            return False  # its ids are those of replicas of the program
        if op.name == "stablehlo.collective_permute":
            pairs = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])).reshape(-1, 2)
            groups = tuple(map(tuple, pairs.tolist()))
        else:
            groups = groups_of(op, meshes)
        return groups is not None and _are_along(mesh, groups, frozenset(each.axis for each in self.axes))


@functools.lru_cache(maxsize=128)  # many collectives of a program have the same groups
def _are_along(mesh: Mesh, groups: Groups, named: frozenset[str]) -> bool:
    """Returns whether devices of a group differ along the named axes alone, and all others have the same groups."""
    sizes = [size for _, size in mesh.axes]
    places = {
        mesh.device_at(position): np.array(np.unravel_index(position, sizes), int) for position in range(mesh.size)
    }
    is_named = np.array([name in named for name in mesh.axis_names], bool)
    of_others: dict[tuple[int, ...], set[tuple]] = {}
    for group in groups:
        if not all(device in places for device in group):
            return False
        others = {tuple(places[device][~is_named].tolist()) for device in group}
        if len(others) > 1:
            return False
        inside = tuple(tuple(places[device][is_named].tolist()) for device in group)
        of_others.setdefault(others.pop(), set()).add(inside)
    count = math.prod(size for name, size in mesh.axes if name not in named)
    return len(of_others) in (0, count) and len({frozenset(each) for each in of_others.values()}) <= 1


def _reshaped(tile: ir.Value, shape: Sequence[int], element: ir.Type) -> ir.Value:
    return stablehlo.ReshapeOp(ir.RankedTensorType.get(list(shape), element), tile).result
