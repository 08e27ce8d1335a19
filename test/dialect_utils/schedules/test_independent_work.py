# SPDX-License-Identifier: Apache-2.0
"""Work beside collectives: what neither feeds them nor needs them."""

import hypothesis.strategies as st
from hypothesis import given

from reshard.dialect_utils.hlo.text import parse_module
from reshard.dialect_utils.schedules.independent_work import Work, independent_work

DOTS = """HloModule m, num_partitions=4

%body (s: (s32[], f32[8,8], f32[2,8])) -> (s32[], f32[8,8], f32[2,8]) {
  %s = (s32[], f32[8,8], f32[2,8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %a = f32[8,8]{1,0} get-tuple-element(%s), index=1
  %w = f32[2,8]{1,0} get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
  %g = f32[8,8]{1,0} all-gather(%w), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
  %d = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="first"}
  %e = f32[8,8]{1,0} dot(%d, %g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[8,8], f32[2,8]) tuple(%j, %e, %w)
}

%cond (c: (s32[], f32[8,8], f32[2,8])) -> pred[] {
  %c = (s32[], f32[8,8], f32[2,8]) parameter(0)
  %k = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(5)
  ROOT %l = pred[] compare(%k, %n), direction=LT
}

ENTRY %main (p: f32[8,8], q: f32[2,8], r: f32[16]) -> (f32[8,8], f32[16]) {
  %p = f32[8,8]{1,0} parameter(0)
  %q = f32[2,8]{1,0} parameter(1)
  %r = f32[16]{0} parameter(2)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,8], f32[2,8]) tuple(%zero, %p, %q)
  %loop = (s32[], f32[8,8], f32[2,8]) while(%start), condition=%cond, body=%body, metadata={op_name="loop"}
  %x = f32[8,8]{1,0} get-tuple-element(%loop), index=1
  %sum = f32[16]{0} all-reduce(%r), channel_id=2, replica_groups=[1,4]<=[4], to_apply=%add
  %last = f32[8,8]{1,0} all-reduce(%x), channel_id=3, replica_groups=[1,4]<=[4], to_apply=%add
  ROOT %out = (f32[8,8], f32[16]) tuple(%last, %sum)
}
"""


def test_in_a_loop_it_is_what_one_iteration_has_beside_it():
    beside = independent_work(parse_module(DOTS))["g"]
    assert (beside.opcode, beside.op_name) == ("dot", "first")
    assert beside.work == Work(2 * 8 * 8 * 8, 3 * 8 * 8 * 4)


def test_a_loop_beside_a_collective_counts_all_its_iterations():
    beside = independent_work(parse_module(DOTS))["sum"]
    assert (beside.opcode, beside.op_name) == ("while", "loop")
    assert beside.work.flops == 5 * 2 * (2 * 8 * 8 * 8)


def test_what_a_collective_needs_is_not_beside_it():
    beside = independent_work(parse_module(DOTS))["last"]
    assert not beside.is_any and beside.work == Work()


def test_an_order_that_is_imposed_counts_as_a_need():
    text = DOTS.replace("dimensions={0}\n", "dimensions={0}, control-predecessors={%d}\n", 1)
    order = text.replace("  %g = ", "  %G = ").splitlines()
    at = next(number for number, line in enumerate(order) if line.startswith("  %G = "))
    order.insert(at + 1, order.pop(at))  # behind the dot, as XLA lists it
    assert not independent_work(parse_module("\n".join(order).replace("%G", "%g")))["g"].is_any


@given(st.integers(0, 10**15), st.integers(0, 10**12), st.integers(1, 100))
def test_the_time_is_that_of_the_slower_of_computing_and_memory(flops, num_bytes, runs):
    work = Work(flops, num_bytes)
    seconds = work.seconds(1e12, 1e9)
    assert seconds == max(work.seconds(1e12, float("inf")), work.seconds(None, 1e9))
    assert abs(work.times(runs).seconds(1e12, 1e9) - runs * seconds) <= 1e-9 * max(1.0, runs * seconds)
