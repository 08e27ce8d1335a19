# SPDX-License-Identifier: Apache-2.0
"""Diagnostics are compared with the comments of the source that expect them."""

import pytest

from reshard.dialect_utils.ir.diagnostics import ERROR, Diagnostic, Place
from reshard.dialect_utils.ir.expected_diagnostics import disagreements, expectations_in


@pytest.mark.parametrize(
    "comment, line",
    [
        ("// expected-error {{bad}}", 2),
        ("// expected-error @+1 {{bad}}", 3),
        ("// expected-error @-1 {{bad}}", 1),
        ("// expected-error @above {{bad}}", 1),
        ("// expected-error @below {{bad}}", 3),
        ("// expected-error @unknown {{bad}}", None),
    ],
)
def test_the_line_of_an_expectation(comment, line):
    (found,) = expectations_in(f"first\n{comment}\nthird")
    assert (found.line, found.comment_line) == (line, 2)


def emitted(message: str, line: int = 1) -> Diagnostic:
    return Diagnostic(ERROR, message, Place("a.mlir", line, 1))


def messages(comment: str, *diagnostics: Diagnostic) -> list[str]:
    return [each.message for each in disagreements(expectations_in(comment), diagnostics, "a.mlir")]


def test_each_diagnostic_is_expected_once():
    comment = "// expected-error {{cannot reshard}}"
    assert messages(comment, emitted("cannot reshard it")) == []
    assert messages(comment) == ['expected error "cannot reshard" was not produced']
    twice = messages(comment, emitted("cannot reshard a"), emitted("cannot reshard b"))
    assert twice == ["unexpected error: cannot reshard b"]


def test_a_regular_expression_is_between_braces():
    comment = "// expected-error-re {{needs {{[0-9]+}} bytes}}"
    assert messages(comment, emitted("it needs 12 bytes")) == []
    assert len(messages(comment, emitted("it needs many bytes"))) == 2
    assert "invalid regular expression" in messages("// expected-error-re {{needs {{[}} bytes}}")[0]
