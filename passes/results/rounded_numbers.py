# SPDX-License-Identifier: Apache-2.0
"""Iotas whose numbers XLA's partitioner would round twice, in the module that is handed over: they are written as
integers, which are converted. This costs next to nothing, so that nothing is asked or run for it."""

from __future__ import annotations

from reshard.dialect_utils.analysis.miscompilations import ROUNDED_TWICE, AtOp
from reshard.dialect_utils.analysis.module_analysis import analyse
from reshard.dialect_utils.emission.split_iotas import inexact_iotas, write_as_integers
from reshard.dialect_utils.ir.diagnostics import DiagnosedError
from reshard.dialect_utils.platform import compat
from reshard.dialect_utils.platform.bindings import ir
from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results.checks import ROUNDED_ONCE
from reshard.passes.sites.op_layouts import OpLayouts

_SAID = "the numbers of this iota are written as integers, then converted: stock XLA rounds those of a part twice"


def rounded_once(module: ir.Module, pipeline: Pipeline, session: Session) -> ir.Module:
    """Returns the module, or another one if it has iotas that XLA would round twice, which are counted and told.

    Args:
      pipeline: its passes say how the module is sharded, if it does not yet have Shardy's shardings.
    """
    if not session.may_have("iota") or not inexact_iotas(module):
        return module
    written = compat.bytecode(module)
    with module.context, ir.Location.unknown():
        other = ir.Module.parse(written)
        found = inexact_iotas(other)
        found = [op for op, is_wrong in zip(found, _are_wrong(written, pipeline, session), strict=True) if is_wrong]
        for op in found:
            session.remark(op, _SAID)
            write_as_integers(op)
    session.results.statistics[ROUNDED_ONCE] += len(found)
    return other if found else module


def _are_wrong(written: bytes, pipeline: Pipeline, session: Session) -> list[bool]:
    """Returns for each inexact iota of a module whether XLA would round its numbers twice.

    One of which a layout is not known counts: numbers that are rounded once are right in any layout. Of a module that
    propagation refuses, which XLA may refuse as well, none counts.
    """
    module = ir.Module.parse(written)
    count = len(inexact_iotas(module))
    try:
        Pipeline(tuple(each for each in pipeline.passes if each.states_shardings)).run(module, Session(session.options))
        iotas = inexact_iotas(module)
        layouts = OpLayouts(analyse(module), set(iotas))
    except DiagnosedError:
        return [False] * count
    return [_is_wrong(op, layouts) for op in iotas] if len(iotas) == count else [True] * count


def _is_wrong(op: ir.Operation, layouts: OpLayouts) -> bool:
    if not layouts.instances_of(op):
        return True
    found = layouts.of_result(op)
    return any(each is None or ROUNDED_TWICE.is_met(AtOp(op, each[0], [], [each[1]])) for each in found)
