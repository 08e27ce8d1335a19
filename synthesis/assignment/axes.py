# SPDX-License-Identifier: Apache-2.0
"""What splits dimensions: the axes of a mesh, or parts of them, and which comes first where several split one.

On an axis of eight devices, four heads can be split by a part of size four, and a batch of two by the part of size two
that is left. The mesh with an axis for each part has the layouts in which axes are cut.

Where two axes split a dimension, the second one can be gathered alone: blocks that are next to each other come
together. The first one cannot. So it may be better to have the last axis of the mesh first. The mesh with its axes
swapped, and the same devices at the same coordinates, has the layouts of that order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..layouts.mesh import Mesh
from ..layouts.sharding import AxisRef

WHOLE, PARTS, SWAPPED = "whole", "parts", "swapped"  # the forms of the axes of a mesh
MOST_PARTS = 3  # of all axes together: layouts are as many as dimensions to that power


@dataclass(frozen=True)
class Axes:
    """A mesh and what splits dimensions on it.

    Attributes:
      mesh: as it is. parts: the mesh with an axis for each part, in the order in which they split a dimension.
      refs: for each axis of `parts` the axis of `mesh`, or the part of it, that it is.
    """

    mesh: Mesh
    parts: Mesh
    refs: tuple[AxisRef, ...]

    @property
    def are_whole(self) -> bool:
        """Returns whether these are the axes of the mesh, in its order."""
        return self.parts == self.mesh

    @property
    def groups(self) -> list[list[int]]:
        """Returns for each axis of the mesh the numbers of its parts."""
        return [[at for at, ref in enumerate(self.refs) if ref.name == name] for name in self.mesh.axis_names]

    def named(self, parts: Iterable[int]) -> tuple[AxisRef, ...]:
        """Returns some parts, by their numbers in rising order, as axes of the mesh; neighbours are one.

        Example:
          >>> cut = cut_axes(Mesh.parse("x=8,y=2"))
          >>> [str(each) for each in cut.named([0, 1, 2])], [str(each) for each in cut.named([1, 2])]
          (['"x"', '"y"'], ['"x":(2)4', '"y"'])
        """
        found, sizes = [], dict(self.mesh.axes)
        for ref in (self.refs[part] for part in parts):
            if found and found[-1].name == ref.name and self._span(found[-1])[1] == self._span(ref)[0]:
                first, last = self._span(found.pop())[0], self._span(ref)[1]
                ref = AxisRef(ref.name, first, last // first) if last // first < sizes[ref.name] else AxisRef(ref.name)
            found.append(ref)
        return tuple(found)

    def parts_of(self, axes: Iterable[AxisRef]) -> set[int]:
        """Returns the numbers of the parts that some axes of the mesh, or parts of them, are made of."""
        spans = [(each.name, *self._span(each)) for each in axes]
        return {
            at
            for at, ref in enumerate(self.refs)
            for name, first, last in spans
            if name == ref.name and first <= self._span(ref)[0] and self._span(ref)[1] <= last
        }

    def _span(self, ref: AxisRef) -> tuple[int, int]:
        """Returns the product of the sizes before a part, and that with its own size."""
        pre_size, size = ref.resolve(self.mesh)
        return pre_size, pre_size * size


def whole_axes(mesh: Mesh) -> Axes:
    """Returns the axes of a mesh as one part each."""
    return Axes(mesh, mesh, tuple(AxisRef(name) for name in mesh.axis_names))


def cut_axes(mesh: Mesh) -> Axes:
    """Returns the axes of a mesh cut into parts, the largest ones first, as long as there are few parts.

    Example:
      >>> cut = cut_axes(Mesh.parse("x=12"))
      >>> cut.parts.axes, [str(each) for each in cut.refs]
      ((('x.0', 2), ('x.1', 2), ('x.2', 3)), ['"x":(1)2', '"x":(2)2', '"x":(4)3'])
    """
    sizes = {name: [size] for name, size in mesh.axes}
    while sum(len(each) for each in sizes.values() if each != [1]) < MOST_PARTS:
        parts = [(size, name) for name, some in sizes.items() for size in some if _least_factor(size) < size]
        if not parts:
            break
        size, name = max(parts, key=lambda part: part[0])
        at, factor = sizes[name].index(size), _least_factor(size)
        sizes[name][at : at + 1] = [factor, size // factor]
    axes, refs = [], []
    for name, some in sizes.items():
        pre_size = 1
        for number, size in enumerate(some):
            own = name if len(some) == 1 else f"{name}.{number}"
            while len(some) > 1 and own in sizes:  # it is the name of another axis
                own += "_"
            axes.append((own, size))
            refs.append(AxisRef(name) if len(some) == 1 else AxisRef(name, pre_size, size))
            pre_size *= size
    return Axes(mesh, Mesh(tuple(axes), mesh.device_ids), tuple(refs))


def swapped_axes(mesh: Mesh) -> Axes:
    """Returns the axes of a mesh of two axes that count with the last one first, or else those of the mesh.

    Example:
      >>> swapped = swapped_axes(Mesh.parse("x=2,y=3"))
      >>> swapped.parts.axes, swapped.parts.device_ids, [str(each) for each in swapped.named([0, 1])]
      ((('y', 3), ('x', 2)), (0, 3, 1, 4, 2, 5), ['"y"', '"x"'])
    """
    if sum(size > 1 for _, size in mesh.axes) != 2:
        return whole_axes(mesh)
    first, last = (size for _, size in mesh.axes if size > 1)
    ids = mesh.device_ids or range(mesh.size)
    axes = mesh.axes[::-1]
    parts = Mesh(axes, tuple(ids[at * last + behind] for behind in range(last) for at in range(first)))
    return Axes(mesh, parts, tuple(AxisRef(name) for name, _ in axes))


FORMS = {WHOLE: whole_axes, PARTS: cut_axes, SWAPPED: swapped_axes}


def _least_factor(number: int) -> int:
    return next((factor for factor in range(2, number) if number % factor == 0), number)
