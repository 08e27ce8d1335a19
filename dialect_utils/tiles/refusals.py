# SPDX-License-Identifier: Apache-2.0
"""Ops that cannot be written per device, as diagnostics."""

from __future__ import annotations

from ..ir.diagnostics import DiagnosedError, error_at, note
from ..platform.bindings import ir

HINT = note("--emit=manual rewrites the sites alone and leaves the ops to XLA")


def refusal(op: ir.Operation, why: str) -> DiagnosedError:
    """Returns the error for an op that does not run on tiles."""
    return error_at(op, f"emit=local cannot convert {described(op)}: {why}", HINT)


def described(op: ir.Operation) -> str:
    """Returns the name of an op, and what a custom call calls."""
    if op.name != "stablehlo.custom_call":
        return op.name
    return f"{op.name} @{ir.StringAttr(op.attributes['call_target_name']).value}"
