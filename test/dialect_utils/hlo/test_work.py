# SPDX-License-Identifier: Apache-2.0
"""What a program does on one device is read from HLO text; each rule is tested on a module that is counted by hand.

The names W1 to W9 are those of the rules in the docstring of `hlo.work`.
"""

import json
import os
import subprocess
import sys
from math import log2
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.dialect_utils.hlo.text import shape_bytes
from reshard.dialect_utils.hlo.work import LocalWork, _positions, work_in
from reshard.dialect_utils.xla.child import XlaChild

EXAMPLES = Path(__file__).parents[3] / "examples"


def module(body: str, *, computations: str = "", parameters: str = "", is_scheduled: bool = False) -> str:
    """A module whose entry has the parameters %p and %q of 1024 floats, 4096 bytes each, beside others."""
    header = f"HloModule m{', is_scheduled=true' if is_scheduled else ''}, num_partitions=8"
    own = "  %p = f32[1024]{0} parameter(0)\n  %q = f32[1024]{0} parameter(1)\n"
    return f"{header}\n\n{computations}\n\nENTRY %main () -> f32[] {{\n{own}{parameters}\n{body}\n}}\n"


def work(*args, **kwargs) -> list[tuple[int, int, int]]:
    return [(row.flops, row.bytes_moved, row.runs) for row in work_in(module(*args, **kwargs))]


def bytes_moved(*args, **kwargs) -> int:
    return sum(moved * runs for _, moved, runs in work(*args, **kwargs))


def flops(*args, **kwargs) -> int:
    return sum(count * runs for count, _, runs in work(*args, **kwargs))


class TestFlops:
    """W2."""

    def test_dot(self):
        parameters = "  %a = f32[2,8,4]{2,1,0} parameter(2)\n  %b = bf16[2,4,16]{2,1,0} parameter(3)"
        dims = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
        assert work(f"  ROOT %d = f32[2,8,16]{{2,1,0}} dot(%a, %b), {dims}", parameters=parameters) == [
            (2 * (2 * 8 * 16) * 4, 4 * 64 + 2 * 128 + 4 * 256, 1)
        ]

    def test_complex_dot(self):
        parameters = "  %a = c64[8,4] parameter(2)\n  %b = c64[4,2] parameter(3)"
        body = "  ROOT %d = c64[8,2] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        assert flops(body, parameters=parameters) == 8 * 8 * 2 * 4

    @pytest.mark.parametrize(("ragged", "shape", "count"), [("0", "[32,8]", 2 * 32 * 8 * 16), ("1", "[4,32,8]", None)])
    def test_ragged_dot(self, ragged, shape, count):
        """Rows in groups: each row meets one group's matrix. Sums in groups: each group has a part of the sum."""
        parameters = "  %a = f32[32,16] parameter(2)\n  %b = f32[4,16,8] parameter(3)\n  %g = s32[4] parameter(4)"
        body = (
            f"  ROOT %d = f32{shape} ragged-dot(%a, %b, %g), lhs_contracting_dims={{1}}, lhs_ragged_dims={{{ragged}}}"
        )
        assert flops(body, parameters=parameters) == (count or 2 * 32 * 8 * 16)

    def convolution(self, lhs, kernel, result, attributes) -> int:
        lhs, kernel, result = (f"f32[{','.join(map(str, sizes))}]" for sizes in (lhs, kernel, result))
        parameters = f"  %a = {lhs} parameter(2)\n  %b = {kernel} parameter(3)"
        return flops(f"  ROOT %c = {result} convolution(%a, %b), {attributes}", parameters=parameters)

    def test_convolution(self):
        found = self.convolution(
            (2, 8, 8, 3), (3, 3, 3, 16), (2, 6, 6, 16), "window={size=3x3}, dim_labels=b01f_01io->b01f"
        )
        assert found == 2 * (2 * 6 * 6 * 16) * (3 * 3 * 3)

    def test_convolution_without_a_window_is_a_dot(self):
        assert self.convolution((8, 4), (4, 16), (8, 16), "dim_labels=bf_io->bf") == 2 * 8 * 16 * 4

    def test_padding_is_not_multiplied(self):
        same = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
        inside = (3 * 8 - 2) ** 2  # at either end one of three elements of the kernel meets padding
        assert self.convolution((1, 8, 8, 1), (3, 3, 1, 1), (1, 8, 8, 1), same) == 2 * inside

    def test_feature_groups(self):
        grouped = "window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=4"
        assert self.convolution((2, 8, 4), (3, 1, 8), (2, 6, 8), grouped) == 2 * (2 * 6 * 8) * 3

    def test_batch_groups(self):
        grouped = "window={size=3}, dim_labels=b0f_0io->b0f, batch_group_count=2"
        assert self.convolution((4, 8, 5), (3, 5, 6), (2, 6, 6), grouped) == 2 * (2 * 6 * 6) * 3 * 5

    def test_a_window_that_counts_a_batch(self):
        """TPU compilers write a batched product as a dimension whose dilation leaves one pair for each batch."""
        batched = "window={size=8 stride=7 lhs_dilate=8}, dim_labels=0bf_0io->0bf"
        assert self.convolution((8, 16, 4), (8, 4, 32), (8, 16, 32), batched) == 2 * 8 * 16 * 32 * 4

    def test_fourier_transforms(self):
        parameters = "  %a = c64[4,64] parameter(2)\n  %r = f32[4,64] parameter(3)"
        of_complex = "  ROOT %f = c64[4,64] fft(%a), fft_type=FFT, fft_length={64}"
        of_real = "  ROOT %f = c64[4,33] fft(%r), fft_type=RFFT, fft_length={64}"
        assert flops(of_complex, parameters=parameters) == flops(of_real, parameters=parameters) == 5 * 256 * log2(64)

    def test_linear_algebra(self):
        parameters = "  %a = f32[2,6,6] parameter(2)\n  %b = f32[2,6,3] parameter(3)"
        assert flops("  ROOT %c = f32[2,6,6] cholesky(%a), lower=true", parameters=parameters) == 2 * 6**3 // 3
        solve = "  ROOT %c = f32[2,6,3] triangular-solve(%a, %b), left_side=true"
        assert flops(solve, parameters=parameters) == 2 * 6 * 6 * 3

    @pytest.mark.parametrize("target", ["__cublas$gemm", "__onednn$matmul"])
    def test_products_by_libraries(self, target):
        parameters = "  %a = bf16[8,4] parameter(2)\n  %b = bf16[4,16] parameter(3)"
        body = f'  ROOT %c = (bf16[8,16], s8[4096]) custom-call(%a, %b), custom_call_target="{target}"'
        assert work(body, parameters=parameters) == [(2 * 8 * 16 * 4, 2 * (32 + 64 + 128) + 4096, 1)]

    def test_other_calls_move_bytes_only(self):
        body = '  ROOT %c = f32[512] custom-call(%p), custom_call_target="mine"'
        assert work(body) == [(0, 4096 + 2048, 1)]


class TestLoops:
    """W3 and W4."""

    def test_elementwise_ops_are_one_loop(self):
        body = "  %a = f32[1024] add(%p, %q)\n  %b = f32[1024] tanh(%a)\n  ROOT %c = f32[1024] multiply(%b, %p)"
        assert work(body) == [(0, 3 * 4096, 1)]

    def test_loops_that_share_nothing_are_two(self):
        body = (
            "  %a = f32[1024] negate(%p)\n  %b = f32[1024] tanh(%q)\n  ROOT %t = (f32[1024], f32[1024]) tuple(%a, %b)"
        )
        assert work(body) == [(0, 2 * 4096, 2)]

    def test_what_nobody_uses_costs_nothing(self):
        assert bytes_moved("  %a = f32[1024] add(%p, %q)\n  ROOT %b = f32[1024] tanh(%p)") == 2 * 4096

    def test_views_cost_nothing(self):
        body = (
            "  %a = f32[32,1,32] reshape(%p)\n  %b = f32[1,32,32] transpose(%a), dimensions={1,0,2}\n"
            "  %c = f32[1,32,32] copy(%b)\n  ROOT %d = f32[1024] bitcast(%c)"
        )
        assert work(body) == []

    def test_a_transpose_costs_a_copy(self):
        body = "  %a = f32[32,32] reshape(%p)\n  ROOT %b = f32[32,32] transpose(%a), dimensions={1,0}"
        assert work(body) == [(0, 2 * 4096, 1)]

    def test_a_small_operand_of_a_broadcast_is_read(self):
        parameters = "  %row = f32[4] parameter(2)"
        body = "  %r = f32[1024] broadcast(%row), dimensions={0}\n  ROOT %b = f32[1024] add(%r, %p)"
        assert bytes_moved(body, parameters=parameters) == 16 + 2 * 4096

    def test_a_slice_reads_what_it_keeps_also_of_a_view(self):
        body = (
            "  %a = f32[8,128] reshape(%p)\n  %s = f32[1,128] slice(%a), slice={[0:1],[0:128]}\n"
            "  %i = s32[] constant(3)\n  %d = f32[1,128] dynamic-slice(%a, %i, %i), dynamic_slice_sizes={1,128}\n"
            "  ROOT %t = f32[1,128] add(%s, %d)"
        )
        assert work(body) == [(0, 3 * 512, 1)]

    def test_only_the_sliced_part_is_computed(self):
        """W5."""
        body = "  %a = f32[1024] add(%p, %q)\n  ROOT %s = f32[256] slice(%a), slice={[0:256]}"
        assert work(body) == [(0, 3 * 1024, 1)]

    def test_a_reduction_ends_a_loop(self):
        """What is behind reads the operand once more."""
        body = (
            "  %x = f32[32,32] reshape(%p)\n  %z = f32[] constant(0)\n  %e = f32[32,32] exponential(%x)\n"
            "  %r = f32[32] reduce(%e, %z), dimensions={1}, to_apply=%add\n"
            "  %w = f32[32,32] broadcast(%r), dimensions={0}\n  ROOT %n = f32[32,32] divide(%x, %w)"
        )
        assert work(body) == [(0, 4096 + 128, 1), (0, 4096 + 128 + 4096, 1)]

    def test_a_reduction_to_a_scalar_only_reads(self):
        body = "  %z = f32[] constant(0)\n  ROOT %r = f32[] reduce(%p, %z), dimensions={0}, to_apply=%add"
        assert work(body) == [(0, 4096, 1)]

    def test_an_update_is_in_place(self):
        parameters = "  %big = f32[64,1024] parameter(2)"
        body = (
            "  %i = s32[] constant(3)\n  %s = f32[1024] add(%p, %q)\n  %u = f32[1,1024] reshape(%s)\n"
            "  ROOT %d = f32[64,1024] dynamic-update-slice(%big, %u, %i, %i)"
        )
        assert work(body, parameters=parameters) == [(0, 3 * 4096, 1)]

    def test_gather_and_scatter_touch_only_elements_that_are_indexed(self):
        parameters = "  %big = f32[64,1024] parameter(2)\n  %i = s32[2,1] parameter(3)\n  %u = f32[2,1024] parameter(4)"
        gather = "  ROOT %g = f32[2,1024] gather(%big, %i), offset_dims={1}, slice_sizes={1,1024}"
        assert work(gather, parameters=parameters) == [(0, 2 * 8192 + 8, 1)]
        scatter = "  ROOT %s = f32[64,1024] scatter(%big, %i, %u), to_apply=%add"
        assert work(scatter, parameters=parameters) == [(0, 3 * 8192 + 8, 1)]

    @pytest.mark.parametrize(
        ("numbers", "updates", "runs"),
        [
            ("update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}", "4,1024", 1),
            ("update_window_dims={1,2}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}", "4,1,1024", 4),
            ("update_window_dims={0}, inserted_window_dims={0}, scatter_dims_to_operand_dims={1}", "1024,4", 4),
            ("update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}", "4096", 1),
        ],
        ids=("rows", "a window of one row", "a row has a place to choose", "elements"),
    )
    def test_windows_with_a_place_to_choose_count_one_by_one(self, numbers, updates, runs):
        """W9; TPUs have a kernel for the others."""
        parameters = (
            f"  %big = f32[64,1024] parameter(2)\n  %i = s32[4,1] parameter(3)\n  %u = f32[{updates}] parameter(4)"
        )
        scatter = f"  ROOT %s = f32[64,1024] scatter(%big, %i, %u), {numbers}, index_vector_dim=1, to_apply=%add"
        assert work(scatter, parameters=parameters) == [(0, (3 * 4 * 4096 + 16) // runs, runs)]
        assert work(scatter, parameters=parameters, is_scheduled=True) == [(0, 3 * 4 * 4096 + 16, 1)]

    def test_an_op_between_two_ops_keeps_them_apart(self):
        """The sum reads what the exponential wrote, for the product comes between."""
        parameters = "  %w = f32[32,32] parameter(2)"
        body = (
            "  %x = f32[32,32] reshape(%p)\n  %y = f32[32,32] reshape(%q)\n  %a = f32[32,32] add(%x, %y)\n"
            "  %d = f32[32,32] dot(%a, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
            "  ROOT %s = f32[32,32] add(%a, %d)"
        )
        assert work(body, parameters=parameters) == [(0, 3 * 4096, 2), (2 * 32**3, 3 * 4096, 1)]

    def test_a_mask_is_computed_again_and_not_written(self):
        """W6."""
        body = (
            "  %i = s32[1024] iota(), iota_dimension=0\n  %m = s32[] parameter(2)\n"
            "  %l = s32[1024] broadcast(%m), dimensions={}\n  %k = pred[1024] compare(%i, %l), direction=LT\n"
            "  %a = f32[1024] select(%k, %p, %q)\n  %s = f32[1024] sort(%a), dimensions={0}, to_apply=%less\n"
            "  ROOT %b = f32[1024] select(%k, %s, %p)"
        )
        assert work(body) == [(0, 2 * 4096, 1), (0, 3 * 4096, 2)]

    def test_what_is_computed_from_more_is_written_and_read(self):
        """W6: the sum of two arrays is as large as one, and is also an operand of the sort."""
        body = (
            "  %a = f32[1024] add(%p, %q)\n  %s = f32[1024] sort(%a), dimensions={0}, to_apply=%less\n"
            "  ROOT %b = f32[1024] multiply(%a, %s)"
        )
        assert work(body) == [(0, 2 * 4096, 1), (0, 3 * 4096, 2)]

    def test_collectives_cost_nothing_but_what_they_send_is_written(self):
        gather = "f32[8192] all-gather(%{}), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true"
        assert work(f"  ROOT %g = {gather.format('p')}") == []
        assert work(f"  %a = f32[1024] tanh(%p)\n  ROOT %g = {gather.format('a')}") == [(0, 2 * 4096, 1)]

    def test_partition_ids_and_scalars_cost_nothing(self):
        body = (
            "  %t = s32[8] constant({0, 1, 2, 3, 4, 5, 6, 7})\n  %i = u32[] partition-id()\n"
            "  %s = s32[1] dynamic-slice(%t, %i), dynamic_slice_sizes={1}\n  ROOT %r = s32[] reshape(%s)"
        )
        assert work(body) == []

    def test_sharding_calls_cost_nothing(self):
        assert work('  ROOT %c = f32[1024] custom-call(%p), custom_call_target="Sharding"') == []


LOOP = """%condition (s: (s32[], f32[8,1024])) -> pred[] {
  %s = (s32[], f32[8,1024]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(8)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (t: (s32[], f32[8,1024])) -> (s32[], f32[8,1024]) {
  %t = (s32[], f32[8,1024]) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %x = f32[8,1024] get-tuple-element(%t), index=1
  %zero = s32[] constant(0)
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %row = f32[1,1024] dynamic-slice(%x, %j, %zero), dynamic_slice_sizes={1,1024}
  %new = f32[1,1024] tanh(%row)
  %y = f32[8,1024] dynamic-update-slice(%x, %new, %j, %zero)
  ROOT %u = (s32[], f32[8,1024]) tuple(%next, %y)
}

%small (v: f32[1024]) -> f32[1024] {
  %v = f32[1024] parameter(0)
  ROOT %w = f32[1024] tanh(%v)
}

%large (a: f32[1024]) -> f32[1024] {
  %a = f32[1024] parameter(0)
  %m = f32[32,32] reshape(%a)
  %d = f32[32,32] dot(%m, %m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %b = f32[1024] reshape(%d)
}
"""


class TestControlFlow:
    """W1."""

    def test_a_loop_counts_as_often_as_it_runs(self):
        parameters = "  %x0 = f32[8,1024] parameter(2)\n  %i0 = s32[] constant(0)"
        body = (
            "  %s0 = (s32[], f32[8,1024]) tuple(%i0, %x0)\n"
            "  ROOT %l = (s32[], f32[8,1024]) while(%s0), condition=%condition, body=%body"
        )
        assert work(body, parameters=parameters, computations=LOOP) == [(0, 2 * 4096, 8)]

    @pytest.mark.parametrize("names", ["{%small, %large}", "{%large, %small}"])
    def test_of_a_conditional_the_branch_with_the_most_work_counts(self, names):
        body = f"  %n = s32[] constant(0)\n  ROOT %c = f32[1024] conditional(%n, %p, %p), branch_computations={names}"
        assert work(body, computations=LOOP) == [(2 * 32**3, 3 * 4096, 1)]

    def test_calls_count_each_time(self):
        body = "  %c = f32[1024] call(%p), to_apply=%large\n  ROOT %d = f32[1024] call(%c), to_apply=%large"
        assert work(body, computations=LOOP) == [(2 * 32**3, 3 * 4096, 2)]

    def test_what_calls_run_is_fused_with_what_is_around_them(self):
        body = (
            "  %c = f32[1024] call(%p), to_apply=%small\n  %h = f32[1024] negate(%c)\n"
            "  ROOT %d = f32[1024] call(%h), to_apply=%small"
        )
        assert work(body, computations=LOOP) == [(0, 2 * 4096, 1)]

    def test_of_a_tuple_that_a_call_returns_what_nobody_takes_is_not_written(self):
        two = (
            "%two (v: f32[1024]) -> (f32[1024], f32[1024]) {\n  %v = f32[1024] parameter(0)\n"
            "  %w = f32[1024] tanh(%v)\n  %x = f32[1024] negate(%v)\n"
            "  ROOT %t = (f32[1024], f32[1024]) tuple(%w, %x)\n}\n"
        )
        call = "  %c = (f32[1024], f32[1024]) call(%p), to_apply=%two\n"
        first = "get-tuple-element(%c), index=0"
        one = f"{call}  %e = f32[1024] {first}\n  ROOT %n = f32[1024] negate(%e)"
        assert work(one, computations=two) == [(0, 2 * 4096, 1)]
        whole = f"{call}  %e = f32[1024] {first}\n  ROOT %n = ((f32[1024], f32[1024]), f32[1024]) tuple(%c, %e)"
        assert work(whole, computations=two) == [(0, 2 * 4096, 2)]

    def test_a_slice_of_a_constant_in_a_call_moves_nothing(self):
        """As where a site cuts a constant that is broadcast."""
        cut = (
            "%cut (v: f32[1024]) -> f32[32] {\n  %v = f32[1024] parameter(0)\n"
            "  ROOT %w = f32[32] slice(%v), slice={[0:32]}\n}\n"
        )
        body = (
            "  %one = f32[] constant(1)\n  %ones = f32[1024] broadcast(%one), dimensions={}\n"
            "  %c = f32[32] call(%ones), to_apply=%cut\n  %s = f32[32] slice(%p), slice={[0:32]}\n"
            "  ROOT %m = f32[32] multiply(%c, %s)"
        )
        assert work(body, computations=cut) == [(0, 2 * 128, 1)]

    def test_async_operations_count_what_they_call(self):
        body = (
            "  %s = ((f32[1024]), f32[1024], s32[]) async-start(%p), calls=%large\n"
            "  ROOT %d = f32[1024] async-done(%s), calls=%large"
        )
        assert work(body, computations=LOOP) == [(2 * 32**3, 3 * 4096, 1)]

    def test_computations_of_reductions_are_not_followed(self):
        body = "  ROOT %r = f32[32] reduce(%p, %p), dimensions={0}, to_apply=%large"
        assert flops(body, computations=LOOP) == 0


FUSED = """%product (x: f32[32,32], y: f32[32,32]) -> f32[32,32] {
  %x = f32[32,32]{1,0} parameter(0)
  %y = f32[32,32]{1,0} parameter(1)
  %d = f32[32,32]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = f32[32,32]{1,0} tanh(%d)
}

%part (z: f32[1024], i: s32[]) -> f32[128] {
  %z = f32[1024]{0} parameter(0)
  %i = s32[] parameter(1)
  %e = f32[1024]{0} exponential(%z)
  ROOT %s = f32[128]{0} dynamic-slice(%e, %i), dynamic_slice_sizes={128}
}

%update (w: f32[1024], u: f32[128], j: s32[]) -> f32[1024] {
  %w = f32[1024]{0} parameter(0)
  %u = f32[128]{0} parameter(1)
  %j = s32[] parameter(2)
  %n = f32[128]{0} negate(%u)
  ROOT %k = f32[1024]{0} dynamic-update-slice(%w, %n, %j)
}

%relayout (v: f32[32,32]) -> f32[32,32] {
  %v = f32[32,32]{1,0} parameter(0)
  ROOT %c = f32[32,32]{0,1} copy(%v)
}

%near (r: f32[32,32], h: f32[32,32]) -> f32[32,32] {
  %r = f32[32,32]{1,0:T(8,128)S(1)} parameter(0)
  %h = f32[32,32]{1,0:T(8,128)} parameter(1)
  ROOT %o = f32[32,32]{1,0:T(8,128)S(1)} add(%r, %h)
}
"""


class TestLines:
    """W8. A line has 64 bytes, so 16 floats; the cache keeps 16 Ki lines, or fewer that are a power of 2 apart."""

    @pytest.mark.parametrize(
        ("operand", "result", "read"),
        [
            ("f32[32768,64]{1,0}", "f32[32768,64]{0,1}", 16),  # a column has 32 Ki lines
            ("f32[1024,2064]{1,0}", "f32[1024,2064]{0,1}", 1),  # 1 Ki lines: the next column finds them in the cache
            ("f32[1024,2048]{1,0}", "f32[1024,2048]{0,1}", 16),  # they are 128 lines apart and share 16 of 2,048 sets
            ("f32[32768,16,4]{2,1,0}", "f32[32768,16,4]{2,0,1}", 4),  # runs of four floats
            ("f32[32768,4,16]{2,1,0}", "f32[32768,4,16]{2,0,1}", 1),  # runs of a line
            ("f32[32768,64,1]{2,1,0}", "f32[32768,64,1]{1,2,0}", 1),  # the order of the elements is the same
        ],
    )
    def test_loops_against_the_order_of_memory_read_whole_lines(self, operand, result, read):
        fused = f"%turn (x: f32[]) -> f32[] {{\n  %x = {operand} parameter(0)\n  ROOT %c = {result} copy(%x)\n}}\n"
        body = f"  ROOT %f = {result} fusion(%a), kind=kLoop, calls=%turn"
        text = module(body, computations=fused, parameters=f"  %a = {operand} parameter(2)", is_scheduled=True)
        size = shape_bytes(operand)
        assert [row.bytes_moved for row in work_in(text)] == [2 * size]
        assert [row.bytes_moved for row in work_in(text, reads_lines=True)] == [(1 + read) * size]

    def test_a_transpose_in_another_layout_may_move_nothing(self):
        fused = (
            "%turn (x: f32[]) -> f32[] {\n  %x = f32[32768,64]{1,0} parameter(0)\n"
            "  ROOT %t = f32[64,32768]{0,1} transpose(%x), dimensions={1,0}\n}\n"
        )
        body = "  ROOT %f = f32[64,32768]{0,1} fusion(%a), kind=kLoop, calls=%turn"
        parameters = "  %a = f32[32768,64]{1,0} parameter(2)"
        text = module(body, computations=fused, parameters=parameters, is_scheduled=True)
        assert work_in(text, reads_lines=True) == work_in(text)

    @pytest.mark.parametrize(
        ("array", "part", "beside"),
        [
            ("f32[64,16]{1,0}", "f32[64,8]{1,0}", 1),  # rows of 32 bytes in lines of 64
            ("f32[64,64]{1,0}", "f32[64,4]{1,0}", 3),
            ("f32[64,8]{1,0}", "f32[64,4]{1,0}", 1),  # the rest of each row, not of each line
            ("f32[64,64]{1,0}", "f32[64,16]{1,0}", 0),
            ("f32[64,4]{1,0}", "f32[8,4]{1,0}", 0),  # whole rows lie side by side
            ("f32[64,16]{0,1}", "f32[4,16]{0,1}", 3),  # in the order of the layout
        ],
    )
    def test_updates_of_short_rows_move_the_rest_of_their_lines(self, array, part, beside):
        text = f"""HloModule m, is_scheduled=true
%f (p: f32[64], u: f32[64], i: s32[]) -> f32[64] {{
  %p = {array} parameter(0)
  %u = {part} parameter(1)
  %i = s32[] parameter(2)
  ROOT %d = {array} dynamic-update-slice(%p, %u, %i, %i)
}}
ENTRY %main (p: f32[64], u: f32[64], i: s32[]) -> f32[64] {{
  %p = {array} parameter(0)
  %u = {part} parameter(1)
  %i = s32[] parameter(2)
  ROOT %r = {array} fusion(%p, %u, %i), kind=kLoop, calls=%f
}}"""
        (plain,), (in_lines,) = work_in(text), work_in(text, reads_lines=True)
        assert in_lines.bytes_moved - plain.bytes_moved == beside * plain.bytes_moved

    def test_what_a_fusion_slices_is_read_in_lines(self):
        fused = (
            "%turn (x: f32[]) -> f32[] {\n  %x = f32[32768,64]{1,0} parameter(0)\n"
            "  %c = f32[32768,64]{0,1} copy(%x)\n"
            "  ROOT %s = f32[32768,32]{0,1} slice(%c), slice={[0:32768], [0:32]}\n}\n"
        )
        body = "  ROOT %f = f32[32768,32]{0,1} fusion(%a), kind=kLoop, calls=%turn"
        parameters = "  %a = f32[32768,64]{1,0} parameter(2)"
        text = module(body, computations=fused, parameters=parameters, is_scheduled=True)
        assert [row.bytes_moved for row in work_in(text, reads_lines=True)] == [(16 + 1) * 32768 * 32 * 4]


class TestScheduled:
    """W7."""

    PARAMETERS = (
        "  %x0 = f32[32,32]{1,0} parameter(2)\n  %i0 = s32[] parameter(3)\n  %u0 = f32[128]{0} parameter(4)\n"
        "  %r0 = f32[32,32]{1,0:T(8,128)S(1)} parameter(5)"
    )

    def fusion(self, shape: str, operands: str, callee: str):
        body = f"  ROOT %f = {shape} fusion({operands}), kind=kLoop, calls=%{callee}"
        return work(body, computations=FUSED, parameters=self.PARAMETERS, is_scheduled=True)

    def test_a_fusion_reads_operands_and_writes_results_once(self):
        assert self.fusion("f32[32,32]{1,0}", "%x0, %x0", "product") == [(2 * 32**3, 3 * 4096, 1)]

    def test_a_fusion_reads_what_it_slices(self):
        assert self.fusion("f32[128]{0}", "%p, %i0", "part") == [(0, 2 * 512, 1)]

    def test_a_fusion_updates_in_place(self):
        assert self.fusion("f32[1024]{0}", "%p, %u0, %i0", "update") == [(0, 2 * 512, 1)]

    def test_a_fusion_that_is_a_copy_reads_and_writes(self):
        assert self.fusion("f32[32,32]{0,1}", "%x0", "relayout") == [(0, 2 * 4096, 1)]

    def test_vector_memory_of_a_tpu_is_free(self):
        assert self.fusion("f32[32,32]{1,0:T(8,128)S(1)}", "%r0, %x0", "near") == [(0, 4096, 1)]

    def test_a_fusion_is_a_kernel_even_if_it_moves_nothing(self):
        near = "f32[32,32]{1,0:T(8,128)S(1)}"
        twice = f"%twice (x: {near}) -> {near} {{\n  %x = {near} parameter(0)\n  ROOT %y = {near} add(%x, %x)\n}}\n"
        body = f"  ROOT %f = {near} fusion(%r0), kind=kLoop, calls=%twice"
        assert work(body, computations=twice, parameters=self.PARAMETERS, is_scheduled=True) == [(0, 0, 1)]

    def test_copies_that_start_and_end_apart_are_no_kernels(self):
        body = (
            "  %s = (f32[32,32]{1,0:S(1)}, f32[32,32]{1,0}, u32[]) copy-start(%x0)\n"
            "  %d = f32[32,32]{1,0:S(1)} copy-done(%s)\n  ROOT %c = f32[32,32]{0,1} copy(%x0)"
        )
        rows = work_in(module(body, parameters=self.PARAMETERS, is_scheduled=True))
        assert [(row.bytes_moved, row.kernels) for row in rows] == [(4096, 0), (8192, 1)]

    def test_prefetches_read_and_write_once(self):
        body = (
            "  %s = (f32[32,32]{1,0:S(1)}, f32[32,32]{1,0}, u32[]) copy-start(%x0)\n"
            "  ROOT %d = f32[32,32]{1,0:S(1)} copy-done(%s)"
        )
        assert work(body, parameters=self.PARAMETERS, is_scheduled=True) == [(0, 4096, 1)]

    def test_prefetches_of_slices_read_what_they_take(self):
        body = (
            "  %s = ((f32[32,32]{1,0}), f32[8,32]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%x0), slice={[0:8], [0:32]}\n"
            "  ROOT %d = f32[8,32]{1,0:S(1)} slice-done(%s)"
        )
        assert work(body, parameters=self.PARAMETERS, is_scheduled=True) == [(0, 1024, 1)]

    def test_other_ops_are_loops_of_their_own(self):
        body = "  %a = f32[1024]{0} add(%p, %q)\n  ROOT %b = f32[1024]{0} copy(%a)"
        assert work(body, is_scheduled=True) == [(0, 2 * 4096, 1), (0, 3 * 4096, 1)]


@given(
    size=st.integers(1, 12),
    kernel=st.integers(1, 6),
    result=st.integers(1, 14),
    window=st.tuples(st.integers(1, 5), st.integers(-3, 4), st.integers(1, 5), st.integers(1, 3)),
)
def test_positions_are_those_of_an_enumeration(size, kernel, result, window):
    stride, pad, dilation, kernel_dilation = window
    at = np.arange(result)[:, None] * stride + np.arange(kernel)[None] * kernel_dilation - pad
    inside = (at >= 0) & (at <= (size - 1) * dilation) & (at % dilation == 0)
    assert _positions(size, kernel, result, window) == inside.sum()


def test_rows_are_merged_and_sorted():
    body = (
        "  %a = f32[1024] sort(%p), to_apply=%less\n  %b = f32[1024] sort(%q), to_apply=%less\n"
        "  %c = f32[256] slice(%a), slice={[0:256]}\n  ROOT %t = (f32[256], f32[1024]) tuple(%c, %b)"
    )
    assert work_in(module(body)) == (LocalWork(0, 2048, 1), LocalWork(0, 8192, 2))


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        work_in("HloModule m\n")


# ---- against XLA


@pytest.fixture(scope="module")
def child():
    with XlaChild() as child:
        yield child


def total_flops(hlo_text: str) -> int:
    return sum(row.flops * row.runs for row in work_in(hlo_text))


def test_flops_of_the_llama_step_are_those_of_its_matrices(child):
    """Each matrix product of the forward pass has two in the backward pass; nothing is computed twice."""
    compiled = child.compile((EXAMPLES / "llama_train_step.mlir").read_text(), 8, keeps_hlo=True)
    sequences, length, width, heads, kv_heads, head, hidden, vocabulary, layers = 8, 256, 256, 8, 4, 32, 768, 2048, 4
    tokens = sequences * length
    projections = tokens * width * (2 * heads + 2 * kv_heads) * head
    attention = 2 * sequences * heads * length**2 * head
    feed_forward = 3 * tokens * width * hidden
    forward = layers * (projections + attention + feed_forward) + tokens * width * vocabulary
    assert total_flops(compiled.hlo_text) * 8 == 3 * 2 * forward


COST_ANALYSIS = """
import json, sys
from reshard.dialect_utils.xla import worker
request = {"module": open(sys.argv[1]).read(), "num_devices": 8, "keeps_propagated": False}
executable, _, _ = worker._load(request, None, {})
found = executable.cost_analysis()
found = found[0] if isinstance(found, list) else found
print(json.dumps([found["flops"], found["bytes accessed"], executable.hlo_modules()[0].to_string()]))
"""


@pytest.mark.mostly_slow
@pytest.mark.parametrize("name", ["moe_layer", "sequence_parallel_attention"])
def test_xla_analyses_its_final_program_alike(child, name):
    """XLA counts elementwise FLOPs too, and the bytes of collectives; of slices of other layouts it counts all."""
    path = str(EXAMPLES / f"{name}.mlir")
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", COST_ANALYSIS, path], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    xla_flops, xla_bytes, final = json.loads(done.stdout)
    partitioned = child.compile(Path(path).read_text(), 8, keeps_hlo=True).hlo_text
    assert 0.95 * xla_flops <= total_flops(final) == total_flops(partitioned) <= xla_flops
    assert 0.75 * xla_bytes <= sum(row.bytes_moved * row.runs for row in work_in(final)) <= xla_bytes
    assert 0.5 * xla_bytes <= sum(row.bytes_moved * row.runs for row in work_in(partitioned)) <= xla_bytes


def test_a_fusion_in_a_fusion_reads_what_it_slices_and_computes_once():
    """A layer of a stack of weights is sliced inside of the product that takes it, as compilers of TPUs write it."""
    text = """HloModule m, is_scheduled=true
%sliced (stack: f32[16,64,64], at: s32[]) -> f32[64,64] {
  %stack = f32[16,64,64]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %layer = f32[1,64,64]{2,1,0} dynamic-slice(%stack, %at, %zero, %zero), dynamic_slice_sizes={1,64,64}
  ROOT %weights = f32[64,64]{1,0} bitcast(%layer)
}
%product (rows: f32[64,64], all: f32[16,64,64], turn: s32[]) -> f32[64,64] {
  %rows = f32[64,64]{1,0} parameter(0)
  %all = f32[16,64,64]{2,1,0} parameter(1)
  %turn = s32[] parameter(2)
  %of_turn = f32[64,64]{1,0} fusion(%all, %turn), kind=kLoop, calls=%sliced
  ROOT %d = f32[64,64]{1,0} dot(%rows, %of_turn), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY %main (a: f32[64,64], w: f32[16,64,64], i: s32[]) -> f32[64,64] {
  %a = f32[64,64]{1,0} parameter(0)
  %w = f32[16,64,64]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %f = f32[64,64]{1,0} fusion(%a, %w, %i), kind=kOutput, calls=%product
}"""
    assert work_in(text) == (LocalWork(2 * 64**3, 3 * 64 * 64 * 4),)
    outer = """%outer (s: f32[16,64,64], t: s32[]) -> f32[64,64] {
  %s = f32[16,64,64]{2,1,0} parameter(0)
  %t = s32[] parameter(1)
  ROOT %o = f32[64,64]{1,0} fusion(%s, %t), kind=kLoop, calls=%sliced
}
%product ("""
    assert work_in(text.replace("calls=%sliced", "calls=%outer").replace("%product (", outer)) == work_in(text)
