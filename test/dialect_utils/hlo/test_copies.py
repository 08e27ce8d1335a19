# SPDX-License-Identifier: Apache-2.0
"""The bytes that HLO programs copy, each on a module small enough to check by hand."""

import pytest

from reshard.dialect_utils.hlo.copies import copies_in
from reshard.synthesis.programs.tile_program import Copies

MODULE = """HloModule m, entry_computation_layout={{(f32[16]{{0}})->f32[]}}, replica_count=1, num_partitions=8

ENTRY %main (p: f32[16]) -> f32[] {{
  %p = f32[16]{{0}} parameter(0)
{body}
}}
"""


def copied(body: str) -> int | None:
    """Returns the bytes that a body copies, but for slices."""
    found = copies_in(MODULE.format(body=body))
    return found and found.all_relaid


class TestCopies:
    """The bytes that count for elements that change their place in a device's memory.

    %p has 64 bytes, and an index, of type s32, has 4.
    """

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
        gather = "  %m = f32[8,2]{1,0} reshape(%p)\n"
        gather += "  %g = f32[8,16]{1,0} all-gather(%m), replica_groups={}, dimensions={1}\n"
        slice_ = "  ROOT %s = f32[2,16]{1,0} slice(%g), slice={[0:2], [0:16]}"
        assert copied(gather + slice_) == 128

    def test_a_transpose_puts_a_gathers_result_in_order_on_the_way(self):
        gather = "  %m = f32[8,2]{1,0} reshape(%p)\n"
        gather += "  %g = f32[8,16]{1,0} all-gather(%m), replica_groups={}, dimensions={1}\n"
        assert copied(gather + "  ROOT %t = f32[16,8]{1,0} transpose(%g), dimensions={1,0}") == 512

    def test_a_transpose_of_size_1_puts_nothing_in_order(self):
        swap = "  %m = f32[8,1,2]{2,1,0} reshape(%p)\n"
        swap += "  %a = f32[8,1,2]{2,1,0} all-to-all(%m), replica_groups={}, dimensions={2}\n"
        assert copied(swap + "  ROOT %t = f32[1,8,2]{2,1,0} transpose(%a), dimensions={1,0,2}") == 128

    def test_transposes_in_a_row_are_one_loop(self):
        turn = "  %m = f32[8,2]{1,0} reshape(%p)\n  %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}\n"
        split = "  %r = f32[4,4]{1,0} reshape(%t)\n  ROOT %u = f32[4,4]{1,0} transpose(%r), dimensions={1,0}"
        assert copied(turn + split) == 64

    def test_of_a_transpose_only_what_is_sliced_from_it_is_written(self):
        turn = "  %m = f32[8,2]{1,0} reshape(%p)\n  %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}\n"
        assert copied(turn + "  ROOT %s = f32[1,8]{1,0} slice(%t), slice={[0:1], [0:8]}") == 32
        assert (
            copied(turn + "  %s = f32[1,8]{1,0} slice(%t), slice={[0:1], [0:8]}\n  ROOT %c = f32[2,8]{1,0} copy(%t)")
            == 128
        )

    def test_a_transpose_before_an_all_to_all_is_the_copy_that_that_needs(self):
        turn = "  %m = f32[8,2]{1,0} reshape(%p)\n  %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}\n"
        assert copied(turn + "  ROOT %a = f32[2,8]{1,0} all-to-all(%t), replica_groups={}, dimensions={1}") == 128

    def test_slices_count_by_themselves_but_those_of_tables_do_not(self):
        table = "  %c = s32[8]{0} constant({0,1,2,3,4,5,6,7})\n  %i = u32[] partition-id()\n"
        offset = "  %o = s32[1]{0} dynamic-slice(%c, %i), dynamic_slice_sizes={1}\n  %r = s32[] reshape(%o)\n"
        slice_ = "  ROOT %s = f32[8]{0} dynamic-slice(%p, %r), dynamic_slice_sizes={8}"
        assert copies_in(MODULE.format(body=table + offset + slice_)) == Copies(sliced=32)

    def test_what_is_copied_right_before_an_all_to_all_is_told_apart(self):
        turn = "  %m = f32[8,2]{1,0} reshape(%p)\n  %t = f32[2,8]{1,0} transpose(%m), dimensions={1,0}\n"
        swap = "  ROOT %a = f32[2,8]{1,0} all-to-all(%t), replica_groups={}, dimensions={0}"
        assert copies_in(MODULE.format(body=turn + swap)) == Copies(relaid_before=64)
        slice_ = "  %s = f32[8]{0} slice(%p), slice={[0:8]}\n  %m = f32[4,2]{1,0} reshape(%s)\n"
        swap = "  ROOT %a = f32[4,2]{1,0} all-to-all(%m), replica_groups={}, dimensions={1}"
        assert copies_in(MODULE.format(body=slice_ + swap)) == Copies(relaid=32, relaid_before=32, sliced_before=32)
        other = "\n  %n = f32[8]{0} negate(%s)"
        assert copies_in(MODULE.format(body=slice_ + swap + other)) == Copies(relaid=32, relaid_before=32, sliced=32)

    def test_a_program_with_branches_is_not_priced(self):
        assert copied("  ROOT %w = f32[16]{0} while(%p), condition=%c, body=%b") is None
