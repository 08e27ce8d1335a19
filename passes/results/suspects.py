# SPDX-License-Identifier: Apache-2.0
"""Ops of a module that XLA may compute wrongly in their layouts, by the table of miscompilations.

The table has a condition for each kind of wrong result that was ever found, and no op was found wrong that meets no
condition. Many ops that meet one are right. So a suspect is a reason to look at values, and none to rewrite anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from reshard.dialect_utils.analysis.miscompilations import OPS, AtOp, has_later_layouts, miscompilation_of
from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.emission.shared_windows import WINDOWED, are_confused
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.ir.functions import CALL
from reshard.dialect_utils.ir.index_ranges import Ranges
from reshard.dialect_utils.ir.ops import CONSTRAINTS, ops_in
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.sites.op_layouts import OpLayouts


def may_be_wrong(module: ir.Module) -> bool:
    """Returns whether XLA's partitioner may compute an op of a module wrongly in the layouts that propagation finds.

    An op whose layouts are unknown counts if its name is in the table. If Shardy cannot propagate, nothing is known.
    """
    ops = ops_in(module.operation)
    asked = {op for op in ops if op.name in OPS}
    if any(op.name in WINDOWED for op in ops) and are_confused(module, _windowed_values(ops)):
        return True
    if not asked:
        return False
    try:
        layouts = OpLayouts(analyse(module), asked)
    except DiagnosedError:
        return False
    ranges = Ranges()
    return any(_is_suspect(op, layouts, ranges) for op in layouts.index)


def _windowed_values(ops: Iterable[ir.Operation]) -> set[ir.Value]:
    """Returns the values that may have windows on them: directly, in a function that is called, or behind a constraint.

    JAX calls functions for most ops with windows, such as cumsum and pad."""
    found = {op.operands[0] for op in ops if op.name in WINDOWED or op.name in CONSTRAINTS}
    return found.union(*(op.operands for op in ops if op.name == CALL))


def _is_suspect(op: ir.Operation, layouts: OpLayouts, ranges: Ranges) -> bool:
    for mesh in layouts.meshes.values():
        if (found := layouts.of(op, mesh)) is not None:
            results = [found.results]
            if has_later_layouts(op):
                results += [[each, *found.results[1:]] for each in layouts.later_layouts(op)]
            rows = [miscompilation_of(AtOp(op, mesh, found.operands, each, ranges)) for each in results]
            return any(row is not None and row.is_of_partitioner for row in rows)
    return bool(layouts.instances_of(op))  # it is there, in layouts on several meshes
