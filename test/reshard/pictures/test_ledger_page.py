# SPDX-License-Identifier: Apache-2.0
"""The page of a program's traffic, and the tables and pictures on it."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from reshard.pictures import ledger_page, memory_over_time
from reshard.pictures.markup import joined

ROW = {
    "kind": "all_gather", "name": "g", "tile": "f32[8]", "runs": 4, "bytes_received": 4096, "seconds": 2e-6,
    "axes": "x", "level": "gpu", "location": "a.py:3:1", "location_chain": [], "op": "stablehlo.tanh", "cause": "site",
    "why": "site 3: wanted otherwise", "site": 3, "parameter": "", "bound_bytes": 2048, "bound_seconds": 1e-6,
    "times_bound": 2.0, "could_overlap": True, "overlap": 0.25,
    "beside": {"op": "dot_general", "place": "a.py:9:1", "seconds": 5e-7},
}  # fmt: skip
SIDE = {"seconds": 2e-6, "bytes_received": 4096, "collectives": [ROW],
        "rest": {"collectives": 2, "seconds": 1e-6, "bytes_received": 8}}  # fmt: skip
MEMORY = {
    "peak_bytes": 4096, "argument_bytes": 1024, "instructions": 3, "moments": [[0, 0], [2048, 0], [16, 1024]],
    "collectives": [{"at": 1, "kind": "all_gather", "runs": 4, "location": "a<b>.py:3:1"}],
    "loops": [{"name": "while.1", "runs": 4, "first": 1, "last": 1}],
}  # fmt: skip


def test_a_cause_that_is_a_site_links_to_its_card_if_the_page_has_one():
    assert '<a href="#card-3">site 3: wanted otherwise</a>' in ledger_page.top_rows(SIDE, "ours", {3})
    assert "<a " not in ledger_page.top_rows(SIDE, "ours", {4})
    assert "and 2 more collectives" in ledger_page.top_rows(SIDE, "ours")


@pytest.mark.parametrize(
    "bound, ratio, shown", [(2048, 2.0, "2.00"), (0, None, "needs 0"), (None, None, "></td>")],
)  # fmt: skip
def test_the_multiple_of_the_bound_is_blank_where_there_is_none(bound, ratio, shown):
    row = {**ROW, "bound_bytes": bound, "times_bound": ratio, "bound_seconds": None}
    drawn = ledger_page._collectives({"seconds": 2e-6, "collectives": [row]}, "stock XLA")
    assert shown in drawn and 'data-v="inf"' not in drawn


def test_what_could_run_beside_a_collective_is_named_with_its_line():
    drawn = ledger_page._collectives({"seconds": 2e-6, "collectives": [ROW]}, "stock XLA")
    assert "yes, 25 %: dot_general at a.py:9:1" in drawn
    none = {**ROW, "could_overlap": False, "beside": None}
    assert ">no</td>" in ledger_page._collectives({"seconds": 2e-6, "collectives": [none]}, "stock XLA")


def test_rows_of_older_data_without_bounds_can_be_shown():
    old = {name: ROW[name] for name in list(ROW)[: list(ROW).index("parameter")]}
    assert ">no</td>" in ledger_page._collectives({"seconds": 2e-6, "collectives": [old]}, "stock XLA")


def test_the_picture_of_the_memory_says_its_peak_and_marks_collectives_and_loops():
    drawn = joined(memory_over_time.parts(MEMORY, "ours"))
    assert (
        "A device holds at most 3 KiB, after 0 collectives of 1" in drawn
        and "the compiler itself counts 4 KiB" in drawn
    )
    assert "<title>all_gather, a&lt;b&gt;.py:3:1, 4 runs</title>" in drawn and "a<b>" not in drawn
    assert "<title>while.1: its body runs 4 times</title>" in drawn
    assert 'role="img" aria-label="ours: A device holds' in drawn


def test_a_program_without_instructions_has_a_picture_too():
    empty = {**MEMORY, "instructions": 0, "moments": [], "collectives": [], "loops": [], "peak_bytes": None}
    assert "at most 1 KiB, after 0 collectives of 0" in joined(memory_over_time.parts(empty, "ours"))


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)).map(list), min_size=1, max_size=30))
def test_the_curve_stays_in_its_picture(moments):
    drawn = joined(memory_over_time.parts({**MEMORY, "moments": moments, "collectives": [], "loops": []}, "ours"))
    heights = [
        float(part.split("H")[0].rstrip("Z"))
        for path in drawn.split(' d="M')[1:]
        for part in path.split('"')[0].split("V")[1:]
    ]
    assert all(0 <= each <= 250 for each in heights)
