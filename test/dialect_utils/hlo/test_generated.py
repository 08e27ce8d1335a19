# SPDX-License-Identifier: Apache-2.0
"""Local work as the code generator of a compiler prices it, in its final program."""

import pytest

from reshard.dialect_utils.hlo.generated import generated_in
from reshard.synthesis.network.program_time import LocalWork

HEAD = "HloModule m, is_scheduled=true, num_partitions=4\n"
SQUARED = """%squared (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  ROOT %m = f32[256]{0} multiply(%p, %p)
}
"""


def squared(name: str, operand: str, cycles: int | str) -> str:
    config = f', backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}' if cycles else ""
    return f"%{name} = f32[256]{{0}} fusion(%{operand}), kind=kLoop, calls=%squared{config}"


LOOP = f"""{HEAD}{SQUARED}
%condition (c: (s32[], f32[256])) -> pred[] {{
  %c = (s32[], f32[256]{{0}}) parameter(0)
  %ci = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(5)
  ROOT %lt = pred[] compare(%ci, %n), direction=LT
}}
%body (s: (s32[], f32[256])) -> (s32[], f32[256]) {{
  %s = (s32[], f32[256]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[256]{{0}} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  {squared("y", "x", 300)}
  {squared("z", "y", "")}
  ROOT %r = (s32[], f32[256]{{0}}) tuple(%next, %z)
}}
ENTRY %main (a: f32[256]) -> f32[256] {{
  %a = f32[256]{{0}} parameter(0)
  {squared("b", "a", 1000)}
  %zero = s32[] constant(0)
  %t = (s32[], f32[256]{{0}}) tuple(%zero, %b)
  %w = (s32[], f32[256]{{0}}) while(%t), condition=%condition, body=%body
  ROOT %o = f32[256]{{0}} get-tuple-element(%w), index=1
}}
"""


def test_prices_in_loops_count_for_each_turn_and_the_rest_is_work_without_a_price():
    found = generated_in(LOOP)
    assert found is not None and found.cycles == 1000 + 5 * 300
    assert found.others == (LocalWork(flops=0, bytes_moved=2048, runs=5, kernels=1),)


def test_of_a_branch_the_one_with_more_cycles_counts():
    branches = "".join(
        f"""%{name} (q: f32[256]) -> f32[256] {{
  %q = f32[256]{{0}} parameter(0)
  ROOT {squared(name + "1", "q", cycles)}
}}
"""
        for name, cycles in (("first", 40), ("second", 70))
    )
    found = generated_in(f"""{HEAD}{SQUARED}{branches}ENTRY %main (a: f32[256], k: s32[]) -> f32[256] {{
  %a = f32[256]{{0}} parameter(0)
  %k = s32[] parameter(1)
  ROOT %c = f32[256]{{0}} conditional(%k, %a, %a), branch_computations={{%first, %second}}
}}
""")
    assert found is not None and found.cycles == 70


@pytest.mark.parametrize("cycles", ["", 0])
def test_a_program_without_any_price_says_nothing(cycles):
    """CPU devices, and GPUs, have none."""
    text = f"""{HEAD}{SQUARED}ENTRY %main (a: f32[256]) -> f32[256] {{
  %a = f32[256]{{0}} parameter(0)
  ROOT {squared("b", "a", str(cycles))}
}}
"""
    assert generated_in(text) is None


def test_what_starts_and_ends_a_collective_in_pieces_is_no_local_work():
    """Only the step between them, a fusion of other work in which the collective goes on, is."""
    piece = 'backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}'
    gather = f"all-gather(%p), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, {piece}"
    ends = "".join(
        f"""%{name} (p: f32[64]) -> f32[256] {{
  %p = f32[64]{{0}} parameter(0)
  %g = f32[256]{{0}} {gather}
  ROOT %e = f32[256]{{0}} custom-call(%g), custom_call_target="AsyncCollective{target}"
}}
"""
        for name, target in (("starts", "Start"), ("ends", "Done"))
    )
    found = generated_in(f"""{HEAD}{SQUARED}{ends}ENTRY %main (a: f32[64], x: f32[256]) -> f32[256] {{
  %a = f32[64]{{0}} parameter(0)
  %x = f32[256]{{0}} parameter(1)
  %start = f32[256]{{0}} fusion(%a), kind=kCustom, calls=%starts, backend_config={{"estimated_cycles":"5000"}}
  {squared("y", "x", 90)}
  ROOT %done = f32[256]{{0}} fusion(%a), kind=kCustom, calls=%ends, backend_config={{"estimated_cycles":"5000"}}
}}
""")
    assert found is not None and (found.cycles, found.others) == (90, ())


@pytest.mark.parametrize("op", ["add(%a, %a)", "broadcast(%a), dimensions={0}", "reduce(%a, %a), dimensions={}"])
def test_what_is_no_part_of_a_fusion_has_a_price_of_another_kind(op):
    text = f"""{HEAD}{SQUARED}ENTRY %main (a: f32[256]) -> f32[256] {{
  %a = f32[256]{{0}} parameter(0)
  %s = f32[256]{{0}} {op}, backend_config={{"estimated_cycles":"5000"}}
  ROOT {squared("b", "s", 100)}
}}
"""
    found = generated_in(text)
    assert found is not None and found.cycles == 100 and sum(each.bytes_moved for each in found.others) > 1024
