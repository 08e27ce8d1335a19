# SPDX-License-Identifier: Apache-2.0
"""Work between start and end of collectives: which collective it hides, and how much."""

import pytest

from reshard.dialect_utils.xla.hlo_collectives import collectives_in
from reshard.dialect_utils.xla.hlo_hidden import hidden_in
from reshard.synthesis.network.program_time import LocalWork, program_time
from reshard.synthesis.network.topology import Level, Topology

PERMUTE = "(f32[64,64]{1,0}, f32[64,64]{1,0}) collective-permute-start(%a), channel_id=1, source_target_pairs=%s"
LINE = Topology("line", (Level("chip", 4, "ring", 1e9),), 1e12)
AHEAD, BACK = "{{0,1},{1,2},{2,3},{3,0}}", "{{1,0},{2,1},{3,2},{0,3}}"
FLOPS = 2 * 64**3


def program(*lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"""HloModule m, is_scheduled=true, num_partitions=4
ENTRY %main (a: f32[64,64]) -> f32[64,64] {{
  %a = f32[64,64]{{1,0}} parameter(0)
{body}
  ROOT %r = f32[64,64]{{1,0}} negate(%a)
}}"""


def start(name: str, pairs: str = AHEAD) -> str:
    return f"%{name} = {PERMUTE.replace('%s', pairs)}"


def done(name: str) -> str:
    return f"%{name}d = f32[64,64]{{1,0}} collective-permute-done(%{name})"


def product(name: str) -> str:
    return f"%{name} = f32[64,64]{{1,0}} dot(%a, %a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"


def flops(*lines: str) -> list[int]:
    text = program(*lines)
    return [each.flops for each in hidden_in(text, collectives_in(text).ops)]


def test_only_what_stands_between_start_and_end_counts():
    assert flops(product("x"), start("s"), product("y"), done("s"), product("z")) == [FLOPS]
    assert flops(start("s"), done("s"), product("x")) == []


def test_permutes_that_go_different_ways_are_hidden_by_the_same_work():
    assert flops(start("s"), start("t", BACK), product("x"), done("s"), done("t")) == [FLOPS, FLOPS]


def test_of_permutes_that_go_the_same_way_the_first_is_hidden_first():
    assert flops(start("s"), start("t"), product("x"), done("s"), product("y"), done("t")) == [FLOPS, FLOPS]
    assert flops(start("s"), start("t"), product("x"), done("s"), done("t")) == [FLOPS]


def test_a_program_without_a_schedule_hides_nothing():
    text = program(start("s"), product("x"), done("s")).replace(", is_scheduled=true", "")
    assert hidden_in(text, collectives_in(text).ops) == ()


def test_a_collective_is_hidden_as_far_as_the_work_beside_it_goes():
    text = program(start("s"), product("x"), done("s"))
    ops, work = collectives_in(text), [LocalWork(FLOPS, 0)]
    alone = program_time(LINE, 4, ops.collectives, work)
    beside = program_time(LINE, 4, ops.collectives, work, hidden_in(text, ops.ops))
    (hidden,) = hidden_in(text, ops.ops)
    assert beside.hidden_s == hidden.bytes_moved / LINE.memory_bandwidth_bytes_per_s
    assert beside.collectives_s == alone.collectives_s - beside.hidden_s
    assert beside.seconds == pytest.approx(alone.seconds - beside.hidden_s)
