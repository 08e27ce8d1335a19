# SPDX-License-Identifier: Apache-2.0
"""Whole numbers that a type of elements holds without rounding, but for those that are too large for it."""

from __future__ import annotations

import re
from typing import Any

from ..platform.bindings import ir

_DIGITS = {"bf16": 8, "f16": 11, "tf32": 11, "f32": 24, "f64": 53}
_NARROW = re.compile(r"f\d+E\d+M(\d+)")  # such as f8E4M3FN, which has four digits, one of them unwritten


def digits_of(element: ir.Type) -> int | None:
    """Returns how many binary digits the numbers of a float type have, or the parts of a complex one; None for other
    types, in which whole numbers are not rounded.

    Example:
      >>> from reshard.dialect_utils.platform.bindings import ir, make_context
      >>> with make_context():
      ...     [digits_of(ir.Type.parse(each)) for each in ("bf16", "f8E4M3FN", "complex<f32>", "ui8")]
      [8, 4, 24, None]
    """
    part: Any = ir.ComplexType(element).element_type if isinstance(element, ir.ComplexType) else element
    narrow = _NARROW.match(str(part))
    return int(narrow[1]) + 1 if narrow else _DIGITS.get(str(part))


def holds_up_to(element: ir.Type, last: int) -> bool:
    """Returns whether a type holds each whole number from 0 to `last` without rounding; integers wrap around instead.

    Example:
      >>> from reshard.dialect_utils.platform.bindings import ir, make_context
      >>> with make_context():
      ...     [holds_up_to(ir.BF16Type.get(), last) for last in (256, 257)]
      [True, False]
    """
    digits = digits_of(element)
    return digits is None or last <= 2**digits


def holds(element: ir.Type, number: int) -> bool:
    """Returns whether a type holds a whole number from 0 on without rounding.

    Example:
      >>> from reshard.dialect_utils.platform.bindings import ir, make_context
      >>> with make_context():
      ...     [holds(ir.BF16Type.get(), number) for number in (257, 258, 259)]
      [False, True, False]
    """
    digits = digits_of(element)
    odd = number // (number & -number) if number else 0
    return digits is None or odd < 2**digits
