# SPDX-License-Identifier: Apache-2.0
"""The search for few changes, on programs whose times are known by a formula."""

import itertools
import random

from reshard.passes.advice.change_search import ChangeSearch, Trial


def search(times, candidates, most=5, budget=200):
    found = ChangeSearch(candidates, times, lambda sets: None, most, budget)
    return found, found.run()


def test_no_change_helps():
    _, changes = search(lambda changes: Trial(1.0 + len(changes)), {0: [None, "a"], 1: [None]})
    assert changes == []


def test_the_changes_that_are_needed_most_come_first():
    gains = {(0, None): 0.1, (1, "b"): 0.3, (2, None): 0.2}
    _, changes = search(
        lambda changes: Trial(1.0 - sum(gains.get(each, -0.1) for each in changes)),
        {0: [None, "a"], 1: [None, "b"], 2: [None]},
    )
    assert changes == [(1, "b"), (2, None), (0, None)]


def test_two_changes_that_help_only_together_are_found():
    def times(changes):
        return Trial(0.5 if {(0, None), (1, None)} <= changes else 1.0 + 0.01 * len(changes))

    _, changes = search(times, {number: [None, "a"] for number in range(4)})
    assert set(changes) == {(0, None), (1, None)}


def test_a_change_that_another_one_has_made_useless_is_left_out():
    """Change 0 gives most at first; 1 and 2 together give all that it gives."""

    def times(changes):
        numbers = {number for number, _ in changes}
        return Trial(1.0 - max(0.3 * (0 in numbers), 0.2 * (1 in numbers) + 0.2 * (2 in numbers)))

    _, changes = search(times, {number: [None] for number in range(3)})
    assert set(changes) == {(1, None), (2, None)}


def test_too_much_memory_on_the_way_is_allowed_but_not_at_the_end():
    def times(changes):
        numbers = {number for number, _ in changes}
        is_large = 0 in numbers and 1 not in numbers
        return Trial(1.0 - 0.2 * len(numbers), 1.1 if is_large else 1.0, "memory" if is_large else "")

    found, changes = search(times, {0: [None], 1: [None]})
    assert set(changes) == {(0, None), (1, None)}
    _, alone = search(times, {0: [None]})
    assert alone == []


def test_the_number_of_changes_and_of_measurements_is_limited():
    def times(changes):
        return Trial(1.0 - 0.05 * len({number for number, _ in changes}))

    found, changes = search(times, {number: [None, "a", "b"] for number in range(10)}, most=3, budget=40)
    assert len(changes) == 3 and len(found.trials) <= 40 + 3 * 3 + 3


def test_a_change_that_was_not_measured_alone_is_found_on_top_of_the_best_set():
    """Half of the measurements are for changes by themselves; here that is the first of each annotation."""
    gains = {(0, "a"): 0.2, (7, "d"): 0.1}
    found, changes = search(
        lambda changes: Trial(1.0 - sum(gains.get(each, -0.1) for each in changes)),
        {number: ["a", "b", "c", "d"] for number in range(20)},
        budget=130,
    )
    assert frozenset({(7, "d")}) in found.trials  # to say what it gives without the other one
    assert changes == [(0, "a"), (7, "d")] and len(found.trials) <= 130 + 3


def test_the_best_set_is_found_where_gains_add_up():
    """Against all sets of at most two changes, with random gains of single changes."""
    for seed in range(30):
        chance = random.Random(seed)
        candidates = {number: [None, "a"] for number in range(5)}
        gains = {(n, new): chance.uniform(-0.1, 0.15) for n, some in candidates.items() for new in some}

        def times(changes, gains=gains):
            return Trial(1.0 - sum(gains[each] for each in changes))

        _, changes = search(times, candidates, most=2)
        sets = [
            frozenset(some)
            for count in range(3)
            for some in itertools.combinations(gains, count)
            if len({number for number, _ in some}) == count
        ]
        best = min(times(each).seconds for each in sets)
        assert times(frozenset(changes)).seconds <= best + 0.011 * 2


def test_a_set_within_the_limits_grows_on_after_one_that_needs_too_much():
    """Annotation 0 gives most and needs too much memory; without it, 1 and 2 give more than nothing."""

    def measured(changes):
        names = {number for number, _ in changes}
        seconds = 1.0 * (0.4 if 0 in names else 1.0) * (0.9 if 1 in names else 1.0) * (0.95 if 2 in names else 1.0)
        return Trial(seconds, 1.5 if 0 in names else 1.0, "memory" if 0 in names else "")

    search = ChangeSearch({0: [None], 1: [None], 2: [None]}, measured, lambda sets: None, 2, 100)
    assert search.run() == [(1, None), (2, None)]


def test_all_changes_of_a_weighty_annotation_are_measured():
    asked = []

    def measured(changes):
        asked.append(changes)
        return Trial(1.0)

    candidates = {number: ["a", "b", "c"] for number in range(10)}
    ChangeSearch(candidates, measured, lambda sets: None, 2, 12, weighty=[9]).run()
    assert {frozenset([(9, new)]) for new in "abc"} <= {*asked}
