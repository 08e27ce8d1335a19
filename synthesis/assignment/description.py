# SPDX-License-Identifier: Apache-2.0
"""A solution in the words of the field: what each mesh axis is for, by its roles in matrix products and by the state.

With parameters and optimizer state in shards over the axis that splits the batch, data parallelism is ZeRO-3; with the
state alone in shards, ZeRO-1. Tensor parallelism as in Megatron has columns first, then rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..layouts.sharding import Sharding
from .axes import Axes
from .clusters import Clusters
from .factored_program import FactoredProgram
from .layout_problem import Assignment
from .roles import DATA, SEQUENCE, Roles

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
_MOST = 0.5  # of the matrix work that makes a role the axis's own
_MUCH = 0.05  # that is worth a word


@dataclass(frozen=True, slots=True)
class AxisUse:
    """What an axis is for.

    Attributes:
      axis, size: the axis, or a part of one as Shardy prints it, without quotes.
      work: role -> its share of the matrix work, by operations.
      stored: the share of the bytes of state, which the program returns as new values, that the axis splits.
      are_weights_whole: whether it splits no weight, though weights may be laid out otherwise than the other state.
    """

    axis: str
    size: int
    work: Mapping[str, float]
    stored: float
    are_weights_whole: bool = False

    @property
    def is_used(self) -> bool:
        """Returns whether the axis splits any matrix product or any state."""
        return bool(self.work) or self.stored > 0

    @property
    def words(self) -> str:
        """Returns the use in words."""
        shares = [
            f"{role} parallel in {share:.0%} of the matrix work" for role, share in self._sorted() if share >= _MUCH
        ]
        if self.stored >= _MUCH and self.are_weights_whole:
            shares.append("the optimizer's state kept in shards, parameters whole (ZeRO-1)")
        elif self.stored >= _MOST and self.work.get(DATA, 0.0) + self.work.get(SEQUENCE, 0.0) >= _MOST:
            shares.append("parameters and state kept in shards, gathered where they are used (ZeRO-3)")
        elif self.stored >= _MUCH:
            shares.append(f"{self.stored:.0%} of the state kept in shards")
        return "; ".join(shares) or "not used"

    def _sorted(self) -> list[tuple[str, float]]:
        return sorted(self.work.items(), key=lambda each: (-each[1], each[0]))


def uses_of(program: FactoredProgram, clusters: Clusters, assignment: Assignment) -> list[AxisUse]:
    """Returns what each axis of the mesh is for, or each part of it; those of size 1 are left out."""
    roles = Roles(program, clusters)
    whole = sum(op.flops * op.runs for number, op in enumerate(program.ops) if number in assignment.ways)
    found = []
    axes = assignment.axes
    for axis, (_, size) in enumerate(axes.parts.axes):
        if size == 1:
            continue
        work: dict[str, float] = {}
        for number, way in assignment.ways.items():
            op = program.ops[number]
            factor = next((factor for factor, some in enumerate(way) if axis in some), None)
            if op.flops and factor is not None:
                role = roles.of(op, factor)
                work[role] = work.get(role, 0.0) + op.flops * op.runs / whole
        is_whole = bool(program.weights) and not any(_splits(assignment, weight, axis) for weight, _ in program.weights)
        name = str(axes.refs[axis]).replace('"', "")
        found.append(AxisUse(name, size, work, _stored(program, roles.parameters, assignment, axis), is_whole))
    return found


def collectives_of(source: Sharding, target: Sharding, axes: Axes) -> tuple[str, ...]:
    """Returns the collectives that a conversion is made of, as one would write it down, one of each kind.

    Example:
      >>> from ..layouts.mesh import Mesh
      >>> from .axes import whole_axes
      >>> axes = whole_axes(Mesh.parse("x=2,y=4"))
      >>> partial, split = (Sharding.parse(text) for text in ('[{}, {"x"}], unreduced={"y"}', '[{"y"}, {}]'))
      >>> collectives_of(partial, split, axes)
      ('reduce_scatter', 'all_gather')
    """
    partial = axes.parts_of(source.unreduced) - axes.parts_of(target.unreduced)
    before, after = (
        {part: dim for dim, some in enumerate(each.dims) for part in axes.parts_of(some)} for each in (source, target)
    )
    found = {
        "reduce_scatter": partial & after.keys(),
        "all_reduce": partial - after.keys(),
        "all_gather": before.keys() - after.keys(),
        "all_to_all": {part for part in before.keys() & after.keys() if before[part] != after[part]},
    }
    return tuple(kind for kind, parts in found.items() if parts)


def _stored(program: FactoredProgram, parameters: frozenset[int], assignment: Assignment, axis: int) -> float:
    sizes = {tensor: math.prod(program.tensors[tensor].shape) * program.tensors[tensor].bits for tensor in parameters}
    split = sum(size for tensor, size in sizes.items() if _splits(assignment, tensor, axis))
    return split / max(1, sum(sizes.values()))


def _splits(assignment: Assignment, tensor: int, axis: int) -> bool:
    """Returns whether a part of the axes, by its number, splits a tensor."""
    layout = assignment.layouts[tensor]
    return layout is not None and axis in assignment.axes.parts_of(each for axes in layout.dims for each in axes)
