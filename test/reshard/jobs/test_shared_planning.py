# SPDX-License-Identifier: Apache-2.0
"""A module is planned in one process; the others get the report, the output and the diagnostics of this process."""

import threading

import pytest
from in_threads import DictStore, at_once

from reshard.compiling.optimizing import Report
from reshard.dialect_utils.ir.diagnostics import DiagnosedError, Diagnostic, Place
from reshard.jobs import agreement, shared_planning
from reshard.jobs.agreement import Agreement
from reshard.passes.driver.base import Session
from reshard.passes.results.result_cache import Output

ROW = {
    "site": 0, "group": 0, "kind": "constraint", "op": "custom_call", "location": "a.py:1:1", "type": "tensor<8xf32>",
    "source": '[{"x"}]', "target": "[{}]", "bytes_received": 16, "stock_bytes": 32, "our_bytes": 16, "bound_bytes": 16,
    "largest_tile_bytes": 32, "chain": "all_gather x: dim 0", "reason": "better", "why": "fewer bytes",
    "is_rewritten": True,
}  # fmt: skip


@pytest.fixture
def run(monkeypatch):
    """Returns a function that lets each process i of a job run `computes[i]`, and returns all sessions and outcomes.

    A callable of `computes` gets the session of its process.
    """
    here = threading.local()
    monkeypatch.setattr(agreement, "reach", lambda *args: here.part.reach(*args))
    monkeypatch.setattr(agreement, "this_process", lambda: here.process)

    def run_all(computes, settings=({"policy": "better"},) * 2, verifies=False):
        store, members = DictStore(), tuple(range(len(computes)))
        sessions = [Session() for _ in computes]

        def one(process):
            here.process = process
            here.part = Agreement(store, process, timeout_s=60, verifies=verifies)
            session = sessions[process]
            compute = computes[process]
            return shared_planning.run(members, "jit_f", "module", settings[process], session, lambda: compute(session))

        outcomes = at_once([lambda each=each: one(each) for each in members])
        return sessions, outcomes

    return run_all


def rewrites(session):
    session.results.report_rows.append(dict(ROW))
    session.remark(None, "operand 0 of sort is left alone: why not")
    return Output(b"rewritten", False)


def leaves(session):
    session.results.report_rows.append({**ROW, "is_rewritten": False, "reason": "stock XLA does as well"})
    return Output(b"", True)


def test_report_and_output_are_the_same_in_all(run):
    sessions, outputs = run([rewrites, leaves])
    assert [each.content for each in outputs] == [b"rewritten"] * 2
    texts = [Report(session).text() for session in sessions]
    assert texts[0] == texts[1] and "1 rewritten" in texts[0] and "1 use: why not\n    operand 0 of sort" in texts[0]


def test_what_a_process_planned_to_compare_is_not_in_its_report(run, caplog):
    sessions, outputs = run([rewrites, leaves], verifies=True)
    assert [each.content for each in outputs] == [b"rewritten"] * 2
    assert Report(sessions[0]).text() == Report(sessions[1]).text()
    assert "jit_f, site 0: left to XLA: stock XLA does as well in process 1, rewritten as all_gather" in caplog.text


def test_a_refused_module_has_the_same_diagnostics_in_all(run):
    found = Diagnostic("error", "cannot reshard", Place("a.py", 3, 4), (Diagnostic("note", "mesh declared here"),))

    def refuses(session):
        raise DiagnosedError([found])

    _, outcomes = run([refuses, leaves])
    assert [type(each) for each in outcomes] == [DiagnosedError] * 2
    assert [each.diagnostics for each in outcomes] == [(found,)] * 2


@pytest.mark.parametrize("verifies", [False, True])
def test_where_they_disagree_the_report_says_why_and_nothing_else(run, caplog, verifies):
    settings = ({"policy": "better"}, {"policy": "always"})
    sessions, outputs = run([rewrites, rewrites], settings, verifies)
    assert all(each.is_unchanged for each in outputs)
    for session in sessions:
        text = Report(session).text()
        assert text.startswith(
            "reshard: jit_f is left to XLA in all processes: policy=always in process 1, policy=better in"
        )
        assert Report(session).to_dict()["warnings"] == [text.removeprefix("reshard: ").strip()]
    assert len(caplog.records) == 2
