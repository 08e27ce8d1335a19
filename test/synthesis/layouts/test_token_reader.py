# SPDX-License-Identifier: Apache-2.0
"""Reading tokens: the reader moves past an accepted token, stays at any other, and takes no token at the end."""

import re

import pytest

from reshard.synthesis.layouts.token_reader import END, TokenReader

_TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<word>\w+)|(?P<mark>.))")


class Refused(Exception):
    pass


class Reader(TokenReader):
    def __init__(self, text):
        super().__init__(text, _TOKEN.finditer(text.rstrip()))

    def fail(self, wanted):
        _, found, column = self.peek()
        raise Refused(f"column {column} has {found}, expected {wanted}")


def test_tokens_have_kind_text_and_column():
    assert Reader(" ab, 12 ").tokens == [("word", "ab", 1), ("mark", ",", 3), ("number", "12", 5)]


def test_accept_moves_on_only_over_what_it_names():
    reader = Reader("a b")
    assert not reader.accept("b") and reader.peek() == ("word", "a", 0)
    assert reader.accept("a") and reader.peek() == ("word", "b", 2)


def test_take_returns_the_text_of_a_token_of_the_kind():
    reader = Reader("7 x")
    assert reader.take("number", "a number") == "7"
    with pytest.raises(Refused, match="column 2 has x, expected a number"):
        reader.take("number", "a number")


def test_the_end_has_no_kind_and_is_not_accepted_by_its_name():
    reader = Reader("a ")
    reader.expect("a")
    assert reader.is_at_end and reader.peek() == (None, END, 2) and not reader.accept(END)
    reader.expect_end()
    with pytest.raises(Refused, match=f'column 2 has {END}, expected "a"'):
        reader.expect("a")


def test_a_token_that_is_left_is_refused():
    with pytest.raises(Refused, match=f"column 0 has a, expected {END}"):
        Reader("a").expect_end()


def test_a_reader_says_itself_what_is_wrong():
    with pytest.raises(TypeError, match="abstract"):
        TokenReader("a", _TOKEN.finditer("a"))
