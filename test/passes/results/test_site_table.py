# SPDX-License-Identifier: Apache-2.0
"""The table of sites: sites that are decided together have one figure; figures are headed as those of sites alone."""

import random

import pytest

from reshard.passes.results.site_table import reasons_text, spellings_text, table_text, together, totals_text
from reshard.synthesis.layouts.partition_specs import text_of
from reshard.synthesis.layouts.sharding import Sharding


def row(site: int, group: int | str, stock: int | None, ours: int | None, **more) -> dict:
    ends = {"source": '[{"x"}, {}]', "target": '[{}, {"x":(1)2}]'}
    specs = {f"{end}_spec": text_of(Sharding.parse(text)) for end, text in ends.items()}
    numbers = {"bytes_received": 10, "bound_bytes": 5, "largest_tile_bytes": 20}
    costs = {"stock_bytes": stock, "our_bytes": ours, "is_rewritten": True, "reason": "it is better"}
    names = {"location": f"a.py:{site}:1", "kind": "operand", "op": "add", "type": "tensor<8x8xf32>", "chain": "slice"}
    return {"site": site, "group": group, **names, **ends, **specs, **numbers, **costs, "why": f"why {site}", **more}


def test_sites_decided_together_have_one_figure_and_are_neighbours():
    lines = table_text([row(0, 3, 400, 100), row(1, 4, 7, 7), row(2, 3, 400, 100)]).splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["0*", "2*", "1*"]
    assert [line.split()[-3:-1] for line in lines] == [["400", "100"], ["with", "0"], ["7", "7"]]


def test_the_figures_are_headed_as_those_of_sites_alone():
    assert "alone: stock" in table_text([row(0, 0, 1, 1)]).splitlines()[0]


def test_sites_without_figures_have_none():
    lines = table_text([row(0, 3, None, None), row(1, 3, None, None)]).splitlines()[2:]
    assert all(line.split()[-2:] == ["20", "slice"] for line in lines)


def test_sites_of_two_modules_are_never_together():
    assert [len(group) for group in together([row(0, 0, 4, 1), row(1, 0, 4, 1), row(0, 0, 4, 1)])] == [2, 1]


def test_every_site_is_in_one_group():
    rng = random.Random(3)
    rows = [row(site, rng.randrange(4), rng.choice([None, 1, 2]), 1) for site in range(40)]
    assert sorted(each["site"] for group in together(rows) for each in group) == list(range(40))


def test_a_reason_is_told_once_for_sites_that_are_decided_together():
    text = reasons_text([row(0, 3, 400, 100), row(1, 3, 400, 100), row(2, 5, 4, 1)], with_calls=False)
    assert text.splitlines() == [
        "sites 0, 1, decided together: rewritten: it is better",
        "  site 0: why 0",
        "  site 1: why 1",
        "site 2: rewritten: it is better; why 2",
    ]


def test_sites_with_reasons_of_their_own_keep_them():
    text = reasons_text([row(0, 3, 4, 1), row(1, 3, 4, 1, reason="merged into site 0")], with_calls=False)
    assert text.splitlines()[1] == "site 1: rewritten: merged into site 0; why 1"


@pytest.mark.parametrize(("runs", "said"), [(1, ""), (None, ""), (1024, "; used 1,024 times in a step")])
def test_how_often_a_site_runs_is_said_if_it_is_more_than_once(runs, said):
    text = reasons_text([row(0, 3, 4, 1, runs=runs), row(1, 3, 4, 1), row(2, 5, 4, 1, runs=runs)], with_calls=False)
    assert [line for line in text.splitlines() if "why" in line] == [
        f"  site 0: why 0{said}",
        "  site 1: why 1",
        f"site 2: rewritten: it is better; why 2{said}",
    ]


def test_calls_stand_below_the_site():
    calls = [{"function": "f", "location": "a.py:9:1"}, {"function": "", "location": "b.py:1:1"}]
    text = reasons_text([row(0, 0, 4, 1, location_chain=calls)], with_calls=True)
    assert text.splitlines()[1:] == ["    at a.py:9:1 in f", "    at b.py:1:1"]


def test_layouts_have_their_spelling_in_jax_where_there_is_one():
    assert spellings_text([row(0, 0, 1, 1)]).splitlines()[1:] == ["  [{\"x\"}, {}]  P('x', None)"]
    assert spellings_text([row(0, 0, 1, 1, source_spec=None)]) == ""


def test_the_sum_over_sites_says_that_it_is_of_sites_alone():
    totals = {"sites": 2, "rewritten": 1, "left": 1, "stock_bytes": 400, "our_bytes": 100}
    assert totals_text(totals, [row(0, 0, 400, 100)]).splitlines() == [
        "2 sites: 1 rewritten, 1 left to XLA",
        "  sum over the rewritten sites, each compiled alone: 100 bytes received per device, 400 with stock XLA",
    ]
    assert len(totals_text(totals, [row(0, 0, None, None)]).splitlines()) == 1
