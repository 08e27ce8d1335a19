# SPDX-License-Identifier: Apache-2.0
"""Numbers of bytes as people write them: 2GiB, 512 MB, 1.5GiB, 4096; and limits of memory."""

from __future__ import annotations

import operator
import os
import re
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard.synthesis.network.topology import Topology

DEVICE = "device"  # as a limit: what one program may fill of a device's memory
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


def limit_text(size: int | str) -> str:
    """Returns a limit of memory as text: `device`, or a number of bytes. Raises: ByteSizeError."""
    return DEVICE if size == DEVICE else str(byte_limit(size))


def memory_limit(size: int | str, topology: Topology) -> int:
    """Returns a limit of memory in bytes per device; `device` is what the network says that a program may fill, and for
    CPU devices an equal part of this host's memory.

    Raises: ByteSizeError, also where nobody says it.

    Example:
      >>> from reshard.synthesis.network.topology import Topology
      >>> [memory_limit(size, Topology.parse("v5e:2x4")) for size in ("12GiB", "device")]
      [12884901888, 16911433728]
    """
    if size != DEVICE:
        return byte_limit(size)
    if topology.device_memory_bytes is not None:
        return int(topology.device_memory_bytes)
    whole = _host_bytes() if topology.platform == "cpu" else 0
    if whole and not topology.size:
        raise ByteSizeError(
            f"how many devices share this host's memory is not known on the network '{topology.name}'; name one that "
            "says it, such as cpu:8, or the bytes, such as 12GiB"
        )
    if part := whole // max(1, topology.size):
        return part
    raise ByteSizeError(
        f"how much memory a device has is not known on the network '{topology.name}'; name one that says it, such as "
        "v5e:2x4, or the bytes, such as 12GiB"
    )


def _host_bytes() -> int:
    """Returns the memory of this host; 0 where the system does not say it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _whole(size) -> int:
    try:
        return operator.index(size)
    except TypeError:
        raise ByteSizeError(f"{size!r} is no whole number of bytes") from None


def _not_negative(number: int, size: int | str) -> int:
    if number < 0:
        raise ByteSizeError(f"'{size}' is negative; a number of bytes is 0 or more")
    return number
