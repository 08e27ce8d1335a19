# SPDX-License-Identifier: Apache-2.0
"""The checks that run after the pipeline, and their limits."""

from types import SimpleNamespace

import pytest

from reshard.passes.driver.base import Session
from reshard.passes.driver.pipeline import Pipeline
from reshard.passes.results import checks, values_check
from reshard.passes.whole_module import check_record, whole_module_check

REWRITTEN = [{"site": 0, "is_rewritten": True}]


@pytest.fixture
def ran(monkeypatch) -> list[tuple]:
    """Replaces both checks by fakes, and returns the list of those that ran, in order.

    Modules are strings here. The fake of the whole-module check adds its result to the session.
    """
    found = []

    def compiled(original, module, pipeline, session, rows, **_):
        found.append(("compiled", original, module))
        session.results.checks.append(SimpleNamespace(taken_over="", target=None))
        return "compiled module"

    def run(original, module, pipeline, session, rows, **limits):
        found.append(("run", original, module, limits["most_bytes"], limits["is_checked_as_a_whole"]))
        return "run module"

    monkeypatch.setattr(whole_module_check, "check", compiled)
    monkeypatch.setattr(check_record, "needs_values", lambda session: False)
    monkeypatch.setattr(values_check, "check", run)
    return found


def checked(rows, compiles, value_bytes) -> str:
    asked = {"compiles": compiles, "value_bytes": value_bytes}
    session = Session()
    session.results.report_rows += rows
    return checks.checked(lambda: "original", "module", Pipeline(()), session, rows, **asked)


def test_values_are_checked_behind_the_whole_module(ran):
    assert checked(REWRITTEN, compiles=True, value_bytes=7) == "run module"
    assert ran == [("compiled", "original", "module"), ("run", "original", "compiled module", 7, True)]


def test_each_check_runs_alone(ran):
    assert checked(REWRITTEN, compiles=True, value_bytes=None) == "compiled module"
    assert checked(REWRITTEN, compiles=False, value_bytes=7) == "run module"
    assert [each[0] for each in ran] == ["compiled", "run"] and ran[1][-1] is False


def test_where_stock_xla_fails_values_are_checked_unasked_within_the_default_limit(ran, monkeypatch):
    monkeypatch.setattr(check_record, "needs_values", lambda session: True)
    checked(REWRITTEN, compiles=True, value_bytes=None)
    checked(REWRITTEN, compiles=True, value_bytes=7)
    assert [each[3] for each in ran if each[0] == "run"] == [checks.MOST_VALUE_BYTES, 7]


def test_a_check_of_another_module_of_the_file_asks_for_no_values(ran, monkeypatch):
    """XLA compiles the second module neither way, so it has no check; stock XLA failed on the first one."""
    monkeypatch.setattr(check_record, "needs_values", lambda session: True)
    monkeypatch.setattr(whole_module_check, "check", lambda original, module, *_, **__: module)
    session = Session()
    session.results.checks.append("the check of the first module")
    asked = {"compiles": True, "value_bytes": None}
    assert checks.checked(lambda: "original", "module", Pipeline(()), session, REWRITTEN, **asked) == "module"
    assert not ran


def test_nothing_runs_where_nothing_is_rewritten(ran):
    assert checked([{"site": 0}], compiles=True, value_bytes=7) == "module" and not ran


def test_a_module_with_kernels_is_compared_with_nothing(ran):
    rows = [{"site": 0, "kind": "overlap", "is_rewritten": True, "chain": "a kernel: 7 parts to and from each member"}]
    said = []
    session = SimpleNamespace(remark=lambda op, text: said.append(text))
    module = SimpleNamespace(operation=None)
    for asked, remarks in (({"compiles": True, "value_bytes": 1}, 1), ({"compiles": False, "value_bytes": None}, 0)):
        said.clear()
        assert checks.checked(lambda: "original", module, Pipeline.parse(""), session, rows, **asked) is module
        assert ran == [] and len(said) == remarks
