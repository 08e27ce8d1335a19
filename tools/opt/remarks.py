# SPDX-License-Identifier: Apache-2.0
"""Sums up remarks by their reason: of several with one reason it keeps the first, with their number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from reshard.dialect_utils.ir.diagnostics import REMARK, Diagnostic, note

# The message names the op or the site before the reason. Reasons that differ in numbers or layouts count as one.
_NAMED = re.compile(r"^[^:]*\b(?:is left alone|is left to XLA): ")
_VARIES = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\d[\d,.]*")


def summed_up(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Returns the diagnostics with only the first remark of each reason, which has a note with their number.

    Example:
      >>> text = "site {} (call) is left to XLA: it does as well"
      >>> for each in summed_up([Diagnostic(REMARK, text.format(n)) for n in range(3)]):
      ...     print(each)
      remark: site 0 (call) is left to XLA: it does as well
      note: the first of 3 remarks with this reason; --remarks=all lists them
    """
    counts: dict[str, int] = {}
    for each in diagnostics:
        if each.severity == REMARK:
            counts[reason_of(each)] = counts.get(reason_of(each), 0) + 1
    shown = []
    for each in diagnostics:
        count = counts.pop(reason_of(each), 0) if each.severity == REMARK else 1
        if count:
            shown.append(each if count == 1 else _first_of(each, count))
    return shown


def reason_of(remark: Diagnostic) -> str:
    """Returns the reason of a remark without its variable parts, such as numbers and layouts.

    Example:
      >>> reason_of(Diagnostic(REMARK, 'operand 0 of add is left alone: it is [{"x"}, {}] on 8 devices'))
      'it is … on … devices'
    """
    reason, text = "", _NAMED.sub("", remark.message)
    while reason != text:  # brackets may be nested
        reason, text = text, _VARIES.sub("…", text)
    return reason


def _first_of(remark: Diagnostic, count: int) -> Diagnostic:
    more = note(f"the first of {count} remarks with this reason; --remarks=all lists them")
    return replace(remark, notes=(*remark.notes, more))
