# SPDX-License-Identifier: Apache-2.0
"""Work between start and end of collectives: which collective it hides, and how much."""

import pytest

from reshard.dialect_utils.hlo.collectives import collectives_in
from reshard.dialect_utils.hlo.hidden import hidden_in
from reshard.dialect_utils.hlo.work import work_in
from reshard.synthesis.network.program_time import Hidden, LocalWork, program_time
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


def hidden_of(*lines: str) -> tuple[Hidden, ...]:
    text = program(*lines)
    return hidden_in(text, collectives_in(text).ops)


def collectives_s(*lines: str) -> float:
    """Returns the seconds in which a device waits for collectives."""
    text = program(*lines)
    ops = collectives_in(text)
    return program_time(LINE, 4, ops.collectives, (), hidden_in(text, ops.ops)).collectives_s


def test_only_what_stands_between_start_and_end_counts():
    assert flops(product("x"), start("s"), product("y"), done("s"), product("z")) == [FLOPS]
    assert flops(start("s"), done("s"), product("x")) == []


def test_permutes_that_go_different_ways_are_hidden_by_the_same_work():
    assert flops(start("s"), start("t", BACK), product("x"), done("s"), done("t")) == [FLOPS, FLOPS]


def test_of_permutes_that_go_the_same_way_the_first_is_hidden_first():
    assert flops(start("s"), start("t"), product("x"), done("s"), product("y"), done("t")) == [FLOPS, FLOPS]
    assert flops(start("s"), start("t"), product("x"), done("s"), done("t")) == [FLOPS]


def test_a_permute_the_other_way_round_moves_on_while_one_is_waited_for():
    both = (start("s"), start("t", BACK), product("x"), done("s"), done("t"))
    assert [each.awaited for each in hidden_of(*both)] == [None, 0]
    assert collectives_s(*both) == pytest.approx(collectives_s(start("s"), product("x"), done("s")))
    without_work = (start("s"), start("t", BACK), done("s"), done("t"))
    assert [(each.flops, each.awaited) for each in hidden_of(*without_work)] == [(0, None), (0, 0)]
    assert collectives_s(*without_work) == pytest.approx(collectives_s(start("s"), done("s")))


@pytest.mark.parametrize(
    ("lines", "waits"),
    [
        ((start("s"), start("t"), done("s"), done("t")), 2),  # the same way
        ((start("s"), done("s"), start("t", BACK), done("t")), 2),  # one after the other
        ((start("s"), start("t", BACK), start("u", BACK), done("s"), done("t"), done("u")), 2),  # two on one link
        ((start("s"), start("t", BACK), start("u"), done("s"), done("t"), done("u")), 2),  # the second has moved on
        ((*map(start, "su"), start("t", BACK), start("v", BACK), *map(done, "stuv")), 2),  # two each way
    ],
)
def test_what_shares_a_link_waits_itself(lines, waits):
    assert collectives_s(*lines) == pytest.approx(waits * collectives_s(start("s"), done("s")))


def test_one_that_takes_longer_is_hidden_in_part():
    small = "(f32[8,64]{1,0}, f32[8,64]{1,0}) collective-permute-start(%b), channel_id=1, source_target_pairs=" + AHEAD
    lines = ("%b = f32[8,64]{1,0} slice(%a), slice={[0:8], [0:64]}", f"%s = {small}", start("t", BACK))
    ends = ("%sd = f32[8,64]{1,0} collective-permute-done(%s)", done("t"))
    assert collectives_s(*lines, *ends) == pytest.approx(collectives_s(start("t", BACK), done("t")))


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
        (hidden,) = hidden_in(IN_PIECES, collectives_in(IN_PIECES).ops)
        assert (hidden.flops, hidden.bytes_moved) == (FLOPS, 2 * self.tile)

    def test_the_memory_that_it_goes_through_is_no_local_work(self):
        """Each product reads a tile, once as both operands in a fusion, and writes one."""
        assert work_in(IN_PIECES) == (LocalWork(FLOPS, 2 * self.tile), LocalWork(FLOPS, 3 * self.tile))


def test_a_small_permute_that_is_under_way_for_long_hides_nothing_of_a_large_one():
    """One row goes the same way as the blocks of a ring, from the beginning to the end."""
    small = start("small").replace("f32[64,64]", "f32[1,64]").replace("(%a)", "(%row)")
    lines = (
        "%row = f32[1,64]{1,0} slice(%a), slice={[0:1], [0:64]}",
        small,
        start("s"),
        product("x"),
        done("s"),
        start("t"),
        product("y"),
        done("t"),
        "%smalld = f32[1,64]{1,0} collective-permute-done(%small)",
    )
    assert [each.flops for each in hidden_of(*lines) if each.collective.bytes_before > 1000] == [FLOPS, FLOPS]
