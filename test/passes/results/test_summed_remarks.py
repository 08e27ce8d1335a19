# SPDX-License-Identifier: Apache-2.0
"""Remarks are counted by reason: nothing is lost, and alike reasons that differ in sizes and layouts count as one."""

from hypothesis import given
from hypothesis import strategies as st

from reshard.dialect_utils.ir.diagnostics import ERROR, REMARK, Diagnostic, Place
from reshard.passes.results.summed_remarks import reasons, skipped_text, summed_up


def skipped(where: str, reason: str, line: int = 1) -> Diagnostic:
    return Diagnostic(REMARK, f"{where} is left alone: {reason}", Place("model.py", line, 3))


SUMS = "partial sums are reduced here"
FEW = [
    skipped("operand 0 of add", SUMS, 1),
    skipped("result 0 of tanh", SUMS, 2),
    skipped("operand 1 of dot", "it is big", 3),
]
ELSEWHERE = Diagnostic(REMARK, "site 4 (call) is left to XLA: stock XLA does as well")


def test_skipped_uses_are_counted_by_reason_with_the_first_place():
    assert skipped_text([*FEW, ELSEWHERE]).splitlines()[1:] == [
        "  2 uses: partial sums are reduced here",
        "    model.py:1:3: operand 0 of add",
        "  1 use: it is big",
        "    model.py:3:3: operand 1 of dot",
    ]


def test_the_whole_list_is_there_on_demand():
    lines = skipped_text([*FEW, ELSEWHERE], lists_all=True).splitlines()
    assert lines == ["left alone:", *(f"  {each}" for each in FEW)]


def test_there_is_no_such_part_without_skipped_uses():
    assert skipped_text([ELSEWHERE]) == ""


def test_reasons_that_differ_in_numbers_and_layouts_are_one_with_the_first_in_full():
    uses = [skipped("operand 0 of add", f'it is [{{"{axis}"}}, {{}}] on 8 devices') for axis in "xyz"]
    assert [(each.count, each.text) for each in reasons(uses)] == [(3, "it is … on … devices")]
    assert skipped_text(uses).endswith('operand 0 of add: it is [{"x"}, {}] on 8 devices')


def test_the_most_frequent_reason_is_first():
    assert [each.count for each in reasons([FEW[2], *FEW[:2]])] == [2, 1]


@given(st.lists(st.tuples(st.sampled_from(["a use", "site 3 (call)"]), st.sampled_from(["it is 1", "it is 22", "no"]))))
def test_every_remark_is_counted_once(drawn):
    words = {"a use": "is left alone", "site 3 (call)": "is left to XLA"}
    remarks = [Diagnostic(REMARK, f"{who} {words[who]}: {why}") for who, why in drawn]
    assert sum(each.count for each in reasons(remarks)) == len(remarks)
    assert len(summed_up(remarks)) == len(reasons(remarks))


def test_errors_are_not_summed_up():
    error = Diagnostic(ERROR, "it is wrong")
    assert summed_up([error, error]) == [error, error]
