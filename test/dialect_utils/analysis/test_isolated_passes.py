# SPDX-License-Identifier: Apache-2.0
"""Passes run in a child process; if the process fails, the result is None."""

import pytest

from reshard.dialect_utils.analysis.isolated_passes import run_in_child
from reshard.dialect_utils.platform.bindings import ir, make_context


@pytest.fixture(autouse=True)
def context():
    with make_context() as made, ir.Location.unknown(made):
        yield made


TEXT = """
  func.func private @unused() { return }
  func.func public @main() { return }"""


def test_a_pipeline_runs_on_a_copy():
    module = ir.Module.parse(TEXT)
    done = run_in_child(module.operation, "builtin.module(symbol-dce)")
    assert "@unused" not in str(done) and "@unused" in str(module)


def test_a_pipeline_that_is_none_has_no_answer():
    assert run_in_child(ir.Module.parse(TEXT).operation, "builtin.module(no-such-pass)") is None
