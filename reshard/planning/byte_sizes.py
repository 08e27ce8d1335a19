# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as people write them: 2GiB, 512 MB, 1.5GiB, 4096."""

from __future__ import annotations

import operator
import re
from fractions import Fraction

UNITS = {"": 1, "B": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("KMGT", 1)
    for ending, base in (("iB", 1024), ("B", 1000))
}

_SIZE = re.compile(r"\s*(-?)(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)


class ByteSizeError(ValueError):
    """Raised for a number of bytes that cannot be read; the message is one line in the user's words."""


def byte_size(size: int | str) -> int:
    """Returns a size as a whole number of bytes, rounded down.

    Raises: ByteSizeError for text that is no size, an unknown unit, a negative number.

    Example:
      >>> [byte_size(size) for size in ("2GiB", "1.5 KB", "77", 12)]
      [2147483648, 1500, 77, 12]
    """
    if not isinstance(size, str):
        return _not_negative(_whole(size), size)
    match = _SIZE.fullmatch(size)
    if match is None:
        raise ByteSizeError(f"'{size}' is no number of bytes; write 2GiB, 512MB or 4096")
    sign, number, unit = match.groups()
    scale = UNITS.get(unit[:1].upper() + unit[1:])
    if scale is None:
        raise ByteSizeError(f"unknown unit '{unit}' in '{size}'; known: {', '.join(filter(None, UNITS))}")
    return _not_negative(int(Fraction(number) * scale) * (-1 if sign else 1), size)


def byte_limit(size: int | str) -> int:
    """Returns a limit of memory as a whole number of bytes. Raises: ByteSizeError, also for less than one byte."""
    if (limit := byte_size(size)) < 1:
        raise ByteSizeError(f"'{size}' is no limit of memory: nothing fits into 0 bytes; without a limit, leave it out")
    return limit


def _whole(size) -> int:
    try:
        return operator.index(size)
    except TypeError:
        raise ByteSizeError(f"{size!r} is no whole number of bytes") from None


def _not_negative(number: int, size: int | str) -> int:
    if number < 0:
        raise ByteSizeError(f"'{size}' is negative; a number of bytes is 0 or more")
    return number
