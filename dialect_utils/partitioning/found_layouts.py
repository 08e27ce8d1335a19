# SPDX-License-Identifier: Apache-2.0
"""The layouts that propagation found for an analysed module, and those in which the users of a value want it."""

from __future__ import annotations

from reshard.synthesis.layouts.mesh import Mesh

from ..analysis.module_analysis import Analysis
from ..ir.ops import producer_of
from ..platform.bindings import ir
from ..platform.typed import present
from ..preparation.serials import serial_of
from ..shardings.value_layouts import layout
from ..tile_rules import local_rules
from ..tile_rules.local_rules import Dims
from ..tiles.copied_ops import PASS_ON
from ..tiles.tiles import dims_of


class FoundLayouts:
    """The layouts of values, and which ops of the original module the analysed ones are."""

    def __init__(self, mesh: Mesh, analysis: Analysis):
        self._mesh, self._analysis = mesh, analysis
        self._known: dict[tuple[ir.Attribute | None, int | None], Dims] = {}  # few layouts are of many values

    def of(self, value: ir.Value) -> Dims:
        """Returns the layout that propagation found for a value."""
        attr, kind = layout(value), value.type
        key = attr, ir.RankedTensorType(kind).rank if isinstance(kind, ir.RankedTensorType) else None
        if key not in self._known:
            self._known[key] = dims_of(attr, kind, self._mesh)
        return self._known[key]

    def dividing(self, value: ir.Value) -> Dims:
        """Returns the layout that propagation found for a value, as far as it divides; nothing for a token."""
        if not isinstance(value.type, ir.RankedTensorType):
            return ()
        shape = ir.RankedTensorType(value.type).shape
        return tuple(local_rules.dividing(*each) for each in zip(shape, self.of(value), strict=True))

    def last(self, op: ir.Operation) -> Dims:
        """Returns the layout at the end of a chain of ops that only change the layout of what `op` makes, or drop and
        add dimensions of size 1.

        A value with several users is not the end if all of them want it in one layout.
        """
        dims = self.of(op.results[0])
        places: list[int | None] = list(range(len(dims)))  # where each dimension of the result is by now
        while users := [use.owner.operation for use in op.results[0].uses]:
            if len(users) == 1 and (moved := kept_dimensions(users[0])) is not None:
                places = [None if place is None else moved.get(place) for place in places]
                op = users[0]
                continue
            if not all(user.name in PASS_ON for user in users):
                return dims
            wanted = {self.of(user.results[0]) for user in users}
            if len(wanted) > 1:
                return dims
            (end,) = wanted
            op, dims = users[0], tuple(() if place is None else end[place] for place in places)
            if len(users) > 1:
                return dims
        return dims

    def is_wanted_once(self, value: ir.Value) -> bool:
        """Returns whether all users need partial sums in one layout, so that they are added up once, in that layout."""
        users = [use.owner.operation for use in value.uses]
        if not all(user.block == present(producer_of(value)).block for user in users):
            return False  # not once for each turn of a loop
        layouts = {self.last(each) if each.name in PASS_ON else None for each in users}
        return len(users) == 1 or len(layouts) == 1 and None not in layouts

    def original(self, op: ir.Operation) -> ir.Operation | None:
        """Returns the op of the original module; None for an op that the analysis made."""
        serial = serial_of(op)
        index = None if serial is None else self._analysis.origin[serial]
        return None if index is None else self._analysis.originals[index]

    def is_top_k(self, op: ir.Operation) -> bool:
        original = self.original(op)
        return original is not None and original.name == "chlo.top_k"


def kept_dimensions(op: ir.Operation) -> dict[int, int] | None:
    """Returns where each dimension, but for those of size 1, is behind a reshape that moves none of the others; None
    for another op."""
    if op.name != "stablehlo.reshape":
        return None
    before, after = (ir.RankedTensorType(each.type).shape for each in (op.operands[0], op.results[0]))
    kept, found = ([dim for dim, size in enumerate(shape) if size != 1] for shape in (before, after))
    is_alike = [before[dim] for dim in kept] == [after[dim] for dim in found]
    return dict(zip(kept, found, strict=True)) if is_alike else None
