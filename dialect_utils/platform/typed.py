# SPDX-License-Identifier: Apache-2.0
"""Typed access to values whose annotation says less than the caller knows. This module imports nothing at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from .bindings import ir

_T = TypeVar("_T")


def present(value: _T | None) -> _T:
    """Returns a value that the caller knows to be there. No input of a user may reach a missing one.

    Raises: AssertionError if the value is None.

    Example:
      >>> present("x")
      'x'
    """
    assert value is not None, "a value that has to be there is missing"
    return value


def asm_of(op: ir.Operation, **printing) -> str:
    """Returns an op as text, printed as `ir.Operation.get_asm` takes it; the bindings declare an `object`."""
    return cast(str, op.get_asm(**printing))
