# SPDX-License-Identifier: Apache-2.0
"""What compilers for TPUs and GPUs make of the collectives of a partitioned program: A1 to A6 of the module's text."""

import pytest

from reshard.dialect_utils.hlo.accelerators import ACCELERATORS, as_run_by
from reshard.dialect_utils.hlo.collectives import collectives_in
from reshard.dialect_utils.hlo.text import parse_module
from reshard.dialect_utils.schedules.program_steps import Move, steps_of

REDUCERS = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
%most (d: f32[], e: f32[]) -> f32[] {
  %d = f32[] parameter(0)
  %e = f32[] parameter(1)
  ROOT %f = f32[] maximum(%d, %e)
}
"""
ROWS, COLUMNS = "{{0,1},{2,3}}", "{{0,2},{1,3}}"  # of devices 0 to 3 as 2x2
STARTS = """
  %zero = s32[] constant(0)
  %id = u32[] partition-id()
  %in_rows = s32[4]{0} constant({0, 64, 0, 64})
  %row = s32[1]{0} dynamic-slice(%in_rows, %id), dynamic_slice_sizes={1}
  %start = s32[] reshape(%row)
  %in_columns = s32[4]{0} constant({0, 0, 64, 64})
  %column = s32[1]{0} dynamic-slice(%in_columns, %id), dynamic_slice_sizes={1}
  %other = s32[] reshape(%column)
"""


def reduced(name: str, operand: str, groups: str = ROWS, by: str = "sum", shape: str = "f32[128,256]{1,0}") -> str:
    over = f"replica_groups={groups}, use_global_device_ids=true"
    return f"  %{name} = {shape} all-reduce(%{operand}), {over}, to_apply=%{by}"


def gathered(name: str, operand: str, shape: str = "f32[256,256]{1,0}", dim: int = 0) -> str:
    return (
        f"  %{name} = {shape} all-gather(%{operand}), replica_groups={ROWS}, dimensions={{{dim}}}, "
        "use_global_device_ids=true"
    )


def part(name: str, whole: str, start: str = "start", shape: str = "f32[64,256]{1,0}") -> str:
    sizes = shape[4 : shape.index("]")]
    return f"  %{name} = {shape} dynamic-slice(%{whole}, %{start}, %zero), dynamic_slice_sizes={{{sizes}}}"


def run_by(platform: str, *lines: str):
    """Returns the collectives of a program whose last line is its result, by the names of their instructions."""
    *before, last = lines
    name, _, rest = last.strip().removeprefix("%").partition(" = ")
    body = "\n".join([*before, f"  ROOT %{name} = {rest}"])
    text = f"""HloModule m, num_partitions=4
{REDUCERS}
ENTRY %main (x: f32[128,256], y: f32[128,256], z: f32[128,256]) -> f32[] {{
  %x = f32[128,256]{{1,0}} parameter(0)
  %y = f32[128,256]{{1,0}} parameter(1)
  %z = f32[128,256]{{1,0}} parameter(2)
{STARTS}
{body}
}}"""
    found = as_run_by(platform, collectives_in(text), parse_module(text))
    return {op.name: op for op in found.ops}


def kinds(ops) -> dict[str, str]:
    return {name: op.collective.kind for name, op in ops.items()}


@pytest.mark.parametrize("platform", ACCELERATORS)
class TestSums:
    def test_a_sum_of_sums_is_one(self, platform):
        (one,) = run_by(platform, reduced("one", "x"), reduced("two", "one", COLUMNS)).values()
        assert one.collective.groups == ((0, 1, 2, 3),) and one.collective.bytes_before == 131072

    def test_a_sum_of_maxima_is_not(self, platform):
        assert len(run_by(platform, reduced("one", "x", by="most"), reduced("two", "one", COLUMNS))) == 2

    def test_a_sum_over_the_same_devices_twice_is_not(self, platform):
        assert len(run_by(platform, reduced("one", "x"), reduced("two", "one"))) == 2

    def test_an_addition_of_sums_is_one(self, platform):
        lines = [reduced("one", "x"), reduced("two", "y"), reduced("three", "z")]
        added = ["  %p = f32[128,256]{1,0} add(%one, %two)", "  %q = f32[128,256]{1,0} add(%three, %p)"]
        assert len(run_by(platform, *lines, *added)) == 1

    @pytest.mark.parametrize(
        ("second", "added"),
        [
            (reduced("two", "y", COLUMNS), "add(%one, %two)"),  # over other devices
            (reduced("two", "y"), "multiply(%one, %two)"),  # no addition
            (reduced("two", "y"), "add(%one, %one)"),
            (reduced("two", "y"), "add(%one, %y)"),  # a value that is no sum
        ],
    )
    def test_others_are_not(self, platform, second, added):
        lines = reduced("one", "x"), second, f"  %p = f32[128,256]{{1,0}} {added}"
        assert len(run_by(platform, *lines)) == 2

    def test_a_sum_that_is_used_twice_stays(self, platform):
        lines = reduced("one", "x"), reduced("two", "y"), "  %p = f32[128,256]{1,0} add(%one, %two)"
        assert len(run_by(platform, *lines, "  %q = f32[128,256]{1,0} multiply(%p, %two)")) == 2


@pytest.mark.parametrize("platform", ACCELERATORS)
class TestParts:
    def test_a_sum_of_which_each_device_keeps_its_part_is_a_reduce_scatter(self, platform):
        (op,) = run_by(platform, reduced("one", "x"), part("own", "one")).values()
        moved = op.collective
        assert (moved.kind, moved.bytes_before, moved.bytes_after) == ("reduce_scatter", 131072, 65536)
        assert op.shape == "f32[64,256]{1,0}"

    def test_also_behind_a_view_and_by_two_equal_slices(self, platform):
        view = "  %v = f32[128,256]{1,0} copy(%one)"
        lines = reduced("one", "x"), view, part("own", "v"), part("again", "v")
        assert kinds(run_by(platform, *lines, "  %q = f32[64,256]{1,0} add(%own, %again)")) == {"one": "reduce_scatter"}

    @pytest.mark.parametrize(
        "sliced",
        [
            part("own", "one", "other"),  # the same part in each group
            part("own", "one", "zero"),
            part("own", "one", shape="f32[32,256]{1,0}"),  # less than a part
            part("own", "one", shape="f32[64,128]{1,0}"),  # of two dimensions
        ],
    )
    def test_another_slice_is_none(self, platform, sliced):
        assert kinds(run_by(platform, reduced("one", "x"), sliced)) == {"one": "all_reduce"}

    def test_a_sum_that_is_also_needed_whole_is_none(self, platform):
        lines = (
            reduced("one", "x"),
            part("own", "one"),
            "  %q = (f32[64,256]{1,0}, f32[128,256]{1,0}) tuple(%own, %one)",
        )
        assert kinds(run_by(platform, *lines)) == {"one": "all_reduce"}

    def test_an_addition_of_parts_is_one_reduce_scatter(self, platform):
        lines = reduced("one", "x"), reduced("two", "y"), part("p", "one"), part("q", "two")
        assert kinds(run_by(platform, *lines, "  %r = f32[64,256]{1,0} add(%p, %q)")) == {"one": "reduce_scatter"}

    def test_a_sum_of_a_part_over_other_devices_stays(self, platform):
        lines = reduced("one", "x"), part("own", "one"), reduced("two", "own", COLUMNS, shape="f32[64,256]{1,0}")
        assert kinds(run_by(platform, *lines)) == {"one": "reduce_scatter", "two": "all_reduce"}


def accumulated(*body: str, carried: str = "%new, %w") -> str:
    """Returns a program that adds sums of parts in ten turns to what a loop carries; `body` computes `new`."""
    lines = "\n".join(body)
    state = "(s32[], f32[128,256]{1,0}, f32[128,256]{1,0})"
    return f"""HloModule m, num_partitions=4
{REDUCERS}
%body (state: {state}) -> {state} {{
  %state = {state} parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %step = s32[] constant(1)
  %next = s32[] add(%state#0, %step)
  %zero = s32[] constant(0)
  %w = f32[128,256]{{1,0}} sine(%state#2)
{lines}
  ROOT %after = {state} tuple(%next, {carried})
}}
%goes_on (state.1: {state}) -> pred[] {{
  %state.1 = {state} parameter(0)
  %ten = s32[] constant(10)
  ROOT %less = pred[] compare(%state.1#0, %ten), direction=LT
}}
ENTRY %main (x: f32[128,256], y: f32[128,256]) -> {state} {{
  %x = f32[128,256]{{1,0}} parameter(0)
  %y = f32[128,256]{{1,0}} parameter(1)
  %start = s32[] constant(0)
  %before = {state} tuple(%start, %x, %y)
  ROOT %loop = {state} while(%before), condition=%goes_on, body=%body
}}"""


@pytest.mark.parametrize("platform", ACCELERATORS)
class TestLoops:
    TURNED = "  %turned = f32[128,256]{1,0} transpose(%one), dimensions={1,0}"

    def runs(self, platform: str, text: str) -> list[tuple[str, int]]:
        found, module = collectives_in(text), parse_module(text)
        ours = as_run_by(platform, found, module)
        moves = [step for step in steps_of(module, ours) if isinstance(step, Move)]
        behind = {op.name for op in ours.ops if not op.loops}
        assert {each.name for each in moves} == behind  # the steps have them behind the loop
        return [(op.name, op.collective.trip_count) for op in ours.ops]

    @pytest.mark.parametrize("added", ["add(%state#1, %turned)", "add(%turned, %state#1)"])
    def test_a_sum_that_is_only_added_to_what_is_carried_runs_once(self, platform, added):
        text = accumulated(reduced("one", "w"), self.TURNED, f"  %new = f32[128,256]{{1,0}} {added}")
        assert self.runs(platform, text) == [("one", 1)]

    @pytest.mark.parametrize(
        ("body", "carried"),
        [
            (["  %new = f32[128,256]{1,0} multiply(%state#1, %turned)"], "%new, %w"),
            (["  %new = f32[128,256]{1,0} add(%state#2, %turned)"], "%new, %w"),  # of another element
            (["  %new = f32[128,256]{1,0} add(%state#1, %turned)"], "%w, %new"),
            (["  %new = f32[128,256]{1,0} add(%state#1, %turned)"], "%new, %new"),
            (
                ["  %new = f32[128,256]{1,0} add(%state#1, %turned)", "  %v = f32[128,256]{1,0} sine(%state#1)"],
                "%new, %v",
            ),
            (["  %new = f32[128,256]{1,0} add(%w, %turned)"], "%new, %w"),
        ],
    )
    def test_any_other_sum_runs_in_each_turn(self, platform, body, carried):
        text = accumulated(reduced("one", "w"), self.TURNED, *body, carried=carried)
        assert self.runs(platform, text) == [("one", 10)]


class TestTiles:
    """What libtpu makes of sums of which eight devices keep parts (v5e)."""

    @pytest.mark.parametrize(
        ("whole", "part", "kind"),
        [
            ("f32[64,256]", "f32[8,256]", "reduce_scatter"),
            ("f32[8,8,256]", "f32[1,8,256]", "reduce_scatter"),
            ("f32[64,128,8]", "f32[64,16,8]", "reduce_scatter"),
            ("bf16[64,8192]", "bf16[64,1024]", "reduce_scatter"),
            ("f32[64,1024]", "f32[64,128]", "reduce_scatter"),
            ("f32[64,128]", "f32[8,128]", "all_reduce"),  # 32 KiB
            ("f32[64,512]", "f32[64,64]", "all_reduce"),  # half a tile
            ("f32[128,512]", "f32[128,64]", "reduce_scatter"),  # columns are rows of tiles in the other order
            ("f32[32,65536]", "f32[4,65536]", "all_reduce"),
            ("f32[8,1,4096]", "f32[1,1,4096]", "all_reduce"),
            ("f32[262144]", "f32[32768]", "all_reduce"),
        ],
    )
    def test_tpus_scatter_whole_tiles(self, whole, part, kind):
        text = f"""HloModule m, num_partitions=8
{REDUCERS}
ENTRY %main (x: {whole}) -> {part} {{
  %x = {whole} parameter(0)
  ROOT %r = {part} reduce-scatter(%x), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, use_global_device_ids=true, to_apply=%sum
}}"""
        found, module = collectives_in(text), parse_module(text)
        (moved,) = as_run_by("tpu", found, module).collectives
        assert moved.kind == kind and moved.bytes_after == (moved.bytes_before // (8 if kind != "all_reduce" else 1))
        assert as_run_by("gpu", found, module).collectives == found.collectives


@pytest.mark.parametrize("platform", ACCELERATORS)
def test_parts_of_an_element_of_a_tuple_and_of_several_arrays_are_read(platform):
    both = "(f32[64,256], f32[64,256])"
    over = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%sum"
    text = f"""HloModule m, num_partitions=8
{REDUCERS}
ENTRY %main (x: {both}) -> (f32[8,256], f32[8,256]) {{
  %x = {both} parameter(0)
  %one = f32[8,256] reduce-scatter(%x#0), {over}
  ROOT %two = (f32[8,256], f32[8,256]) reduce-scatter(%x#0, %x#1), {over}
}}"""
    found, module = collectives_in(text), parse_module(text)
    assert [each.kind for each in as_run_by(platform, found, module).collectives] == ["reduce_scatter"] * 2


class TestNarrow:
    DOT = "  %d = f32[256,256]{1,0} dot(%g, %g), lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    NARROWED = "  %n = bf16[256,256]{1,0} convert(%g)"

    @pytest.mark.parametrize("user", [DOT, NARROWED, DOT + ", operand_precision={default,default}"])
    def test_tpus_gather_what_is_used_as_bfloat16_so(self, user):
        (op,) = run_by("tpu", gathered("g", "x"), user).values()
        assert (op.collective.bytes_before, op.collective.bytes_after, op.shape) == (
            65536,
            131072,
            "bf16[256,256]{1,0}",
        )
        (op,) = run_by("gpu", gathered("g", "x"), user).values()
        assert op.collective.bytes_before == 131072

    @pytest.mark.parametrize(
        "lines",
        [
            (DOT + ", operand_precision={highest,highest}",),
            (NARROWED, "  %t = (bf16[256,256]{1,0}, f32[256,256]{1,0}) tuple(%n, %g)"),
            ("  %w = f64[256,256]{1,0} convert(%g)",),
            ("  %i = s8[256,256]{1,0} convert(%g)",),
            (),  # the result itself
        ],
    )
    def test_but_not_what_somebody_reads_whole(self, lines):
        (op,) = run_by("tpu", gathered("g", "x"), *lines).values()
        assert op.collective.bytes_before == 131072


class TestTogether:
    def test_independent_sums_have_their_share_of_a_start(self):
        lines = [reduced(name, of) for name, of in (("one", "x"), ("two", "y"), ("three", "z"))]
        used = "  %q = (f32[128,256]{1,0}, f32[128,256]{1,0}, f32[128,256]{1,0}) tuple(%one, %two, %three)"
        assert [op.collective.together for op in run_by("tpu", *lines, used).values()] == [3, 3, 3]

    def test_a_sum_that_needs_another_one_begins_later(self):
        between = "  %s = f32[128,256]{1,0} sine(%one)"
        lines = reduced("one", "x"), between, reduced("two", "s"), reduced("three", "y")
        used = "  %q = (f32[128,256]{1,0}, f32[128,256]{1,0}) tuple(%two, %three)"
        found = run_by("gpu", *lines, used)
        assert {name: op.collective.together for name, op in found.items()} == {"one": 2, "two": 1, "three": 2}

    def test_sums_that_would_need_each_other_do_not_run_together(self):
        """a -> c and d -> b: with {a, b} together, {c, d} cannot be."""
        lines = (
            reduced("a", "x"),
            "  %s = f32[128,256]{1,0} sine(%a)",
            reduced("c", "s", COLUMNS),
            reduced("d", "y", COLUMNS),
            "  %t = f32[128,256]{1,0} sine(%d)",
            reduced("b", "t"),
        )
        used = "  %q = (f32[128,256]{1,0}, f32[128,256]{1,0}) tuple(%b, %c)"
        found = {name: op.collective.together for name, op in run_by("tpu", *lines, used).items()}
        assert found == {"a": 1, "b": 1, "c": 2, "d": 2}

    def test_gathers_run_together_on_gpus_along_one_dimension(self):
        lines = gathered("g", "x"), gathered("h", "y"), gathered("k", "z", "f32[128,512]{1,0}", dim=1)
        used = "  %q = (f32[256,256]{1,0}, f32[256,256]{1,0}, f32[128,512]{1,0}) tuple(%g, %h, %k)"
        assert [op.collective.together for op in run_by("gpu", *lines, used).values()] == [2, 2, 1]
        assert [op.collective.together for op in run_by("tpu", *lines, used).values()] == [1, 1, 1]

    def test_large_ones_do_not(self):
        large = "f32[2048,2048]{1,0}"
        lines = [f"  %b{name} = {large} broadcast(%zero)" for name in "ab"]
        lines += [reduced(name, f"b{name}", shape=large) for name in "ab"]
        used = f"  %q = ({large}, {large}) tuple(%a, %b)"
        assert [op.collective.together for op in run_by("tpu", *lines, used).values()] == [1, 1]


@pytest.mark.parametrize("platform", ["cpu", ""])
def test_on_other_platforms_collectives_stay(platform):
    assert kinds(run_by(platform, reduced("one", "x"), part("own", "one"))) == {"one": "all_reduce"}
