# SPDX-License-Identifier: Apache-2.0
"""A pass of ours as MLIR's pass manager calls it: errors and interrupts wait until MLIR has returned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Diagnostic, from_mlir_error
from reshard.dialect_utils.platform import progress
from reshard.dialect_utils.platform.bindings import ir
from reshard.dialect_utils.platform.interrupts import DeferredInterrupts
from reshard.passes.driver.base import Pass, RunningPass, Session


def as_callable(
    element: Pass,
    module: ir.Module,
    session: Session,
    failures: list[BaseException],
    held: DeferredInterrupts,
    follows_ours: bool,
    verifies: bool,
    next_takes_findings: bool,
) -> Callable[[ir.Operation, object], None]:
    """Returns a function that MLIR calls to run the pass; exceptions, Ctrl-C too, are kept in `failures`.

    So MLIR sees an ordinary failed pass. An analysis and findings in the session are for the next pass alone; they are
    dropped if a pass of MLIR comes between.

    Args:
      verifies: whether the module is verified here and not by MLIR, which would do it also where there is nothing to
        verify.
      next_takes_findings: whether nobody looks at the module before the next pass, and that pass takes findings from
        the session.
    """

    def run(_operation: ir.Operation, external_pass) -> None:
        errors_before = len(session.errors)
        running = session.running = RunningPass(element, session.running.content, next_takes_findings)
        handed_on = session.handed_on
        if not follows_ours:
            handed_on.analysis = handed_on.findings = None
        taken = dataclasses.replace(handed_on)
        progress.at(element.name)
        try:
            with held.let_through():
                element.run(module, session)
                if verifies and not running.is_module_valid and len(session.errors) == errors_before:
                    _verify(module)
        except BaseException as failure:
            failure.add_note(f"in pass {element.name}")
            failures.append(failure)
        finally:
            session.running = RunningPass(content=running.content if running.is_module_unchanged else None)
            handed_on.analysis = None if handed_on.analysis is taken.analysis else handed_on.analysis
            handed_on.findings = None if handed_on.findings is taken.findings else handed_on.findings
            handed_on.are_findings_written |= handed_on.findings is None
        if failures or len(session.errors) > errors_before:
            external_pass.signal_pass_failure()

    return run


def _verify(module: ir.Module) -> None:
    """Raises: DiagnosedError if the module is not valid."""
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise DiagnosedError(from_mlir_error(error)) from None


def errors_behind(error: ir.MLIRError, failures: list[BaseException], collected: list[Diagnostic]) -> list[Diagnostic]:
    """Returns the errors that the session has not collected yet; re-raises a failure that is our bug."""
    if not failures:
        return [] if collected else from_mlir_error(error)
    if not isinstance(failures[0], DiagnosedError):
        raise failures[0] from None
    return list(failures[0].diagnostics)
