# SPDX-License-Identifier: Apache-2.0
"""The part of a sum that a program goes on with."""

import pytest

from reshard.dialect_utils.hlo.text import parse_module
from reshard.dialect_utils.schedules.kept_results import kept_bytes

SLICE = "f32[2]{0} dynamic-slice(%r, %{0}), dynamic_slice_sizes={{2}}"


def kept(*lines: str) -> int:
    text = "\n".join(f"  {line}" for line in lines)
    return kept_bytes(
        parse_module(f"""HloModule m, num_partitions=4
ENTRY %main (p: f32[8], i: s32[], j: s32[]) -> f32[2] {{
  %p = f32[8]{{0}} parameter(0)
  %i = s32[] parameter(1)
  %j = s32[] parameter(2)
  %r = f32[8]{{0}} all-reduce(%p), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add
{text}
}}""")
    )["r"]


@pytest.mark.parametrize(
    "lines, expected",
    [
        (["ROOT %s = " + SLICE.format("i")], 8),
        (["%s = " + SLICE.format("i"), "%t = " + SLICE.format("i"), "ROOT %u = f32[2]{0} add(%s, %t)"], 8),
        (["%s = " + SLICE.format("i"), "%t = " + SLICE.format("j"), "ROOT %u = f32[2]{0} add(%s, %t)"], 16),
        (["%v = f32[2,4]{1,0} reshape(%r)",
          "ROOT %s = f32[2,1]{1,0} dynamic-slice(%v, %i, %j), dynamic_slice_sizes={2,1}"], 8),
        (["%n = f32[8]{0} negate(%r)", "ROOT %s = " + SLICE.format("i")], 32),
        (["ROOT %n = f32[8]{0} negate(%r)"], 32),
    ],
    ids=["a slice", "the same slice twice", "two slices", "a slice of a view", "a slice and all", "all"],
)  # fmt: skip
def test_only_what_all_users_slice_is_a_part(lines, expected):
    assert kept(*lines) == expected


def test_a_sum_that_is_the_result_is_kept_whole():
    text = """HloModule m, num_partitions=4
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add
}"""
    assert kept_bytes(parse_module(text)) == {"r": 32}
