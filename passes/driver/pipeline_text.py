# SPDX-License-Identifier: Apache-2.0
"""Reads pipelines as MLIR writes them: `name{options}(nested, ...)` with commas between. Errors show the wrong place.

Example:
  >>> [element.name for element in read("builtin.module(cse, func.func(canonicalize))")]
  ['cse', 'func.func']
  >>> read("cse,canonicalize{max-iterations=3")
  Traceback (most recent call last):
  reshard.passes.driver.pipeline_text.PipelineError: missing '}' in pipeline
    cse,canonicalize{max-iterations=3
                    ^
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

ANCHOR = "builtin.module"
_NAME = re.compile(r"[\w.-]+")
_SHOWN = 100  # characters of a long pipeline around the place of an error


class PipelineError(ValueError):
    """A wrong pipeline text; the message is for the user, with a caret under the place if the place is known."""

    def __init__(self, message: str, text: str = "", offset: int | None = None):
        super().__init__(message if offset is None else f"{message}\n{_excerpt(text, offset)}")


@dataclass(frozen=True, slots=True)
class Element:
    """One pass or nested pipeline.

    Fields: text, offset: as written, and where in the whole text. options: what is between the braces, from
    `options_offset` on; None without braces. nested: what is between the parentheses; None without them.
    """

    text: str
    offset: int
    name: str
    options: str | None = None
    options_offset: int = 0
    nested: tuple[Element, ...] | None = None

    def leaves(self) -> Iterator[Element]:
        """Yields the passes: this element, or those nested in it."""
        if self.nested is None:
            yield self
        for each in self.nested or ():
            yield from each.leaves()


def read(text: str) -> tuple[Element, ...]:
    """Returns the elements of a pipeline; an enclosing `builtin.module(...)` may be left out.

    Raises: PipelineError where brackets do not match, or a name is missing.
    """
    elements = _Reader(text).whole()
    if (
        len(elements) == 1
        and elements[0].name == ANCHOR
        and elements[0].nested is not None
        and elements[0].options is None
    ):
        return elements[0].nested
    return elements


class _Reader:
    """Reads a pipeline text. State: `at` is a position in the text; everything before it has been read."""

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def whole(self) -> tuple[Element, ...]:
        elements = self._elements()
        if self.at < len(self.text):
            raise self._error(f"unmatched '{self.text[self.at]}' in pipeline")
        return elements

    def _elements(self) -> tuple[Element, ...]:
        """Reads up to the bracket that closes these elements, or the end of the text."""
        elements: list[Element] = []
        if self._next() in ("", ")"):
            return ()
        while True:
            elements.append(self._element())
            if self._next() != ",":
                return tuple(elements)
            self.at += 1

    def _element(self) -> Element:
        self._next()
        start = self.at
        name = _NAME.match(self.text, start)
        if name is None:
            is_missing = self._next() in ("", ",", ")")
            raise self._error(
                "empty pass name in pipeline" if is_missing else f"'{self.text[start]}' begins no pass name"
            )
        self.at = end = name.end()
        options, options_offset, nested = None, 0, None
        if self._next() == "{":
            options_offset = self.at + 1
            self.at = end = self._closing_brace() + 1
            options = self.text[options_offset : end - 1]
        if self._next() == "(":
            nested, end = self._nested(), self.at
        if self._next() not in ("", ",", ")", "}"):
            raise self._error(f"cannot read '{self.text[start : self.at + 1]}' in the pipeline; a comma may be missing")
        return Element(self.text[start:end], start, name[0], options, options_offset, nested)

    def _nested(self) -> tuple[Element, ...]:
        opening = self.at
        self.at += 1
        elements = self._elements()
        if self._next() != ")":
            raise PipelineError("missing ')' in pipeline", self.text, opening)
        self.at += 1
        return elements

    def _closing_brace(self) -> int:
        """Returns where the brace at this place is closed; braces nest, as in MLIR."""
        depth = 0
        for index in range(self.at, len(self.text)):
            depth += {"{": 1, "}": -1}.get(self.text[index], 0)
            if depth == 0:
                return index
        raise self._error("missing '}' in pipeline")

    def _next(self) -> str:
        """Skips spaces and returns the next character, "" at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def _error(self, message: str) -> PipelineError:
        return PipelineError(message, self.text, self.at)


def _excerpt(text: str, offset: int) -> str:
    """Returns the text and a caret under a place in it. A long text is cut to the surroundings of the place."""
    flat = re.sub(r"\s", " ", text)
    start = max(0, min(offset - _SHOWN // 2, len(flat) - _SHOWN))
    before = "..." if start else ""
    after = "..." if start + _SHOWN < len(flat) else ""
    return f"  {before}{flat[start : start + _SHOWN]}{after}\n  {' ' * (len(before) + offset - start)}^"
