# SPDX-License-Identifier: Apache-2.0
"""Programs of bfloat16 as programs of float16, so that a compiler for CPU devices measures them as others would.

XLA's compiler for CPU devices computes bfloat16 in float32, and holds what it computes in twice the bytes; compilers
for TPUs and GPUs do not. float16 it computes as it is, but for products, which can be told to it. So where CPU devices
stand in for those of a network, a program is measured with float16 in the place of bfloat16: of the same size
everywhere, and of the same ops. What it computes is of no use then.
"""

from __future__ import annotations

import re

# Texts in quotes stay as they are: names of the user, and what others read.
_IN_MODULE = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[<x])bf16(?=[>,])|(?<=[:=] )bf16\b')
_HAS_FLOAT16 = re.compile(r"(?<![a-z])f16\b|xf16\b")
_IN_HLO = re.compile(r"\bf16\[")


def has_bfloat16_alone(module: str) -> bool:
    """Returns whether the text of a module has bfloat16, and no float16 of its own."""
    return "bf16" in module and not _HAS_FLOAT16.search(module)


def as_float16(module: str) -> str:
    """Returns the text of a module with float16 in the place of bfloat16.

    Example:
      >>> as_float16('%1 = stablehlo.convert %0 : (tensor<4xbf16>) -> tensor<f32> loc("a bf16"("xbf16>":1:1))')
      '%1 = stablehlo.convert %0 : (tensor<4xf16>) -> tensor<f32> loc("a bf16"("xbf16>":1:1))'
    """
    return _IN_MODULE.sub(lambda found: found[0] if found[0].startswith('"') else "f16", module)


def as_bfloat16(hlo_text: str) -> str:
    """Returns the text of an HLO module with bfloat16 in the place of float16.

    Example:
      >>> as_bfloat16("%dot.1 = f16[4,8]{1,0} dot(%a, %b)")
      '%dot.1 = bf16[4,8]{1,0} dot(%a, %b)'
    """
    return _IN_HLO.sub("bf16[", hlo_text)
