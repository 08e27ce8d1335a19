# SPDX-License-Identifier: Apache-2.0
"""Shapes in HLO text and the bytes that they take."""

import pytest

from reshard.dialect_utils.hlo.text import shape_bytes


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
