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
from .copied_ops import PASS_ON
from .tiles import dims_of


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
        """Returns the layout at the end of a chain of ops that only change the layout of what `op` makes.

        A value with several users is not the end if all of them want it in one layout.
        """
        dims = self.of(op.results[0])
        while users := [use.owner.operation for use in op.results[0].uses]:
            if not all(user.name in PASS_ON for user in users):
                return dims
            wanted = {self.of(user.results[0]) for user in users}
            if len(wanted) > 1:
                return dims
            op, dims = users[0], wanted.pop()
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
