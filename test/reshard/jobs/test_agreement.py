# SPDX-License-Identifier: Apache-2.0
"""The agreement of processes; threads take the place of processes."""

import time

import pytest
from in_threads import DictStore, at_once

from reshard.jobs import agreement
from reshard.jobs.agreement import Agreement, PeerError
from reshard.jobs.claims import AGREED, REFUSED, Answer, Claim

SETTINGS = (("jaxlib", "1.0"), ("policy", "better"))
CLAIM = Claim("jit_f", "line one\nline two\n", SETTINGS)
SHORT_S = 0.3
LONG_S = 60.0  # a test that waits for this fails


class Job:
    """Processes 0 to n-1 of one job; `planned` lists the process of each call of `plan`, in order."""

    def __init__(self, processes, timeout_s=LONG_S, verifies=False):
        self.members = tuple(range(processes))
        store = DictStore()
        self.parts = [Agreement(store, each, timeout_s=timeout_s, verifies=verifies) for each in self.members]
        self.planned = []

    def plan(self, process, decisions=()):
        self.planned.append(process)
        return Answer(f"answer of {process}".encode(), decisions)

    def reach(self, claims, plans=None):
        """Lets each process i ask for agreement with claims[i]; a process whose claim is None does not take part."""
        plans = plans or [lambda each=each: self.plan(each) for each in self.members]
        steps = [
            (lambda part=part, claim=claim, plan=plan: part.reach(self.members, claim, plan))
            for part, claim, plan in zip(self.parts, claims, plans)
            if claim is not None
        ]
        return at_once(steps)


def with_setting(name, value):
    return Claim(CLAIM.name, CLAIM.module, tuple({**dict(SETTINGS), name: value}.items()))


def test_all_take_the_answer_of_the_first_which_alone_plans():
    job = Job(4)
    verdicts = job.reach([CLAIM] * 4)
    assert [each.status for each in verdicts] == [AGREED] * 4
    assert {each.payload for each in verdicts} == {b"answer of 0"}
    assert job.planned == [0]


def test_a_lead_is_the_first_of_the_members():
    job = Job(4)
    steps = [lambda each=each: job.parts[each].reach((1, 3), CLAIM, lambda: job.plan(each)) for each in (1, 3)]
    assert [each.payload for each in at_once(steps)] == [b"answer of 1"] * 2


def test_another_time_the_verdict_stands_without_waiting_for_anyone():
    job = Job(2)
    job.reach([CLAIM] * 2)
    assert job.parts[1].reach((0, 1), CLAIM, lambda: job.plan(1)).payload == b"answer of 0"
    assert job.parts[0].reach((0, 1), CLAIM, lambda: job.plan(0)).payload == b"answer of 0"
    assert job.planned == [0]


def test_what_is_agreed_on_without_an_answer_is_not_asked_for_again():
    job = Job(2)
    plans = [lambda: Answer(b"")] * 2
    job.reach([CLAIM] * 2, plans)
    job.parts[1]._store.values.clear()
    assert job.parts[1].reach((0, 1), CLAIM, plans[1]).status == AGREED


def test_another_setting_is_told_in_all_processes_and_nobody_plans():
    job = Job(3)
    verdicts = job.reach([CLAIM, CLAIM, with_setting("policy", "always")])
    assert [each.status for each in verdicts] == [REFUSED] * 3
    assert {each.problem for each in verdicts} == {
        "policy=always in process 2, policy=better in process 0; "
        "start every process with the same program, versions, options and RESHARD_* variables"
    }
    assert job.planned == []


def test_a_setting_that_only_one_has_is_a_difference():
    job = Job(2)
    verdicts = job.reach([CLAIM, Claim(CLAIM.name, CLAIM.module, (("jaxlib", "1.0"),))])
    assert "policy=unset in process 1, policy=better in process 0" in verdicts[0].problem


def test_another_module_is_told_with_the_first_line_that_differs():
    job = Job(2)
    verdicts = job.reach([CLAIM, Claim(CLAIM.name, "line one\nline 2\n", SETTINGS)])
    assert [each.status for each in verdicts] == [REFUSED] * 2
    assert "process 1 has another module" in verdicts[0].problem
    assert "line 2 here: line 2; in process 0: line two" in verdicts[1].problem


def test_other_programs_in_the_same_order_are_agreed_on_one_by_one():
    """A function that is called with another shape gives another program of the same name."""
    job = Job(2)
    for module in ("a", "b", "a", "c"):
        verdicts = job.reach([Claim("jit_f", module, SETTINGS)] * 2)
        assert [each.status for each in verdicts] == [AGREED] * 2
    assert job.planned == [0, 0, 0]


def test_programs_in_another_order_are_never_rewritten_in_one_process_alone():
    orders = ["abcd", "bacd"]
    job = Job(2, timeout_s=SHORT_S)

    def compile_all(process):
        reach = job.parts[process].reach
        return {
            each: reach((0, 1), Claim("jit_f", each, SETTINGS), lambda: job.plan(process)).status
            for each in orders[process]
        }

    first, second = at_once([lambda: compile_all(0), lambda: compile_all(1)])
    assert first == second == {"a": REFUSED, "b": REFUSED, "c": AGREED, "d": AGREED}


class TestMissing:
    def test_a_process_that_does_not_come_is_named(self):
        job = Job(3, timeout_s=SHORT_S)
        verdicts = job.reach([CLAIM, CLAIM, None])
        assert [each.status for each in verdicts] == [REFUSED] * 2
        assert (
            f"process 2 did not answer at jit_f (module {CLAIM.digest}) within 0.3 s, where process 0 is"
            in verdicts[1].problem
        )
        assert "it has come to none yet" in verdicts[1].problem

    def test_a_lead_that_does_not_come_is_named(self):
        job = Job(2, timeout_s=SHORT_S)
        (verdict,) = job.reach([None, CLAIM])
        assert verdict.status == REFUSED and "process 0 did not answer at jit_f" in verdict.problem

    @pytest.mark.parametrize("late", [0, 1])
    def test_one_that_comes_too_late_finds_the_verdict(self, late):
        job = Job(2, timeout_s=SHORT_S)
        claims = [CLAIM, CLAIM]
        claims[late] = None
        (early,) = job.reach(claims)
        verdict = job.parts[late].reach((0, 1), CLAIM, lambda: job.plan(late))
        assert verdict.status == early.status == REFUSED and verdict.problem == early.problem
        assert job.planned == []

    def test_where_it_is_instead_is_told(self):
        job = Job(2, timeout_s=SHORT_S)
        verdicts = job.reach([CLAIM, Claim("jit_other", "m", SETTINGS)])
        assert any(
            "it is at jit_" in each.problem for each in verdicts
        )  # the process that gives up first still sees the other one

    def test_a_second_wait_for_a_missing_process_is_short(self):
        job = Job(2, timeout_s=2.0)
        job.reach([CLAIM, None])
        start_s = time.monotonic()
        (verdict,) = job.reach([Claim("jit_g", "m", SETTINGS), None])
        assert "within 0.1 s" in verdict.problem and time.monotonic() - start_s < 1.5

    def test_a_lead_that_plans_for_long_is_not_missing(self):
        job = Job(2, timeout_s=SHORT_S)

        def plan():
            time.sleep(4 * SHORT_S)
            return job.plan(0)

        assert [each.status for each in job.reach([CLAIM] * 2, [plan, plan])] == [AGREED] * 2


def test_a_lead_that_fails_raises_its_own_error_and_the_others_tell_it():
    def plan():
        raise ValueError("no memory left")

    job = Job(3)
    first, *others = job.reach([CLAIM] * 3, [plan] * 3)
    assert isinstance(first, ValueError)
    assert [type(each) for each in others] == [PeerError] * 2
    assert str(others[0]) == "process 0 could not plan jit_f: ValueError: no memory left"


class TestVerify:
    def test_all_plan_and_nothing_is_told_where_they_do_the_same(self, caplog):
        job = Job(2, verifies=True)
        verdicts = job.reach([CLAIM] * 2)
        assert {each.payload for each in verdicts} == {b"answer of 0"} and sorted(job.planned) == [0, 1]
        assert not caplog.records

    def test_another_decision_is_told_and_all_do_as_the_lead(self, caplog):
        job = Job(2, verifies=True)
        plans = [
            lambda: job.plan(0, (("site 3", "rewrite: better"),)),
            lambda: job.plan(1, (("site 3", "keep: XLA hangs"),)),
        ]
        verdicts = job.reach([CLAIM] * 2, plans)
        assert {each.payload for each in verdicts} == {b"answer of 0"}
        assert "jit_f, site 3: keep: XLA hangs in process 1, rewrite: better in process 0" in caplog.text
        assert len(caplog.records) == 2

    def test_one_that_cannot_plan_is_told(self, caplog):
        def fails():
            raise OSError("disk full")

        job = Job(2, verifies=True)
        verdicts = job.reach([CLAIM] * 2, [lambda: job.plan(0), fails])
        assert [each.status for each in verdicts] == [AGREED] * 2
        assert "process 1 could not plan it: OSError: disk full" in caplog.text

    def test_one_that_does_not_verify_is_not_waited_for(self):
        job = Job(2)
        job.parts[0] = Agreement(job.parts[1]._store, 0, verifies=True)
        verdicts = job.reach([CLAIM] * 2)
        assert [each.status for each in verdicts] == [REFUSED] * 2
        assert "RESHARD_AGREEMENT=lead in process 1, RESHARD_AGREEMENT=verify in process 0" in verdicts[0].problem


class TestVariables:
    def test_an_unknown_mode(self, monkeypatch):
        monkeypatch.setenv("RESHARD_AGREEMENT", "both")
        with pytest.raises(ValueError, match="RESHARD_AGREEMENT=both is not available; choose from lead, verify, off"):
            agreement._mode()

    @pytest.mark.parametrize("text", ["soon", "0", "-3", "inf"])
    def test_a_timeout_that_is_no_number_of_seconds(self, monkeypatch, text):
        monkeypatch.setenv("RESHARD_AGREEMENT_TIMEOUT_S", text)
        with pytest.raises(ValueError, match=f"RESHARD_AGREEMENT_TIMEOUT_S={text} is no number of seconds"):
            agreement._timeout_s()
