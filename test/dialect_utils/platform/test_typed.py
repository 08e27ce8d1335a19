# SPDX-License-Identifier: Apache-2.0
"""Typed accessors return the value itself, or fail where it is missing."""

import pytest

from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.dialect_utils.platform.typed import asm_of, present


@pytest.mark.parametrize("value", [0, "", (), False])
def test_a_false_value_is_present(value):
    assert present(value) is value


def test_a_missing_value_is_an_error():
    with pytest.raises(AssertionError, match="missing"):
        present(None)


def test_an_op_prints_as_text_in_the_form_asked_for():
    with make_context() as context:
        module = ir.Module.parse("module @m {}", context)
        assert asm_of(module.operation).startswith("module @m")
        assert asm_of(module.operation, print_generic_op_form=True).startswith('"builtin.module"()')
