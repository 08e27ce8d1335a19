# SPDX-License-Identifier: Apache-2.0
"""Sizes for people."""

from __future__ import annotations


def bytes_text(num_bytes: float) -> str:
    """Returns bytes in the largest unit that they fill, in three digits.

    Example:
      >>> [bytes_text(each) for each in (0, 1023, 1024, 5 << 19, 3 << 30)]
      ['0', '1023 B', '1 KiB', '2.5 MiB', '3 GiB']
    """
    if not num_bytes:
        return "0"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if num_bytes >= 1 << (10 * power):
            value = num_bytes / (1 << (10 * power))
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def time_text(seconds: float) -> str:
    """Returns seconds in the unit that fits, in three digits.

    Example:
      >>> [time_text(each) for each in (0, 3.2e-5, 0.0123, 2)]
      ['0 us', '32 us', '12.3 ms', '2 s']
    """
    for scale, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    micros = seconds * 1e6
    return f"{micros:.0f} us" if micros >= 100 else f"{micros:.3g} us"
