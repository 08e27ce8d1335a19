# SPDX-License-Identifier: Apache-2.0
"""What is around the ops that are being written: loops and branches, and the axes of manual computations."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from reshard.synthesis.layouts.mesh import Mesh

from ..hierarchy.varying_axes import VaryingAxes, varying_axes
from ..ir.loop_trips import ASSUMED_TRIPS
from ..platform.bindings import ir
from ..tile_rules.local_rules import Dims
from ..tile_rules.partly_manual import ManualAxes


@dataclass(frozen=True, slots=True)
class _Region:
    """A region of a loop or branch: the new op if it is a loop, its body, and how often the body runs, if known."""

    loop: ir.Operation | None
    body: ir.Block
    known_trips: int | None

    @property
    def trips(self) -> int:
        """Returns how often the body is assumed to run, at least once."""
        return max(1, ASSUMED_TRIPS if self.known_trips is None else self.known_trips)


class Surroundings:
    """The regions and manual computations around the current insertion point, outermost first.

    Attributes:
      manual: the axes of all manual computations around it.
    """

    def __init__(self, mesh: Mesh, meshes: dict[str, Mesh]):
        self.mesh, self.meshes = mesh, meshes
        self.manual = ManualAxes()
        self._regions: list[_Region] = []
        self._varying: list[VaryingAxes] = []  # of the manual computations

    @contextlib.contextmanager
    def inside_region(self, loop: ir.Operation | None, body: ir.Block, trips: int | None) -> Iterator[None]:
        """Inside it, ops are written into the body of a loop, or of a branch, for which `loop` is None; `trips` is None
        if nobody knows how often it runs."""
        self._regions.append(_Region(loop, body, trips))
        try:
            yield
        finally:
            self._regions.pop()

    @contextlib.contextmanager
    def before(self, loop: ir.Operation) -> Iterator[None]:
        """Inside it, ops are written before a loop, around what is being written."""
        at = next(number for number, each in enumerate(self._regions) if each.loop is not None and each.loop == loop)
        inside, self._regions = self._regions, self._regions[:at]
        try:
            with ir.InsertionPoint(loop):
                yield
        finally:
            self._regions = inside

    @property
    def runs(self) -> int | None:
        """Returns how often in a step what is written here runs; None if nobody knows."""
        trips = [each.known_trips for each in self._regions if each.known_trips is not None]
        return math.prod(trips) if len(trips) == len(self._regions) else None

    @property
    def turns(self) -> int:
        """Returns how many turns the innermost loop takes for which something is written here; 1 outside of loops."""
        return self._regions[-1].trips if self._regions else 1

    @contextlib.contextmanager
    def inside_manual(self, op: ir.Operation, manual: ManualAxes) -> Iterator[None]:
        """Inside it, the body of a manual computation is written; `manual` has its axes and those around it."""
        around = self._varying[-1] if self._varying else None
        self._varying.append(varying_axes(op, self.mesh, meshes=self.meshes, outside=around))
        outside, self.manual = self.manual, manual
        try:
            yield
        finally:
            self._varying.pop()
            self.manual = outside

    def varying(self, op: ir.Operation, dims: Dims) -> set[str] | None:
        """Returns the axes along which an operand of an op may differ, if it has a layout besides; None outside of
        manual computations."""
        if not self._varying:
            return None
        found = {each.axis for each in self.manual.axes} & self._varying[-1].of(op.operands)
        return found | {axis.axis for axes in dims for axis in axes}

    def is_run_by_all(self, op: ir.Operation) -> bool:
        """Returns whether no loop or branch in a manual computation may be run by some of its devices alone.

        In one that may, a permute would wait for the others: all devices of a program take part in it.
        """
        apart = frozenset().union(*(each.around(op) for each in self._varying))
        return not any(each.axis in apart for each in self.manual.axes)

    def loop_that_takes(self, tile: ir.Value) -> ir.Operation | None:
        """Returns the outermost loop that takes a tile from outside and runs what is written here in each turn.

        Before this loop a conversion of the tile can be written once for all turns.
        """
        block = tile.owner if isinstance(tile.owner, ir.Block) else tile.owner.operation.block
        first = None
        for each in self._regions:
            first = None if each.loop is None or each.body == block else first or each.loop
        return first

    def share_before(self, loop: ir.Operation | None) -> float:
        """Returns which part of what is written before a loop counts for one turn here; all of it without a loop."""
        turned = itertools.dropwhile(lambda each: loop is None or each.loop is None or each.loop != loop, self._regions)
        return 1 / math.prod(each.trips for each in turned)
