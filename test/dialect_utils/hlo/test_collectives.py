# SPDX-License-Identifier: Apache-2.0
"""Collectives are read from HLO text; each form is tested on a module small enough to check by hand."""

import pytest

from reshard.dialect_utils.hlo.collectives import collectives_in


def module(body: str, *, computations: str = "", partitions: int = 8, replicas: int = 1) -> str:
    """A module with 8 partitions whose entry has the parameter %p of 64 bytes."""
    counts = f"replica_count={replicas}, num_partitions={partitions}"
    entry = f"ENTRY %main (p: f32[16]) -> f32[] {{\n  %p = f32[16]{{0}} parameter(0)\n{body}\n}}"
    return f"HloModule m, entry_computation_layout={{(f32[16]{{0}})->f32[]}}, {counts}\n\n{computations}\n\n{entry}\n"


def only(text: str):
    (collective,) = collectives_in(text).collectives
    return collective


class TestCollectives:
    def test_all_gather(self):
        text = module(
            "  ROOT %g = f32[64] all-gather(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"
        )
        found = collectives_in(text)
        assert (found.bytes_received, found.bytes_sent) == (192, 192)
        assert found.largest_collective_tile_bytes == 256
        assert found.collectives[0].groups == ((0, 1, 2, 3), (4, 5, 6, 7))

    def test_operands_printed_with_shapes(self):
        text = module(
            "  ROOT %g = f32[32]{0} all-gather(f32[16]{0} %p), channel_id=1, replica_groups=[4,2]<=[8], "
            "use_global_device_ids=true"
        )
        assert only(text).bytes_before == 64

    def test_names_without_percent_signs(self):
        text = (
            "HloModule m, num_partitions=2\nENTRY main {\n  p = f32[16] parameter(0)\n"
            "  ROOT c = f32[16] collective-permute(p), channel_id=1, source_target_pairs={{0,1}}\n}"
        )
        assert collectives_in(text).bytes_received == 64

    def test_all_to_all_of_a_tuple_sums_its_operands(self):
        body = (
            "  %a = f32[8] slice(%p), slice={[0:8]}\n  %b = f32[8] slice(%p), slice={[8:16]}\n"
            "  ROOT %t = (f32[8], /*index=1*/f32[8]) all-to-all(%a, %b), channel_id=1, "
            "replica_groups={{0,1},{2,3},{4,5},{6,7}}"
        )
        assert collectives_in(module(body)).bytes_received == 32

    def test_reduce_scatter(self):
        text = module(
            "  ROOT %r = f32[2] reduce-scatter(%p), channel_id=1, replica_groups=[1,8]<=[8], "
            "use_global_device_ids=true, dimensions={0}, to_apply=%add"
        )
        assert collectives_in(text).bytes_received == 56
        assert only(text).bytes_after == 8

    def test_all_reduce(self):
        text = module(
            "  ROOT %r = f32[16] all-reduce(%p), channel_id=1, replica_groups=[4,2]<=[8], "
            "use_global_device_ids=true, to_apply=%add"
        )
        assert collectives_in(text).bytes_received == 64

    def test_a_sum_of_several_arrays_is_one_collective_of_all_their_bytes(self):
        body = (
            "  %a = f32[8] slice(%p), slice={[0:8]}\n"
            "  ROOT %t = (f32[16], f32[8]) all-reduce(%p, %a), channel_id=1, replica_groups=[1,8]<=[8], "
            "use_global_device_ids=true, to_apply=%add"
        )
        assert (only(module(body)).bytes_before, only(module(body)).arrays) == (96, 2)

    def test_parts_of_one_array_are_one_array(self):
        body = (
            "  %a = f32[8] slice(%p), slice={[0:8]}\n  %b = f32[8] slice(%p), slice={[8:16]}\n"
            "  ROOT %t = (f32[8], f32[8]) all-to-all(%a, %b), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}"
        )
        assert only(module(body)).arrays == 1

    def test_element_of_a_tuple_as_operand(self):
        body = (
            "  %h = bf16[4] constant({...})\n  %t = (f32[16], (f32[2], bf16[4])) custom-call(%p, %h), "
            'custom_call_target="x"\n'
            "  ROOT %c = bf16[4] collective-permute(%t#1#1), channel_id=1, source_target_pairs={{0,1}}"
        )
        assert only(module(body)).bytes_before == 8

    def test_collective_broadcast_and_ragged_all_to_all(self):
        body = (
            "  %o = f32[32] broadcast(%p), dimensions={}\n  %s = s32[8] constant({...})\n"
            "  %b = f32[16] collective-broadcast(%p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}\n"
            "  ROOT %r = f32[32] ragged-all-to-all(%p, %o, %s, %s, %s, %s), channel_id=2, "
            "replica_groups={{0,1,2,3,4,5,6,7}}"
        )
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
        body = (
            "  %s = (f32[16], f32[128]) all-gather-start(%p), channel_id=1, replica_groups=[1,8]<=[8], "
            "use_global_device_ids=true\n  ROOT %d = f32[128] all-gather-done(%s)"
        )
        assert collectives_in(module(body)).bytes_received == 7 * 64

    def test_wrapped_computation_counts_once(self):
        wrapped = (
            "%wrapped (q: f32[16]) -> f32[16] {\n  %q = f32[16] parameter(0)\n"
            "  ROOT %a = f32[16] all-to-all(%q), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}\n}"
        )
        body = (
            "  %s = ((f32[16]), f32[16], s32[]) async-start(%p), calls=%wrapped\n"
            "  %u = ((f32[16]), f32[16], s32[]) async-update(%s), calls=%wrapped\n"
            "  ROOT %d = f32[16] async-done(%u), calls=%wrapped"
        )
        assert collectives_in(module(body, computations=wrapped)).bytes_received == 56


class TestDeviceIds:
    """The devices of the ids in groups and pairs, for 2 replicas of 2 partitions: device = 2 · replica + partition."""

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
        text = module(
            "  ROOT %r = f32[16] collective-permute(%p), channel_id=1, source_target_pairs={{0,1}}",
            partitions=2,
            replicas=2,
        )
        assert only(text).pairs == ((0, 1), (2, 3))

    def test_no_channel_and_one_replica_moves_nothing(self):
        assert collectives_in(module("  ROOT %r = f32[16] all-reduce(%p), replica_groups={{0}}")).bytes_received == 0


PERMUTE = "collective-permute(%x), channel_id=1, source_target_pairs={{0,1}}"


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
        body = "  %a = f32[16] call(%p), to_apply=%small\n  ROOT %b = f32[16] fusion(%a), kind=kLoop, calls=%small"
        assert collectives_in(module(body, computations=self.BRANCHES)).bytes_received == 128

    def test_an_all_reduce_of_which_a_part_is_kept_is_a_reduce_scatter(self):
        """TPUs run such a fusion as one op: each device receives seven eighths, not twice as much."""
        fused = """
%all-reduce-scatter.1 (q: f32[16]) -> f32[2] {
  %q = f32[16] parameter(0)
  %all = f32[16] all-reduce(%q), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true
  %c = s32[] constant(0)
  ROOT %part = f32[2] dynamic-slice(%all, %c), dynamic_slice_sizes={2}
}"""
        body = "  ROOT %b = f32[2] fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1"
        (found,) = collectives_in(module(body, computations=fused)).collectives
        assert (found.kind, found.bytes_before, found.bytes_after) == ("reduce_scatter", 64, 8)

    def test_reducers_are_not_followed(self):
        text = module("  ROOT %r = f32[16] reduce(%p, %p), dimensions={}, to_apply=%small", computations=self.BRANCHES)
        assert collectives_in(text).collectives == ()


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        collectives_in("HloModule m\n")


def test_a_collective_without_a_name_belongs_to_the_result_that_it_brings_into_another_layout():
    found = collectives_in("""HloModule m, num_partitions=2
ENTRY %main (p: f32[8], q: f32[8]) -> (f32[8], f32[16]) {
  %p = f32[8]{0} parameter(0)
  %q = f32[8]{0} parameter(1)
  %named = f32[16]{0} all-gather(%p), channel_id=1, replica_groups=[1,2]<=[2], dimensions={0}, metadata={op_name="op"}
  %inner = f32[16]{0} all-gather(%q), channel_id=2, replica_groups=[1,2]<=[2], dimensions={0}
  %sum = f32[16]{0} add(%named, %inner), metadata={op_name="sum"}
  %moved = f32[16]{0} collective-permute(%sum), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %copied = f32[16]{0} copy(%moved)
  ROOT %both = (f32[8], f32[16]) tuple(%p, %copied)
}""")
    assert [(op.name, op.op_name, op.result) for op in found.ops] == [
        ("named", "op", None),
        ("inner", "sum", None),
        ("moved", "", 1),
    ]
