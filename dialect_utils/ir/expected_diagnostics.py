# SPDX-License-Identifier: Apache-2.0
"""`--verify-diagnostics`: diagnostics against the `// expected-error {{...}}` comments of the source, as in mlir-opt.

`expected-(error|warning|remark|note)[-re] [@+N|@-N|@above|@below|@unknown] {{part of the message}}`. Without a place it
is the comment's own line; `@above` and `@below` are the nearest lines without an expectation. In an `-re` text,
`{{...}}` holds a regular expression. Each diagnostic and each note must be expected, and each expectation met, exactly
once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .diagnostics import ERROR, Diagnostic, Place

_EXPECTED = re.compile(
    r"expected-(?P<severity>error|warning|remark|note)(?P<regex>-re)? *"
    r"(?:@(?P<place>[+-]\d+|above|below|unknown))? *\{\{(?P<text>.*)\}\} *$"
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """One comment: `line` is where the diagnostic must be, None for a diagnostic without a place."""

    severity: str
    text: str
    is_regex: bool
    line: int | None
    comment_line: int

    def fits(self, diagnostic: Diagnostic, file: str) -> bool:
        return (
            diagnostic.severity == self.severity
            and _line_in(diagnostic, file) == self.line
            and self._matches(diagnostic.message)
        )

    def _matches(self, message: str) -> bool:
        if not self.is_regex:
            return self.text in message
        return re.search(self._pattern(), message) is not None

    def _pattern(self) -> str:
        literal_and_regex = re.split(r"\{\{(.*?)\}\}", self.text)
        return "".join(re.escape(each) if i % 2 == 0 else f"(?:{each})" for i, each in enumerate(literal_and_regex))

    def fault(self) -> str | None:
        """Returns the error in the regular expression of an `-re` comment; None if it is valid."""
        try:
            re.compile(self._pattern() if self.is_regex else "")
        except re.error as error:
            return f"invalid regular expression in expected-{self.severity}-re: {error}"
        return None


def expectations_in(text: str, lines_above: int = 0) -> list[Expectation]:
    """Returns the expectations of a chunk of source that begins below `lines_above` lines."""
    lines = text.split("\n")
    found = [_EXPECTED.search(line) for line in lines]
    return [
        _expectation(match, _expected_line(match["place"], index, found, lines_above), lines_above + index + 1)
        for index, match in enumerate(found)
        if match
    ]


def disagreements(
    expected: Sequence[Expectation], emitted: Sequence[Diagnostic], file: str, *, only_expected: bool = False
) -> list[Diagnostic]:
    """Returns an error for each unexpected diagnostic and each expectation that was not met; none if all agree.

    Args:
      file: the name that places in the source have. only_expected: let unexpected diagnostics pass.
    """
    faults = [
        Diagnostic(ERROR, fault, Place(file, each.comment_line, 1)) for each in expected if (fault := each.fault())
    ]
    open_expectations = [each for each in expected if not each.fault()]
    unexpected = []
    for diagnostic in _with_notes(emitted):
        fitting = next((each for each in open_expectations if each.fits(diagnostic, file)), None)
        if fitting is not None:
            open_expectations.remove(fitting)
        elif not only_expected:
            message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
            unexpected.append(Diagnostic(ERROR, message, diagnostic.place or Place(file)))
    missing = [
        Diagnostic(ERROR, f'expected {each.severity} "{each.text}" was not produced', Place(file, each.comment_line, 1))
        for each in open_expectations
    ]
    return faults + unexpected + missing


def _expectation(match: re.Match, line: int | None, comment_line: int) -> Expectation:
    return Expectation(match["severity"], match["text"], bool(match["regex"]), line, comment_line)


def _expected_line(place: str | None, index: int, found: Sequence[re.Match | None], lines_above: int) -> int | None:
    if place == "unknown":
        return None
    own = lines_above + index + 1
    if place is None:
        return own
    if place in ("above", "below"):
        step = -1 if place == "above" else 1
        while 0 <= index < len(found) and found[index]:
            index += step
        return lines_above + index + 1
    return own + int(place)


def _with_notes(diagnostics: Iterable[Diagnostic]) -> Iterable[Diagnostic]:
    for diagnostic in diagnostics:
        yield diagnostic
        yield from diagnostic.notes


def _line_in(diagnostic: Diagnostic, file: str) -> int | None:
    """Returns the line, None without one, and -1 in another file."""
    if diagnostic.place is None or diagnostic.place.line == 0:
        return None
    return diagnostic.place.line if diagnostic.place.file == file else -1
