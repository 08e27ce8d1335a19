# SPDX-License-Identifier: Apache-2.0
"""Runs textual pipelines of MLIR's passes."""

from __future__ import annotations

from ..platform.bindings import ir, passmanager
from ..platform.interrupts import DeferredInterrupts
from .diagnostics import DiagnosedError, from_mlir_error


def run_pipeline(module: ir.Operation, pipeline: str, verifies: bool = True) -> None:
    """Runs a textual pipeline of passes on a module.

    The module is verified once, at the end: Shardy's pipelines have thirty passes, and MLIR's verifier takes longer
    than most of them.

    Args:
      verifies: whether the module is verified.
    Raises: DiagnosedError with the errors that MLIR reported.
    """
    manager = passmanager.PassManager.parse(pipeline)
    manager.enable_verifier(False)
    try:
        with DeferredInterrupts():  # warnings of Shardy's go to Python
            manager.run(module)
            if verifies:
                module.verify()
    except ir.MLIRError as error:
        raise DiagnosedError(from_mlir_error(error)) from None
