# SPDX-License-Identifier: Apache-2.0
"""The lit tests of this repository pass the lint, and the lint finds each kind of error."""

import importlib.util
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("lint_filecheck", _HERE / "lint_filecheck.py")
lint_filecheck = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lint_filecheck)

RUN = "// RUN: tool %s | FileCheck %s\n"


def test_the_lit_tests_are_clean():
    assert lint_filecheck.main([]) == 0


@pytest.mark.parametrize(
    "rule, text",
    [
        ("F1", "// CHECK: a\n" + RUN),
        ("F2", RUN + "// CHECK-NXT: a"),
        ("F2", RUN + "// CHECK-NEXT a"),
        ("F2", RUN + "// CHECK_NEXT: a"),
        ("F2", RUN + "// CHEKC: a"),
        ("F2", RUN + "// check: a"),
        ("F2", RUN + "// CHECK : a"),
        ("F2", "// RUN: tool %s | FileCheck %s --check-prefix=OLD\n// OLD: a\n// NEW: a"),
        ("F2", "// RUN: tool %s | FileCheck %s --check-prefix=OLD\n// CHECK: a"),
        ("F3", RUN + "// CHECK: [[A]]"),
        ("F3", RUN + "// CHECK: [[A:.*]]\n// CHECK-LABEL: b\n// CHECK: [[A]]"),
        ("F4", RUN + "// CHECK: [[#N+1]]"),
        ("F4", RUN + "// CHECK-LABEL: [[A:.*]]"),
        ("F5", "// RUN: tool %s --verify-diagnostics\nop // expected-eror {{a}}"),
        ("F5", "// RUN: tool %s --verify-diagnostics\nop // expected-error@ {{a}}"),
    ],
)
def test_a_test_that_does_not_test_is_found(rule, text):
    assert {complaint[:2] for _, complaint in lint_filecheck.lint(text)} == {rule}


@pytest.mark.parametrize(
    "text",
    [
        RUN + "// CHECK-LABEL: @a\n// CHECK-SAME: %[[A:.*]]:\n// CHECK-NEXT: [[A]] [[A]]\n// CHECK-COUNT-2: x",
        RUN + "// CHECK: [[$A:.*]]\n// CHECK-LABEL: b\n// CHECK: [[$A]]",
        RUN + "// Checks that nothing moves. TODO: none.\n// The check: a sentence.",
        "// RUN: tool %s | FileCheck %s --check-prefixes=OLD,NEW\n// OLD: a\n// NEW-NOT: a",
        "// RUN: tool %s --verify-diagnostics\n// expected-error@+1 {{a}}\n// expected-note-re @below {{a{{.*}}}}",
    ],
)
def test_a_good_test_is_left_alone(text):
    assert list(lint_filecheck.lint(text)) == []
