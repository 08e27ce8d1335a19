# SPDX-License-Identifier: Apache-2.0
"""Sums up remarks by their reason, for the terminal and for reports.

A module may have hundreds of remarks and few reasons: partial sums, layouts in which stock XLA does as well. So each
reason is told once, with the number of its remarks and the first of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reshard.dialect_utils.ir.diagnostics import REMARK, Diagnostic, note
from reshard.synthesis.common.numbers import counted

# The message names the op or the site before the reason. Reasons that differ in numbers or layouts count as one.
_LEFT_ALONE = " is left alone: "
_NAMED = re.compile(r"^[^:]*\b(?:is left alone|is left to XLA): ")
_VARIES = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\d[\d,.]*")


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that several remarks give.

    Attributes:
      text: the reason as its remarks have it; variable parts are `…` if they differ.
      count: the number of remarks. first: the first of them.
    """

    text: str
    count: int
    first: Diagnostic

    @property
    def is_of_skipped(self) -> bool:
        """Returns whether the remarks are on uses that are left alone, and so are no sites."""
        return _LEFT_ALONE in self.first.message

    def as_dict(self) -> dict:
        """Returns the object that a report lists under `reasons`."""
        return {
            "reason": self.text,
            "count": self.count,
            "is_left_alone": self.is_of_skipped,
            "first": str(self.first),
        }


def reasons(remarks: Sequence[Diagnostic]) -> list[Reason]:
    """Returns the reasons of remarks; the most frequent one first, equally frequent ones in the order of the remarks.

    Example:
      >>> text = "operand {} of add is left alone: partial sums are reduced here"
      >>> for each in reasons([Diagnostic(REMARK, text.format(n)) for n in range(3)]):
      ...     print(each.count, each.text)
      3 partial sums are reduced here
    """
    by_reason: dict[str, list[Diagnostic]] = {}
    for each in remarks:
        by_reason.setdefault(reason_of(each), []).append(each)
    found = []
    for reason, alike in by_reason.items():
        texts = {_NAMED.sub("", each.message) for each in alike}
        found.append(Reason(texts.pop() if len(texts) == 1 else reason, len(alike), alike[0]))
    return sorted(found, key=lambda each: -each.count)


def skipped_text(remarks: Sequence[Diagnostic], *, lists_all: bool = False) -> str:
    """Returns the part of a report on uses that are left alone; empty if there are none.

    Args:
      lists_all: tell each use, in place of the first one of each reason.
    """
    skipped = [each for each in remarks if _LEFT_ALONE in each.message]
    if not skipped:
        return ""
    if lists_all:
        return "left alone:\n" + "\n".join(f"  {each}" for each in skipped)
    lines = ["left alone, by reason, with the first use of each (--remarks=all lists every use):"]
    for each in reasons(skipped):
        at = f"{each.first.place}: " if each.first.place else ""
        where, _, reason = each.first.message.partition(_LEFT_ALONE)
        lines += [
            f"  {counted(each.count, 'use')}: {each.text}",
            f"    {at}{where}{'' if reason == each.text else f': {reason}'}",
        ]
    return "\n".join(lines)


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
