# SPDX-License-Identifier: Apache-2.0
"""A law: a plan costs at most as much as the chain of Shardy's own pass, priced as in `redistributions.py`.

By bytes our plan receives at most as much as Shardy's chain. By time our modelled time, with the copies on the device,
is at most as long, and if both times are equal, our plan has at most as many rounds.
"""

import dataclasses

import pytest

from benchmarks.conversions.answers import Peers, as_entry
from benchmarks.conversions.cases import Case, network_cases, random_cases
from benchmarks.conversions.report import Failing, failings
from benchmarks.redistributions import Benchmark, question
from reshard.dialect_utils.compare.peers import Answer

PRESETS = ("uniform", "h100", "v5e", "ethernet")


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch):
    monkeypatch.setenv("RESHARD_CACHE", "off")


def answered(cases: list[Case], folder) -> Benchmark:
    """Returns the cases with our plans and the chains of Shardy's pass; stock XLA is not asked."""
    found = Benchmark(cases, folder)
    with Peers(max(case.pair.mesh.size for case in cases)) as peers:
        for case in cases:
            found.answers.add(question(case, "shardy"), as_entry(peers.ask("shardy", case)))
            found.answers.add(question(case, "xla"), as_entry(Answer("xla", case.pair.mesh.size, "unsupported")))
    found.plan()
    return found


def broken(rows) -> list[str]:
    """Returns each promise about Shardy that a row breaks, with the factor between both costs and the row's case."""
    return [text for failing in failings(rows) if failing.peer == "shardy" for text in _lines(failing)]


def _lines(failing: Failing) -> list[str]:
    return [f"{failing.title}, {over:.6g} times: {row.case} on {row.topology}" for over, row in failing.rows]


def check(cases: list[Case], folder) -> None:
    rows = answered(cases, folder).rows()
    assert len(rows) == len(cases) + sum(len(case.topologies) for case in cases)
    assert all(row.ours.is_ok for row in rows)
    assert sum(row.theirs["shardy"].cost is not None for row in rows) >= 0.98 * len(rows)
    assert broken(rows) == []


@pytest.mark.slow
def test_no_plan_of_a_random_pair_is_dearer(tmp_path):
    check(random_cases((8, 12, 16, 24), 6, 31, PRESETS), tmp_path)


@pytest.mark.slow
def test_no_plan_on_a_named_network_is_dearer(tmp_path):
    check(network_cases(3, 31), tmp_path)


def test_the_law_sees_a_plan_that_is_dearer(tmp_path):
    """A plan that takes a microsecond longer, or receives a byte more, than Shardy's chain breaks the law."""
    rows = answered(random_cases((8,), 2, 31, ("uniform",)), tmp_path).rows()
    assert broken(rows) == []
    for row in rows:
        cost = row.theirs["shardy"].cost
        dearer = {"time_s": cost + 1e-6} if row.topology else {"bytes_received": cost + 1}
        assert broken([dataclasses.replace(row, ours=dataclasses.replace(row.ours, **dearer))]) != []


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(32, 42))
@pytest.mark.parametrize("devices", [8, 12, 16, 24])
def test_no_plan_of_many_random_pairs_is_dearer(devices, seed, tmp_path):
    check(random_cases((devices,), 25, seed, PRESETS), tmp_path)


@pytest.mark.draws
@pytest.mark.slow
@pytest.mark.parametrize("first", range(6))
def test_no_plan_of_many_pairs_on_named_networks_is_dearer(first, tmp_path):
    check(network_cases(100, 32)[first::18], tmp_path)
