# SPDX-License-Identifier: Apache-2.0
"""HLO text to collectives, each form on a module small enough to check by hand."""

import pytest

from reshard.dialect_utils.hlo import collectives_in, copied_bytes_in, parse_groups, parse_pairs, shape_bytes


def module(body: str, *, computations: str = "", partitions: int = 8, replicas: int = 1) -> str:
    """A module with 8 partitions whose entry has the parameter %p of 64 bytes."""
    counts = f"replica_count={replicas}, num_partitions={partitions}"
    entry = f"ENTRY %main (p: f32[16]) -> f32[] {{\n  %p = f32[16]{{0}} parameter(0)\n{body}\n}}"
    return f"HloModule m, entry_computation_layout={{(f32[16]{{0}})->f32[]}}, {counts}\n\n{computations}\n\n{entry}\n"


def only(text: str):
    (collective,) = collectives_in(text).collectives
    return collective


class TestShapes:
    @pytest.mark.parametrize(
        ("shape", "size"),
        [
            ("f32[16,32]{1,0}", 2048),
            ("pred[]", 1),
            ("bf16[3]{0:T(8,128)(2,1)S(1)}", 6),
            ("s4[3]", 2),
            ("u1[9]", 2),
            ("s2[4]", 1),
            ("f4e2m1fn[2,3]", 3),
            ("f8e8m0fnu[5]", 5),
            ("f8e4m3b11fnuz[5]", 5),
            ("c64[2]", 16),
            ("c128[2]", 32),
            ("f32[<=4,2]", 32),
            ("f32[0,4]", 0),
            ("token[]", 0),
            ("(f32[2], (s8[3], token[]))", 11),
        ],
    )
    def test_bytes_are_packed_and_rounded_up(self, shape, size):
        assert shape_bytes(shape) == size


class TestGroups:
    def test_lists(self):
        assert parse_groups("replica_groups={{0,2},{1,3}}, dimensions={0}") == ((0, 2), (1, 3))

    def test_empty_list(self):
        assert parse_groups("replica_groups={}, to_apply=%add") == ()

    def test_iota(self):
        assert parse_groups("replica_groups=[2,4]<=[8]") == ((0, 1, 2, 3), (4, 5, 6, 7))

    def test_transposed_iota(self):
        assert parse_groups("replica_groups=[2,4]<=[4,2]T(1,0)") == ((0, 2, 4, 6), (1, 3, 5, 7))

    def test_iota_over_three_axes(self):
        groups = parse_groups("replica_groups=[4,2]<=[2,2,2]T(0,2,1), x=1")
        assert groups == ((0, 2), (1, 3), (4, 6), (5, 7))

    def test_mesh_axis(self):
        assert parse_groups("replica_groups=mesh['x'=4,'y'=2] {'x'}, a={1}") == ((0, 2, 4, 6), (1, 3, 5, 7))

    def test_mesh_axes_in_given_order(self):
        assert parse_groups("replica_groups=mesh['x'=2,'y'=3] {'y','x'}") == ((0, 3, 1, 4, 2, 5),)

    def test_mesh_sub_axis_major(self):
        assert parse_groups("replica_groups=mesh['x'=4,'y'=2] {'x':(1)2}") == ((0, 4), (1, 5), (2, 6), (3, 7))

    def test_mesh_sub_axis_minor(self):
        assert parse_groups("replica_groups=mesh['x'=4,'y'=2] {'x':(2)2}") == ((0, 2), (1, 3), (4, 6), (5, 7))

    def test_mesh_two_sub_axes_with_a_gap(self):
        assert parse_groups("replica_groups=mesh['x'=8] {'x':(4)2,'x':(1)2}") == ((0, 4, 1, 5), (2, 6, 3, 7))

    def test_mesh_device_ids(self):
        text = "replica_groups=mesh['x'=4,'y'=2], device_ids=(0,2,4,6,1,3,5,7) {'y'}, dimensions={0}"
        assert parse_groups(text) == ((0, 2), (4, 6), (1, 3), (5, 7))

    def test_mesh_device_ids_as_iota(self):
        assert parse_groups("replica_groups=mesh[a=2,b=2], device_ids=([2,2]T(1,0)) {b}") == ((0, 2), (1, 3))

    def test_mesh_without_grouped_axes_is_groups_of_one(self):
        assert parse_groups("replica_groups=mesh['x'=2] {}") == ((0,), (1,))

    def test_pairs(self):
        assert parse_pairs("source_target_pairs={{0,1},{1,0}}, f={}") == ((0, 1), (1, 0))
        assert parse_pairs("source_target_pairs={}") == ()


class TestCollectives:
    def test_all_gather(self):
        text = module("  ROOT %g = f32[64] all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], "
                      "use_global_device_ids=true")
        found = collectives_in(text)
        assert (found.bytes_received, found.bytes_sent) == (192, 192)
        assert found.largest_collective_result_bytes == 256
        assert found.collectives[0].groups == ((0, 1, 2, 3), (4, 5, 6, 7))

    def test_operands_printed_with_shapes(self):
        text = module("  ROOT %g = f32[32]{0} all-gather(f32[16]{0} %p), channel_id=1, replica_groups=[4,2]<=[8], "
                      "use_global_device_ids=true")
        assert only(text).bytes_before == 64

    def test_names_without_percent_signs(self):
        text = "HloModule m, num_partitions=2\nENTRY main {\n  p = f32[16] parameter(0)\n" \
               "  ROOT c = f32[16] collective-permute(p), channel_id=1, source_target_pairs={{0,1}}\n}"
        assert collectives_in(text).bytes_received == 64

    def test_all_to_all_of_a_tuple_sums_its_operands(self):
        body = ("  %a = f32[8] slice(%p), slice={[0:8]}\n  %b = f32[8] slice(%p), slice={[8:16]}\n"
                "  ROOT %t = (f32[8], /*index=1*/f32[8]) all-to-all(%a, %b), channel_id=1, "
                "replica_groups={{0,1},{2,3},{4,5},{6,7}}")
        assert collectives_in(module(body)).bytes_received == 32

    def test_reduce_scatter(self):
        text = module("  ROOT %r = f32[2] reduce-scatter(%p), channel_id=1, replica_groups=[1,8]<=[8], "
                      "use_global_device_ids=true, dimensions={0}, to_apply=%add")
        assert collectives_in(text).bytes_received == 56
        assert only(text).bytes_after == 8

    def test_all_reduce(self):
        text = module("  ROOT %r = f32[16] all-reduce(%p), channel_id=1, replica_groups=[4,2]<=[8], "
                      "use_global_device_ids=true, to_apply=%add")
        assert collectives_in(text).bytes_received == 64

    def test_element_of_a_tuple_as_operand(self):
        body = ("  %h = bf16[4] constant({...})\n  %t = (f32[16], (f32[2], bf16[4])) custom-call(%p, %h), "
                'custom_call_target="x"\n'
                "  ROOT %c = bf16[4] collective-permute(%t#1#1), channel_id=1, source_target_pairs={{0,1}}")
        assert only(module(body)).bytes_before == 8

    def test_collective_broadcast_and_ragged_all_to_all(self):
        body = ("  %o = f32[32] broadcast(%p), dimensions={}\n  %s = s32[8] constant({...})\n"
                "  %b = f32[16] collective-broadcast(%p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}\n"
                "  ROOT %r = f32[32] ragged-all-to-all(%p, %o, %s, %s, %s, %s), channel_id=2, "
                "replica_groups={{0,1,2,3,4,5,6,7}}")
        found = collectives_in(module(body))
        assert [(c.kind, c.bytes_before, c.bytes_after) for c in found.collectives] == [
            ("collective_broadcast", 64, 64),
            ("ragged_all_to_all", 64, 128),
        ]
        assert found.bytes_received == 64 + 128

    def test_send_and_recv_are_reported_as_unpriced(self):
        body = "  %t = token[] after-all()\n  ROOT %s = (f32[16], u32[], token[]) send(%p, %t), channel_id=1"
        assert collectives_in(module(body)).unpriced == ("send",)

    def test_text_in_metadata_is_not_read(self):
        text = module('  ROOT %r = f32[16] add(%p, %p), metadata={op_name="all-gather(%p), ("}')
        assert collectives_in(text).collectives == ()


class TestAsync:
    def test_start_and_done_count_once(self):
        body = ("  %s = (f32[16], f32[128]) all-gather-start(%p), channel_id=1, replica_groups=[1,8]<=[8], "
                "use_global_device_ids=true\n  ROOT %d = f32[128] all-gather-done(%s)")
        assert collectives_in(module(body)).bytes_received == 7 * 64

    def test_wrapped_computation_counts_once(self):
        wrapped = ("%wrapped (q: f32[16]) -> f32[16] {\n  %q = f32[16] parameter(0)\n"
                   "  ROOT %a = f32[16] all-to-all(%q), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}\n}")
        body = ("  %s = ((f32[16]), f32[16], s32[]) async-start(%p), calls=%wrapped\n"
                "  %u = ((f32[16]), f32[16], s32[]) async-update(%s), calls=%wrapped\n"
                "  ROOT %d = f32[16] async-done(%u), calls=%wrapped")
        assert collectives_in(module(body, computations=wrapped)).bytes_received == 56


class TestDeviceIds:
    """What the ids in groups and pairs stand for, with 2 replicas of 2 partitions: device = 2 · replica + partition."""

    def groups(self, opcode: str, attributes: str):
        return only(module(f"  ROOT %r = f32[16] {opcode}(%p), {attributes}", partitions=2, replicas=2)).groups

    def test_global_ids(self):
        attributes = "channel_id=1, replica_groups={{0,3},{1,2}}, use_global_device_ids=true"
        assert self.groups("all-reduce", attributes) == ((0, 3), (1, 2))

    def test_replicas_without_a_channel(self):
        assert self.groups("all-reduce", "replica_groups={{0,1}}") == ((0, 2), (1, 3))

    def test_replicas_and_partitions_with_a_channel(self):
        assert self.groups("all-reduce", "channel_id=1, replica_groups={{0},{1}}") == ((0, 1), (2, 3))

    def test_partitions_of_an_all_to_all(self):
        assert self.groups("all-to-all", "channel_id=1, replica_groups={{0,1}}") == ((0, 1), (2, 3))

    def test_no_groups_are_one_group(self):
        flattened = "channel_id=1, replica_groups={}, use_global_device_ids=true"
        assert self.groups("all-reduce", flattened) == ((0, 1, 2, 3),)
        assert self.groups("all-reduce", "replica_groups={}") == ((0, 2), (1, 3))

    def test_pairs(self):
        text = module("  ROOT %r = f32[16] collective-permute(%p), channel_id=1, source_target_pairs={{0,1}}",
                      partitions=2, replicas=2)
        assert only(text).pairs == ((0, 1), (2, 3))

    def test_no_channel_and_one_replica_moves_nothing(self):
        assert collectives_in(module("  ROOT %r = f32[16] all-reduce(%p), replica_groups={{0}}")).bytes_received == 0


PERMUTE = "collective-permute(%x), channel_id=1, source_target_pairs={{0,1}}"


def loop(*, start="constant(0)", step="constant(1)", limit="constant(6)", update="add(%i, %step)",
         compare="compare(%j, %limit), direction=LT", attributes="") -> str:
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
    return module(body, computations=computations)


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
            ({"start": "constant(9)", "update": "subtract(%i, %step)", "limit": "constant(0)",
              "compare": "compare(%j, %limit), direction=GE"}, 10),
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
        found = collectives_in(module(body, computations=computations))
        assert [c.trip_count for c in found.collectives] == [5 * 3]
        assert found.unknown_trip_counts == ()

    def test_condition_runs_once_more_than_the_body(self):
        text = loop().replace("  %limit =", f"  %x = f32[16] get-tuple-element(%c), index=1\n  %z = f32[16] {PERMUTE}\n"
                              "  %limit =")
        assert sorted(c.trip_count for c in collectives_in(text).collectives) == [6, 7]


class TestControlFlow:
    BRANCHES = f"""%small (x.1: f32[16]) -> f32[16] {{
  %x = f32[16] parameter(0)
  ROOT %c.1 = f32[16] {PERMUTE}
}}

%large (q: f32[16]) -> f32[16] {{
  %q = f32[16] parameter(0)
  ROOT %r = f32[16] all-reduce(%q), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true
}}"""

    @pytest.mark.parametrize(
        "branches",
        ["branch_computations={%small, %large}", "true_computation=%large, false_computation=%small"],
    )
    def test_conditional_counts_its_busiest_branch(self, branches):
        body = f"  %n = s32[] constant(0)\n  ROOT %b = f32[16] conditional(%n, %p, %p), {branches}"
        found = collectives_in(module(body, computations=self.BRANCHES))
        assert [c.kind for c in found.collectives] == ["all_reduce"]

    def test_calls_and_fusions_are_followed_each_time(self):
        body = ("  %a = f32[16] call(%p), to_apply=%small\n"
                "  ROOT %b = f32[16] fusion(%a), kind=kLoop, calls=%small")
        assert collectives_in(module(body, computations=self.BRANCHES)).bytes_received == 128

    def test_reducers_are_not_followed(self):
        text = module("  ROOT %r = f32[16] reduce(%p, %p), dimensions={}, to_apply=%small", computations=self.BRANCHES)
        assert collectives_in(text).collectives == ()


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        collectives_in("HloModule m\n")


def copied(body: str) -> int | None:
    return copied_bytes_in(module(body))


class TestCopies:
    """What is charged for elements that change their place in a device's memory; %p has 64 bytes, of s32 an index has 4."""

    @pytest.mark.parametrize(
        ("what", "size"),
        [
            ("  ROOT %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}", 64),
            ("  ROOT %t = f32[1,16]{1,0} transpose(%l), dimensions={1,0}", 0),
            ("  ROOT %c = f32[16]{0} copy(%p)", 64),
            ("  ROOT %c = f32[32]{0} concatenate(%p, %p), dimensions={0}", 128),
            ("  %z = f32[] constant(0)\n  ROOT %c = f32[20]{0} pad(%p, %z), padding=0_4", 80),
            ("  %i = s32[] constant(0)\n  ROOT %s = f32[8]{0} dynamic-slice(%p, %i), dynamic_slice_sizes={8}", 0),
            ("  ROOT %r = f32[4,4]{1,0} reshape(%p)", 0),
            ("  ROOT %g = f32[64,2]{1,0} all-gather(%m), replica_groups={}, dimensions={0}", 0),
            ("  ROOT %g = f32[8,16]{1,0} all-gather(%m), replica_groups={}, dimensions={1}", 512),
            ("  ROOT %g = f32[16,8]{1,0} all-gather(%l), replica_groups={}, dimensions={1}", 512),
            ("  ROOT %a = f32[8,2]{1,0} all-to-all(%m), replica_groups={}, dimensions={0}", 0),
            ("  ROOT %a = f32[8,2]{1,0} all-to-all(%m), replica_groups={}, dimensions={1}", 128),
        ],
    )
    def test_bytes_of(self, what, size):
        views = "  %m = f32[8,2]{1,0} reshape(%p)\n  %l = f32[16,1]{1,0} reshape(%p)\n"
        assert copied(views + what) == size

    def test_of_a_gather_only_what_is_sliced_from_it_is_put_in_order(self):
        gather = "  %m = f32[8,2]{1,0} reshape(%p)\n  %g = f32[8,16]{1,0} all-gather(%m), replica_groups={}, dimensions={1}\n"
        slice_ = "  ROOT %s = f32[2,16]{1,0} slice(%g), slice={[0:2], [0:16]}"
        assert copied(gather + slice_) == 128

    def test_a_transpose_puts_a_gathers_result_in_order_on_the_way(self):
        gather = "  %m = f32[8,2]{1,0} reshape(%p)\n  %g = f32[8,16]{1,0} all-gather(%m), replica_groups={}, dimensions={1}\n"
        assert copied(gather + "  ROOT %t = f32[16,8]{1,0} transpose(%g), dimensions={1,0}") == 512

    def test_a_transpose_of_size_1_puts_nothing_in_order(self):
        swap = "  %m = f32[8,1,2]{2,1,0} reshape(%p)\n  %a = f32[8,1,2]{2,1,0} all-to-all(%m), replica_groups={}, dimensions={2}\n"
        assert copied(swap + "  ROOT %t = f32[1,8,2]{2,1,0} transpose(%a), dimensions={1,0,2}") == 128

    def test_transposes_in_a_row_are_one_loop(self):
        turn = "  %m = f32[8,2]{1,0} reshape(%p)\n  %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}\n"
        split = "  %r = f32[4,4]{1,0} reshape(%t)\n  ROOT %u = f32[4,4]{1,0} transpose(%r), dimensions={1,0}"
        assert copied(turn + split) == 64

    def test_of_a_transpose_only_what_is_sliced_from_it_is_written(self):
        turn = "  %m = f32[8,2]{1,0} reshape(%p)\n  %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}\n"
        assert copied(turn + "  ROOT %s = f32[1,8]{1,0} slice(%t), slice={[0:1], [0:8]}") == 32
        assert copied(turn + "  %s = f32[1,8]{1,0} slice(%t), slice={[0:1], [0:8]}\n  ROOT %c = f32[2,8]{1,0} copy(%t)") == 128

    def test_a_transpose_before_an_all_to_all_is_the_copy_that_that_needs(self):
        turn = "  %m = f32[8,2]{1,0} reshape(%p)\n  %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}\n"
        assert copied(turn + "  ROOT %a = f32[2,8]{1,0} all-to-all(%t), replica_groups={}, dimensions={1}") == 128

    def test_a_program_with_branches_is_not_priced(self):
        assert copied("  ROOT %w = f32[16]{0} while(%p), condition=%c, body=%b") is None
