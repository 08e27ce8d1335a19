# SPDX-License-Identifier: Apache-2.0
"""The analysis of a module: Shardy's propagation and explicit reshards on a clone, traced back to the original.

    original --clone, tag--> prepared --propagation--> propagated --explicit reshards--> explicit
                 |                |                        |
              origins          operands                 layouts

`preparation/` brings the clone into the form that XLA propagates through, `propagation` runs Shardy's own pipeline,
`explicit_reshards` inserts the conversions.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, field

from ..ir.functions import functions_of, has_body, symbol
from ..ir.ops import CONSTRAINTS, ops_in
from ..ir.pipelines import run_pipeline
from ..platform.bindings import ir
from ..platform.typed import present
from ..preparation.prepared_clone import PreparedClone, prepare
from ..preparation.serials import serial_of, serial_of_named, tagged_clone
from ..shardings.partial_sums import has_partial_sums
from ..shardings.value_layouts import layout, nth_sharding, result_layout, result_layouts_of, stated_results
from .explicit_reshards import EXPLICIT_RESHARDS, stop_before_overflow, sum_where_shardy_cannot
from .propagation import propagate


@dataclass
class Analysis(PreparedClone):
    """A module's clone after propagation and explicit reshards, and the way back to the original.

    Attributes, beside those of `PreparedClone`:
      explicit: the clone with explicit reshards.
      layouts: serial -> the distinct layouts of its op after propagation, as `result_layouts` gives them; several where
        the splitter of constants made several ops of one.
      constraints: serial -> (layout of the operand, layout asked for) of each constraint after propagation.
      argument_layouts, result_layouts: function name -> shardings of its arguments or results after propagation.
    """

    explicit: ir.Operation
    layouts: dict[int, frozenset[ir.Attribute | None]] = field(default_factory=dict)
    constraints: dict[int, tuple[ir.Attribute | None, ir.Attribute]] = field(default_factory=dict)
    argument_layouts: dict[str, list[ir.Attribute | None]] = field(default_factory=dict)
    result_layouts: dict[str, list[ir.Attribute | None]] = field(default_factory=dict)
    _entries: dict[tuple[ir.Attribute, int], ir.Attribute | None] = field(default_factory=dict, repr=False)

    def nth_sharding(self, per_value: ir.Attribute, number: int) -> ir.Attribute | None:
        """Returns the same as the function of this name, from a memo: few attributes are shared by many ops."""
        key = per_value, number
        if key not in self._entries:
            self._entries[key] = nth_sharding(per_value, number)
        return self._entries[key]

    def layout(self, value: ir.Value) -> ir.Attribute | None:
        """Returns the `#sdy.sharding` of a value of `explicit`; None if it has none."""
        return layout(value, self.nth_sharding)

    def result_layout(self, op: ir.Operation, number: int) -> ir.Attribute | None:
        """Returns the `#sdy.sharding` of a result of an op of `explicit`; None if it has none."""
        return result_layout(op, number, self.nth_sharding)

    @functools.cached_property
    def explicit_ops(self) -> list[ir.Operation]:
        """Returns the ops of `explicit`. Read it only once the explicit reshards are inserted."""
        return ops_in(self.explicit)

    def first_of(self, serials: Collection[int]) -> dict[int, ir.Operation]:
        """Returns serial -> the first op of `explicit_ops` that has it, for those of `serials` that are there.

        The ops are walked again, since the pass that inserts reshards erases some, and the bindings would read freed
        memory.
        """
        names = {self.prepared_ops[serial].name for serial in serials}
        by_serial: dict[int, ir.Operation] = {}
        # Ops with one of the names come first; the serials of all others are read only if one is still missing.
        for keeps_name in (True, False):
            if len(by_serial) < len(serials):
                for op in self.explicit_ops:
                    name = op.name
                    if (name in names) is keeps_name and (serial := serial_of_named(op, name)) in serials:
                        by_serial.setdefault(present(serial), op)
        return by_serial

    @functools.cached_property
    def inserted_reshards(self) -> list[ir.Operation]:
        """Returns the reshards that were inserted into `explicit`. Read it only once they are inserted."""
        return [op for op in self.explicit_ops if op.name == "sdy.reshard" and serial_of(op) is None]

    @functools.cached_property
    def instances(self) -> dict[int, list[int]]:
        """Returns index in `originals` -> serials of the instances of that op."""
        found: dict[int, list[int]] = {}
        for serial, index in enumerate(self.origin):
            if index is not None:
                found.setdefault(index, []).append(serial)
        return found


def analyse(module: ir.Module | ir.Operation) -> Analysis:
    """Returns the analysis of a module; the module is not changed.

    Raises:
      NotPropagatedError: Shardy's passes would end the process, or take too much memory.
      DiagnosedError: Shardy's own diagnostics if a pipeline fails.
    """
    analysis = before_propagation(prepare(*tagged_clone(module)))
    # Only stand-ins for dynamic shapes could be invalid, and the verifier takes longer than most passes of Shardy's.
    verifies = analysis.has_dynamic_shapes
    propagate(analysis.explicit, verifies)
    ops = ops_in(analysis.explicit)
    _take_snapshot(analysis, ops)
    stop_before_overflow(analysis.explicit, ops)
    if has_partial_sums(_distinct_layouts(analysis)):
        sum_where_shardy_cannot(analysis.explicit, ops)
    del ops  # the passes may erase some
    run_pipeline(analysis.explicit, EXPLICIT_RESHARDS, verifies)
    return analysis


def before_propagation(prepared: PreparedClone) -> Analysis:
    """Returns the analysis of a prepared clone, with a copy of the clone for the passes to work on."""
    return Analysis(**vars(prepared), explicit=prepared.prepared.clone().operation)


def _distinct_layouts(analysis: Analysis) -> set[ir.Attribute | None]:
    return set().union(
        *set(analysis.layouts.values()), *analysis.argument_layouts.values(), *analysis.result_layouts.values()
    )


def _take_snapshot(analysis: Analysis, ops: list[ir.Operation]) -> None:
    """Fills in the layouts after propagation; `ops` are all ops of the module."""
    alone: dict[ir.Attribute | None, frozenset[ir.Attribute | None]] = {}  # ops share these: there are few layouts
    layouts, constraints = analysis.layouts, analysis.constraints
    for op in ops:
        name = op.name
        serial = serial_of_named(op, name)
        if serial is None:
            continue
        attr = result_layouts_of(name, op.attributes)
        one = alone.get(attr)
        if one is None:
            one = alone[attr] = frozenset((attr,))
        layouts[serial] = layouts[serial] | one if serial in layouts else one
        if name in CONSTRAINTS:
            constraints[serial] = layout(op.operands[0]), present(attr)
    for function in functions_of(analysis.explicit):
        arguments = function.regions[0].blocks[0].arguments if has_body(function) else ()
        analysis.argument_layouts[symbol(function)] = [layout(argument) for argument in arguments]
        analysis.result_layouts[symbol(function)] = stated_results(function)
