# SPDX-License-Identifier: Apache-2.0
"""Numbers with their units, as every command, report and picture prints them."""

from __future__ import annotations

_BINARY = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DECIMAL = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_NEARLY_ONE = 1.005  # below this, two digits after the point would print 1.00


def count(number: int | None, missing: str = "-") -> str:
    """Returns a whole number in groups of three digits, or `missing` for None.

    Example:
      >>> count(1048576), count(None), count(None, missing="")
      ('1,048,576', '-', '')
    """
    return missing if number is None else f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, which takes an s unless the number is 1.

    Example:
      >>> counted(1, "site"), counted(0, "site"), counted(2, "device")
      ('1 site', '0 sites', '2 devices')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def bytes_text(num_bytes: float) -> str:
    """Returns bytes with three digits, in the largest binary unit of which there is at least one.

    Example:
      >>> [bytes_text(each) for each in (0, 1023, 1024, 5 << 19, 3 << 30)]
      ['0', '1023 B', '1 KiB', '2.5 MiB', '3 GiB']
    """
    if not num_bytes:
        return "0"
    for unit, size in _BINARY:
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def needed_and_limit(needed: int, limit: int) -> tuple[str, str]:
    """Returns how many bytes are needed, and how many there are, in one unit and with so many digits that they differ.

    Example:
      >>> needed_and_limit(83361792, 79796634), needed_and_limit(41160, 1000)
      (('79.5 MiB', '76.1 MiB'), ('41,160 B', '1,000 B'))
      >>> needed_and_limit(3 << 30, (3 << 30) - 1), needed_and_limit(614400, 307200)
      (('3,221,225,472 B', '3,221,225,471 B'), ('600.0 KiB', '300.0 KiB'))
    """
    for unit, size in _BINARY:
        texts = f"{needed / size:,.1f} {unit}", f"{limit / size:,.1f} {unit}"
        if min(needed, limit) >= size and (texts[0] != texts[1] or needed == limit):
            return texts
    return f"{needed:,} B", f"{limit:,} B"


def enough_text(num_bytes: int) -> str:
    """Returns bytes as people write a limit that is no smaller, with two or three digits.

    Example:
      >>> [enough_text(each) for each in (1000, 41160, 614400, 83361792)]
      ['1000B', '41KiB', '600KiB', '80MiB']
    """
    for unit, size in _BINARY:
        if num_bytes >= 10 * size:
            return f"{-(-num_bytes // size)}{unit}"
    return f"{num_bytes}B"


def decimal_bytes_text(num_bytes: int) -> str:
    """Returns bytes with four digits, in the largest decimal unit of which there is at least one.

    Decimal units let a reader compare the numbers with exact counts of bytes in the same report.

    Example:
      >>> [decimal_bytes_text(each) for each in (0, 9999, 28672, 7340032, 100663300)]
      ['0 B', '9999 B', '28.67 kB', '7.340 MB', '100.7 MB']
    """
    for unit, size in _DECIMAL:
        if num_bytes >= size and num_bytes >= 10_000:
            digits = max(0, 4 - len(str(num_bytes // size)))
            return f"{num_bytes / size:.{digits}f} {unit}"
    return f"{num_bytes} B"


def mebibytes(num_bytes: int | None, digits: int, missing: str = "-") -> str:
    """Returns bytes in MiB without the unit, for the column of a table; `missing` for None.

    Example:
      >>> mebibytes(3 << 19, 1), mebibytes(1 << 32, 0), mebibytes(None, 2)
      ('1.5', '4,096', '-')
    """
    return missing if num_bytes is None else f"{num_bytes / 2**20:,.{digits}f}"


def bandwidth(bytes_per_s: float | None, digits: int = 6) -> str:
    """Returns a bandwidth in GB/s, rounded to `digits` digits but never to more than whole GB/s; "-" for None.

    Example:
      >>> bandwidth(12.5e9), bandwidth(3.14159e9, digits=3), bandwidth(2e12, digits=3), bandwidth(None)
      ('12.5 GB/s', '3.14 GB/s', '2000 GB/s', '-')
    """
    if bytes_per_s is None:
        return "-"
    value = bytes_per_s / 1e9
    return f"{value:.0f} GB/s" if value >= 10**digits else f"{value:.{digits}g} GB/s"


def time_text(seconds: float) -> str:
    """Returns a time with three digits in s, ms or us.

    Example:
      >>> [time_text(each) for each in (0, 3.2e-5, 0.0123, 2)]
      ['0 us', '32 us', '12.3 ms', '2 s']
    """
    for scale, unit in ((1, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    micros = seconds * 1e6
    return f"{micros:.0f} us" if micros >= 100 else f"{micros:.3g} us"


def microseconds(seconds: float | None) -> str:
    """Returns a time in us, for columns in which all times have one unit; "-" for None.

    Example:
      >>> [microseconds(each) for each in (0.0, 2e-11, 2e-9, 3.72757e-05, 1.5, None)]
      ['0 us', '<0.001 us', '0.002 us', '37.28 us', '1,500,000 us', '-']
    """
    if seconds is None:
        return "-"
    number = seconds * 1e6
    if 0 < number < 0.0005:
        return "<0.001 us"
    digits = 0 if number >= 1000 or not number else 1 if number >= 100 else 2 if number >= 1 else 3
    return f"{number:,.{digits}f} us"


def tenths_of_us(seconds: float | None, missing: str = "none") -> str:
    """Returns microseconds with one digit after the point and without the unit, for the column of a table.

    Example:
      >>> tenths_of_us(0.0012345), tenths_of_us(None)
      ('1,234.5', 'none')
    """
    return missing if seconds is None else f"{seconds * 1e6:,.1f}"


def milliseconds(seconds: float) -> str:
    """Returns a measured time in ms.

    Example:
      >>> milliseconds(0.26149)
      '261.5 ms'
    """
    return f"{seconds * 1e3:,.1f} ms"


def percent(share: float) -> str:
    """Returns a share in whole per cent.

    Example:
      >>> percent(0.046)
      '5 %'
    """
    return f"{100 * share:.0f} %"


def ratio(mine: float, bound: float) -> str:
    """Returns `mine` ÷ `bound` with three digits after the point; "-" if the bound is 0 and `mine` is not.

    Example:
      >>> ratio(3, 2), ratio(0, 0), ratio(3, 0)
      ('1.500', '1.000', '-')
    """
    if mine == bound:
        return "1.000"
    return f"{mine / bound:.3f}" if bound else "-"


def times(other: float, mine: float) -> str:
    """Returns how many times as much the first number is, with the digits that tell it from 1.

    Example:
      >>> times(24, 2), times(3, 2), times(1.0012, 1), times(3, 0)
      ('12x', '1.50x', '1.0012x', 'infinitely')
    """
    if not mine:
        return "infinitely"
    found = other / mine
    return f"{found:.0f}x" if found >= 10 else f"{found:.2f}x" if found >= _NEARLY_ONE else f"{found:.4f}x"
