# SPDX-License-Identifier: Apache-2.0
"""Numbers with units: the bounds between units, and laws that hold for every number."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshard.planning.byte_sizes import byte_size
from reshard.synthesis.common.numbers import (
    bandwidth,
    bytes_text,
    count,
    counted,
    decimal_bytes_text,
    enough_text,
    mebibytes,
    microseconds,
    milliseconds,
    needed_and_limit,
    percent,
    ratio,
    tenths_of_us,
    time_text,
    times,
)

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def _value(text: str, units: dict[str, float]) -> float:
    number, unit = text.replace(",", "").split(" ")
    return float(number) * units[unit]


@given(st.integers(1, 2**50))
def test_bytes_have_three_digits_and_the_largest_unit(num_bytes):
    text = bytes_text(num_bytes)
    assert _value(text, _BINARY) == pytest.approx(num_bytes, rel=6e-3)
    assert num_bytes < 1024 or float(text.split()[0]) >= 1
    assert num_bytes < 1024 or len(re.sub(r"\D", "", text.split()[0])) <= 4  # 1023 of a unit has four


@given(st.integers(10_000, 10**13))
def test_decimal_bytes_have_four_digits(num_bytes):
    text = decimal_bytes_text(num_bytes)
    assert _value(text, _DECIMAL) == pytest.approx(num_bytes, rel=6e-4)


@given(st.integers(0, 9_999))
def test_few_bytes_are_exact(num_bytes):
    assert decimal_bytes_text(num_bytes) == f"{num_bytes} B"


@given(st.floats(1e-8, 1e4))
def test_times_are_within_half_a_per_cent(seconds):
    assert _value(time_text(seconds), _SECONDS) == pytest.approx(seconds, rel=6e-3)


@given(st.floats(1e-6, 1e3))
def test_times_of_a_column_all_have_one_unit(seconds):
    text = microseconds(seconds)
    assert text.endswith(" us") and _value(text, _SECONDS) == pytest.approx(seconds, rel=6e-3)


@pytest.mark.parametrize(
    "seconds, text", [(999e-6, "999 us"), (1e-3, "1 ms"), (0.999, "999 ms"), (1.0, "1 s"), (9.6e-6, "9.6 us")]
)
def test_units_of_time_change_at_a_thousand(seconds, text):
    assert time_text(seconds) == text


@pytest.mark.parametrize("number, text", [(0, "0"), (999, "999"), (1000, "1,000"), (-1234567, "-1,234,567")])
def test_counts_are_in_groups_of_three_digits(number, text):
    assert count(number) == text


@pytest.mark.parametrize("function", [count, microseconds, bandwidth])
def test_a_missing_number_is_a_dash(function):
    assert function(None) == "-"


def test_a_missing_number_is_what_the_caller_says():
    assert count(None, missing="") == mebibytes(None, 1, missing="") == tenths_of_us(None, missing="") == ""


@pytest.mark.parametrize("number, text", [(0, "0 sites"), (1, "1 site"), (2, "2 sites"), (1024, "1024 sites")])
def test_a_noun_takes_an_s_unless_there_is_one(number, text):
    assert counted(number, "site") == text


@pytest.mark.parametrize(
    "mine, bound, text", [(0, 0, "1.000"), (5, 5, "1.000"), (5, 0, "-"), (5, 4, "1.250"), (1, 3, "0.333")]
)
def test_ratios_to_a_bound(mine, bound, text):
    assert ratio(mine, bound) == text


@pytest.mark.parametrize(
    "other, mine, text",
    [(10, 1, "10x"), (9.99, 1, "9.99x"), (1.004, 1, "1.0040x"), (1, 2, "0.5000x"), (1, 0, "infinitely")],
)
def test_times_as_much_shows_the_digits_that_tell_it_from_one(other, mine, text):
    assert times(other, mine) == text


def test_fixed_units():
    assert (milliseconds(1.23456), percent(0.125), mebibytes(5 << 19, 1)) == ("1,234.6 ms", "12 %", "2.5")
    assert [bandwidth(450e9), bandwidth(3.125e9)] == ["450 GB/s", "3.125 GB/s"]
    assert [bandwidth(each, digits=3) for each in (3.125e9, 999e9, 1234e9)] == ["3.12 GB/s", "999 GB/s", "1234 GB/s"]


@given(st.integers(1, 1 << 60), st.integers(1, 1 << 60))
def test_what_is_needed_and_a_limit_read_apart_and_what_is_enough_is_no_less(needed, limit):
    texts = needed_and_limit(needed, limit)
    assert (texts[0] == texts[1]) == (needed == limit)
    assert needed <= byte_size(enough_text(needed)) <= needed * 1.1 + 1
