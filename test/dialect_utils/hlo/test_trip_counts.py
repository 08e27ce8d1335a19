# SPDX-License-Identifier: Apache-2.0
"""Trip counts of loops in HLO text; each form is tested on a loop small enough to check by hand."""

import pytest

from reshard.dialect_utils.hlo.collectives import collectives_in

PERMUTE = "collective-permute(%x), channel_id=1, source_target_pairs={{0,1}}"


def module(body: str, computations: str) -> str:
    """A module with 8 partitions whose entry has the parameter %p of 64 bytes."""
    entry = f"ENTRY %main (p: f32[16]) -> f32[] {{\n  %p = f32[16]{{0}} parameter(0)\n{body}\n}}"
    return f"HloModule m, replica_count=1, num_partitions=8\n\n{computations}\n\n{entry}\n"


def loop(
    *,
    start="constant(0)",
    step="constant(1)",
    limit="constant(6)",
    update="add(%i, %step)",
    compare="compare(%j, %limit), direction=LT",
    attributes="",
) -> str:
    """A loop over (s32 i, f32[16] x) whose body permutes x."""
    computations = f"""%body (s: (s32[], f32[16])) -> (s32[], f32[16]) {{
  %s = (s32[], f32[16]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[16] get-tuple-element(%s), index=1
  %step = s32[] {step}
  %next = s32[] {update}
  %y = f32[16] {PERMUTE}
  ROOT %t = (s32[], f32[16]) tuple(%next, %y)
}}

%condition (c: (s32[], f32[16])) -> pred[] {{
  %c = (s32[], f32[16]) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %limit = s32[] {limit}
  ROOT %lt = pred[] {compare}
}}"""
    body = f"""  %zero = s32[] {start}
  %init = (s32[], f32[16]) tuple(%zero, %p)
  ROOT %w = (s32[], f32[16]) while(%init), condition=%condition, body=%body{attributes}"""
    return module(body, computations)


class TestTripCounts:
    @pytest.mark.parametrize(
        ("changes", "count"),
        [
            ({}, 6),
            ({"start": "constant(2)"}, 4),
            ({"step": "constant(4)"}, 2),
            ({"limit": "constant(0)"}, 0),
            ({"compare": "compare(%j, %limit), direction=LE"}, 7),
            ({"compare": "compare(%limit, %j), direction=GT"}, 6),
            ({"compare": "compare(%j, %limit), direction=NE"}, 6),
            (
                {
                    "start": "constant(9)",
                    "update": "subtract(%i, %step)",
                    "limit": "constant(0)",
                    "compare": "compare(%j, %limit), direction=GE",
                },
                10,
            ),
            ({"update": "add(%step, %i)"}, 6),
            ({"start": "constant(-3)"}, 9),
            ({"attributes": ', backend_config={"known_trip_count":{"n":"11"}}'}, 11),
        ],
    )
    def test_counted_loop(self, changes, count):
        found = collectives_in(loop(**changes))
        assert found.collectives[0].trip_count == count
        assert found.bytes_received == 64 * count
        assert found.unknown_trip_counts == ()

    @pytest.mark.parametrize(
        "changes",
        [
            {"start": "custom-call()"},
            {"step": "custom-call()"},
            {"limit": "custom-call()"},
            {"compare": "custom-call(%j)"},
            {"step": "constant(0)"},
            {"step": "constant(4)", "compare": "compare(%j, %limit), direction=NE"},
            {"update": "multiply(%i, %step)"},
        ],
    )
    def test_other_loops_count_once_and_are_named(self, changes):
        found = collectives_in(loop(**changes))
        assert found.collectives[0].trip_count == 1
        assert found.unknown_trip_counts == ("w",)

    def test_tuple_elements_without_an_instruction_of_their_own(self):
        text = loop().replace("%i = s32[] get-tuple-element(%s), index=0", "").replace("add(%i,", "add(%s#0,")
        assert collectives_in(text).collectives[0].trip_count == 6

    def test_unknown_loop_without_collectives_is_not_named(self):
        text = loop(limit="custom-call()").replace(PERMUTE, "copy(%x)")
        assert collectives_in(text).unknown_trip_counts == ()

    def test_nested_loops_multiply_with_the_limit_carried_through(self):
        """The inner loop's start, step and limit come through the outer loop's state."""
        computations = f"""%inner_body (a: (s32[], s32[], f32[16])) -> (s32[], s32[], f32[16]) {{
  %a = (s32[], s32[], f32[16]) parameter(0)
  %one = s32[] constant(1)
  %next = s32[] add(%a#0, %one)
  %x = f32[16] copy(%a#2)
  %y = f32[16] {PERMUTE}
  ROOT %t = (s32[], s32[], f32[16]) tuple(%next, %a#1, %y)
}}

%inner_condition (b: (s32[], s32[], f32[16])) -> pred[] {{
  %b = (s32[], s32[], f32[16]) parameter(0)
  ROOT %lt = pred[] compare(%b#0, %b#1), direction=LT
}}

%outer_body (c: (s32[], s32[], s32[], f32[16])) -> (s32[], s32[], s32[], f32[16]) {{
  %c = (s32[], s32[], s32[], f32[16]) parameter(0)
  %two = s32[] constant(2)
  %next.1 = s32[] add(%c#0, %two)
  %init = (s32[], s32[], f32[16]) tuple(%c#1, %c#2, %c#3)
  %w.1 = (s32[], s32[], f32[16]) while(%init), condition=%inner_condition, body=%inner_body
  ROOT %t.1 = (s32[], s32[], s32[], f32[16]) tuple(%next.1, %c#1, %c#2, %w.1#2)
}}

%outer_condition (d: (s32[], s32[], s32[], f32[16])) -> pred[] {{
  %d = (s32[], s32[], s32[], f32[16]) parameter(0)
  %ten = s32[] constant(10)
  ROOT %lt.1 = pred[] compare(%d#0, %ten), direction=LT
}}"""
        body = """  %zero = s32[] constant(0)
  %three = s32[] constant(3)
  %init.1 = (s32[], s32[], s32[], f32[16]) tuple(%zero, %zero, %three, %p)
  ROOT %w = (s32[], s32[], s32[], f32[16]) while(%init.1), condition=%outer_condition, body=%outer_body"""
        found = collectives_in(module(body, computations))
        assert [c.trip_count for c in found.collectives] == [5 * 3]
        assert found.unknown_trip_counts == ()

    def test_condition_runs_once_more_than_the_body(self):
        text = loop().replace(
            "  %limit =", f"  %x = f32[16] get-tuple-element(%c), index=1\n  %z = f32[16] {PERMUTE}\n  %limit ="
        )
        assert sorted(c.trip_count for c in collectives_in(text).collectives) == [6, 7]
