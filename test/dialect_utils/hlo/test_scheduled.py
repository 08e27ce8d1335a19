# SPDX-License-Identifier: Apache-2.0
"""The schedules of final programs: which collectives run beside what, and what is left of them."""

import pytest

from reshard.dialect_utils.hlo.collectives import collectives_in
from reshard.dialect_utils.hlo.scheduled import schedule_in
from reshard.dialect_utils.hlo.work import work_in
from reshard.synthesis.network.program_time import LocalWork, ProgramTime
from reshard.synthesis.network.schedule_time import Done, Driving, Loop, Start, Work, scheduled_time
from reshard.synthesis.network.topology import Level, Topology
from reshard.synthesis.programs.traffic import Collective

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


def time_of(text: str) -> ProgramTime:
    ops = collectives_in(text)
    return scheduled_time(LINE, 4, ops.collectives, schedule_in(text, ops.ops))


def waits(*lines: str) -> float:
    """Returns the seconds in which a device waits for collectives, by those of one permute."""
    hop = time_of(program(start("s"), done("s")))
    return time_of(program(*lines)).collectives_s / hop.collectives_s


def products(count: int) -> float:
    """Returns the seconds of some products, by those of one permute."""
    hop, work = time_of(program(start("s"), done("s"))), time_of(program(product("x"))).local_s
    return count * (work - time_of(program()).local_s) / hop.collectives_s


def test_only_what_stands_between_start_and_end_hides():
    around = waits(product("x"), start("s"), product("y"), done("s"), product("z"))
    assert around == pytest.approx(1 - products(1)) and products(1) > 0
    assert waits(start("s"), done("s"), product("x")) == pytest.approx(1)


def test_permutes_that_go_different_ways_are_hidden_by_the_same_work():
    assert waits(start("s"), start("t", BACK), product("x"), done("s"), done("t")) == pytest.approx(1 - products(1))


def test_of_permutes_that_go_the_same_way_the_first_is_hidden_first():
    both = waits(start("s"), start("t"), product("x"), done("s"), product("y"), done("t"))
    assert both == pytest.approx(2 - products(2))
    assert waits(start("s"), start("t"), product("x"), done("s"), done("t")) == pytest.approx(2 - products(1))


def test_a_loop_waits_in_each_turn_and_nothing_moves_on_beside_it():
    hop = Start(0, collectives_in(program(start("s"), done("s"))).ops[0].collective)
    loop = Loop(3, (hop, Work(LocalWork(0, 0, kernels=0)), Done(0)))
    alone = scheduled_time(LINE, 4, (), (loop,)).collectives_s
    assert scheduled_time(LINE, 4, (), (hop, loop, Done(0))).collectives_s == pytest.approx(4 / 3 * alone)


@pytest.mark.parametrize(
    ("lines", "hops"),
    [
        ((start("s"), start("t"), done("s"), done("t")), 2),  # the same way
        ((start("s"), done("s"), start("t", BACK), done("t")), 2),  # one after the other
        ((start("s"), start("t", BACK), start("u", BACK), done("s"), done("t"), done("u")), 2),  # two on one link
        ((start("s"), start("t", BACK), start("u"), done("s"), done("t"), done("u")), 2),  # the second has moved on
        ((*map(start, "su"), start("t", BACK), start("v", BACK), *map(done, "stuv")), 2),  # two each way
    ],
)
def test_what_shares_a_link_waits_itself(lines, hops):
    assert waits(*lines) == pytest.approx(hops)


def test_one_that_takes_longer_is_hidden_in_part():
    small = "(f32[8,64]{1,0}, f32[8,64]{1,0}) collective-permute-start(%b), channel_id=1, source_target_pairs=" + AHEAD
    lines = ("%b = f32[8,64]{1,0} slice(%a), slice={[0:8], [0:64]}", f"%s = {small}", start("t", BACK))
    ends = ("%sd = f32[8,64]{1,0} collective-permute-done(%s)", done("t"))
    assert waits(*lines, *ends) == pytest.approx(1)


def test_a_program_without_a_schedule_has_no_steps():
    text = program(start("s"), product("x"), done("s")).replace(", is_scheduled=true", "")
    assert schedule_in(text, collectives_in(text).ops) == ()


def test_what_is_hidden_and_what_is_waited_for_is_the_time_of_all_collectives():
    time, alone = time_of(program(start("s"), product("x"), done("s"))), time_of(program(start("s"), done("s")))
    assert time.hidden_s > 0 and time.collectives_s + time.hidden_s == pytest.approx(alone.collectives_s)


def test_a_sum_that_a_fusion_scatters_is_waited_for():
    """The TPU compiler writes an all-reduce of which each device keeps a part as a fusion."""
    groups = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"
    text = f"""HloModule m, is_scheduled=true, num_partitions=4
%added (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}}
%all-reduce-scatter (p: f32[64,64]) -> f32[16,64] {{
  %p = f32[64,64]{{1,0}} parameter(0)
  %sum = f32[64,64]{{1,0}} all-reduce(%p), channel_id=1, {groups}, to_apply=%added
  ROOT %part = f32[16,64]{{1,0}} slice(%sum), slice={{[0:16], [0:64]}}
}}
ENTRY %main (a: f32[64,64]) -> f32[16,64] {{
  %a = f32[64,64]{{1,0}} parameter(0)
  {start("s")}
  {done("s")}
  ROOT %r = f32[16,64]{{1,0}} fusion(%a), kind=kCustom, calls=%all-reduce-scatter
}}"""
    kinds = [type(each).__name__ for each in schedule_in(text, collectives_in(text).ops)]
    assert kinds == ["Start", "Done", "Start", "Done", "Work"] and time_of(text).hidden_s == pytest.approx(0)


def test_what_is_small_does_not_wait_for_the_end_of_what_is_large():
    """A sum of one number beside a permute takes twice its time, and the permute is later by as much."""
    permute = collectives_in(program(start("s"), done("s"))).ops[0].collective
    number = Collective("all_reduce", 4, 4, groups=((0, 1, 2, 3),))
    alone, large = (scheduled_time(LINE, 4, (), (Start(0, each), Done(0))).collectives_s for each in (number, permute))
    steps = (Start(0, permute), Start(1, number), Done(1))
    assert scheduled_time(LINE, 4, (), (*steps, Done(0))).collectives_s == pytest.approx(large + alone)
    work = Work(LocalWork(0, round(2 * large * LINE.memory_bandwidth_bytes_per_s)))
    assert scheduled_time(LINE, 4, (), (*steps, work, Done(0))).collectives_s == pytest.approx(2 * alone)


TILE, WHOLE = "bf16[64,64]{1,0}", "bf16[256,64]{1,0}"
AROUND = f"({TILE}, {TILE}, {WHOLE}, {WHOLE}, u32[])"


def piece(name: str, flag: int) -> str:
    """Returns a gather as it stands in the fusions that run it."""
    config = f'{{"async_collective_fusion_config":{{"flag_start":"{flag}","flag_end":"{flag}"}}}}'
    groups = "replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true"
    return f"%{name} = {WHOLE} all-gather(%p), channel_id=7, {groups}, backend_config={config}"


def product_of_tiles(name: str) -> str:
    return f"%{name} = {TILE} dot(%a, %a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"


def fusion(shape: str, operands: str, in_place: str, calls: str) -> str:
    return f"{shape} fusion({operands}), kind=kCustom, output_to_operand_aliasing={{{in_place}}}, calls=%{calls}"


IN_PIECES = f"""HloModule m, is_scheduled=true, num_partitions=4

%starting (p: bf16[64,64]) -> (bf16[64,64], bf16[256,64], u32[]) {{
  %p = {TILE} parameter(0)
  {piece("g0", -1)}
  ROOT %c0 = ({TILE}, {WHOLE}, u32[]) custom-call(%g0), custom_call_target="AsyncCollectiveStart"
}}

%going_on (a: bf16[64,64], p: bf16[64,64], q: bf16[256,64], f: u32[]) -> (bf16[64,64], u32[]) {{
  %a = {TILE} parameter(0)
  %p = {TILE} parameter(1)
  %q = {WHOLE} parameter(2)
  %f = u32[] parameter(3)
  {product_of_tiles("x")}
  {piece("g1", 2)}
  ROOT %t = {AROUND} tuple(%x, %p, %q, %g1, %f)
}}

%ending (p: bf16[64,64], q: bf16[256,64], f: u32[]) -> bf16[256,64] {{
  %p = {TILE} parameter(0)
  %q = {WHOLE} parameter(1)
  %f = u32[] parameter(2)
  {piece("g2", 2)}
  ROOT %c2 = {WHOLE} custom-call(%p, %q, %g2, %f), custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (a: bf16[64,64], b: bf16[64,64]) -> bf16[256,64] {{
  %a = {TILE} parameter(0)
  %b = {TILE} parameter(1)
  %s = {fusion(f"({TILE}, {WHOLE}, u32[])", "%b", "{0}: (0, {})", "starting")}
  %s0 = {TILE} get-tuple-element(%s), index=0
  %s1 = {WHOLE} get-tuple-element(%s), index=1
  %s2 = u32[] get-tuple-element(%s), index=2
  {product_of_tiles("y")}
  %t = {fusion(AROUND, "%a, %s0, %s1, %s2", "{1}: (1, {}), {2}: (2, {}), {3}: (2, {}), {4}: (3, {})", "going_on")}
  %t1 = {TILE} get-tuple-element(%t), index=1
  %t2 = {WHOLE} get-tuple-element(%t), index=2
  %t4 = u32[] get-tuple-element(%t), index=4
  ROOT %d = {fusion(WHOLE, "%t1, %t2, %t4", "{}: (1, {})", "ending")}
}}
"""


class TestInPieces:
    """The TPU compiler writes one gather three times: where it starts, beside a product, and where it ends."""

    tile = 64 * 64 * 2

    def test_it_is_one_collective(self):
        (gather,) = collectives_in(IN_PIECES).ops
        assert (gather.name, gather.collective.bytes_after) == ("g0", 4 * self.tile)

    def test_the_work_of_its_steps_alone_hides_it(self):
        steps = schedule_in(IN_PIECES, collectives_in(IN_PIECES).ops)
        beside = Work(LocalWork(FLOPS, 2 * self.tile))
        assert [type(each) for each in steps] == [Start, Work, Driving, Done] and steps[2] == Driving((0,), beside)
        assert time_of(IN_PIECES).hidden_s == pytest.approx(2 * self.tile / LINE.memory_bandwidth_bytes_per_s)

    def test_the_memory_that_it_goes_through_is_no_local_work(self):
        """Each product reads a tile, once as both operands in a fusion, and writes one."""
        assert work_in(IN_PIECES) == (LocalWork(FLOPS, 2 * self.tile), LocalWork(FLOPS, 3 * self.tile))


def test_a_small_permute_that_is_under_way_for_long_takes_no_work_from_a_large_one():
    """One row goes the same way as the blocks of a ring, from the beginning to the end."""
    small = start("small").replace("f32[64,64]", "f32[1,64]").replace("(%a)", "(%row)")
    row = "%row = f32[1,64]{1,0} slice(%a), slice={[0:1], [0:64]}"
    ends = "%smalld = f32[1,64]{1,0} collective-permute-done(%small)"
    lines = (start("s"), product("x"), done("s"), start("t"), product("y"), done("t"))
    assert waits(row, small, *lines, ends) == pytest.approx(2 - products(2) + waits(row, small, ends))


SUM = """%added (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}
"""
ALL = "replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%added"


def with_computations(computations: str, *lines: str) -> str:
    head, _, entry = program(start("s"), done("s"), *lines).partition("\n")
    return f"{head}\n{SUM}{computations}{entry}"


def sequential(text: str) -> float:
    """Returns the seconds of the collectives of a program, one after the other."""
    ops = collectives_in(text)
    return scheduled_time(LINE, 4, ops.collectives, ()).hidden_s


class TestOtherComputations:
    """Whatever runs a collective, it is waited for: what nothing runs beside takes all of its time."""

    def waited(self, computations: str, *lines: str) -> None:
        text = with_computations(computations, *lines)
        ops = collectives_in(text)
        assert schedule_in(text, ops.ops) and len(ops.ops) > 1
        assert time_of(text).collectives_s == pytest.approx(sequential(text))

    def test_of_a_conditional_a_branch_with_collectives_counts(self):
        branches = f"""%moves (p: f32[64,64]) -> f32[64,64] {{
  %p = f32[64,64]{{1,0}} parameter(0)
  ROOT %m = f32[64,64]{{1,0}} all-reduce(%p), channel_id=2, {ALL}
}}
%negates (q: f32[64,64]) -> f32[64,64] {{
  %q = f32[64,64]{{1,0}} parameter(0)
  ROOT %n = f32[64,64]{{1,0}} negate(%q)
}}
"""
        calls = "true_computation=%moves, false_computation=%negates"
        text = with_computations(
            branches, "%p = pred[] constant(true)", f"%c = f32[64,64]{{1,0}} conditional(%p, %a, %a), {calls}"
        )
        steps = schedule_in(text, collectives_in(text).ops)
        assert steps == () or time_of(text).collectives_s == pytest.approx(sequential(text))

    def test_in_a_fusion_in_a_fusion(self):
        fused = f"""%inner (p: f32[64,64]) -> f32[64,64] {{
  %p = f32[64,64]{{1,0}} parameter(0)
  ROOT %m = f32[64,64]{{1,0}} all-reduce(%p), channel_id=2, {ALL}
}}
%outer (q: f32[64,64]) -> f32[64,64] {{
  %q = f32[64,64]{{1,0}} parameter(0)
  ROOT %n = f32[64,64]{{1,0}} fusion(%q), kind=kCustom, calls=%inner
}}
"""
        self.waited(fused, "%f = f32[64,64]{1,0} fusion(%a), kind=kCustom, calls=%outer")

    @pytest.mark.parametrize("sums", [1, 2])
    def test_in_an_async_computation_with_other_work(self, sums):
        moves = "\n".join(f"  %m{each} = f32[64,64]{{1,0}} all-reduce(%p), channel_id=2, {ALL}" for each in range(sums))
        callee = f"""%apart (p: f32[64,64]) -> f32[64,64] {{
  %p = f32[64,64]{{1,0}} parameter(0)
{moves}
  ROOT %n = f32[64,64]{{1,0}} negate(%m0)
}}
"""
        shape = "((f32[64,64]{1,0}), f32[64,64]{1,0}, u32[])"
        text = with_computations(
            callee,
            f"%b = {shape} async-start(%a), calls=%apart",
            f"%g = {shape} async-update(%b), calls=%apart",
            "%e = f32[64,64]{1,0} async-done(%g), calls=%apart",
        )
        ops = collectives_in(text)
        steps = schedule_in(text, ops.ops)
        assert (
            sum(isinstance(each, Start) for each in steps) == 1 + sums == sum(isinstance(each, Done) for each in steps)
        )
        hidden = time_of(text).hidden_s
        assert hidden == pytest.approx(0) if sums == 2 else 0 < hidden < 0.1 * sequential(text)

    def test_in_loops_of_different_lengths_of_one_computation(self):
        loop = f"""%below (state: (s32[], s32[], f32[64,64])) -> pred[] {{
  %state = (s32[], s32[], f32[64,64]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %n = s32[] get-tuple-element(%state), index=1
  ROOT %l = pred[] compare(%i, %n), direction=LT
}}
%turn (state: (s32[], s32[], f32[64,64])) -> (s32[], s32[], f32[64,64]) {{
  %state = (s32[], s32[], f32[64,64]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %n = s32[] get-tuple-element(%state), index=1
  %v = f32[64,64]{{1,0}} get-tuple-element(%state), index=2
  %o = s32[] constant(1)
  %j = s32[] add(%i, %o)
  %m = f32[64,64]{{1,0}} all-reduce(%v), channel_id=2, {ALL}
  ROOT %t = (s32[], s32[], f32[64,64]{{1,0}}) tuple(%j, %n, %m)
}}
"""
        state = "(s32[], s32[], f32[64,64]{1,0})"
        lines = ["%zero = s32[] constant(0)"]
        for turns in (2, 5):
            lines += [
                f"%n{turns} = s32[] constant({turns})",
                f"%t{turns} = {state} tuple(%zero, %n{turns}, %a)",
                f"%w{turns} = {state} while(%t{turns}), condition=%below, body=%turn",
            ]
        text = with_computations(loop, *lines)
        runs = [op.collective.trip_count for op in collectives_in(text).ops]
        assert runs == [1, 2, 5]
        self.waited(loop, *lines)


def test_a_schedule_that_is_not_all_of_the_program_is_none():
    text = program(start("s"), product("x"), done("s"))
    ops = collectives_in(text).ops
    assert schedule_in(text, ops) and not schedule_in(text, (*ops, *ops))


def test_work_takes_as_long_as_the_code_generator_says_where_that_is_asked():
    """700 cycles of a fusion at 1 GHz; what has no price is by the roofline."""
    fused = """%squared (p: f32[64,64]) -> f32[64,64] {
  %p = f32[64,64]{1,0} parameter(0)
  ROOT %m = f32[64,64]{1,0} multiply(%p, %p)
}
"""
    config = 'backend_config={"estimated_cycles":"700"}'
    text = with_computations(fused, f"%f = f32[64,64]{{1,0}} fusion(%a), kind=kLoop, calls=%squared, {config}")
    ops = collectives_in(text)
    steps = schedule_in(text, ops.ops, 1e9)
    assert [each.generated_s for each in steps if isinstance(each, Work)] == [7e-7, 0.0]
    modelled, generated = (scheduled_time(LINE, 4, (), steps, as_generated=each).local_s for each in (False, True))
    assert generated == pytest.approx(7e-7 + 2 * 64 * 64 * 4 / LINE.memory_bandwidth_bytes_per_s)
    assert modelled == pytest.approx(4 * 64 * 64 * 4 / LINE.memory_bandwidth_bytes_per_s)


def test_what_is_driven_shares_its_links():
    """A gather that products drive and a sum that travels beside them take the links one after the other."""
    gather = Collective("all_gather", 10**6, 4 * 10**6, groups=((0, 1, 2, 3),))
    total = Collective("all_reduce", 10**6, 10**6, groups=((0, 1, 2, 3),))
    both = sum(scheduled_time(LINE, 4, (each,), ()).hidden_s for each in (gather, total))
    long = Work(LocalWork(0, round(both * LINE.memory_bandwidth_bytes_per_s / 2)))
    steps = (Start(0, gather, is_driven=True), Start(1, total), Driving((0,), long), Done(0), Done(1))
    assert scheduled_time(LINE, 4, (gather, total), steps).seconds == pytest.approx(both, rel=0.01)


def test_gathers_along_two_dimensions_of_a_torus_travel_at_once():
    torus = Topology("torus", (Level("chip", 8, "torus", 1e9, dims=(2, 4)),), 1e12)
    rows, columns = (tuple(range(at, at + 4)) for at in (0, 4)), ((at, at + 4) for at in range(4))
    along, across = (
        Collective("all_gather", 3 * 10**6 // (len(each[0]) - 1), 10**7, groups=each)
        for each in (tuple(rows), tuple(columns))
    )
    alone = [scheduled_time(torus, 8, (each,), (Start(0, each), Done(0))).seconds for each in (along, across)]
    both = scheduled_time(torus, 8, (along, across), (Start(0, along), Start(1, across), Done(0), Done(1))).seconds
    twice = scheduled_time(torus, 8, (along, along), (Start(0, along), Start(1, along), Done(0), Done(1))).seconds
    assert both == pytest.approx(max(alone)) and twice == pytest.approx(2 * alone[0])


def test_what_waits_in_line_is_waited_for_once():
    """Three permutes of one ring: the third one waits for both, and the second one not for the third."""
    steps = program(*(start(name) for name in "stu"), done("s"), done("t"), product("x"), done("u"))
    one = time_of(program(start("s"), done("s"))).collectives_s
    assert time_of(steps).collectives_s == pytest.approx(3 * one - products(1) * one)
