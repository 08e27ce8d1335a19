# SPDX-License-Identifier: Apache-2.0
"""What an instruction runs: the callees, how often, and which of them are alternatives."""

import pytest

from reshard.dialect_utils.hlo.text import parse_module
from reshard.dialect_utils.hlo.trip_counts import Scope
from reshard.dialect_utils.hlo.walk import branches, callees, loop_runs, with_calls_inlined

TEXT = """HloModule m
%condition (s: (s32[], f32[4])) -> pred[] {
  %s = (s32[], f32[4]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], f32[4]) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %x = f32[4] get-tuple-element(%t), index=1
  %one = s32[] constant(STEP)
  %next = s32[] add(%j, %one)
  ROOT %u = (s32[], f32[4]) tuple(%next, %x)
}

%twice (y: f32[4]) -> f32[4] {
  %y = f32[4] parameter(0)
  ROOT %z = f32[4] add(%y, %y)
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %p = f32[4] parameter(0)
  %zero = s32[] constant(0)
  %state = (s32[], f32[4]) tuple(%zero, %p)
  %loop = (s32[], f32[4]) while(%state), condition=%condition, body=%body
  %either = f32[4] conditional(%zero, %p, %p), branch_computations={%twice, %body}
  %other = f32[4] conditional(%zero, %p, %p), true_computation=%body, false_computation=%twice
  %called = f32[4] call(%p), to_apply=%twice
  %fused = f32[4] fusion(%p), kind=kLoop, calls=%twice
  ROOT %sum = f32[] reduce(%p, %zero), dimensions={0}, to_apply=%twice
}
"""


def entry(text: str = TEXT) -> Scope:
    module = parse_module(text.replace("STEP", "2"))
    return Scope(module, module.entry, ())


def instruction(scope: Scope, name: str):
    return scope.computation.instructions[name]


def test_a_loop_runs_its_body_as_often_as_it_counts_and_its_condition_once_more():
    scope = entry()
    runs = loop_runs(scope, instruction(scope, "loop"))
    assert (runs.trip_count, runs.body_runs, runs.condition_runs) == (3, 3, 4)
    assert (runs.condition.computation.name, runs.body.computation.name) == ("condition", "body")


def test_a_loop_that_nobody_can_count_runs_once():
    scope = entry(TEXT.replace("add(%j, %one)", "multiply(%j, %one)"))
    runs = loop_runs(scope, instruction(scope, "loop"))
    assert (runs.trip_count, runs.body_runs) == (None, 1)


@pytest.mark.parametrize(("name", "names"), [("either", ["twice", "body"]), ("other", ["body", "twice"])])
def test_a_conditional_has_branches(name, names):
    scope = entry()
    assert [each.computation.name for each in branches(scope, instruction(scope, name))] == names


@pytest.mark.parametrize(("name", "names"), [("called", ["twice"]), ("fused", ["twice"]), ("sum", []), ("p", [])])
def test_calls_and_fusions_run_what_they_call_and_reductions_nothing(name, names):
    scope = entry()
    assert [each.computation.name for each in callees(scope, instruction(scope, name))] == names


@pytest.mark.parametrize("calls, levels", [(1, 2_000), (2, 30)], ids=["deep", "many"])
def test_calls_that_would_become_very_much_are_not_inlined(calls, levels):
    def level(number: int) -> str:
        run = f"call(%a{number}), to_apply=%f{number + 1}" if number < levels else f"tanh(%a{number})"
        steps = [f"  %c{number}_{n} = f32[8] {run}" for n in range(calls - 1)]
        opens = f"ENTRY %f{number}" if not number else f"%f{number}"
        head = f"{opens} (a{number}: f32[8]) -> f32[8] {{\n  %a{number} = f32[8] parameter(0)"
        return "\n".join([head, *steps, f"  ROOT %r{number} = f32[8] {run}", "}"])

    module = parse_module("HloModule m\n" + "\n".join(map(level, range(levels, -1, -1))))
    assert with_calls_inlined(module) is module
