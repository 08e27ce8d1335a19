# SPDX-License-Identifier: Apache-2.0
"""What is done to a clone of a module, so that reports can say it."""

from __future__ import annotations

from dataclasses import dataclass

from ..platform.bindings import ir
from .serials import own_location, serial_of

UNCOPIED, IN_PLACE, KEPT, APART, FILLED = KINDS = ("uncopied", "in_place", "kept", "apart", "filled")


@dataclass(frozen=True, slots=True)
class Note:
    """One change.

    Attributes:
      location: of the program's op. kind: one of `KINDS`. text: what was done, and why.
      serial: of the op.
    """

    location: ir.Location
    kind: str
    text: str
    serial: int | None


def note(op: ir.Operation, kind: str, text: str) -> Note:
    return Note(own_location(op), kind, text, serial_of(op))
