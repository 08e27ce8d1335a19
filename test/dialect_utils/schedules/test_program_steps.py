# SPDX-License-Identifier: Apache-2.0
"""The steps of programs: their order, loops and branches, and that work and collectives are those that are counted."""

from collections import Counter

import pytest

from reshard.dialect_utils.hlo.collectives import collectives_in
from reshard.dialect_utils.hlo.text import parse_module
from reshard.dialect_utils.hlo.work import work_in
from reshard.dialect_utils.schedules.program_steps import Loop, Move, Work, _topological, steps_of

GATHER = "channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true"
LOOP = """HloModule m, num_partitions=4
%condition (s: (s32[], f32[8])) -> pred[] {
  %s = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(3)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}
%body (t: (s32[], f32[8])) -> (s32[], f32[8]) {
  %t = (s32[], f32[8]{0}) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %one = s32[] constant(1)
  %k = s32[] add(%j, %one)
  %x = f32[8]{0} get-tuple-element(%t), index=1
  %g = f32[32]{0} all-gather(%x), GATHER
  %y = f32[32]{0} sort(%g), dimensions={0}
  %z = f32[8]{0} slice(%y), slice={[0:8]}
  ROOT %r = (s32[], f32[8]{0}) tuple(%k, %z)
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %q = f32[8]{0} sort(%p), dimensions={0}
  %start = (s32[], f32[8]{0}) tuple(%zero, %q)
  %w = (s32[], f32[8]{0}) while(%start), condition=%condition, body=%body
  ROOT %o = f32[8]{0} get-tuple-element(%w), index=1
}"""
# The branch with the collective has less work than the other one.
BRANCHES = """HloModule m, num_partitions=4
%light (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %g = f32[32]{0} all-gather(%a), GATHER
  ROOT %s = f32[8]{0} slice(%g), slice={[0:8]}
}
%heavy (b: f32[8]) -> f32[8] {
  %b = f32[8]{0} parameter(0)
  %u = f32[8]{0} sort(%b), dimensions={0}
  ROOT %v = f32[8]{0} reverse(%u), dimensions={0}
}
ENTRY %main (i: s32[], p: f32[8]) -> f32[8] {
  %i = s32[] parameter(0)
  %p = f32[8]{0} parameter(1)
  ROOT %c = f32[8]{0} conditional(%i, %p, %p), branch_computations={%light, %heavy}
}"""
# One loop computes `a` and, far behind it in the text, `b`; the collective in between needs `a`.
EARLIER = """HloModule m, num_partitions=4
ENTRY %main (p: f32[8]) -> (f32[32], f32[8]) {
  %p = f32[8]{0} parameter(0)
  %s = f32[8]{0} sine(%p)
  %a = f32[8]{0} negate(%s)
  %g = f32[32]{0} all-gather(%a), GATHER
  %h = f32[32]{0} sort(%g), dimensions={0}
  %b = f32[8]{0} cosine(%s)
  %k = f32[8]{0} sort(%b), dimensions={0}
  %l = f32[8]{0} sort(%k), dimensions={0}
  ROOT %t = (f32[32]{0}, f32[8]{0}) tuple(%h, %l)
}"""
TWICE = """HloModule m, num_partitions=4
%callee (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %g = f32[32]{0} all-gather(%a), GATHER
  ROOT %s = f32[8]{0} slice(%g), slice={[0:8]}
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %one = f32[8]{0} call(%p), to_apply=%callee
  ROOT %two = f32[8]{0} call(%one), to_apply=%callee
}"""
PROGRAMS = {"loop": LOOP, "branches": BRANCHES, "earlier": EARLIER, "twice": TWICE}


def steps(text: str):
    text = text.replace("GATHER", GATHER)
    return steps_of(parse_module(text), collectives_in(text))


def counted(found, runs=1):
    """Returns how often each row of work, and each collective, runs."""
    rows = Counter()
    for step in found:
        if isinstance(step, Loop):
            rows += counted(step.condition, runs * step.condition_runs) + counted(step.body, runs * step.body_runs)
        else:
            rows[(step.flops, step.bytes_moved) if isinstance(step, Work) else (step.name, step.loops)] += runs
    return rows


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_steps_are_the_work_and_the_collectives_that_are_counted(name):
    text = PROGRAMS[name].replace("GATHER", GATHER)
    wanted = Counter()
    for each in work_in(text):
        wanted[each.flops, each.bytes_moved] += each.runs
    for op in collectives_in(text).ops:
        wanted[op.name, op.loops] += op.collective.trip_count
    assert counted(steps(text)) == wanted


def test_a_loop_has_the_steps_of_one_trip_in_order():
    first, loop = steps(LOOP)
    assert isinstance(first, Work) and first.opcode == "sort"
    assert isinstance(loop, Loop) and loop.name == "w"
    assert (loop.trip_count, loop.body_runs, loop.condition_runs) == (3, 3, 4)
    assert [getattr(each, "opcode", "") or each.name for each in loop.body] == ["g", "sort", "slice"]
    assert loop.body[0] == Move("g", ("w",))


def test_of_a_conditional_the_branch_with_most_work_and_the_collectives_of_the_other_count():
    found = steps(BRANCHES)
    assert [each for each in found if isinstance(each, Move)] == [Move("g", ())]
    assert {each.opcode for each in found if isinstance(each, Work)} == {"sort", "reverse"}


def test_a_step_comes_before_those_that_need_it():
    first, *rest = steps(EARLIER)
    assert isinstance(first, Work) and (first.opcode, first.ops) == ("cosine", 3)
    assert [getattr(each, "opcode", "g") for each in rest] == ["g", "sort", "sort", "sort"]


def test_a_function_that_is_called_twice_has_its_collective_twice():
    assert [each for each in steps(TWICE) if isinstance(each, Move)] == [Move("g", ())] * 2


def test_a_loop_around_another_op_is_listed_although_each_needs_the_other():
    """The product and the sum are one loop; the sort between them needs the one, and the other needs the sort."""
    needs = {"loop": {"sort"}, "sort": {"loop"}, "after": {"loop"}, "alone": set()}
    users = {"sort": ["loop"], "loop": ["sort", "after"]}
    number = {"alone": 0, "sort": 1, "loop": 2, "after": 3}
    assert list(_topological(needs, users, number)) == ["alone", "sort", "loop", "after"]
