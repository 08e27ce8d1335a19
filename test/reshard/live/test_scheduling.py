# SPDX-License-Identifier: Apache-2.0
"""Orders of jobs under a memory limit are compared with all possible orders."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.live import scheduling
from reshard.live.scheduling import Job, LimitError, scheduled

DEVICES = (0, 1)


def job(
    number: int,
    source: int,
    target: int,
    *temporaries: int,
    kind: int | None = None,
    frees: bool = True,
    company: int = 0,
):
    peaks = tuple(source + target + each for each in temporaries or (0,))
    kind = number if kind is None else kind
    return Job(number, kind, company, source, target, DEVICES, DEVICES, peaks, frees)


def held_before(jobs) -> dict[int, int]:
    return dict.fromkeys(DEVICES, sum(each.source_bytes for each in jobs))


def peak_of(order, held: int) -> int:
    """Returns the peak if the jobs run one by one, each in the way with the smallest peak."""
    most = held
    for each in order:
        most = max(most, held + min(each.peaks) - each.source_bytes)
        held += each.target_bytes - (each.source_bytes if each.frees else 0)
    return most


numbers = st.integers(0, 20)


@st.composite
def some_jobs(draw):
    sizes = draw(st.lists(st.tuples(numbers, numbers, numbers, numbers, st.booleans()), min_size=1, max_size=5))
    return [job(i, a, b, c + d, c, frees=frees) for i, (a, b, c, d, frees) in enumerate(sizes)]


@given(some_jobs())
@settings(max_examples=200, deadline=None)
def test_the_least_limit_is_that_of_the_best_of_all_orders(jobs):
    held = held_before(jobs)
    least = min(peak_of(order, held[0]) for order in itertools.permutations(jobs))
    assert scheduled(jobs, held, least).peak_bytes <= least
    if least > held[0]:
        with pytest.raises(LimitError, match=f"needs at least {least:,} bytes"):
            scheduled(jobs, held, least - 1)


@given(some_jobs())
@settings(max_examples=100, deadline=None)
def test_every_job_goes_once_and_the_order_of_the_list_does_not_matter(jobs):
    found = scheduled(jobs, held_before(jobs))
    assert sorted(each.job for batch in found.batches for each in batch) == list(range(len(jobs)))
    assert scheduled(jobs[::-1], held_before(jobs)) == found


def test_without_a_limit_each_job_goes_its_fastest_way():
    found = scheduled([job(0, 4, 4, 9, 1)], held_before([job(0, 4, 4)]))
    assert found.batches[0][0].way == 0 and found.peak_bytes == 17


def test_a_job_goes_the_fastest_way_that_fits():
    jobs = [job(0, 4, 4, 9, 5, 1)]
    assert [scheduled(jobs, {0: 4, 1: 4}, limit).batches[0][0].way for limit in (17, 16, 13, 12, 9)] == [0, 1, 1, 2, 2]


def test_what_a_job_frees_makes_room_for_the_next():
    jobs = [job(0, 4, 8), job(1, 8, 4)]
    found = scheduled(jobs, held_before(jobs), limit=16)
    assert [[each.job for each in batch] for batch in found.batches] == [[1], [0]]


def test_equal_jobs_run_in_groups_of_one_size(monkeypatch):
    monkeypatch.setattr(scheduling, "MOST_BATCH_JOBS", 8)
    jobs = [job(i, 1, 1, kind=0) for i in range(30)]
    assert [len(batch) for batch in scheduled(jobs, held_before(jobs)).batches] == [6] * 5


def test_small_jobs_of_several_kinds_share_a_launch_and_large_ones_do_not():
    large = scheduling.MOST_BATCH_BYTES
    jobs = [job(0, 1, 1), job(1, 1, 1), job(2, large, large), job(3, 1, 1, company=1)]
    batches = {frozenset(each.job for each in batch) for batch in scheduled(jobs, held_before(jobs)).batches}
    assert batches == {frozenset({0, 1}), frozenset({2}), frozenset({3})}


def test_a_device_without_a_source_holds_a_tile_in_its_place():
    moves = Job(0, 0, 0, 8, 4, (0,), (1,), (14,), frees=False)
    assert scheduled([moves], {0: 8, 1: 1}).peak_bytes == 15
