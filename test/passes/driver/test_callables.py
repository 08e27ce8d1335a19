# SPDX-License-Identifier: Apache-2.0
"""Passes of ours as MLIR calls them: what they hand on, and what becomes of their errors and of Ctrl-C."""

import dataclasses
import signal

import pytest

from reshard.dialect_utils.ir.diagnostics import DiagnosedError, error_at
from reshard.dialect_utils.platform.bindings import ir, make_context
from reshard.passes.driver.base import Pass, Session, option
from reshard.passes.driver.pipeline import Pipeline


@dataclasses.dataclass(frozen=True)
class _CountedPass(Pass):
    name, summary = "counted", "counts its runs, and may refuse the module"
    statistics = {"runs": "times it ran"}

    refuses: bool = option(False, "refuse")

    def run(self, module: ir.Module, session: Session) -> None:
        session.count("runs")
        if self.refuses:
            raise error_at(module.body.operations[0], "no step is allowed")


def _module() -> ir.Module:
    return ir.Module.parse("\nfunc.func @f() { return }", make_context())


def _runs(session: Session) -> int:
    return session.results.statistics["counted", "runs"]


@dataclasses.dataclass(frozen=True)
class _FindingsPass(Pass):
    name, summary = "findings", "leaves findings and an analysis behind, and says which it has found"

    def run(self, module: ir.Module, session: Session) -> None:
        session.remark(None, f"{session.handed_on.findings} {session.handed_on.analysis}")
        session.handed_on.findings, session.handed_on.analysis = "found", "analysed"


def test_what_a_pass_leaves_is_for_the_next_alone_and_for_none_behind_a_pass_of_mlir():
    session = Session()
    Pipeline((_FindingsPass(), _FindingsPass(), "cse", _FindingsPass(), _CountedPass(), _FindingsPass())).run(
        _module(), session
    )
    assert [each.message for each in session.remarks] == ["None None", "found analysed", "None None", "None None"]


def test_a_diagnosed_error_ends_the_run_and_is_in_the_session_too():
    session = Session()
    with pytest.raises(DiagnosedError, match="-:2:1: error: no step is allowed"):
        Pipeline((_CountedPass(refuses=True), _CountedPass())).run(_module(), session)
    assert len(session.errors) == 1 and _runs(session) == 1


def test_an_invalid_module_is_found_behind_the_pass_that_left_it_and_not_before():
    @dataclasses.dataclass(frozen=True)
    class Breaks(Pass):
        name, summary = "breaks", "leaves an invalid module, and may say that there is nothing to verify"
        hides: bool = option(False, "say so")

        def run(self, module, session):
            module.body.operations[0].attributes["sym_name"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(8), 1)
            session.running.is_module_valid = self.hides

    for passes, runs in (((Breaks(), _CountedPass()), 0), ((Breaks(hides=True), _CountedPass()), 1)):
        session = Session()
        with pytest.raises(DiagnosedError):
            Pipeline(passes).run(_module(), session)
        assert _runs(session) == runs and len(session.errors) == 1


def test_errors_that_a_pass_reports_fail_it_when_it_returns():
    @dataclasses.dataclass(frozen=True)
    class Reports(Pass):
        name, summary = "reports", "reports two errors and goes on"

        def run(self, module, session):
            for message in ("one", "two"):
                session.error(module.body.operations[0], message)

    session = Session()
    with pytest.raises(DiagnosedError) as failed:
        Pipeline((Reports(), _CountedPass())).run(_module(), session)
    assert [each.message for each in failed.value.diagnostics] == ["one", "two"] and _runs(session) == 0


def test_an_exception_that_is_our_bug_comes_out_as_it_is_and_names_the_pass():
    @dataclasses.dataclass(frozen=True)
    class Fails(Pass):
        name, summary = "fails", "has a bug"

        def run(self, module, session):
            raise ZeroDivisionError("of ours")

    session = Session()
    with pytest.raises(ZeroDivisionError, match="of ours") as failed:
        Pipeline((Fails(), _CountedPass())).run(_module(), session)
    assert failed.value.__notes__ == ["in pass fails"] and _runs(session) == 0


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_in_a_pass_ends_the_pipeline_behind_it():
    @dataclasses.dataclass(frozen=True)
    class Interrupted(Pass):
        name, summary = "interrupted", "gets Ctrl-C"

        def run(self, module, session):
            signal.raise_signal(signal.SIGINT)
            session.remark(None, "not reached")

    session = Session()
    with pytest.raises(KeyboardInterrupt) as stopped:
        Pipeline((Interrupted(), _CountedPass())).run(_module(), session)
    assert stopped.value.__notes__ == ["in pass interrupted"]
    assert _runs(session) == 0 and session.remarks == []


def test_what_is_known_of_the_text_of_a_module_holds_as_long_as_passes_leave_it_unchanged():
    @dataclasses.dataclass(frozen=True)
    class Looks(Pass):
        name, summary = "looks", "notes whether the text is known, and says whether it leaves the module unchanged"
        leaves: bool = option(True, "say so")

        def run(self, module, session):
            session.remark(None, str(session.running.content is not None))
            session.running.is_module_unchanged = self.leaves

    session = Session()
    session.running.content = b"f"
    Pipeline((Looks(), Looks(leaves=False), Looks())).run(_module(), session)
    assert [each.message for each in session.remarks] == ["True", "True", "False"]
