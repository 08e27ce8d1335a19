# SPDX-License-Identifier: Apache-2.0
"""The base of the recursive-descent parsers of this wing: tokens that are read one after the other."""

from __future__ import annotations

import abc
import re
from collections.abc import Iterable
from typing import NoReturn

END = "the end"


class TokenReader(abc.ABC):
    """Reads tokens from left to right.

    State: `at` is the index of the next one of `tokens`; a token is its kind, its text and the column where it begins,
    from 0. A subclass says in `fail` what is wrong with the text.
    """

    def __init__(self, text: str, matches: Iterable[re.Match]):
        """Takes the matches of a pattern whose named groups are the kinds of tokens."""
        self.text = text
        self.tokens = [(kind, m[kind], m.start(kind)) for m in matches if (kind := m.lastgroup)]
        self.at = 0

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self.tokens)

    def peek(self) -> tuple[str | None, str, int]:
        """Returns the next token without reading it; its kind is None at the end of the text."""
        return (None, END, len(self.text)) if self.is_at_end else self.tokens[self.at]

    def accept(self, value: str) -> bool:
        """Reads the next token if its text is `value`; returns whether it was."""
        if self.is_at_end or self.peek()[1] != value:
            return False
        self.at += 1
        return True

    def expect(self, value: str) -> None:
        """Reads the next token, whose text must be `value`."""
        if not self.accept(value):
            self.fail(f'"{value}"')

    def take(self, kind: str, wanted: str) -> str:
        """Reads the next token, which must be of a kind, and returns its text."""
        found, value, _ = self.peek()
        if found != kind:
            self.fail(wanted)
        self.at += 1
        return value

    def expect_end(self) -> None:
        """Fails if a token is left."""
        if not self.is_at_end:
            self.fail(END)

    @abc.abstractmethod
    def fail(self, wanted: str) -> NoReturn:
        """Raises an error that names the next token and what was expected in its place."""
        ...
